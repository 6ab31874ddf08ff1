"""Bytes of hand-made runs by who counted them, and why they differ."""

import pytest
from msgspec.structs import replace
from traced_runs import TracedRun

from iobench.analysis.run import Run
from iobench.findings.storage.figures import storage_of
from iobench.recording.kinds import Kind
from iobench.storage.storage_trace import ModuleState, StorageTrace

BIG = 1_000_000


def raw_run(n_workers=2, n_files=3, named=True):
    """Each worker reads whole files with one call each, and looks at /proc."""
    run = TracedRun(config={"cold_known": True})
    for number in range(n_workers):
        worker = run.worker()
        for index in range(n_files):
            file, at, batch = f"/data/{number}-{index}.bin", 10 * index, index * n_workers + number
            detail = {"detail": file} if named else {}
            worker.span(Kind.READ, at, at + 8, batch=batch, nbytes=BIG, **detail)
            worker.read(file, at + 1, at + 7, 0, BIG)
            worker.look(at + 9, batch, BIG + 120, 0)
    for batch in range(n_workers * n_files):
        run.wait(batch, 5 * batch, 5 * batch + 4, nbytes=BIG)
    return run


def rows(run, trace=None):
    found = storage_of(Run(run.profile(), run.trace() if trace is None else trace).of_rank()).rows
    return {each.name: each for each in found}


def reasons(row):
    return {each.between: (each.nbytes, each.reason) for each in row.differences}


@pytest.mark.parametrize("named", [True, False])
def test_run_processes_and_files(named):
    found = rows(raw_run(named=named))
    assert [each.scope for each in found.values()] == ["run", *["process"] * 2, *["file"] * 6]
    whole = found["run"]
    assert (whole.requested, whole.darshan) == (6 * BIG, 6 * BIG)
    assert (whole.read_calls, whole.device) == (6 * BIG + 720, 0)
    assert reasons(whole) == {
        ("read_calls", "darshan"): (720, ""),
        ("device", "read_calls"): (-6 * BIG - 720, "page cache"),
    }
    assert found["worker-1 (process 102)"].requested == 3 * BIG
    assert found["/data/0-0.bin"].requested == (BIG if named else None)
    assert found["/data/0-0.bin"].darshan == BIG


def test_the_largest_rows_come_first():
    run = raw_run(n_workers=1)
    run.workers[0].span(Kind.READ, 80, 90, batch=0, nbytes=5 * BIG, detail="/data/z.bin")
    run.workers[0].read("/data/z.bin", 81, 89, 0, 5 * BIG)
    files = [each.name for each in rows(run).values() if each.scope == "file"]
    assert files == ["/data/z.bin", "/data/0-0.bin", "/data/0-1.bin", "/data/0-2.bin"]


@pytest.mark.parametrize(
    "change",
    [
        lambda logs: logs[:1],
        lambda logs: (logs[0], replace(logs[1], modules=(ModuleState("POSIX", 9, problem="new"),))),
        lambda logs: (logs[0], replace(logs[1], modules=(ModuleState("POSIX", 4, partial=True),))),
    ],
    ids=["no log", "unreadable", "partial"],
)
def test_what_darshan_did_not_count_of_one_process_is_unknown_of_the_run(change):
    run = raw_run()
    found = rows(run, StorageTrace(change(run.trace().processes)))
    assert found["worker-0 (process 101)"].darshan == 3 * BIG
    assert found["worker-1 (process 102)"].darshan is None
    assert found["run"].darshan is None
    assert found["run"].requested == 6 * BIG


def test_a_file_of_several_processes_is_one_row():
    run = raw_run(n_workers=2, n_files=1)
    for worker in run.workers:
        worker.span(Kind.READ, 20, 28, batch=worker.number, nbytes=10, detail="/data/all.nc:t2m")
        worker.read("/data/all.nc", 21, 22, 0, 10)
    shared = rows(run)["/data/all.nc"]
    assert (shared.requested, shared.darshan) == (20, 20)


def test_the_chunks_of_a_store_are_one_row_and_compressed():
    run = TracedRun()
    worker = run.worker()
    worker.span(Kind.OPEN, 0, 1, batch=0, detail="/data/x.zarr")
    worker.span(Kind.FUSED, 2, 9, batch=0, nbytes=900, label="read+decode", detail="/data/x.zarr")
    worker.read("/data/x.zarr/.zarray", 0.1, 0.2, 0, 40)
    worker.read("/data/x.zarr/0.0", 3, 4, 0, 200)
    worker.read("/data/x.zarr/0.1", 5, 6, 0, 300)
    run.wait(0, 0, 10)
    found = rows(run)
    assert [name for name in found if name.startswith("/data")] == ["/data/x.zarr"]
    assert reasons(found["run"]) == {("darshan", "requested"): (540 - 900, "compression")}


@pytest.mark.parametrize(
    ("kind", "called", "reason"),
    [
        (Kind.READ, 110, "mmap"),
        (Kind.READ, BIG // 2, ""),
        (Kind.FUSED, BIG // 2, "compression"),
        (Kind.FUSED, 110, ""),  # stored in few bytes, or mapped: nobody can tell
    ],
)
def test_what_read_calls_did_not_return(kind, called, reason):
    run = TracedRun(config={"cold_known": True})
    worker = run.worker()
    worker.span(kind, 0, 8, batch=0, nbytes=BIG, label="read+decode" * (kind is Kind.FUSED))
    worker.look(9, 0, called, BIG)
    run.wait(0, 0, 9)
    found = storage_of(Run(run.profile()).of_rank())
    assert reasons(found.rows[0]) == {
        ("read_calls", "requested"): (called - BIG, reason),
        ("device", "read_calls"): (BIG - called, "mmap" if reason == "mmap" else ""),
    }


def test_a_mapping_that_darshan_saw():
    run = TracedRun()
    worker = run.worker()
    worker.span(Kind.READ, 0, 8, batch=0, nbytes=BIG, detail="/data/a.npy")
    worker.read("/data/a.npy", 1, 2, 0, 4096)
    worker.count("/data/a.npy", posix_mmaps=1)
    run.wait(0, 0, 9)
    assert reasons(rows(run)["/data/a.npy"]) == {("darshan", "requested"): (4096 - BIG, "mmap")}


def test_batches_read_by_calls_at_first_and_through_a_mapping_later():
    run = TracedRun(config={"cold_known": True})
    worker = run.worker()
    for batch in range(10):
        at, by_call = 10 * batch, batch < 2
        worker.span(Kind.READ, at, at + 8, batch=batch, nbytes=BIG)
        worker.look(at + 9, batch, 110 + BIG * by_call, BIG if batch < 3 else 0)
        run.wait(batch, at, at + 9)
    found = storage_of(Run(run.profile()).of_rank())
    assert [each.reason for each in found.rows[0].differences] == ["mmap", "mmap"]
    assert found.stages[0].verdict == "mixed"


def test_strays_are_in_no_row():
    run = raw_run(n_workers=1, n_files=1)
    file = "/data/0-0.bin"
    run.workers[0].count(file, stdio_opens=1, stdio_reads=1, posix_opens=1)
    run.workers[0].read(file, 9, 9.5, BIG, 30)
    assert rows(run)["run"].darshan == BIG


def test_reads_of_other_files_are_no_part_of_it():
    run = raw_run(n_workers=1)
    run.workers[0].read("/data/index.json", 200, 201, 0, 12_345)
    found = rows(run)
    assert "/data/index.json" not in found
    assert found["run"].darshan == 3 * BIG


def test_spans_without_bytes_leave_the_stage_unknown():
    run = raw_run(n_workers=1)
    run.workers[0].spans[0]["nbytes"] = -1
    whole = rows(run)["run"]
    assert (whole.requested, whole.darshan) == (None, 3 * BIG)


def test_bytes_of_nested_reads_count_once():
    run = TracedRun()
    worker = run.worker()
    worker.span(Kind.READ, 1, 3, batch=0, nbytes=40, detail="/d/a")
    worker.span(Kind.READ, 4, 6, batch=0, nbytes=60, detail="/d/b")
    worker.span(Kind.FUSED, 0, 8, batch=0, nbytes=100, label="read+decode")
    worker.span(Kind.READ, 9, 10, batch=0, nbytes=7, detail="/d/c")
    run.wait(0, 0, 10)
    assert rows(run, StorageTrace())["run"].requested == 107


def test_a_run_whose_spans_name_only_python_s_files_names_none():
    run = raw_run(named=False)
    before = rows(run)["run"].darshan
    run.workers[0].span(Kind.READ, 200, 201, detail="/opt/lib/python3.11/a.py", nbytes=9)
    found = rows(run)
    assert found["run"].darshan == before
    # Reads outside of stages count as well, for no stage says which files are the loader's.
    run.workers[0].read("/data/more.bin", 302, 303, 0, 7)
    assert rows(run)["run"].darshan == before + 7


def test_nothing_read_is_no_row():
    run = TracedRun()
    run.wait(0, 0, 5)
    found = storage_of(Run(run.profile()).of_rank())
    assert (found.rows, found.stages, found.access, found.sanity) == ((), (), None, None)


def test_files_of_python_itself_are_nobodys_reading():
    run = raw_run()
    package = "/opt/venv/lib/python3.11/site-packages/numpy.dist-info/METADATA"
    run.workers[0].span(Kind.READ, 50, 51, batch=0, nbytes=57_000, detail=package)
    found = rows(run)
    assert package not in found
    assert found["run"].requested == 6 * BIG
    stages = {
        row.stage: row for row in storage_of(Run(run.profile(), run.trace()).of_rank()).stages
    }
    assert stages["read"].busy_ns == 6 * 8_000_000
