"""Names of logs, damage, jobs of many ranks, and what a log may hold that the real ones do not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")

from made_logs import START_NS, MadeLog, reads_in_order

from iobench.errors import MissingFileError
from iobench.storage import darshan_reader
from iobench.storage.darshan_reader import read_run_traces, read_traces

if TYPE_CHECKING:
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

DATA = Path(__file__).parents[2] / "data" / "darshan"
RAW = DATA / "s1_raw_fork"
(WORKER,) = RAW.glob("*-24153_*.darshan")


def test_bad_files_get_a_line_each_and_the_others_are_read(tmp_path: Path) -> None:
    whole = WORKER.read_bytes()
    folder = tmp_path / "logs"
    folder.mkdir()
    bad = {
        "empty.darshan": (b"", "PyDarshan"),
        "text.darshan": (b"not a log, and long enough to be one", "PyDarshan"),
        "newer.darshan": (b"9.99\0\0\0\0" + whole[8:], "PyDarshan"),
        "busy_id1-2_1-2-3-4.darshan_partial": (whole, "is not finished"),
        # The library crashes with what has only a header; the next log is read all the same.
        **{f"cut-{n}.darshan": (whole[:n], "") for n in (16, 1000, 1328)},
    }
    for name, (content, _) in bad.items():
        (folder / name).write_bytes(content)
    (folder / "gone.darshan").symlink_to(tmp_path / "nowhere")
    (tmp_path / "none").mkdir()
    os.mkfifo(tmp_path / "pipe")
    shutil.copy(WORKER, folder / WORKER.name)
    damaged = {"flipped": whole[:2500] + b"\0\1\2" + whole[2503:], "cut": whole[:2000]}
    for name, content in damaged.items():
        (folder / f"{name}.darshan").write_bytes(content)
    more = [tmp_path / name for name in ("none", "missing.darshan", "pipe")]
    trace = read_traces([folder, *more, RAW])
    lines = {Path(line.split(": ")[0]).name: line for line in trace.notes}
    expected = {name: words for name, (_, words) in bad.items()} | {
        "gone.darshan": "cannot be read: No such file",
        "none": "no log of Darshan in this folder",
        "missing.darshan": "cannot be read: No such file",
        "pipe": "is no regular file",
        WORKER.name: f"is of the same process as {folder / WORKER.name}",
    }
    assert lines.keys() == expected.keys()
    assert {name: words for name, words in expected.items() if words in lines[name]} == expected
    assert sorted(each.pid for each in trace.processes) == [-1, -1, 24135, 24153, 24154]
    for each in trace.processes:
        assert bool(each.problems) == (each.pid < 0)
        assert all("Error: " in text and "\0" not in text for text in each.problems)


def test_logs_of_a_run_are_read_and_those_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    assert read_run_traces(tmp_path, {"darshan": {"state": "off"}}) is None
    config = {"darshan": {"state": "on", "logs": ["darshan", "/gone/logs"]}}
    gone = read_run_traces(tmp_path, config)
    shutil.copytree(RAW, tmp_path / "darshan")
    trace = read_run_traces(tmp_path, config)
    assert gone is not None
    assert trace is not None
    assert (len(gone.processes), len(gone.notes)) == (0, 2)
    assert len(trace.processes) == 3
    (line,) = trace.notes
    assert line.startswith("/gone/logs: ")
    with pytest.raises(MissingFileError, match="nowhere: no such file or folder"):
        read_run_traces(tmp_path, config, [tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PATIENCE_S", -1.0, "PyDarshan did not read it in"),
        ("READER", "iobench.storage.no_reader", "with status 1"),
    ],
)
def test_a_reader_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str
) -> None:
    monkeypatch.setattr(darshan_reader, name, value)
    (line,) = read_traces([WORKER]).notes
    assert words in line


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StorageTrace:
    """Return what is read of a job of 300 ranks, a partial log, and two logs of one process."""
    folder = tmp_path_factory.mktemp("made")
    names = [b"/data/shared.nc", b"/data/own.nc", b"<STDIN>", b"/x/a.py"]
    log = MadeLog([*names, b"/runs/a/spans/iobench-clock-marker"], n_ranks=300)
    log.count(0, rank=-1, OPENS=1000, READS=4000, BYTES_READ=4_000_000, MMAPS=-1, READ_TIME=2.5)
    for rank in range(300):
        log.trace(0, reads_in_order(20), rank)
        log.trace(4, reads_in_order(4, nbytes=rank), rank)
    log.count(4, rank=-1, OPENS=300, READS=1200)
    log.count(1, rank=7, OPENS=1, READS=2, BYTES_READ=100)
    log.count(1, rank=8, OPENS=1, READS=3, BYTES_READ=23)
    log.count(2, rank=7, READS=5, BYTES_READ=55)
    log.count(3, rank=8, READS=3, BYTES_READ=33)
    log.trace(1, reads_in_order(3), rank=7, n_writes=1)
    log.write(folder / "me_train_id42-77_1-2-3-4_5.darshan")

    log = MadeLog([b"/data/a", b"/data/b"], partial=frozenset({1}))
    log.count(0, OPENS=1)
    log.trace(0, reads_in_order(3))
    log.write(folder / "partial.darshan")

    MadeLog([]).write(folder / "me_true_id42-79_1-2-3-4_5.darshan")

    log = MadeLog([b"/data/a"], posix_version=9)
    log.count(0, READS=1)
    log.trace(0, reads_in_order(3))
    log.write(folder / "newer.darshan")

    MadeLog([b"/data/own-\xff.nc"]).write(folder / "no-text.darshan")

    log = MadeLog([b"/data/a"])
    log.count(0, READS=1)
    log.write(folder / "me_sh_id42-78_1-2-3-4_5.darshan")
    log.count(0, READS=2)  # other content, same time: a copy that something changed
    log.write(folder / "me_sh_id42-78_1-2-3-5_5.darshan")
    log.start_ns += 10**9  # the shell became another program
    log.write(folder / "me_sh_id42-78_1-2-4-4_5.darshan")
    return read_traces([folder])


def of_log(trace: StorageTrace, start: str) -> list[ProcessTrace]:
    return [each for each in trace.processes if each.path.name.startswith(start)]


def test_a_job_of_many_ranks_is_one_trace(made: StorageTrace) -> None:
    (trace,) = of_log(made, "me_train")
    assert (trace.pid, trace.host) == (77, "")
    assert trace.files == ("/data/shared.nc", "/data/own.nc")
    rows = trace.counters
    assert rows["posix_reads"].tolist() == [4000, 5]
    assert rows["posix_read_nbytes"].tolist() == [4_000_000, 123]
    assert rows["posix_mmaps"].tolist() == [-1, 0]
    assert (rows["stdio_reads"][0], rows["stdio_first_read_ns"][0]) == (0, -1)
    assert (len(trace.segments), len(trace.marks)) == (6_002, 1_200)  # a call that wrote is none


def test_times_keep_their_nanoseconds(made: StorageTrace) -> None:
    (trace,) = of_log(made, "partial")
    starts = trace.segments["start_ns"] - START_NS
    assert starts.tolist() == [1_000_000, 1_020_000, 1_040_000]
    assert np.diff(trace.segments["offset"]).tolist() == [4096, 4096]
    assert trace.partial_modules == ("POSIX",)
    assert (trace.start_ns, trace.pid, trace.job_id, trace.host) == (START_NS, -1, 42, "node-7")


def test_what_a_log_may_lack(made: StorageTrace) -> None:
    (nothing,) = of_log(made, "me_true")
    assert (nothing.pid, nothing.modules, nothing.files, len(nothing.counters)) == (79, (), (), 0)
    (newer,) = of_log(made, "newer")
    (problem,) = newer.problems
    assert problem.startswith("POSIX version 9 cannot be read by PyDarshan")
    assert (len(newer.counters), len(newer.segments)) == (0, 3)
    assert [each.start_ns - START_NS for each in of_log(made, "me_sh")] == [0, 10**9]
    (text,) = (line for line in made.notes if "no-text" in line)
    assert "cannot be read by PyDarshan: 'utf-8' codec can't decode" in text
    (same,) = (line for line in made.notes if "no-text" not in line)
    assert "is of the same process as" in same
