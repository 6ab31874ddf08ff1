"""Storage time inside stages, time off the CPU, and where bytes came from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced_runs import MS, TracedRun

from iobench.analysis.run import Run
from iobench.analysis.time_intervals import covered as covered_length
from iobench.findings.storage.figures import storage_of
from iobench.findings.storage.stage_storage import verdict_of
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.storage.storage_trace import ModuleState, StorageTrace

FILE = "/data/a.bin"


def stages(run, trace=True):
    found = (run.figures() if trace else storage_of(Run(run.profile()).of_rank())).stages
    return {each.stage: each for each in found}


def one_worker():
    run = TracedRun(config={"cold_known": True})
    run.wait(0, 0, 40)
    return run, run.worker()


def test_overlapping_reads_count_once():
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=30, detail=FILE)
    for start, end in ((1, 6), (2, 5), (4, 9), (12, 15)):
        worker.read(FILE, start, end, 0, 10)
    read = stages(run)["read"]
    assert (read.busy_ns, read.storage_ns, read.rest_ns) == (20 * MS, 11 * MS, 9 * MS)
    assert [(part.process, part.storage_ns) for part in read.processes] == [("worker-0", 11 * MS)]


def test_threads_read_side_by_side():
    run, worker = one_worker()
    for thread, file in ((0, "/data/a.bin"), (1, "/data/b.bin")):
        worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, detail=file, thread=thread)
        worker.read(file, 5, 15, 0, 10)
    read = stages(run)["read"]
    assert (read.busy_ns, read.storage_ns) == (40 * MS, 20 * MS)


@pytest.mark.parametrize(
    ("kind", "label", "bound"),
    [
        (Kind.READ, "", False),
        (Kind.FUSED, "read+decode", True),
        (Kind.FUSED, "read+collate", False),
    ],
)
def test_only_a_stage_that_decodes_bounds_decoding(kind, label, bound):
    run, worker = one_worker()
    worker.span(kind, 0, 20, batch=0, nbytes=10, label=label, detail=FILE)
    worker.read(FILE, 1, 3, 0, 10)
    (found,) = stages(run).values()
    assert found.rest_is_bound is bound
    assert found.storage_ns == 2 * MS


def test_a_stage_that_reads_what_was_put_off_is_shown():
    run, worker = one_worker()
    worker.span(Kind.OPEN, 0, 2, batch=0, detail=FILE)
    worker.span(Kind.DECODE, 3, 9, batch=0, nbytes=10)
    worker.span(Kind.COLLATE, 10, 12, batch=0)
    worker.read(FILE, 0.5, 1, 0, 5)
    worker.read(FILE, 4, 6, 5, 5)
    found = stages(run)
    assert set(found) == {"open", "decode"}
    assert found["decode"].storage_ns == 2 * MS
    assert stages(run, trace=False).keys() == {"open"}


def test_storage_is_unknown_where_a_process_was_not_seen():
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, detail=FILE)
    worker.read(FILE, 1, 3, 0, 10)
    other = run.worker()
    other.span(Kind.READ, 0, 20, batch=1, nbytes=10, detail=FILE)
    read = run.figures(StorageTrace(run.trace().processes[:1])).stages[0]
    assert (read.storage_ns, read.rest_ns) == (None, None)
    assert [part.storage_ns for part in read.processes] == [2 * MS, None]


@pytest.mark.parametrize(
    "modules",
    [
        (ModuleState("POSIX", 4),),
        (ModuleState("POSIX", 4), ModuleState("DXT_POSIX", 2, problem="cannot be read")),
        (ModuleState("POSIX", 4), ModuleState("DXT_POSIX", 1, partial=True)),
        (ModuleState("POSIX", 4, partial=True), ModuleState("DXT_POSIX", 1)),
    ],
)
def test_segments_that_are_not_all_there_are_no_storage_time(modules):
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, detail=FILE)
    worker.read(FILE, 1, 3, 0, 10)
    read = run.figures(StorageTrace((worker.log(modules),))).stages[0]
    assert read.storage_ns is None


def fread_run(first_ms, last_ms):
    run, worker = one_worker()
    worker.span(Kind.OPEN, 0, 2, batch=0, detail=FILE)
    worker.span(Kind.READ, 3, 20, batch=0, nbytes=10, detail=FILE)
    worker.read(FILE, 4, 5, 0, 10)
    wall = 10**18
    worker.count(
        FILE, stdio_reads=1, stdio_opens=1, stdio_read_nbytes=10, stdio_read_ns=3 * MS,
        stdio_first_read_ns=wall + round(first_ms * MS), stdio_last_read_ns=wall + last_ms * MS,
    )  # fmt: skip
    return stages(run)


def test_time_of_fread_is_that_of_the_stage_it_lies_in():
    found = fread_run(6, 9)
    assert (found["open"].storage_ns, found["read"].storage_ns) == (0, 4 * MS)
    assert not found["read"].rest_is_bound


def test_time_of_fread_in_several_stages_leaves_a_bound():
    found = fread_run(1, 9)
    assert (found["open"].storage_ns, found["read"].storage_ns) == (0, MS)
    assert found["open"].rest_is_bound
    assert found["read"].rest_is_bound


def test_sums_over_a_batch_hold_its_reads():
    run, worker = one_worker()
    sums = {"batch": 0, "flags": Flag.SUMMED, "pieces": 4}
    worker.span(Kind.READ, 0, 10, nbytes=40, **sums)
    worker.span(Kind.DECODE, 10, 20, **sums)
    for start in (1, 6, 11, 16):
        worker.read(FILE, start, start + 2, 0, 10)
    read = stages(run)["read"]
    assert (read.busy_ns, read.storage_ns) == (10 * MS, 8 * MS)


def test_time_off_the_cpu():
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 20, batch=0, nbytes=10, cpu_ns=3 * MS)
    worker.span(Kind.READ, 20, 30, batch=0, nbytes=10, cpu_ns=11 * MS)
    assert stages(run)["read"].off_cpu_ns == 16 * MS
    worker.span(Kind.READ, 30, 31, batch=0, nbytes=10)
    assert stages(run)["read"].off_cpu_ns is None


@pytest.mark.parametrize(
    ("read", "device", "verdict"),
    [
        (1000, 0, "from cache"), (1000, 49, "from cache"), (1000, 50, "mixed"),
        (1000, 950, "mixed"), (1000, 951, "from device"), (1000, 1300, "from device"),
        (0, 0, "unknown"), (None, 5, "unknown"), (1000, None, "unknown"),
    ],
)  # fmt: skip
def test_verdicts(read, device, verdict):
    assert verdict_of(read, device) == verdict


def looked_at(config, device):
    run, worker = one_worker()
    run.config = config
    worker.span(Kind.READ, 0, 10, batch=0, nbytes=1000)
    worker.look(11, 0, 1000, device)
    worker.span(Kind.FUSED, 12, 20, batch=1, nbytes=1000, label="read+decode")
    worker.look(21, 1, 1000, 1000 if device > 0 else device)
    return {name: each.verdict for name, each in stages(run, trace=False).items()}


def test_a_count_of_the_device_means_something_only_where_it_is_kept():
    assert looked_at({"cold_known": True}, 0)["read"] == "from cache"
    assert looked_at({"cold_known": False}, 0)["read"] == "unknown"
    # A script's run says nothing of its files' systems: all 0 may be one that does not count.
    assert looked_at({}, 0)["read"] == "unknown"
    assert looked_at({"cold_known": True}, -1)["read"] == "unknown"


def test_each_stage_has_the_verdict_of_its_own_batches():
    assert looked_at({}, 10) == {"read": "from cache", "fused:read+decode": "from device"}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_union_is_the_time_that_is_covered(pairs):
    covered = {instant for start, length in pairs for instant in range(start, start + length)}
    start = np.array([pair[0] for pair in pairs], dtype=np.int64)
    length = np.array([pair[1] for pair in pairs], dtype=np.int64)
    assert covered_length(start, start + length) == len(covered)


def test_streams_of_which_no_time_is_known_belong_to_the_only_stage_of_their_file():
    run, worker = one_worker()
    worker.span(Kind.READ, 0, 10, batch=0, nbytes=100, detail=FILE)
    worker.count(FILE, stdio_reads=1, stdio_read_nbytes=100, stdio_read_ns=4)
    assert stages(run)["read"].storage_ns == 4
    worker.span(Kind.DECODE, 12, 14, batch=0, nbytes=100, detail=FILE)
    read = stages(run)["read"]
    assert (read.storage_ns, read.rest_is_bound) == (0, True)
