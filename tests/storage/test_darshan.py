"""Every number that ``tests/data/darshan/README.md`` says; logs that are damaged."""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")

from iobench.errors import MissingFileError
from iobench.storage import darshan_reader
from iobench.storage.darshan_reader import read_run_traces, read_traces
from tests.support.made_logs import START_NS, MadeLog, reads_in_order

if TYPE_CHECKING:
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

DATA = Path(__file__).parents[1] / "data" / "darshan"
RUNS = sorted(path.parent.name for path in DATA.glob("*/expected.json"))
EXPECTED = {run: json.loads((DATA / run / "expected.json").read_text()) for run in RUNS}
LOGS = [(run, expected) for run in RUNS for expected in EXPECTED[run]["logs"]]
KINDS = {
    "POSIX": ("posix_opens", "posix_reads", "posix_read_nbytes"),
    "STDIO": ("stdio_opens", "stdio_reads", "stdio_read_nbytes"),
}
DATA_FILES = "/srv/iobench-demo/"


@functools.cache
def all_logs() -> StorageTrace:
    return read_traces([DATA])


def run_of(name: str) -> dict[int, ProcessTrace]:
    return {each.pid: each for each in all_logs().processes if each.path.parent.name == name}


def of_data(trace: ProcessTrace) -> np.ndarray[Any, Any]:
    """Return for each file whether it is of the data set."""
    return np.array([name.startswith(DATA_FILES) for name in trace.files], bool)


def data_rows(trace: ProcessTrace) -> np.ndarray[Any, Any]:
    rows = trace.counters
    return rows[of_data(trace)[rows["file"]]] if len(rows) else rows


def data_reads(trace: ProcessTrace) -> np.ndarray[Any, Any]:
    segments = trace.segments
    kept = of_data(trace)[segments["file"]] if len(segments) else np.zeros(0, bool)
    return segments[kept]


def test_every_log_is_read_and_none_refused() -> None:
    trace = all_logs()
    assert trace.notes == ()
    found = {each.path.name for each in trace.processes}
    logs = [path.name for path in DATA.rglob("*.darshan")]
    assert (len(logs), found) == (23, set(logs))


@pytest.mark.parametrize(("run", "expected"), LOGS, ids=lambda value: str(value)[:16])
def test_a_log_is_read_as_its_runs_page_says(run: str, expected: dict[str, Any]) -> None:
    trace = run_of(run)[expected["pid"]]
    assert trace.path.name == expected["log"]
    assert trace.job_id == expected["jobid"]
    assert trace.start_ns == expected["start_time_sec"] * 10**9 + expected["start_time_nsec"]
    modules = {each.name: {"partial": each.partial, "ver": each.version} for each in trace.modules}
    assert modules == expected["modules"]
    rows = {trace.files[row["file"]]: row for row in data_rows(trace)}
    for module, (opens, reads, nbytes) in KINDS.items():
        files = expected.get(module, {}).get("data_files", {})
        assert {name for name, row in rows.items() if row[opens] > 0} == set(files)
        for name, wanted in files.items():
            row = rows[name]
            assert [row[opens], row[reads], row[nbytes]] == [
                wanted["opens"], wanted["reads"], wanted["bytes_read"],
            ]  # fmt: skip
            if module == "STDIO":
                spent_s = row["stdio_read_ns"] / 1e9
                assert spent_s == pytest.approx(wanted["f_read_time"], abs=1e-6)
        totals = expected.get(module, {}).get("data_totals", {})
        for column, wanted in ((opens, "opens"), (reads, "reads"), (nbytes, "bytes_read")):
            assert sum(row[column].clip(0) for row in rows.values()) == totals.get(wanted, 0)
    reads = data_reads(trace)
    wanted = expected.get("DXT_POSIX", {"data_files": 0, "read_segments": 0, "bytes": 0})
    assert len(np.unique(reads["file"])) == wanted["data_files"]
    assert (len(reads), reads["nbytes"].sum()) == (wanted["read_segments"], wanted["bytes"])
    segments = trace.segments
    assert (np.diff(segments["start_ns"]) >= 0).all()
    assert (segments["start_ns"] >= trace.start_ns).all()
    assert (segments["end_ns"] >= segments["start_ns"]).all()


def test_a_killed_worker_leaves_its_counters(tmp_path: Path) -> None:
    traces = run_of("s5_sigkill")
    assert set(traces) == {22385, 22393}
    (packed,) = (DATA / "s5_sigkill").glob("*.gz")
    (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    (trace,) = read_traces([tmp_path]).processes
    assert (trace.pid, trace.job_id) == (-1, 22385)
    rows = data_rows(trace)
    assert len(rows) == 13
    assert (rows["posix_reads"].sum(), rows["posix_read_nbytes"].sum()) == (24, 24_577_536)
    assert "DXT_POSIX" not in {each.name for each in trace.modules}
    assert len(trace.segments) == 0
    assert len(data_reads(traces[22393])) == 24


def public(name: str) -> list[ProcessTrace]:
    return [each for each in all_logs().processes if each.path.name == name]


def test_a_log_of_an_mpi_job_is_one_trace() -> None:
    (trace,) = public("sample-dxt-simple.darshan")
    assert (trace.pid, len(trace.segments)) == (-1, 0)  # all calls of it wrote
    assert len(trace.counters) == len(trace.files)


def test_an_old_log_of_a_job_of_one() -> None:
    (trace,) = public("dxt.darshan")
    assert (len(trace.segments), trace.segments["nbytes"].sum()) == (6126, 22_517_726)


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


def test_a_job_of_many_ranks_is_one_trace_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    log = MadeLog([b"/data/shared.nc", b"/data/own.nc", b"<STDIN>", b"/x/a.py"], n_ranks=300)
    log.count(0, rank=-1, OPENS=1000, READS=4000, BYTES_READ=4_000_000, MMAPS=-1, READ_TIME=2.5)
    for rank in range(300):
        log.trace(0, reads_in_order(20), rank)
    for rank, n_reads, nbytes in ((7, 2, 100), (8, 3, 23)):
        log.count(1, rank=rank, OPENS=1, READS=n_reads, BYTES_READ=nbytes)
    log.trace(1, reads_in_order(3), rank=7, n_writes=1)
    log.write(tmp_path / "me_train_id42-77_1-2-3-4_5.darshan")
    log = MadeLog([b"/data/a"], posix_version=9, partial=frozenset({1}))
    log.count(0, READS=1)
    log.trace(0, reads_in_order(3))
    log.write(tmp_path / "newer.darshan")
    MadeLog([b"/data/own-\xff.nc"]).write(tmp_path / "no-text.darshan")
    traces = read_traces([tmp_path])
    job, newer = sorted(traces.processes, key=lambda each: each.path.name)
    assert (job.pid, job.host, job.files) == (77, "", ("/data/shared.nc", "/data/own.nc"))
    assert job.counters["posix_reads"].tolist() == [4000, 5]
    assert job.counters["posix_read_nbytes"].tolist() == [4_000_000, 123]
    assert job.counters["posix_mmaps"].tolist() == [-1, 0]
    assert len(job.segments) == 6_002  # a call that wrote is none
    starts = newer.segments["start_ns"] - START_NS
    assert starts.tolist() == [1_000_000, 1_020_000, 1_040_000]
    assert newer.problems[0].startswith("POSIX version 9 cannot be read by PyDarshan")
    assert (newer.partial_modules, len(newer.counters)) == (("POSIX",), 0)
    assert "cannot be read by PyDarshan: 'utf-8' codec can't decode" in traces.notes[0]
