"""Worker processes: order, equality with the serial loader, and every way they can end."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import signal
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from doomed_consumer import consume, consume_in_vain
from span_rows import live_rows, rows_by_kind, rows_of
from tiny_pipeline import (
    SchemaError,
    breaking_pipeline,
    killed_pipeline,
    ring_of,
    tiny_pipeline,
)

from iobench.errors import FileFormatError, WorkerError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.pipeline import Step
from iobench.loaders.ring.order import plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file

pytestmark = pytest.mark.timeout(60)


def planned(n_batches, first=0):
    return list(islice(plan_batches(12, 3, shuffle=False), first, first + n_batches))


def workers_of(run, *, workers=2, pipeline=None, **options):
    return ring_of(
        pipeline or tiny_pipeline(), 3, workers=workers, run_directory=run.path, recorder=None,
        **options,
    )  # fmt: skip


def taken(batches):
    return [
        (batch.planned, {name: array.copy() for name, array in batch.arrays.items()})
        for batch in batches
    ]


def numbers(batches):
    return [batch.planned.batch for batch in batches]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_for_the_end_of(pids):
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended = select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)
        if not ended:  # left alone, it would keep the test run's output open
            os.kill(pid, signal.SIGKILL)
        assert ended, f"process {pid} goes on"


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_batches_equal_those_of_the_loop_itself(run, consumer, workers, prefetch):
    with ring_of(tiny_pipeline(), 3, recorder=consumer) as alone:
        expected = taken(alone.batches(planned(11)))
    with workers_of(run, workers=workers, prefetch=prefetch) as loader:
        ours = taken(loader.batches(planned(11)))
    assert [plan for plan, _ in ours] == planned(11)
    for (_, left), (_, right) in zip(ours, expected, strict=True):
        for name in right:
            np.testing.assert_array_equal(left[name], right[name], strict=True)


def test_every_stage_of_every_batch_is_recorded_by_its_worker(run):
    with workers_of(run) as loader:
        made_by = {batch.planned.batch: batch.worker for batch in loader.batches(planned(8))}
    rows = [row for row in rows_of(run) if row.batch >= 0]
    assert all(row.worker == made_by[row.batch] for row in rows)
    by_kind = rows_by_kind(run)
    assert sorted(row.batch for row in by_kind[Kind.SUBMIT_QUEUE]) == list(range(8))
    for kind in (Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.COLLATE):
        assert sorted(row.batch for row in by_kind[kind]) == sorted([*range(8)] * 3)
    assert sorted(row.worker for row in by_kind[Kind.STARTUP]) == [0, 1]
    assert sorted(
        row.batch for row in rows if (row.flags, row.kind) == (Flag.IO, Kind.READ)
    ) == list(range(8))


def test_a_plan_is_drawn_no_further_ahead_than_prefetch_allows(run):
    drawn = []
    plan = (drawn.append(batch) or batch for batch in planned(12))
    with workers_of(run, prefetch=2) as loader:
        for number, _ in enumerate(loader.batches(plan)):
            assert len(drawn) <= number + 1 + 4


@pytest.mark.parametrize("n_taken", [1, 3])
def test_a_round_left_early_does_not_disturb_the_next(run, n_taken):
    with workers_of(run) as loader:
        for _ in islice(loader.batches(planned(8)), n_taken):
            pass
        assert numbers(loader.batches(planned(9, first=8))) == list(range(8, 17))


def test_a_killed_worker_is_named_and_its_spans_stay(run):
    with (
        workers_of(run, pipeline=killed_pipeline(9)) as loader,
        pytest.raises(WorkerError, match=r"worker-\d \(pid \d+\) was killed by SIGKILL") as caught,
    ):
        numbers(loader.batches(planned(12)))
    assert "\n" not in str(caught.value)
    files = [read_span_file(path) for path in run.span_files()]
    assert any(not file.closed for file in files)
    assert sum(row.kind is Kind.READ for row in rows_of(run)) >= 3


class Leaving:
    """Ends its process, and leaves another one behind that holds all the pipes it had."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def __call__(self, where):
        if os.fork() == 0:
            os.close(self.writer)
            os.read(self.reader, 1)  # until the test lets it go
            os._exit(0)
        os._exit(3)


def test_a_worker_is_missed_though_a_process_it_left_holds_its_pipes(run):
    reader, writer = os.pipe()
    pipeline = tiny_pipeline(first=Step(Kind.READ, "", Leaving(reader, writer)))
    try:
        with (
            workers_of(run, pipeline=pipeline) as loader,
            pytest.raises(WorkerError, match=r"exited \(3\)"),
        ):
            numbers(loader.batches(planned(2)))
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (FileFormatError("a.grib: cut short"), FileFormatError, "^a.grib: cut short"),
        (SchemaError("a.grib: other"), FileFormatError, "^a.grib: other"),  # a plugin's own class
        (
            ZeroDivisionError("twice\nover"),
            WorkerError,
            "^worker-0: sample 4 could not be made: ZeroDivisionError: twice(?!.over)",
        ),
        (ValueError("x" * 300_000), WorkerError, "sample 4"),  # more than a pipe holds
    ],
)
def test_an_error_travels(run, error, kind, said):
    with (
        workers_of(run, workers=1, pipeline=breaking_pipeline(4, error=error)) as loader,
        pytest.raises(kind, match=said),
    ):
        numbers(loader.batches(planned(4)))


def test_an_early_end_with_a_worker_in_the_middle_of_a_batch_is_quick(run, tmp_path):
    # One worker waits for ever; the other is idle and must hear of the end all the same.
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pipeline = breaking_pipeline(0, gate=gate)
    loader = workers_of(run, pipeline=pipeline, prefetch=1)
    batches = loader.batches([PlannedBatch(0, 0, (0,)), PlannedBatch(1, 0, (1,))])
    assert next(batches).planned.batch == 0
    while not any(row.kind is Kind.SUBMIT_QUEUE and row.batch == 1 for row in live_rows(run)):
        os.sched_yield()  # until the other one is at it
    loader.close()
    files = [read_span_file(path) for path in run.span_files()]
    assert sorted(file.closed for file in files) == [False, True]
    batches.close()


@pytest.mark.parametrize("pipeline", [tiny_pipeline(), breaking_pipeline(4, error=ValueError())])
def test_no_process_and_no_descriptor_is_left(run, pipeline):
    gc.collect()  # or what other tests left is closed meanwhile
    before = descriptors()
    with workers_of(run, pipeline=pipeline) as loader, contextlib.suppress(WorkerError):
        numbers(loader.batches(planned(6)))
    assert multiprocessing.active_children() == []
    assert descriptors() == before


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_end_when_the_consumer_is_killed(run, method):
    reader, writer = multiprocessing.Pipe(duplex=False)
    doomed = multiprocessing.get_context("spawn").Process(
        target=consume, args=(run.path, method, writer)
    )
    doomed.start()
    writer.close()
    pids = reader.recv()
    doomed.kill()
    doomed.join()
    assert len(pids) == 2
    wait_for_the_end_of(pids)


def ends_while_waiting(run, gate, method, number):
    """End a consumer by this signal while its workers stick in a system call."""
    os.mkfifo(gate)
    reader, writer = multiprocessing.Pipe(duplex=False)
    doomed = multiprocessing.get_context("spawn").Process(
        target=consume_in_vain, args=(run.path, method, writer, gate)
    )
    doomed.start()
    writer.close()
    pids = reader.recv()
    while len({row.worker for row in live_rows(run) if row.kind is Kind.SUBMIT_QUEUE}) < 2:
        os.sched_yield()  # until both are at it
    os.kill(doomed.pid, number)
    wait_for_the_end_of([doomed.pid, *pids])
    doomed.join()
    return doomed.exitcode


def test_an_interrupt_while_waiting_ends_consumer_and_workers(run, tmp_path):
    assert ends_while_waiting(run, tmp_path / "gate", "fork", signal.SIGINT) == 0
