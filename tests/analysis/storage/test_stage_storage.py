"""Storage time inside stages, where bytes came from, and sizes and order of single reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced_runs import MS, TracedRun

from iobench.analysis.run import Run
from iobench.analysis.time_intervals import covered
from iobench.findings.storage import storage_of
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import ModuleState, StorageTrace

FILE = "/data/a.bin"
KIB = 1 << 10
POSIX, DXT = ModuleState("POSIX", 4), ModuleState("DXT_POSIX", 1)


def stages(run):
    return run.figures().in_stages


def one_worker():
    run = TracedRun(config={"cold_known": True})
    run.wait(0, 0, 40)
    return run, run.worker()


def test_overlapping_reads_count_once_and_threads_side_by_side():
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=30, detail=FILE)
    for start, end in ((1, 6), (2, 5), (4, 9), (12, 15)):
        worker.read(FILE, start, end, 0, 10)
    read = stages(run)["read"]
    assert (read.busy_ns, read.storage_ns) == (20 * MS, 11 * MS)
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, detail="/data/b.bin", thread=1)
    worker.read("/data/b.bin", 5, 15, 0, 10)
    read = stages(run)["read"]
    assert (read.busy_ns, read.storage_ns) == (40 * MS, 21 * MS)


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
    log = worker.log(modules or (POSIX, DXT))
    assert run.figures(StorageTrace((log,))).in_stages["read"].storage_ns is None


@pytest.mark.parametrize(
    ("first_ms", "in_read"),
    [(6, 4 * MS), (1, MS)],  # in the reading stage alone; in the opening or the reading one
)
def test_time_of_fread_is_that_of_the_stage_it_lies_in(first_ms, in_read):
    run, worker = one_worker()
    worker.span(Kind.OPEN, 0, 2, batch=0, detail=FILE)
    worker.span(Kind.READ, 3, 20, batch=0, nbytes=10, detail=FILE)
    worker.read(FILE, 4, 5, 0, 10)
    wall = 10**18
    worker.count(
        FILE, stdio_reads=1, stdio_opens=1, stdio_read_nbytes=10, stdio_read_ns=3 * MS,
        stdio_first_read_ns=wall + first_ms * MS, stdio_last_read_ns=wall + 9 * MS,
    )  # fmt: skip
    found = stages(run)
    assert (found["open"].storage_ns, found["read"].storage_ns) == (0, in_read)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_union_is_the_time_that_is_covered(pairs):
    instants = {instant for start, length in pairs for instant in range(start, start + length)}
    start = np.array([pair[0] for pair in pairs], dtype=np.int64)
    length = np.array([pair[1] for pair in pairs], dtype=np.int64)
    assert covered(start, start + length) == len(instants)


def reading(*reads):
    """Return the figures of a worker that made these reads: file, offset, bytes."""
    run = TracedRun()
    worker = run.worker()
    for number, (file, offset, size) in enumerate(reads):
        at = 5 * number
        worker.span(Kind.READ, at, at + 4, batch=0, nbytes=size, detail=file)
        worker.read(file, at + 1, at + 3, offset, size)
    run.wait(0, 0, 5 * len(reads))
    return run.figures()


@pytest.mark.parametrize(
    ("reads", "sizes"),
    [
        (
            [
                ("/d/a", 0, 100), ("/d/b", 500, 100), ("/d/a", 100, 50), ("/d/b", 700, 100),
                ("/d/a", 0, 100), ("/d/a", 100, 100),
            ],
            {"< 1 KiB": 6},
        ),
        (
            [(f"/d/{n}", 0, n) for n in (1, KIB - 1, KIB, 64 * KIB - 1, 64 * KIB, 64 << 20)],
            {"< 1 KiB": 2, "< 4 KiB": 1, "< 64 KiB": 1, "< 256 KiB": 1, "from 64 MiB": 1},
        ),
        ([("/d/a", 0, 100), ("/d/a", 100, 0)], {"< 1 KiB": 1}),  # the end is no read
    ],
)  # fmt: skip
def test_sizes_of_reads(reads, sizes):
    assert reading(*reads).read_sizes == sizes


def test_probes_of_pages_are_no_reads():
    run = TracedRun()
    worker = run.worker()
    for number in range(4):
        at, file = 10 * number, f"/d/{number}"
        worker.read(file, at + 0.1, at + 0.2, 8192, 1)
        worker.span(Kind.READ, at + 1, at + 5, batch=number, nbytes=KIB, detail=file)
        worker.read(file, at + 2, at + 4, 0, KIB)
        run.wait(number, at, at + 5, nbytes=KIB)
    assert run.figures().read_sizes == {"< 4 KiB": 4}


def test_sums_over_a_batch_hold_its_reads_and_are_no_single_ones():
    run, worker = one_worker()
    sums = {"batch": 0, "flags": Flag.SUMMED, "pieces": 4}
    worker.span(Kind.READ, 0, 10, nbytes=40, **sums)
    worker.span(Kind.DECODE, 10, 20, **sums)
    found = storage_of(Run(run.data()).of_rank())
    assert found.bytes[0].requested_nbytes == 40
    for start in (1, 6, 11, 16):
        worker.read(FILE, start, start + 2, 0, 10)
    read = stages(run)["read"]
    assert (read.busy_ns, read.storage_ns) == (10 * MS, 8 * MS)
