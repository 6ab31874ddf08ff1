"""Batches made in processes, of a profile and of a loader: the same ones, errors, every end."""

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
from ring_sources import (
    Locked,
    NumberSource,
    endless,
    failing,
    failing_oddly,
    forgetful,
    in_place,
    summed,
)
from span_rows import live_rows, rows_by_kind, rows_of
from tiny_pipeline import (
    SchemaError,
    breaking_pipeline,
    killed_pipeline,
    ring_of,
    tiny_pipeline,
)

from iobench.errors import FileFormatError, OptionError, SampleError, WorkerError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.pipeline import Step
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.order import BatchOrder, plan_batches
from iobench.loaders.ring.process_source import ProcessSource
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import read_span_file

pytestmark = pytest.mark.timeout(60)
MEMORY = "iobench-ring"
STAGES = {Kind.READ, Kind.DECODE, Kind.PREPROCESS, Kind.COLLATE}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    gc.collect()
    assert multiprocessing.active_children() == []
    # Unnamed memory: no name in /dev/shm to be left, and no descriptor either.
    assert not [link for _, link in open_files() if MEMORY in link]


def open_files():
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            links.append((int(descriptor.name), str(descriptor.readlink())))
    return links


# -- of a profile: planned batches, and what is recorded -------------------------------------------


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


def test_without_threads_every_stage_is_of_the_consumer_and_nothing_is_made_ahead(run, consumer):
    with ring_of(tiny_pipeline(), 3, threads=0, recorder=consumer) as loader:
        batches = loader.batches(planned(2))
        assert rows_of(run) == []
        next(batches)
        assert {row.batch for row in rows_of(run)} == {0}
        assert len(list(batches)) == 1
    rows = rows_by_kind(run, role="consumer")
    assert set(rows) == STAGES
    assert [row.batch for row in rows[Kind.COLLATE]] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 3), (2, 1), (3, 3)])
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
    drawn = []
    plan = (drawn.append(batch) or batch for batch in planned(8))
    made_by = {}
    with workers_of(run, prefetch=2) as loader:
        for number, batch in enumerate(loader.batches(plan)):
            assert len(drawn) <= number + 1 + 4  # no further ahead than prefetch allows
            made_by[batch.planned.batch] = batch.worker
    rows = [row for row in rows_of(run) if row.batch >= 0]
    assert all(row.worker == made_by[row.batch] for row in rows)
    by_kind = rows_by_kind(run)
    assert sorted(row.batch for row in by_kind[Kind.SUBMIT_QUEUE]) == list(range(8))
    for kind in STAGES:
        assert sorted(row.batch for row in by_kind[kind]) == sorted([*range(8)] * 3)
    assert sorted(row.worker for row in by_kind[Kind.STARTUP]) == [0, 1]
    counted = [row.batch for row in rows if (row.flags, row.kind) == (Flag.IO, Kind.READ)]
    assert sorted(counted) == list(range(8))


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
    before = len(open_files())
    with (
        workers_of(run, workers=1, pipeline=breaking_pipeline(4, error=error)) as loader,
        pytest.raises(kind, match=said),
    ):
        numbers(loader.batches(planned(4)))
    assert len(open_files()) <= before


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


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("method", "number"),
    [("fork", signal.SIGKILL), ("fork", signal.SIGINT), ("forkserver", signal.SIGKILL)],
)
def test_workers_end_when_the_consumer_does(run, tmp_path, method, number):
    """They stick in a system call where it is interrupted, else they are idle."""
    gate, waits = tmp_path / "gate", number == signal.SIGINT
    os.mkfifo(gate)
    reader, writer = multiprocessing.Pipe(duplex=False)
    more = (consume_in_vain, (gate,)) if waits else (consume, ())
    doomed = multiprocessing.get_context("spawn").Process(
        target=more[0], args=(run.path, method, writer, *more[1])
    )
    doomed.start()
    writer.close()
    pids = reader.recv()
    assert len(pids) == 2
    while waits and len({r.worker for r in live_rows(run) if r.kind is Kind.SUBMIT_QUEUE}) < 2:
        os.sched_yield()  # until both are at it
    os.kill(doomed.pid, number)
    for pid in (doomed.pid, *pids):
        wait_for_the_end_of(pid)
    doomed.join()
    assert doomed.exitcode == (0 if waits else -number)


def wait_for_the_end_of(pid):
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    if not ended:  # left alone, it would keep the test run's output open
        os.kill(pid, signal.SIGKILL)
    assert ended, f"process {pid} goes on"


# -- of a loader: transforms, and buffers in shared memory -----------------------------------------


def make(source=None, transform=None, **options):
    source = source or NumberSource()
    processes = ProcessSource(source, 4, 2, transform)
    return RingLoader(processes, BatchOrder(len(source), 4), **{"threads": 2, **options})


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("source", "transform", "error", "message"),
    [
        (NumberSource(broken=9), None, SampleError, "sample 9 is broken"),
        (None, failing, ZeroDivisionError, "nine"),
        (None, forgetful, SampleError, r"returned field float32 .*number int64"),
        (None, failing_oddly, WorkerError, "OwnError: number 3: cannot be pickled"),
        (NumberSource(deadly=9), None, WorkerError, "was killed by SIGKILL"),
    ],
)
def test_what_fails_is_raised_in_its_place(source, transform, error, message):
    loader = make(source, transform)
    iterator = iter(loader)
    if transform is not forgetful:
        assert [next(iterator)["field"].shape for _ in range(2)] == [(4, 3, 5)] * 2
    with pytest.raises(error, match=message) as caught:
        for _ in iterator:
            pass
    notes = "".join(caught.value.__notes__)
    assert "while batch 2 of epoch 0 was made" in notes or transform is forgetful
    if transform is failing:
        assert "ring_sources.py" in notes  # where it was raised, in the process
    loader.close()


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (lambda batch: batch, OptionError, "cannot be sent to a process.*top level of a module"),
        (Locked(), OptionError, "cannot be sent to a process"),
        (summed, SampleError, r"'field' of shape \(3, 5\) for 4 samples"),
        (len, SampleError, "the transform returned int"),
    ],
)
def test_a_transform_that_cannot_be_is_told_at_the_start(transform, error, message):
    with pytest.raises(error, match=message):
        make(transform=transform)


def test_closing_does_not_wait_for_a_transform_that_never_ends():
    loader = make(transform=endless)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    loader.close()
    with pytest.raises(WorkerError, match="the loader is closed"):
        next(iter(loader))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*batches are held:UserWarning")
def test_shared_memory_does_not_grow_with_epochs():
    loader = make(transform=in_place)
    sizes = []
    for _ in range(4):
        held = list(loader)
        pairs = list(zip(loader, loader, strict=True))
        assert [int(batch["number"][0]) for batch in held] == list(range(0, 50, 4))
        assert [int(batch["number"][0]) for batch, _ in pairs] == list(range(0, 50, 4))
        del held, pairs
        gc.collect()
        sizes.append(max(os.fstat(n).st_size for n, link in open_files() if MEMORY in link))
    assert sizes[-1] == sizes[0]
    loader.close()


def test_a_process_that_cannot_be_started_is_one_line(monkeypatch):
    def refuse(_):
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    with pytest.raises(WorkerError, match=r"cannot be started \(AF_UNIX.*TMPDIR a shorter path"):
        list(make())
