"""The figures of an epoch, as MAELSTROM D2.3 gives them; exact where they are sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.recording.kinds import Kind

__all__ = ["BatchStatistics", "ComputeEpoch", "EpochFigures", "StageEpoch", "batch_statistics"]


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
class StageEpoch:
    """A stage's work in one epoch, and the part of it that the training loop waited for.

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``.
    kind : Kind
    busy_ns, exposed_ns : int
        Of the whole epoch, waits that brought no batch included.
    busy, exposed : BatchStatistics or None
        Per batch, over all batches of the epoch: those it did not work on count as 0. None of an
        epoch without a batch.
    """

    stage: str
    kind: Kind
    busy_ns: int
    exposed_ns: int
    busy: BatchStatistics | None
    exposed: BatchStatistics | None


@dataclass(frozen=True, slots=True)
class ComputeEpoch:
    """A stage of the training loop itself (``forward``, ``step:optimizer``, ...) in one epoch.

    Parameters
    ----------
    stage : str
    kind : Kind
    busy_ns : int
        Of the whole epoch.
    busy : BatchStatistics or None
        Per batch, over the batches that have it.
    """

    stage: str
    kind: Kind
    busy_ns: int
    busy: BatchStatistics | None


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
    stages : tuple of StageEpoch
        Largest exposed time first, then largest busy time.
    compute_stages : tuple of ComputeEpoch
        Largest first.
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
    stages: tuple[StageEpoch, ...]
    compute_stages: tuple[ComputeEpoch, ...]

    @property
    def compute_ns(self) -> int:
        """Everything between waits."""
        return self.wall_ns - self.wait_ns

    @property
    def wait_fraction(self) -> float | None:
        """Share of its time spent waiting; None of an epoch without time."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None


def batch_statistics(times_ns: NDArray[np.int64]) -> BatchStatistics | None:
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
