"""Every number that ``tests/data/darshan/README.md`` says a correct reader must find."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("darshan", reason="PyDarshan reads Darshan's logs")

from iobench.storage.darshan_reader import read_traces

if TYPE_CHECKING:
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

DATA = Path(__file__).parents[2] / "data" / "darshan"
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
