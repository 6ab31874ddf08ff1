"""What a changed run would take, by replay, and by how much another run may differ from that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.analysis.intervals import block_ratio, blocks_of, paired_ratio

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


__all__ = ["UNSEEN_ERROR", "Prediction", "predicted"]

UNSEEN_ERROR: Final = 0.05
"""By what share of its time a changed run may miss its replay beyond its own noise, since loaders
do what no span tells: the goal of ``tests/benchmarks/held_out.py`` for its median.
``tests/benchmarks/replaying.py`` prints what nine in ten predictions stay below."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change saves, as shares of the time of a batch now.

    Parameters
    ----------
    saved : float
        Of the batches that were replayed.
    low, high : float or None
        Between which it lies with 95 % in another run as long as this one, whose batches vary as
        these do; None where there are too few batches to tell how they vary.
    helps : bool or None
        Whether the batches of this run would have taken less time: False where what they save is
        within what a replay may miss, None where they are too few or too unlike to tell.
    """

    saved: float
    low: float | None
    high: float | None
    helps: bool | None


def predicted(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    *,
    epochs: NDArray[np.int64] | None = None,
    error: float = UNSEEN_ERROR,
) -> Prediction:
    """Return what a change saves, from what each batch takes without it and with it.

    The interval is that of two runs which have nothing to do with each other, as ``iobench
    compare`` has it, widened by what a replay may miss: that both replays are of the same batches
    tells whether these gain, but not what other batches will.

    Parameters
    ----------
    before, after : ndarray of float64, shape (n_batches,)
        Of the same batches, by two replays.
    epochs : ndarray of int64, shape (n_batches,), optional
        `RecordedRun.judged_epochs`: what varies is then how long epochs take, as in a comparison.
    error : float
        Share of its time by which a changed run may miss its replay.
    """
    if not before.sum():
        return Prediction(0.0, None, None, None)
    saved = 1.0 - float(after.sum()) / float(before.sum())
    within = False if (1.0 - saved) * (1.0 + error) >= 1.0 else None
    a, b = blocks_of(before, epochs), blocks_of(after, epochs)
    same, apart = paired_ratio(a, b), block_ratio(a, b)
    if same.high is None or apart.low is None or apart.high is None:
        return Prediction(saved, None, None, within)
    return Prediction(
        saved,
        1.0 - apart.high * (1.0 + error),
        1.0 - apart.low * (1.0 - error),
        True if same.high * (1.0 + error) < 1.0 else within,
    )
