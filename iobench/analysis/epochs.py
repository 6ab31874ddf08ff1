"""Epoch by epoch: what a batch took, what of it was waited for, and each stage's part in it.

The figures are those that MAELSTROM D2.3 gives of an epoch, a batch, its forward and backward pass
and its I/O: min, mean, median, max and standard deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.exposure import part_of, step_statistics
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.analysis.exposure_figures import PartExposure, StepStatistics
    from iobench.analysis.ledger import Ledger
    from iobench.analysis.run import RankRun

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]


class EpochFigures(msgspec.Struct, frozen=True):
    """One pass of the training loop over its samples; its parts add up to the run's, exactly."""

    epoch: int  # as the loader that trains numbers it, from 0
    complete: bool  # whether all its batches were measured
    part: PartExposure  # validations and waits that brought no batch included
    training: PartExposure | None  # of these, what trains,
    validation: PartExposure | None  # and what validates, tests or predicts
    end_ns: int  # of its last round
    batch: StepStatistics | None  # from being asked for a batch to being asked for the next
    wait: StepStatistics | None  # for each batch: the exposed I/O of D2.3
    forward: StepStatistics | None  # per batch, all stages of that kind
    backward: StepStatistics | None
    busy: Mapping[str, StepStatistics]  # of each stage of loading, per batch, 0 without work
    exposed: Mapping[str, StepStatistics]


class EpochTime(msgspec.Struct, frozen=True):
    """What one epoch took."""

    epoch: int  # as a framework numbers it, which may continue from an earlier training
    complete: bool
    batches: int  # to train on
    wall_ns: int  # of its training
    wait_ns: int
    validation_ns: int | None  # of passes that validate, test or predict
    validation_wait_ns: int | None


def epoch_times(epochs: Sequence[EpochFigures]) -> tuple[EpochTime, ...]:
    """Return what each epoch took, of those that trained on a batch."""
    return tuple(
        EpochTime(
            each.epoch,
            each.complete,
            each.training.n_batches,
            each.training.wall_ns,
            each.training.wait_ns,
            None if each.validation is None else each.validation.wall_ns,
            None if each.validation is None else each.validation.wait_ns,
        )
        for each in epochs
        if each.training is not None and each.training.n_batches
    )


def epoch_figures(run: RankRun) -> tuple[EpochFigures, ...]:
    """Return the figures of each epoch of a training process, in the order of their numbers."""
    number = run.deliveries.of_epoch
    return tuple(_figures(run, number == each, each) for each in np.unique(number).tolist())


def _figures(run: RankRun, chosen: Marks, number: int) -> EpochFigures:
    """Return the figures of chosen deliveries, those of one epoch."""
    deliveries, ledger, part = run.deliveries, run.ledger, part_of(run, chosen)
    trains, evaluates = chosen & deliveries.trains, chosen & ~deliveries.trains
    training = part_of(run, trains) if evaluates.any() else part
    chosen = trains if trains.any() else chosen
    with_batch = chosen & (deliveries.batch >= 0)
    loading = [row.stage for row in part.stages]
    return EpochFigures(
        epoch=number,
        complete=number in deliveries.complete_epochs,
        part=part,
        training=training if trains.any() else None,
        validation=part_of(run, evaluates) if evaluates.any() else None,
        end_ns=int(deliveries.until_ns[trains | evaluates].max()),
        batch=step_statistics(deliveries.wall_ns[with_batch & deliveries.followed]),
        wait=step_statistics(deliveries.wait_ns[with_batch]),
        forward=step_statistics(_pass(ledger, Kind.FORWARD, with_batch)),
        backward=step_statistics(_pass(ledger, Kind.BACKWARD, with_batch)),
        busy=dict(_by_stage(ledger, loading, ledger.busy_ns, with_batch)),
        exposed=dict(_by_stage(ledger, loading, ledger.exposed_ns, with_batch)),
    )


def _by_stage(
    ledger: Ledger, stages: Sequence[str], table: Integers, with_batch: Marks
) -> Iterator[tuple[str, StepStatistics]]:
    """Yield the statistics of stages over batches."""
    for name in stages:
        result = step_statistics(table[:-1, ledger.stages.names.index(name)][with_batch])
        if result is not None:
            yield name, result


def _pass(ledger: Ledger, kind: Kind, chosen: Marks) -> Integers:
    """Return the time of a kind in each of the chosen deliveries that has any."""
    there = chosen & (_of_kind(ledger, kind, "n_computed") > 0)
    times: Integers = _of_kind(ledger, kind, "compute_ns")[there]
    return times


def _of_kind(ledger: Ledger, kind: Kind, of: str) -> Integers:
    """Return a table of the ledger for each delivery, all stages of a kind together."""
    stages = np.flatnonzero([each == kind for each in ledger.stages.kinds])
    sums: Integers = getattr(ledger, of)[:-1, stages].sum(axis=1)
    return sums
