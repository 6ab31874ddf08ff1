"""Where adapters record, and where they keep silent."""

# ruff: noqa: PTH123, SIM115 - the builtin itself is what is tested

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import iobench
from iobench.adapters.installed import install, uninstall
from iobench.adapters.scope import loading, quiet
from iobench.errors import OptionError
from iobench.recording.activation import activate, active_recorder
from iobench.recording.outside import DETAIL_LIMIT
from iobench.recording.recorder import Recorder

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def array(tmp_path: Path) -> Path:
    path = tmp_path / "array.npy"
    np.save(path, np.arange(100.0))
    return path


def test_a_consumer_is_timed_only_while_it_loads(watch: Any, array: Path) -> None:
    def work() -> None:
        np.load(array)
        with loading():
            np.load(array)
            with loading():
                pass
            np.load(array)
        np.load(array)

    watch(work, role="consumer")
    assert watch.stages == ["read", "read"]


def test_everywhere_is_everywhere_and_wins(watch: Any, array: Path) -> None:
    install(where="everywhere")
    install(where="loading")
    watch(lambda: np.load(array), role="consumer")
    assert watch.stages == ["read"]
    uninstall()
    install()
    watch(lambda: np.load(array), role="consumer")
    assert watch.stages == []


@pytest.mark.parametrize("role", ["worker", "child"])
def test_other_processes_are_timed_throughout(watch: Any, array: Path, role: str) -> None:
    watch(lambda: np.load(array), role=role)
    assert watch.stages == ["read"]


def test_where_is_checked() -> None:
    with pytest.raises(OptionError, match="where='here': expected 'loading' or 'everywhere'"):
        install(where="here")  # type: ignore[arg-type]


def test_the_outermost_call_is_one_span(watch: Any, array: Path) -> None:
    answer = watch(lambda: np.load(array))  # opens, and reads with fromfile
    assert answer.sum() == 4950
    assert [(span.kind, span.nbytes) for span in watch.spans] == [("read", 800)]
    assert watch.spans[0].detail == str(array)


@pytest.mark.parametrize("name", ["open", "read", "decode", "verify", "preprocess", "collate"])
def test_a_stage_named_exactly_is_not_timed_again(watch: Any, array: Path, name: str) -> None:
    def work() -> None:
        with iobench.stage(name):
            np.load(array)
        np.load(array)

    watch(work)
    assert watch.stages == [name, "read"]


@pytest.mark.parametrize("name", ["fused", "opaque", "load my data", "forward"])
def test_a_stage_that_is_not_split_is_split_from_outside(
    watch: Any, array: Path, name: str
) -> None:
    def work() -> None:
        with iobench.stage(name):
            np.load(array)

    watch(work)
    inner, outer = watch.spans
    assert inner.kind == "read"
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns


def test_an_error_ends_what_it_passes(watch: Any, array: Path) -> None:
    def work() -> None:
        for scope in (quiet(), loading(), iobench.stage("read")):
            with pytest.raises(ZeroDivisionError), scope:
                raise ZeroDivisionError
        with pytest.raises(FileNotFoundError):
            np.load(array.parent / "gone.npy")
        np.load(array)

    watch(work)
    assert watch.stages == ["read", "read", "read"]
    assert [span.nbytes for span in watch.spans] == [-1, -1, 800]


def test_quiet_is_of_a_thread(watch: Any, array: Path) -> None:
    def work() -> None:
        other = threading.Thread(target=np.load, args=(array,), name="reader")
        with quiet(), quiet():
            other.start()
            other.join()
            np.load(array)

    watch(work)
    assert [(span.kind, span.thread) for span in watch.spans] == [("read", "reader")]


def test_two_threads_at_once_have_spans_of_their_own(watch: Any, array: Path) -> None:
    n_loads, start = 50, threading.Barrier(2)
    recorder_seen = []

    def load(batch: int) -> None:
        recorder = active_recorder()
        assert recorder is not None
        recorder_seen.append(recorder)
        recorder.position(batch, 1, batch + 5)
        start.wait()
        for _ in range(n_loads):
            np.load(array)

    def work() -> None:
        threads = [threading.Thread(target=load, args=(batch,)) for batch in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    watch(work)
    assert len(watch.spans) == 2 * n_loads
    for batch in range(2):
        mine = [span for span in watch.spans if span.batch == batch]
        assert len(mine) == n_loads
        assert {(span.epoch, span.sample) for span in mine} == {(1, batch + 5)}
        ends = [span.end_ns for span in mine]
        assert ends == sorted(ends)


def test_names_of_files_are_kept_up_to_a_limit(watch: Any, tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"1")
    extra = 40
    recorder = Recorder(tmp_path / "spans", role="worker")
    with activate(recorder), recorder:
        for number in range(DETAIL_LIMIT + extra):
            with pytest.raises(FileNotFoundError):
                open(f"{path}-{number}", "rb")
        open(path, "rb").close()
    assert recorder.path is not None
    spans = watch.read(recorder.path)
    assert len(spans) == DETAIL_LIMIT + extra + 1
    named = [span for span in spans if span.detail]
    assert len(named) == DETAIL_LIMIT
    assert spans[-1].detail == ""


def test_nothing_is_recorded_without_a_recorder(watch: Any, array: Path, tmp_path: Path) -> None:
    with quiet(), loading():
        assert np.load(array).sum() == 4950
    recorder = Recorder(tmp_path / "spans", role="worker")
    with recorder:
        np.load(array)
    assert recorder.path is not None
    assert watch.read(recorder.path) == []


def test_a_recorder_that_fails_disturbs_nothing(array: Path, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "spans", role="worker")
    recorder.close()
    with activate(recorder):
        assert np.load(array).sum() == 4950
        assert array.read_bytes()[:6] == b"\x93NUMPY"
    assert recorder.lost > 0


FORKED = """
    import os, sys
    from pathlib import Path
    import numpy as np
    from iobench.adapters.installed import install, uninstall, unseen
    from iobench.adapters.scope import loading, quiet
    from iobench.recording.activation import activate
    from iobench.recording.recorder import Recorder
    from iobench.recording.span_reader import read_span_file

    folder = Path(sys.argv[1])
    np.save(folder / "a.npy", np.arange(3))
    install()
    recorder = Recorder(folder / "spans", role="consumer")
    with activate(recorder), loading():
        pid = os.fork()
        np.load(folder / "a.npy")  # the child makes its file at this, with timed functions
        if pid == 0:
            recorder.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    recorder.close()
    uninstall()
    files = [read_span_file(path) for path in sorted((folder / "spans").glob("*.spans"))]
    print(sorted((file.role, [int(kind) for kind in file.spans["kind"]]) for file in files))
"""


def test_a_forked_child_goes_on_in_a_file_of_its_own(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (answer.stderr, answer.stdout) == ("", "[('child', [2]), ('consumer', [2])]\n")


def test_a_stage_on_a_closed_recorder_leaves_the_thread_as_it_was(
    watch: Any, array: Path, tmp_path: Path
) -> None:
    closed = Recorder(tmp_path / "closed", role="worker")
    with activate(closed):
        with iobench.stage("read"):
            closed.close()
        with iobench.stage("read"):
            np.load(array)
        lane = closed._local.lane
        assert (lane.quiet, lane.loading) == (0, 0)
    assert closed.lost == 2
