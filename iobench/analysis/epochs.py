"""Epoch by epoch: what a batch took, what of it was waited for, and each stage's part in it.

The figures are those that MAELSTROM D2.3 gives of an epoch, a batch, its forward and backward pass
and its I/O: min, mean, median, max and standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.ledger import Ledger
    from iobench.analysis.run import RankRun

__all__ = [
    "BatchStatistics",
    "EpochFigures",
    "EpochStage",
    "batch_statistics",
    "epoch_figures",
    "step_times",
]

Integers = NDArray[np.int64]
Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """A time that each of several batches took.

    Parameters
    ----------
    n_batches : int
        At least one.
    total_ns, min_ns, max_ns : int
    mean_ns, median_ns : float
    stdev_ns : float or None
        Sample standard deviation; None of a single batch.
    """

    n_batches: int
    total_ns: int
    min_ns: int
    mean_ns: float
    median_ns: float
    max_ns: int
    stdev_ns: float | None


@dataclass(frozen=True, slots=True)
class EpochStage:
    """A stage in one epoch: of loading, or of the training loop itself (``forward``, ...).

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``.
    busy_ns, exposed_ns : int
        Of the whole epoch, waits that brought no batch included; what the loop does itself is 0
        exposed.
    busy, exposed : BatchStatistics or None
        Per batch: of loading over all batches of the epoch, those it did not work on count as 0;
        of the loop itself over the batches that have it, and None exposed. None of an epoch
        without a batch.
    """

    stage: str
    busy_ns: int
    exposed_ns: int
    busy: BatchStatistics | None
    exposed: BatchStatistics | None


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One pass of the training loop over its samples.

    Added up over the epochs of a run, ``n_batches``, ``wall_ns``, ``wait_ns``, ``compute_ns`` and
    the stages' times are those of ``exposure(profile).whole``, exactly.

    Parameters
    ----------
    epoch : int
        As the loader that trains numbers it, from 0. What other loaders delivered belongs to the
        epoch that went on, or had just ended: a validation to the epoch before it.
    rank : int
    complete : bool
        Whether all its batches were measured.
    n_batches : int
    n_samples : int or None
        None where neither sample nor batch size is known.
    nbytes : int or None
        Of its batches; None where a delivery does not tell.
    start_ns, end_ns : int
        From its first delivery's being asked for to the end of its last round. What lies between
        its rounds is in no other figure.
    wall_ns : int
        From being asked for each delivery to being asked for the next one or the round's end.
    wait_ns : int
        Time the training loop was blocked, waits that brought no batch included.
    batches_ns : int
        The part of ``wall_ns`` that is of batches: the epoch as D2.3 has it.
    batch : BatchStatistics or None
        From being asked for a batch to being asked for the next; without batches of which nobody
        knows when the next was asked for.
    wait : BatchStatistics or None
        How long each batch was waited for: the exposed I/O of D2.3.
    forward, backward : BatchStatistics or None
        Per batch, all stages of that kind; None where there are none.
    stages, compute_stages : tuple of EpochStage
        Of loading, and of the loop itself: largest exposed time first, then largest busy time.
    """

    epoch: int
    rank: int
    complete: bool
    n_batches: int
    n_samples: int | None
    nbytes: int | None
    start_ns: int
    end_ns: int
    wall_ns: int
    wait_ns: int
    batches_ns: int
    batch: BatchStatistics | None
    wait: BatchStatistics | None
    forward: BatchStatistics | None
    backward: BatchStatistics | None
    stages: tuple[EpochStage, ...]
    compute_stages: tuple[EpochStage, ...]

    @property
    def compute_ns(self) -> int:
        """Everything between waits."""
        return self.wall_ns - self.wait_ns

    @property
    def wait_fraction(self) -> float | None:
        """Share of its time spent waiting; None of an epoch without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None


def batch_statistics(times_ns: Integers) -> BatchStatistics | None:
    """Return the statistics of one time per batch; None of none."""
    if not len(times_ns):
        return None
    total = int(times_ns.sum())
    return BatchStatistics(
        n_batches=len(times_ns),
        total_ns=total,
        min_ns=int(times_ns.min()),
        mean_ns=total / len(times_ns),
        median_ns=float(np.median(times_ns)),
        max_ns=int(times_ns.max()),
        stdev_ns=float(np.std(times_ns, ddof=1)) if len(times_ns) > 1 else None,
    )


def epoch_figures(run: RankRun) -> tuple[EpochFigures, ...]:
    """Return the figures of each epoch of a training process, in the order of their numbers."""
    number = run.deliveries.of_epoch
    return tuple(_figures(run, number == each, each) for each in np.unique(number).tolist())


def _figures(run: RankRun, chosen: Marks, number: int) -> EpochFigures:
    """Return the figures of chosen deliveries, those of one epoch."""
    deliveries, ledger = run.deliveries, run.ledger
    with_batch = chosen & (deliveries.batch >= 0)
    nbytes = deliveries.nbytes[with_batch]
    return EpochFigures(
        epoch=number,
        rank=run.loop.rank,
        complete=number in deliveries.complete_epochs,
        n_batches=int(with_batch.sum()),
        n_samples=run.samples_in(with_batch),
        nbytes=int(nbytes.sum()) if (nbytes >= 0).all() else None,
        start_ns=int(deliveries.from_ns[chosen].min()),
        end_ns=int(deliveries.until_ns[chosen].max()),
        wall_ns=int(deliveries.wall_ns[chosen].sum()),
        wait_ns=int(deliveries.wait_ns[chosen].sum()),
        batches_ns=int(deliveries.wall_ns[with_batch].sum()),
        batch=batch_statistics(deliveries.wall_ns[with_batch & _followed(deliveries)]),
        wait=batch_statistics(deliveries.wait_ns[with_batch]),
        forward=batch_statistics(_pass(ledger, Kind.FORWARD, with_batch)),
        backward=batch_statistics(_pass(ledger, Kind.BACKWARD, with_batch)),
        stages=_stages(ledger, chosen, with_batch),
        compute_stages=_compute_stages(ledger, chosen, with_batch),
    )


def _stages(ledger: Ledger, chosen: Marks, with_batch: Marks) -> tuple[EpochStage, ...]:
    busy_ns, exposed_ns, n_spans = (
        ledger.sum(chosen, name) for name in ("busy_ns", "exposed_ns", "n_spans")
    )
    rows = np.flatnonzero(with_batch)
    busy, exposed = ledger.busy_ns[rows], ledger.exposed_ns[rows]
    return _in_order(
        EpochStage(
            stage=ledger.stages.names[index],
            busy_ns=int(busy_ns[index]),
            exposed_ns=int(exposed_ns[index]),
            busy=batch_statistics(busy[:, index]),
            exposed=batch_statistics(exposed[:, index]),
        )
        for index in np.flatnonzero((busy_ns > 0) | (exposed_ns > 0) | (n_spans > 0)).tolist()
    )


def _compute_stages(ledger: Ledger, chosen: Marks, with_batch: Marks) -> tuple[EpochStage, ...]:
    busy_ns, n_pieces = ledger.sum(chosen, "compute_ns"), ledger.sum(chosen, "n_computed")
    rows = np.flatnonzero(with_batch)
    times, there = ledger.compute_ns[rows], ledger.n_computed[rows] > 0
    return _in_order(
        EpochStage(
            stage=ledger.stages.names[index],
            busy_ns=int(busy_ns[index]),
            exposed_ns=0,
            busy=batch_statistics(times[there[:, index], index]),
            exposed=None,
        )
        for index in np.flatnonzero(n_pieces).tolist()
    )


def _in_order(rows: Iterable[EpochStage]) -> tuple[EpochStage, ...]:
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, -row.busy_ns, row.stage)))


def _followed(deliveries: Deliveries) -> Marks:
    """Tell after which deliveries the loop asked on, for a batch or for the end of its round."""
    asked_on = (deliveries.batch >= 0) | deliveries.ends_round
    followed: Marks = np.append(asked_on[1:], False)[: len(deliveries)]
    return followed


def _pass(ledger: Ledger, kind: Kind, chosen: Marks) -> Integers:
    """Return the time of a kind in each of the chosen deliveries that has any."""
    rows = np.flatnonzero(chosen)
    stages = np.flatnonzero([each == kind for each in ledger.stages.kinds])
    there = ledger.n_computed[np.ix_(rows, stages)].any(axis=1)
    times: Integers = ledger.compute_ns[np.ix_(rows[there], stages)].sum(axis=1)
    return times


def step_times(run: RankRun) -> dict[str, Integers]:
    """Return what a training loop saw, in ns: one array for each row of D2.3.

    Those are ``epoch`` (the sum of its batches, where all of them were measured), ``batch``,
    ``forward``, ``backward`` and ``I/O``, as `EpochFigures` has them, of all epochs; ``I/O`` of
    the batches whose end is known, so that it is a part of ``batch``.
    """
    deliveries = run.deliveries
    with_batch = deliveries.batch >= 0
    timed = with_batch & _followed(deliveries)
    sums = [
        deliveries.wall_ns[with_batch & (deliveries.of_epoch == each)].sum()
        for each in sorted(deliveries.complete_epochs)
    ]
    return {
        "epoch": np.array(sums, dtype=np.int64),
        "batch": deliveries.wall_ns[timed],
        "I/O": deliveries.wait_ns[timed],
        "forward": _pass(run.ledger, Kind.FORWARD, with_batch),
        "backward": _pass(run.ledger, Kind.BACKWARD, with_batch),
    }
