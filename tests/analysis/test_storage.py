"""Storage beside hand-made runs: logs by their markers, reads in stages, bytes by who counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from traced_runs import MODULES, MS, TracedRun

from iobench.analysis.placement import place_segments
from iobench.analysis.read_spans import FileNames
from iobench.findings.storage import storage_of
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import ModuleState, StorageTrace

BIG = 1_000_000
COLD = {"cold_known": True}
FILE = "/data/a.bin"
LATE = 3
"""By how many milliseconds the clocks of logs are behind."""
FILES = tuple(f"/data/{number}.npy" for number in range(20))
STARTS = (np.cumsum(np.arange(20) % 7 + 3)).tolist()
"""Of 20 stages of 2 ms, at uneven distances."""
WORKER = "worker-0 (process 101)"
POSIX, DXT = ModuleState("POSIX", 4), ModuleState("DXT_POSIX", 1)


def visits(*, named=True, margin=0.01, run=None):
    """Return a run whose worker reads 20 files in stages of their own; the log's clock is late."""
    run = run or TracedRun()
    worker = run.worker()
    worker.late_ms = LATE
    for number, at in enumerate(STARTS):
        detail = FILES[number] if named else ""
        worker.span(Kind.READ, at, at + 2, batch=number, nbytes=10, detail=detail)
        worker.read(FILES[number], at + margin, at + 2 - margin, 0, 10)
        run.wait(number, at, at + 2)
    return run


def placed(run, *logs):
    """Return the reads of a run in its stages by these logs, else by those of its workers."""
    if isinstance(run, TracedRun):
        logs, run = logs or run.trace().processes, run.data()
    return place_segments(run, StorageTrace(logs))


def coverage_of(run, *logs):
    return placed(run, *logs).coverage


def stage_ms(run, *logs):
    """Return the time of each stage, and of reads in it."""
    stages = run.figures(StorageTrace(logs) if logs else None).in_stages
    return {
        stage: (each.busy_ns / MS, None if each.storage_ns is None else each.storage_ns / MS)
        for stage, each in stages.items()
    }


# Logs of processes, and reads in stages.


def test_what_the_marker_leaves_open_puts_no_read_beyond_its_stage():
    assert coverage_of(visits(margin=-0.001)).n_placed == 20
    assert coverage_of(visits(margin=-0.01)).n_placed == 0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_innermost_stage_that_names_the_file_has_the_read(seed):
    rng = np.random.default_rng(seed)
    run, stages = TracedRun(), []
    worker = run.worker()
    run.wait(0, 0, 200)
    for number in range(12):  # of threads, nested three deep in each
        start, length = int(rng.integers(0, 80)), int(rng.integers(10, 90))
        text = (*FILES[:2], "")[int(rng.integers(0, 3))]
        for depth in range(3):
            low, high = start + depth, start + length - depth
            worker.span(Kind.READ, low, high, batch=0, thread=number, detail=text)
            stages.append((low, high, text))
    for file in FILES[:2]:
        worker.read(file, *sorted(rng.integers(0, 180, 2).tolist()), 0, 10)
    data = run.data()
    (process,) = place_segments(data, run.trace()).processes
    names = {text for *_, text in stages}
    for read in process.segments:
        name = process.files[read["file"]]
        inside = [
            (high - low, text)
            for low, high, text in stages
            if low * MS <= read["start_ns"] and read["end_ns"] <= high * MS
        ]
        around = [each for each in inside if each[1] == name]
        around = around or [each for each in inside if not each[1] and name not in names]
        if not around:
            assert read["span"] < 0
        else:
            span = data.spans[read["span"]]
            length, text = min(around)
            assert (span["end_ns"] - span["start_ns"]) == length * MS
            assert data.strings[span["detail"]] == text


@pytest.mark.parametrize(
    ("offset", "nbytes", "opens", "n_stray"),
    [
        (10, 4, 2, 1),  # follows the end of the file
        (9, 4, 2, 0),  # begins within the file
        (10, 0, 2, 0),  # carries nothing
        (10, 4, 1, 0),  # the descriptor was never duplicated
    ],
)
def test_strays_are_reads_after_the_end_of_a_duplicated_file(offset, nbytes, opens, n_stray):
    run = visits()
    worker, at = run.workers[0], STARTS[0]
    worker.count(FILES[0], stdio_opens=1, stdio_reads=1, stdio_read_nbytes=10)
    worker.read(FILES[0], at + 2.03, at + 2.035, offset, nbytes)
    worker.counters[FILES[0]]["posix_opens"] = opens
    assert sum(each.segments["stray"].sum() for each in placed(run).processes) == n_stray
    assert coverage_of(run).n_placed == 20


def holders(data, *logs):
    """Return the names of the processes that have logs."""
    return [data.processes[each.process].name for each in placed(data, *logs).processes]


def test_a_log_is_of_the_process_of_its_host():
    run = visits()  # and of a worker with the same number elsewhere
    run.worker().span(Kind.READ, 0, 1, batch=0, nbytes=5, detail=FILES[0])
    data = run.data()
    main, first, second = data.processes
    data = replace(data, processes=(main, first, replace(second, pid=first.pid, host="other")))
    there = replace(run.workers[0].log(), host="other.example")
    assert holders(data, there) == ["worker-1"]
    assert holders(visits().data(), replace(there, host="")) == ["worker-0"]
    elsewhere = coverage_of(visits(), replace(there, host="elsewhere"))
    assert (elsewhere.n_logs, elsewhere.others.n_logs) == (0, 1)


def test_one_process_may_have_two_entries_and_one_log():
    # A spawned worker records what its main module reads before the loader names it.
    run = TracedRun()
    run.worker().span(Kind.READ, 0, 1, batch=0, nbytes=5, detail=FILES[0])
    data = visits(run=run).data()
    main, child, worker = data.processes
    before = tuple(
        replace(each, monotonic_ns=each.monotonic_ns - MS, wall_ns=each.wall_ns - MS)
        for each in child.anchors
    )
    child = replace(child, pid=worker.pid, anchors=before)
    data = replace(data, processes=(main, child, worker))
    log = run.workers[1].log()
    assert holders(data, log) == ["worker-1"]
    coverage = coverage_of(data, log)
    assert (coverage.n_logs, coverage.n_expected, coverage.missing) == (1, 1, ())


@pytest.mark.parametrize(
    "change",
    [
        lambda log: {"pid": 8},
        lambda log: {"marks": log.marks[:1]},
        lambda log: {"marks": log.marks[::-1]},
        lambda log: {"segments": log.segments[:0], "marks": log.marks[:0]},
    ],
    ids=["another process", "marker cut", "marker out of order", "no single reads"],
)
def test_logs_without_the_marker_of_a_process_give_totals(change):
    run = visits()
    log = run.workers[0].log()
    log = replace(log, **change(log))
    coverage = coverage_of(run, log)
    assert (coverage.n_logs, coverage.missing, coverage.n_segments) == (0, (WORKER,), 0)
    assert not coverage.complete
    others = coverage.others
    totals = others.n_logs, others.n_files, others.posix_nbytes, others.stdio_nbytes
    assert totals == (1, 20, 200, 0)
    figures = run.figures(StorageTrace((log,)))
    assert (figures.bytes[0].darshan_nbytes, figures.in_stages) == (None, {})


def test_a_log_with_less_than_all_is_not_complete():
    run = visits()
    modules = (replace(MODULES[0], partial=True),)
    coverage = coverage_of(run, replace(run.workers[0].log(), modules=modules))
    (problem,) = coverage.problems
    assert problem.startswith(f"{WORKER}: Darshan ran out of memory in POSIX")
    assert not coverage.complete


def test_a_clock_that_was_read_late_is_not_followed():
    # A microsecond within a stage counts; an anchor is several off, and no drift.
    run = visits(margin=5e-6)
    data, processes = run.data(), []
    for each in data.processes:
        first = each.anchors[0]
        late_ns = first.wall_ns + 10**9 + 100_000  # the wall clock is on by so much after a second
        last = replace(first, monotonic_ns=10**9, wall_ns=late_ns)
        processes.append(replace(each, anchors=(first, last)))
    late = coverage_of(replace(data, processes=tuple(processes)), run.workers[0].log())
    assert (late.n_placed, late.problems) == (20, ())


def test_names_of_files_are_found_in_texts():
    files = ("/d/x.nc", "/d/a/b.npy", "/e/b.npy", "/d/s.zarr/t/0.0", "/d/s.zarr/.zattrs", "/q")
    expected = {
        "/d/x.nc:t2m": "/d/x.nc", "a/b.npy": "/d/a/b.npy", "../a/b.npy": "/d/a/b.npy",
        "b.npy": "b.npy",  # two files could be meant
        "/d/./x.nc": "/d/x.nc", "/d/s.zarr": "/d/s.zarr", "s.zarr/t": "s.zarr/t", "t2m": "",
        "/d/gone.nc": "/d/gone.nc",
    }  # fmt: skip
    names = FileNames(expected, files)
    assert {text: names.of_text(text) for text in expected} == expected
    assert [names.of_file(path) for path in files] == [
        "/d/x.nc", "/d/a/b.npy", None, "s.zarr/t", "/d/s.zarr", None,
    ]  # fmt: skip


# Storage time of stages.


def one_worker():
    run = TracedRun(config=COLD)
    run.wait(0, 0, 40)
    return run, run.worker()


def test_overlapping_reads_count_once_and_threads_side_by_side():
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=30, detail=FILE)
    for start, end in ((1, 6), (2, 5), (4, 9), (12, 15)):
        worker.read(FILE, start, end, 0, 10)
    assert stage_ms(run)["read"] == (20, 11)
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, detail="/data/b.bin", thread=1)
    worker.read("/data/b.bin", 5, 15, 0, 10)
    assert stage_ms(run)["read"] == (40, 21)


@pytest.mark.parametrize(
    "modules",
    [
        (POSIX,),
        (POSIX, ModuleState("DXT_POSIX", 2, problem="cannot be read")),
        (POSIX, ModuleState("DXT_POSIX", 1, partial=True)),
        (ModuleState("POSIX", 4, partial=True), DXT),
        None,  # another process of the stage was not seen
    ],
)
def test_where_not_all_was_seen_storage_time_is_unknown(modules):
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, detail=FILE)
    worker.read(FILE, 1, 3, 0, 10)
    if modules is None:
        run.worker().span(Kind.READ, 0, 20, batch=1, nbytes=10, detail=FILE)
    assert stage_ms(run, worker.log(modules or (POSIX, DXT)))["read"][1] is None


@pytest.mark.parametrize(
    ("first_ms", "in_read_ms"),
    [(6, 4), (1, 1)],  # in the reading stage alone; in the opening or the reading one
)
def test_time_of_fread_is_that_of_the_stage_it_lies_in(first_ms, in_read_ms):
    run, worker = one_worker()
    worker.span(Kind.OPEN, 0, 2, batch=0, detail=FILE)
    worker.span(Kind.READ, 3, 20, batch=0, nbytes=10, detail=FILE)
    worker.read(FILE, 4, 5, 0, 10)
    wall = 10**18
    worker.count(
        FILE, stdio_reads=1, stdio_opens=1, stdio_read_nbytes=10, stdio_read_ns=3 * MS,
        stdio_first_read_ns=wall + first_ms * MS, stdio_last_read_ns=wall + 9 * MS,
    )  # fmt: skip
    stages = stage_ms(run)
    assert (stages["open"][1], stages["read"][1]) == (0, in_read_ms)


def test_sums_over_a_batch_hold_its_reads():
    run, worker = one_worker()
    sums = {"batch": 0, "flags": Flag.SUMMED, "pieces": 4}
    worker.span(Kind.READ, 0, 10, nbytes=40, **sums)
    worker.span(Kind.DECODE, 10, 20, **sums)
    assert untraced(run).bytes[0].requested_nbytes == 40
    for start in (1, 6, 11, 16):
        worker.read(FILE, start, start + 2, 0, 10)
    assert stage_ms(run)["read"] == (10, 8)


# Bytes by who counted them, and why they differ.


def raw_run(*, n_workers=2, n_files=3, named=True):
    """Each worker reads whole files with one call each, and looks at /proc."""
    run = TracedRun(config=COLD)
    for number in range(n_workers):
        worker = run.worker()
        for index in range(n_files):
            file, at, batch = f"/data/{number}-{index}.bin", 10 * index, index * n_workers + number
            detail = file if named else ""
            worker.span(Kind.READ, at, at + 8, batch=batch, nbytes=BIG, detail=detail)
            worker.read(file, at + 1, at + 7, 0, BIG)
            worker.look(at + 9, batch, BIG + 120, 0)
    for batch in range(n_workers * n_files):
        run.wait(batch, 5 * batch, 5 * batch + 4, nbytes=BIG)
    return run


def one_read(detail, nbytes, *, is_fused=False):
    run, worker = one_worker()
    kind, label = (Kind.FUSED, "read+decode") if is_fused else (Kind.READ, "")
    worker.span(kind, 0, 8, batch=0, nbytes=nbytes, detail=detail, label=label)
    return run


def rows(run, trace=None):
    return {each.name: each for each in run.figures(trace).bytes}


def untraced(run):
    return storage_of(run.open().of_rank())


@pytest.mark.parametrize("named", [True, False])
def test_run_processes_and_files(named):
    run = raw_run(named=named)
    by_name = rows(run)
    whole, file = by_name["run"], by_name["/data/0-0.bin"]
    counts = whole.requested_nbytes, whole.darshan_nbytes, whole.read_calls_nbytes
    assert counts == (6 * BIG, 6 * BIG, 6 * BIG + 720)
    assert (whole.device_nbytes, whole.reasons) == (0, ("page cache",))
    assert by_name["worker-1 (process 102)"].requested_nbytes == 3 * BIG
    assert (file.requested_nbytes, file.darshan_nbytes) == (BIG if named else None, BIG)
    run.workers[0].span(Kind.READ, 80, 90, batch=0, nbytes=5 * BIG, detail="/data/z.bin")
    run.workers[0].read("/data/z.bin", 81, 89, 0, 5 * BIG)
    assert [*rows(run)] == [  # the largest first
        "run", WORKER, "worker-1 (process 102)", "/data/z.bin",
        *(f"/data/{worker}-{file}.bin" for worker in range(2) for file in range(3)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "modules",
    [None, ModuleState("POSIX", 9, problem="new"), ModuleState("POSIX", 4, partial=True)],
    ids=["no log", "unreadable", "partial"],
)
def test_what_darshan_did_not_count_of_one_process_is_unknown_of_the_run(modules):
    run = raw_run()
    first, second = run.trace().processes
    logs = (first,) if modules is None else (first, replace(second, modules=(modules,)))
    by_name = rows(run, StorageTrace(logs))
    assert by_name[WORKER].darshan_nbytes == 3 * BIG
    assert by_name["worker-1 (process 102)"].darshan_nbytes is None
    whole = by_name["run"]
    assert (whole.darshan_nbytes, whole.requested_nbytes) == (None, 6 * BIG)


def test_a_file_of_several_processes_and_a_store_are_one_row():
    run = raw_run(n_files=1)
    for worker in run.workers:
        worker.span(Kind.READ, 20, 28, batch=worker.number, nbytes=10, detail="/data/all.nc:t2m")
        worker.read("/data/all.nc", 21, 22, 0, 10)
    shared = rows(run)["/data/all.nc"]
    assert (shared.requested_nbytes, shared.darshan_nbytes) == (20, 20)
    run = one_read("/data/x.zarr", 900, is_fused=True)
    for at, (piece, nbytes) in enumerate({".zarray": 40, "0.0": 200, "0.1": 300}.items()):
        run.workers[0].read(f"/data/x.zarr/{piece}", at + 1, at + 2, 0, nbytes)
    by_name = rows(run)
    assert [name for name in by_name if name.startswith("/data")] == ["/data/x.zarr"]
    whole = by_name["run"]
    assert (whole.darshan_nbytes, whole.reasons) == (540, ("compression",))


@pytest.mark.parametrize(
    ("is_fused", "called", "reasons"),
    [
        (False, 110, ("mmap",)),
        (False, BIG // 2, ()),
        (True, BIG // 2, ("compression",)),
        (True, 110, ()),  # stored in few bytes, or mapped: nobody can tell
    ],
)
def test_what_read_calls_did_not_return(is_fused, called, reasons):
    run = one_read("", BIG, is_fused=is_fused)
    run.workers[0].look(9, 0, called, BIG)
    whole = untraced(run).bytes[0]
    assert (whole.read_calls_nbytes, whole.device_nbytes) == (called, BIG)
    assert whole.reasons == reasons


def test_strays_and_reads_of_other_files_are_in_no_row():
    run = raw_run(n_workers=1, n_files=1)
    worker, file = run.workers[0], "/data/0-0.bin"
    worker.read("/data/index.json", 200, 201, 0, 12_345)
    package = "/opt/venv/lib/python3.11/site-packages/numpy.dist-info/METADATA"
    worker.span(Kind.READ, 50, 51, batch=0, nbytes=57_000, detail=package)
    worker.count(file, stdio_opens=1, stdio_reads=1, posix_opens=1)
    worker.read(file, 9, 9.5, BIG, 30)
    by_name = rows(run)
    assert [*by_name] == ["run", WORKER, file]
    whole = by_name["run"]
    assert (whole.requested_nbytes, whole.darshan_nbytes) == (BIG, BIG)
    assert [busy for busy, _ in stage_ms(run).values()] == [8]


def test_bytes_of_nested_reads_count_once_and_some_are_unknown():
    run = one_read("/d/a", 100)
    for at, nbytes in ((1, 40), (4, 60)):
        run.workers[0].span(Kind.READ, at, at + 2, batch=0, nbytes=nbytes, detail="/d/a")
    assert rows(run, StorageTrace())["run"].requested_nbytes == 100
    run = raw_run(n_workers=1)
    next(each for each in run.spans if each["kind"] == Kind.READ)["nbytes"] = -1
    whole = rows(run)["run"]
    assert (whole.requested_nbytes, whole.darshan_nbytes) == (None, 3 * BIG)
    none = untraced(TracedRun(config=COLD))
    assert (none.bytes, none.in_stages) == ((), {})


@pytest.mark.parametrize(
    ("rchar", "device", "cold"),
    [
        (BIG, BIG, 1.0),
        (BIG, BIG + 4096, 1.0),  # whole pages
        (BIG, 0, 0.0),
        (1000, 100_000, 0.1),  # through a mapping: no read call has it, the device does
        (0, 100_000, 0.1),
        (500_000, 500_000, 0.5),  # half of it through a mapping
        (100, 50 * BIG, None),  # through a mapping of the script's own: nobody knows how much
    ],
)
def test_cold_is_of_all_that_was_read(rchar, device, cold):
    run = TracedRun(config=COLD)
    worker = run.worker()
    for batch in range(12):
        at = 10 * batch
        worker.span(Kind.READ, at, at + 4, batch=batch, nbytes=BIG, detail="/d/a")
        worker.look(at + 4, batch, rchar, device)
        run.wait(batch, at, at + 4, nbytes=BIG)
    whole = run.open().of_rank().exposure.whole
    assert whole.cold_fraction == (None if cold is None else pytest.approx(cold, rel=1e-3))
    assert whole.read_nbytes == 12 * max(rchar, BIG)
