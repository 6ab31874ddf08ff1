"""Epoch by epoch: what a batch took, what of it was waited for, and each stage's part in it.

The figures are those that MAELSTROM D2.3 gives of an epoch, a batch, its forward and backward pass
and its I/O: min, mean, median, max and standard deviation. And what an epoch over all samples
takes, as measured or by what it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.exposure import part_of, step_statistics
from iobench.recording.epoch_reads import EpochReads, LoadRates
from iobench.recording.kinds import WORKER_KINDS, Kind, kind_named

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


class EpochCost(msgspec.Struct, frozen=True):
    """What epochs over all samples take, the training step included."""

    n_samples: int
    first_s: float
    later_s: float
    reads: EpochReads | None = None  # None where samples share nothing that is known
    rates: LoadRates | None = None
    step_s: float | None = None  # for a sample


def epoch_cost(run: RankRun, n: int | None = None) -> EpochCost | None:
    """Return what epochs take, over ``n`` samples or all of a profile; None where unknown."""
    facts, part, waits = run.about, run.exposure.judged, run.deliveries
    n = n or (facts.store and facts.store.n_samples_all) or facts.n_samples_all
    if not n or not part.n_samples:
        return None
    later_s = part.wall_ns / part.n_samples * n / 1e9
    if facts.epoch is None or facts.epoch.n_samples != n:
        return EpochCost(n, later_s, later_s)
    step_s = part.compute_ns / part.n_samples / 1e9
    rates = _rates(run)
    if facts.threads or facts.workers:
        first_s, expected_s = facts.epoch.epochs_s(rates, step_s)
    else:  # the loop loads, and computes when it has
        loop = replace(rates, sample_s=rates.sample_s + step_s)
        first_s, expected_s = facts.epoch.epochs_s(loop, 0.0)
    is_first = (waits.of_epoch == 0) & waits.trains
    complete = waits.complete_epochs if facts.n_samples == n else frozenset()
    if 0 in complete:
        first_s = int(waits.wall_ns[is_first].sum()) / 1e9
    later_s = later_s if len(complete) > 1 else expected_s
    return EpochCost(n, first_s, later_s, facts.epoch, rates, step_s)


def _rates(run: RankRun) -> LoadRates:
    """Return what loading took for each byte read, and for samples that read nothing."""
    waits, ledger, facts = run.deliveries, run.ledger, run.about
    is_work = [kind_named(name) in WORKER_KINDS for name in ledger.stages.names]
    busy_s = (
        ledger.busy_ns[:-1, is_work].sum(axis=1) / 1e9 / max(1, facts.threads or facts.workers or 0)
    )
    nbytes = run.counters.table["undecoded_nbytes"][:-1]
    loads = (waits.batch >= 0) & (busy_s > 0)
    from_memory = loads & (nbytes == 0)
    n_from_memory = int(waits.n_samples[from_memory].sum())
    sample_s = float(busy_s[from_memory].sum()) / n_from_memory if n_from_memory else 0.0

    def rate(rows: NDArray[np.bool_]) -> float | None:
        rows = rows & loads & (nbytes > 0)
        work_s = float(busy_s[rows].sum()) - sample_s * int(waits.n_samples[rows].sum())
        return max(0.0, work_s) / int(nbytes[rows].sum()) if rows.any() else None

    first, again = rate(waits.of_epoch == 0), rate(waits.of_epoch > 0)
    known = first if first is not None else again or 0.0
    return LoadRates(known, known if again is None else again, sample_s)


class BreakEven(msgspec.Struct, frozen=True):
    """When what is spent once has been saved again, epoch by epoch."""

    epochs: float | None  # until it has paid; None where it never does, or that is unknown
    never: bool  # whether epochs get no shorter
    staging_to_epoch: float | None

    @classmethod
    def of(
        cls,
        spent_s: float | None,
        epoch_s: float | None,
        saved_s: float | None,
        first_saved_s: float | None = None,
    ) -> BreakEven:
        """Return when it has paid, where an epoch took ``epoch_s`` and now ``saved_s`` less.

        The first epoch may take ``first_saved_s`` less instead.
        """
        first_s = saved_s if first_saved_s is None else first_saved_s
        if spent_s is None or saved_s is None or first_s is None:
            epochs = None
        elif first_s > 0 and spent_s <= first_s:
            epochs = spent_s / first_s
        else:
            epochs = 1 + (spent_s - first_s) / saved_s if saved_s > 0 else None
        never = saved_s is not None and saved_s <= 0 and epochs is None
        after_s = None if epoch_s is None or saved_s is None else epoch_s - saved_s
        ratio = spent_s / after_s if spent_s is not None and after_s else None
        return cls(epochs, never, ratio)
