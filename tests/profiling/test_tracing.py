"""``iobench profile --darshan``: what it measures is traced, in its own process, and no more."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from iobench.errors import OptionError
from iobench.profiling.config import RunConfig
from iobench.profiling.profile_run import profile
from iobench.profiling.tracing import ProfileTracing
from iobench.storage.darshan_setup import find_runtime


class Notes(list[str]):
    """A screen that keeps what it is told."""

    def note(self, text: str) -> None:
        self.append(text)


def test_off_says_nothing_and_sets_nothing(tmp_path: Path) -> None:
    screen, before = Notes(), dict(os.environ)
    with closing(ProfileTracing(("off",), screen)) as tracing:
        tracing.begin(tmp_path, [], [])
    assert tracing.document["state"] == "off"
    assert (screen, dict(os.environ), list(tmp_path.iterdir())) == ([], before, [])


def test_without_a_runtime_it_measures_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DARSHAN_LIB", "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"):
        monkeypatch.setenv(name, "")
    screen = Notes()
    with closing(ProfileTracing(("auto",), screen)) as tracing:
        tracing.begin(tmp_path, [], [])
    assert tracing.document["state"] == "off"
    (line,) = screen
    assert "not traced: no libdarshan.so" in line


def test_a_process_that_is_not_the_command_lines_is_never_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Path("/soft/libdarshan.so")
    monkeypatch.setattr("iobench.profiling.tracing.ready_runtime", lambda *_: runtime)
    tracing = ProfileTracing(("auto",), Notes())
    assert tracing.document["state"] == "off"
    assert "/soft/libdarshan.so" in tracing.document["reason"]


def test_logs_of_the_users_own_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file or folder"):
        profile(RunConfig(targets=("nothing",), darshan=(str(tmp_path / "logs"),)), Notes())
    tracing = ProfileTracing((str(tmp_path),), Notes())
    assert tracing.document["logs"] == [str(tmp_path)]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_runtime(os.environ) is None, reason="no runtime; DARSHAN_LIB may name one")
@pytest.mark.parametrize("how", ["--framework=workers", "--framework=torch", "--format=tfrecord"])
def test_what_a_profile_reads_is_in_the_logs_of_its_processes(
    iobench, tmp_path: Path, store_dir: Path, how: str
) -> None:
    pytest.importorskip("darshan", reason="reads the logs")
    if "torch" in how:
        pytest.importorskip("torch", reason="loads with torch")
    from iobench.runs.reading import open_profile
    from iobench.storage.darshan_reader import read_traces

    run = tmp_path / "run"
    done = iobench(
        "profile", "maelstrom-ens10", "--tiny", "--store-dir", store_dir, "--out", run, how,
        "--workers", "2", "--batches", "12", "--compute", "none", "--darshan", "auto",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads((run / "run.json").read_text())
    assert told["darshan"]["state"] == "on", told["darshan"]
    trace = read_traces([run / "darshan"])
    counted = sum(int(each.counters["posix_read_nbytes"].sum()) for each in trace.processes)
    segments = sum(int(each.segments["nbytes"].sum()) for each in trace.processes)
    # Samples are packed in GRIB. The stand-in was made by the same command, and is not in the logs.
    assert segments == counted > 12 * told["sample_nbytes"] * 0.1
    assert all(len(each.marks) >= 2 for each in trace.processes)
    pids = {process.pid for process in open_profile(run).processes}
    assert pids == {each.pid for each in trace.processes}
