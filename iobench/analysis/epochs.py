"""Epoch by epoch: what a batch took, what of it was waited for, and each stage's part in it.

The figures are those that MAELSTROM D2.3 gives of an epoch, a batch, its forward and backward pass
and its I/O: min, mean, median, max and standard deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.epoch_numbers import epoch_of_deliveries, of_main_loader
from iobench.analysis.epoch_statistics import (
    BatchStatistics,
    ComputeEpoch,
    EpochFigures,
    StageEpoch,
    batch_statistics,
)
from iobench.analysis.sample_counts import count_samples, samples_by_delivery
from iobench.recording.kinds import Kind, stage_name

if TYPE_CHECKING:
    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun

__all__ = [
    "BatchStatistics",
    "ComputeEpoch",
    "EpochFigures",
    "StageEpoch",
    "batch_statistics",
    "complete_epochs",
    "epoch_figures",
    "step_times",
]

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]

PASSES: Final = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD}


def epoch_figures(measured: RankRun) -> tuple[EpochFigures, ...]:
    """Return the figures of each epoch of a training process, in the order of their numbers."""
    number = epoch_of_deliveries(measured.loop, measured.deliveries)
    complete = complete_epochs(measured, number)
    tables = _Tables(measured)
    return tuple(
        tables.epoch(number == each, each, complete=each in complete)
        for each in np.unique(number).tolist()
    )


class _Tables:
    """What is known of each delivery of a training process: epochs are sums of its rows."""

    def __init__(self, measured: RankRun) -> None:
        self.measured = measured
        self.samples = samples_by_delivery(measured.loop, measured.deliveries)
        self.followed = _followed(measured.deliveries)
        self.passes = _passes(measured)
        compute_stage = measured.attribution.compute_stage
        self.compute = {
            index: _by_delivery(measured, compute_stage == index)
            for index in np.unique(compute_stage).tolist()
        }

    def epoch(self, chosen: Marks, number: int, *, complete: bool) -> EpochFigures:
        """Return the figures of chosen deliveries, those of one epoch."""
        measured, deliveries = self.measured, self.measured.deliveries
        with_batch = chosen & (deliveries.batch >= 0)
        nbytes = deliveries.nbytes[with_batch]
        passes = {
            name: batch_statistics(times[with_batch & there])
            for name, (times, there) in self.passes.items()
        }
        return EpochFigures(
            epoch=number,
            rank=measured.exposure.rank,
            complete=complete,
            n_batches=int(with_batch.sum()),
            n_samples=count_samples(
                measured.profile, measured.loop, deliveries, with_batch, by_delivery=self.samples
            ),
            nbytes=int(nbytes.sum()) if (nbytes >= 0).all() else None,
            start_ns=int(deliveries.from_ns[chosen].min()),
            end_ns=int(deliveries.until_ns[chosen].max()),
            wall_ns=int(deliveries.wall_ns[chosen].sum()),
            wait_ns=int(deliveries.wait_ns[chosen].sum()),
            batches_ns=int(deliveries.wall_ns[with_batch].sum()),
            batch=batch_statistics(deliveries.wall_ns[with_batch & self.followed]),
            wait=batch_statistics(deliveries.wait_ns[with_batch]),
            **passes,
            stages=self._stages(np.flatnonzero(chosen), np.flatnonzero(with_batch)),
            compute_stages=self._compute_stages(chosen, with_batch),
        )

    def _stages(self, rows: Integers, with_batch: Integers) -> tuple[StageEpoch, ...]:
        ledger, stages = self.measured.attribution.ledger, self.measured.attribution.stages
        busy_ns, exposed_ns = ledger.busy_ns[rows].sum(axis=0), ledger.exposed_ns[rows].sum(axis=0)
        n_spans = ledger.n_spans[rows].sum(axis=0)
        busy, exposed = ledger.busy_ns[with_batch], ledger.exposed_ns[with_batch]
        found = [
            StageEpoch(
                stage=stage_name(stages.kinds[index], stages.labels[index]),
                kind=stages.kinds[index],
                busy_ns=int(busy_ns[index]),
                exposed_ns=int(exposed_ns[index]),
                busy=batch_statistics(busy[:, index]),
                exposed=batch_statistics(exposed[:, index]),
            )
            for index in np.flatnonzero((busy_ns > 0) | (exposed_ns > 0) | (n_spans > 0)).tolist()
        ]
        return tuple(sorted(found, key=lambda row: (-row.exposed_ns, -row.busy_ns, row.stage)))

    def _compute_stages(self, chosen: Marks, with_batch: Marks) -> tuple[ComputeEpoch, ...]:
        stages = self.measured.attribution.stages
        found = [
            ComputeEpoch(
                stage=stage_name(stages.kinds[index], stages.labels[index]),
                kind=stages.kinds[index],
                busy_ns=int(times[chosen].sum()),
                busy=batch_statistics(times[with_batch & there]),
            )
            for index, (times, there) in self.compute.items()
            if (chosen & there).any()
        ]
        return tuple(sorted(found, key=lambda row: (-row.busy_ns, row.stage)))


def _followed(deliveries: Deliveries) -> Marks:
    """Tell after which deliveries the loop asked on, for a batch or for the end of its round."""
    asked_on = (deliveries.batch >= 0) | deliveries.ends_round
    followed: Marks = np.append(asked_on[1:], False)[: len(deliveries)]
    return followed


def _passes(measured: RankRun) -> dict[str, tuple[Integers, Marks]]:
    """Return forward and backward time of each delivery, and which have any."""
    kinds = np.array([*measured.attribution.stages.kinds], dtype=np.int64)
    found = kinds[measured.attribution.compute_stage]
    return {name: _by_delivery(measured, found == kind) for name, kind in PASSES.items()}


def _by_delivery(measured: RankRun, chosen: Marks) -> tuple[Integers, Marks]:
    """Return the time of chosen pieces of computing by delivery, and which have any."""
    attribution = measured.attribution
    times = np.zeros(len(measured.deliveries) + 1, dtype=np.int64)
    there = np.zeros(len(times), dtype=bool)
    where = attribution.compute_delivery[chosen]
    np.add.at(times, where, attribution.compute_ns[chosen])
    there[where] = True
    return times[:-1], there[:-1]


def step_times(measured: RankRun) -> dict[str, Integers]:
    """Return what a training loop saw, in ns: one array for each row of D2.3.

    Those are ``epoch`` (the sum of its batches, where all of them were measured), ``batch``,
    ``forward``, ``backward`` and ``I/O``, as `EpochFigures` has them, of all epochs; ``I/O`` of
    the batches whose end is known, so that it is a part of ``batch``.
    """
    deliveries = measured.deliveries
    with_batch = deliveries.batch >= 0
    timed = with_batch & _followed(deliveries)
    number = epoch_of_deliveries(measured.loop, measured.deliveries)
    complete = complete_epochs(measured, number)
    sums = [deliveries.wall_ns[with_batch & (number == each)].sum() for each in sorted(complete)]
    return {
        "epoch": np.array(sums, dtype=np.int64),
        "batch": deliveries.wall_ns[timed],
        "I/O": deliveries.wait_ns[timed],
        **{name: times[with_batch & there] for name, (times, there) in _passes(measured).items()},
    }


def complete_epochs(measured: RankRun, number: Integers) -> set[int]:
    """Return the epochs of which all batches were measured.

    Those with as many batches as the configuration has (none where a batch is more than all
    samples, and so of several epochs); where it does not tell, those whose round was recorded from
    its first batch to its end.

    Parameters
    ----------
    measured : RankRun
    number : ndarray of int64, shape (n_deliveries,)
        From `epoch_of_deliveries`.
    """
    deliveries, config = measured.deliveries, measured.profile.config
    with_batch = deliveries.batch >= 0
    found, counts = np.unique(number[with_batch], return_counts=True)
    n_samples, batch_size = config.get("n_samples"), config.get("batch_size")
    if isinstance(n_samples, int) and isinstance(batch_size, int) and batch_size > 0:
        return _full(found, counts, n_samples, batch_size)
    main = of_main_loader(measured.loop, deliveries)
    begun = number[main & with_batch & (deliveries.position == 0)]
    ended = number[main & deliveries.ends_round]
    return set(found.tolist()) & set(begun.tolist()) & set(ended.tolist())


def _full(numbers: Integers, counts: Integers, n_samples: int, batch_size: int) -> set[int]:
    """Return the epochs that have all batches.

    An epoch may have one more than fit into it: its last batch is short, or of the next one as
    well. Whether the last epoch misses that one is told from the epochs before it.
    """
    if not len(numbers) or batch_size > n_samples:
        return set()
    full = counts >= n_samples // batch_size
    most = int(counts[:-1][full[:-1]].max(initial=0)) or -(-n_samples // batch_size)
    full[-1] &= bool(counts[-1] >= most)
    return set(numbers[full].tolist())
