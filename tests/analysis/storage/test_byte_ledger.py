"""The ledger of hand-made runs: rows, columns, and what changes when a byte is out of place."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traced_runs import TracedRun

from iobench.analysis.run import Run
from iobench.recording.kinds import Kind
from iobench.storage.storage_trace import ModuleState, StorageTrace
from iobench.subjects.storage.figures import storage_of

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


def names(row):
    return {gap.name: gap.nbytes for gap in row.gaps}


@pytest.mark.parametrize("named", [True, False])
def test_run_processes_and_files(named):
    found = rows(raw_run(named=named))
    assert [each.scope for each in found.values()] == ["run", *["process"] * 2, *["file"] * 6]
    whole = found["run"]
    assert (whole.asked, whole.posix, whole.segments) == (6 * BIG,) * 3
    assert (whole.rchar, whole.device) == (6 * BIG + 720, 0)
    assert names(whole) == {"own reads": 720, "page cache": -6 * BIG - 720}
    assert whole.settled
    assert found["worker-1 (process 102)"].asked == 3 * BIG
    assert found["/data/0-0.bin"].asked == (BIG if named else None)
    assert found["/data/0-0.bin"].posix == BIG


def test_the_largest_rows_come_first():
    run = raw_run(n_workers=1)
    run.workers[0].span(Kind.READ, 80, 90, batch=0, nbytes=5 * BIG, detail="/data/z.bin")
    run.workers[0].read("/data/z.bin", 81, 89, 0, 5 * BIG)
    files = [each.name for each in rows(run).values() if each.scope == "file"]
    assert files == ["/data/z.bin", "/data/0-0.bin", "/data/0-1.bin", "/data/0-2.bin"]


def test_a_process_without_a_log_is_named_and_settles_nothing():
    run = raw_run()
    found = rows(run, StorageTrace(run.trace().processes[:1]))
    assert names(found["worker-1 (process 102)"])["no log"] == -3 * BIG
    assert found["worker-1 (process 102)"].posix is None
    assert found["run"].posix == 3 * BIG
    assert names(found["run"])["no log"] == -3 * BIG
    assert not found["run"].settled
    assert found["worker-0 (process 101)"].settled


@pytest.mark.parametrize(
    ("modules", "missing"),
    [
        ((ModuleState("POSIX", 9, problem="newer"),), ("posix+stdio", "asked")),
        ((ModuleState("POSIX", 4), ModuleState("STDIO", 2)), ("posix", "segments")),
    ],
)
def test_a_sum_over_less_than_all_processes_says_so(modules, missing):
    run = raw_run()
    whole, part = run.trace().processes
    part = replace(part, modules=modules, segments=part.segments[:0])
    found = rows(run, StorageTrace((whole, part)))["run"]
    columns = {"posix+stdio": found.posix, "asked": found.asked, "posix": found.posix,
               "segments": found.segments}  # fmt: skip
    (gap,) = (each for each in found.gaps if each.name == "partial log")
    assert gap.between == missing
    assert gap.nbytes == columns[missing[0]] - columns[missing[1]] != 0
    assert not found.settled
    both = StorageTrace(tuple(replace(each, modules=modules) for each in (whole, part)))
    assert "partial log" not in names(rows(run, both)["run"])  # nobody sums what nobody has


def test_a_file_of_several_processes_is_one_row():
    run = raw_run(n_workers=2, n_files=1)
    for worker in run.workers:
        worker.span(Kind.READ, 20, 28, batch=worker.number, nbytes=10, detail="/data/all.nc:t2m")
        worker.read("/data/all.nc", 21, 22, 0, 10)
    shared = rows(run)["/data/all.nc"]
    assert (shared.asked, shared.posix, shared.segments) == (20, 20, 20)


def test_the_chunks_of_a_store_are_one_row():
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
    assert names(found["/data/x.zarr"]) == {"metadata": 40, "compression": 500 - 900}
    assert found["run"].settled


def test_reads_of_other_files_are_no_part_of_it():
    run = raw_run(n_workers=1)
    run.workers[0].read("/data/index.json", 200, 201, 0, 12_345)
    found = rows(run)
    assert "/data/index.json" not in found
    assert found["run"].posix == 3 * BIG


def test_what_is_read_in_no_stage_is_outside_stages():
    run = raw_run(n_workers=1, named=False)
    run.workers[0].read("/data/0-0.bin", 200, 201, 0, 500)
    whole = rows(run)["run"]
    # Nobody looked at /proc then: the kernel's count lacks it, but for the bytes of the looks.
    assert [(gap.nbytes, gap.between) for gap in whole.gaps if gap.name == "outside stages"] == [
        (500, ("posix+stdio", "asked")), (360 - 500, ("rchar", "posix+stdio")),
    ]  # fmt: skip
    assert whole.settled


def test_mapped_files_are_told_by_the_kernels_count():
    run = TracedRun(config={"cold_known": True})
    worker = run.worker()
    for index in range(3):
        file = f"/data/{index}.npy"
        worker.span(Kind.READ, 10 * index, 10 * index + 8, batch=index, nbytes=BIG, detail=file)
        worker.read(file, 10 * index + 1, 10 * index + 2, 0, 4096)
        worker.look(10 * index + 9, index, 4096 + 115, BIG + 3968)
        run.wait(index, 10 * index, 10 * index + 9)
    whole = rows(run)["run"]
    between = {gap.between: gap.nbytes for gap in whole.gaps if gap.name == "mapping"}
    assert between["posix+stdio", "asked"] == 3 * (4096 - BIG)
    assert between["device", "rchar"] == 3 * (BIG - 4096 - 115)
    assert whole.settled
    run.workers[0].spans = [each for each in worker.spans if "flags" not in each]
    assert not rows(run)["run"].settled


def test_mapped_files_without_a_tracer():
    run = TracedRun(config={"cold_known": True})
    worker = run.worker()
    worker.span(Kind.READ, 0, 8, batch=0, nbytes=BIG)
    worker.look(9, 0, 110, BIG + 3968)
    run.wait(0, 0, 9)
    found = storage_of(Run(run.profile()).of_rank())
    assert found.rows[0].settled
    assert [(gap.name, gap.nbytes) for gap in found.rows[0].gaps] == [
        ("mapping", 110 - BIG), ("mapping", BIG - 110), ("read-ahead", 3968),
    ]  # fmt: skip
    assert found.stages[0].verdict == "from device"


def test_batches_read_by_calls_at_first_and_through_a_mapping_later():
    run = TracedRun(config={"cold_known": True})
    worker = run.worker()
    for batch in range(10):
        at, by_call = 10 * batch, batch < 2
        worker.span(Kind.READ, at, at + 8, batch=batch, nbytes=BIG)
        worker.look(at + 9, batch, 110 + BIG * by_call, BIG if batch < 3 else 0)
        run.wait(batch, at, at + 9)
    found = storage_of(Run(run.profile()).of_rank())
    assert [(gap.name, gap.between[1]) for gap in found.rows[0].gaps] == [
        ("mapping", "asked"), ("mapping", "rchar"),
    ]  # fmt: skip
    assert found.rows[0].settled
    assert found.stages[0].verdict == "mixed"
    decoded = [{**each, "kind": Kind.FUSED} for each in worker.spans]
    run.workers[0].spans = decoded
    assert not storage_of(Run(run.profile()).of_rank()).rows[0].settled


def test_spans_that_do_not_tell_leave_the_stage_unknown():
    run = raw_run(n_workers=1)
    run.workers[0].spans[0]["nbytes"] = -1
    whole = rows(run)["run"]
    assert whole.asked is None
    assert whole.posix == 3 * BIG
    assert not whole.settled


def test_bytes_of_nested_reads_count_once():
    run = TracedRun()
    worker = run.worker()
    worker.span(Kind.READ, 1, 3, batch=0, nbytes=40, detail="/d/a")
    worker.span(Kind.READ, 4, 6, batch=0, nbytes=60, detail="/d/b")
    worker.span(Kind.FUSED, 0, 8, batch=0, nbytes=100, label="read+decode")
    worker.span(Kind.READ, 9, 10, batch=0, nbytes=7, detail="/d/c")
    run.wait(0, 0, 10)
    assert rows(run, StorageTrace())["run"].asked == 107


def test_a_process_without_spans_may_have_a_log():
    run = TracedRun()
    run.worker().read("/data/a.bin", 1, 2, 0, BIG)
    profile = run.profile()
    found = storage_of(Run(replace(profile, spans=profile.spans[:0]), run.trace()).of_rank())
    assert [each.posix for each in found.rows] == [BIG] * 3
    assert found.traced.coverage.n_placed == 0


def test_a_run_whose_spans_name_only_python_s_files_names_none():
    run = raw_run(named=False)
    want = rows(run)["run"].posix
    run.workers[0].span(Kind.READ, 200, 201, detail="/opt/lib/python3.11/a.py", nbytes=9)
    found = rows(run)
    assert found["run"].posix == want
    # Reads outside of stages count as well, for no stage says which files are the loader's.
    run.workers[0].read("/data/0-0.bin", 300, 301, 0, 5)
    assert rows(run)["run"].posix == want + 5
    run.workers[0].read("/data/more.bin", 302, 303, 0, 7)
    assert rows(run)["run"].posix == want + 12


def test_nothing_read_is_no_ledger():
    run = TracedRun()
    run.wait(0, 0, 5)
    found = storage_of(Run(run.profile()).of_rank())
    assert (found.rows, found.stages, found.costliest) == ((), (), ())
    assert found.access is None
    assert found.sanity is None


@given(
    st.integers(0, 1),
    st.sampled_from(["posix_read_nbytes", "stdio_read_nbytes", "segments", "asked", "rchar"]),
    st.integers(5000, 900_000),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_a_byte_out_of_place_is_never_settled(number, column, more, less, named):
    run = raw_run(n_files=2, named=named)
    profile, trace = run.profile(), run.trace()
    change = -more if less and column != "stdio_read_nbytes" else more
    log = trace.processes[number]
    if column == "segments":
        segments = log.segments.copy()
        segments["nbytes"][0] += change
        changed = replace(log, segments=segments)
    elif column in log.counters.dtype.names:
        counters = log.counters.copy()
        counters[column][0] = max(counters[column][0], 0) + change
        counters["stdio_reads"][0] = 1 if column == "stdio_read_nbytes" else -1
        changed = replace(log, counters=counters)
    else:
        is_look = (profile.spans["flags"] != 0) == (column == "rchar")
        kind = profile.spans["kind"] == Kind.READ
        rows = np.flatnonzero(kind & is_look & (profile.spans["process"] == number + 1))
        profile.spans["nbytes"][rows[-1]] += change
        changed = log
    logs = tuple(changed if each is log else each for each in trace.processes)
    found = storage_of(Run(profile, StorageTrace(logs)).of_rank()).rows
    assert not found[0].settled
    assert [each.settled for each in found if each.scope == "process"].count(False) == 1


def test_files_of_python_itself_are_nobodys_reading():
    run = raw_run()
    package = "/opt/venv/lib/python3.11/site-packages/numpy.dist-info/METADATA"
    run.workers[0].span(Kind.READ, 50, 51, batch=0, nbytes=57_000, detail=package)
    found = rows(run)
    assert package not in found
    assert found["run"].asked == 6 * BIG
    assert found["run"].settled
    stages = {
        row.stage: row for row in storage_of(Run(run.profile(), run.trace()).of_rank()).stages
    }
    assert stages["read"].busy_ns == 6 * 8_000_000
