"""Pipelines in torch's own DataLoader: the serial loader's batches, its edges, its errors."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import Counter

import numpy as np
import psutil
import pytest

pytest.importorskip("torch")
from doomed_consumer import consume_torch_in_vain
from span_rows import live_rows, rows_by_kind
from tiny_pipeline import (
    COSTS,
    SchemaError,
    breaking_pipeline,
    ring_of,
    tiny_pipeline,
)

from iobench.errors import FileFormatError, WorkerError
from iobench.loaders.contract import PlannedBatch
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.ring.order import plan_batches
from iobench.loaders.stage_timer import Detail
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.torch.measured_loaders import TorchLoader

pytestmark = pytest.mark.timeout(60)
WORK = (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
EDGES = (Kind.SAMPLER, Kind.SUBMIT_QUEUE, Kind.COLLATE, Kind.SERIALISE, Kind.UNPICKLE)
ERRORS = {
    "ours": (FileFormatError("a.grib: cut short"), FileFormatError, r"^a\.grib: cut short$"),
    "plugin": (SchemaError("a.grib: other schema"), FileFormatError, "other schema"),
    "other": (
        ZeroDivisionError("twice\nover"),
        WorkerError,
        r"^worker-0: sample 4 .*: twice \(.*\)$",
    ),
    "killed": (None, WorkerError, r"^DataLoader worker \(pid[^\n]*$"),
}


class Doomed:
    """Kills its worker at one sample."""

    def __call__(self, where):
        if where == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return tiny_pipeline().steps[0].run(where)


class ReadAndDecode:
    """Both steps of the tiny pipeline in one."""

    def __call__(self, where):
        read, decode, _ = tiny_pipeline().steps
        return decode.run(read.run(where), where)


def planned(n_batches, first=0):
    return list(itertools.islice(plan_batches(12, 3, shuffle=False), first, first + n_batches))


@pytest.fixture
def opened(run, consumer):
    """A function that opens a loader of a pipeline."""

    def loader(workers, pipeline=None):
        return TorchLoader(
            pipeline or tiny_pipeline(), 3, workers=workers, run=run, recorder=consumer,
            detail=Detail.SAMPLE, unit_costs=COSTS,
        )  # fmt: skip

    return loader


def taken(batches):
    return [
        (batch.planned, {name: array.copy() for name, array in batch.arrays.items()})
        for batch in batches
    ]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_equal_those_of_the_serial_loader(opened, run, consumer, workers):
    with ring_of(tiny_pipeline(), 3, recorder=consumer) as serial:
        expected = taken(serial.batches(planned(9)))
    with opened(workers) as loader:
        ours = taken(loader.batches(planned(9)))
    for (plan, left), (other, right) in zip(ours, expected, strict=True):
        assert plan == other
        assert list(left) == list(right)
        for name in right:
            np.testing.assert_array_equal(left[name], right[name], strict=True)
    rows = rows_by_kind(run)
    for kind in WORK if workers else ():
        assert len([row for row in rows[kind] if row.worker >= 0]) == 9 * 3, kind
    for kind in EDGES if workers else ():
        assert {row.batch for row in rows[kind]} >= set(range(9)), kind
    with opened(workers) as loader:  # a round that is left early does not disturb the next
        next(loader.batches(planned(8)))
        second = [batch.planned.batch for batch in loader.batches(planned(4, first=8))]
    assert second == [8, 9, 10, 11]


# Torch's SIGCHLD handler raises wherever the consumer is, also where nothing can be raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_workers_keep_their_type_or_name_worker_and_sample(opened, name):
    error, kind, word = ERRORS[name]
    read, *others = tiny_pipeline().steps
    doomed = (Step(read.kind, read.label, Doomed()), *others)
    pipeline = Pipeline(tiny_pipeline().spec, range(12), doomed)
    if error is not None:
        pipeline = breaking_pipeline(4, error=error)
    loader = opened(1, pipeline)
    with pytest.raises(kind, match=word):
        taken(loader.batches(planned(4)))
    assert multiprocessing.active_children() == []
    loader.close()


def test_steps_in_one_keep_their_name(opened, run):
    steps = (Step(Kind.FUSED, "read+decode", ReadAndDecode()), tiny_pipeline().steps[2])
    with opened(1, Pipeline(tiny_pipeline().spec, range(12), steps)) as loader:
        plan = [PlannedBatch(0, 0, (0, 1)), PlannedBatch(1, 0, (2,))]
        batches = taken(loader.batches(plan))
    assert [arrays["field"].shape for _, arrays in batches] == [(2, 3, 4), (1, 3, 4)]
    rows = rows_by_kind(run)
    assert [row.sample for row in rows[Kind.PREPROCESS]] == [0, 1, 2]
    assert Counter((row.sample, row.label) for row in rows[Kind.FUSED]) == Counter(
        (sample, label) for sample in range(3) for label in ("", "read+decode")
    )


def test_a_batch_that_arrives_out_of_turn_is_in_the_way_of_the_one_waited_for(
    opened, run, tmp_path
):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # Only sample 11 is read at once: its worker's batch arrives before the one waited for.
    plan = [PlannedBatch(0, 0, (0,)), PlannedBatch(1, 0, (11,))]
    with opened(2, breaking_pipeline(11, gate=gate)) as loader:
        opener = multiprocessing.get_context("fork").Process(
            target=_open_after_serialise, args=(gate, run), daemon=True
        )
        batches = loader.batches(plan)
        opener.start()
        assert [batch.planned.batch for batch in batches] == [0, 1]
        opener.join()
    rows = rows_by_kind(run)
    flags = {kind: [(row.batch, row.flags) for row in rows[kind]] for kind in rows}
    assert flags[Kind.HEAD_OF_LINE] == [(0, 0)]
    assert flags[Kind.UNPICKLE] == [(1, Flag.DETAIL), (0, 0)]


def _open_after_serialise(gate, run):
    """Open the gate once the quick batch has been unpickled by the consumer."""
    while not any(row.kind is Kind.HEAD_OF_LINE for row in live_rows(run)):
        os.sched_yield()
    with gate.open("wb"):
        pass


@pytest.mark.long
def test_workers_in_a_system_call_end_when_the_consumer_is_killed(run, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    doomed = multiprocessing.get_context("spawn").Process(
        target=consume_torch_in_vain, args=(run.path, gate)
    )
    doomed.start()
    while len({row.worker for row in live_rows(run) if row.kind is Kind.SUBMIT_QUEUE}) < 2:
        os.sched_yield()  # until both are at it
    workers = psutil.Process(doomed.pid).children()
    doomed.kill()
    doomed.join()
    assert psutil.wait_procs(workers, timeout=30)[1] == []
