"""How many samples batches held: by their bytes where samples are of one size, else as asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.analysis.loop import ONLY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.loop import TrainingLoop
    from iobench.profiles.contents import Profile

__all__ = ["count_samples", "samples_by_delivery"]


def count_samples(
    profile: Profile,
    loop: TrainingLoop,
    deliveries: Deliveries,
    chosen: NDArray[np.bool_],
    *,
    by_delivery: NDArray[np.int64] | None = None,
) -> int | None:
    """Return the samples in chosen batches: by their bytes, else by the batch size.

    Parameters
    ----------
    profile, loop, deliveries
    chosen : ndarray of bool, shape (n_deliveries,)
        Marks of deliveries that brought a batch.
    by_delivery : ndarray of int64, optional
        `samples_by_delivery` of them, where it is known already.
    """
    nbytes = deliveries.nbytes[chosen]
    sample_nbytes = profile.config.get("sample_nbytes")
    if sample_nbytes and (nbytes >= 0).all() and not (nbytes % sample_nbytes).any():
        return int(nbytes.sum()) // int(sample_nbytes)
    found = samples_by_delivery(loop, deliveries) if by_delivery is None else by_delivery
    samples = found[chosen]
    if (samples < 0).any() or not (len(samples) or loop.loaders[ONLY].batch_size):
        return None
    return int(samples.sum())


def samples_by_delivery(loop: TrainingLoop, deliveries: Deliveries) -> NDArray[np.int64]:
    """Return the samples of each delivery; 0 without a batch, -1 where the batch size is unknown.

    The last batches of a round may be short. They are counted by their bytes if all before them,
    of that loader, have the same number of bytes.
    """
    with_batch = deliveries.batch >= 0
    samples = np.where(with_batch, -1, 0).astype(np.int64)
    for number in np.unique(deliveries.loader[with_batch]).tolist():
        batch_size = loop.loaders.get(number, loop.loaders[ONLY]).batch_size
        if not batch_size:
            continue
        rows = np.flatnonzero(with_batch & (deliveries.loader == number))
        samples[rows] = batch_size
        last = _last_of_rounds(deliveries.round[rows], max(int(deliveries.workers[rows[0]]), 1))
        sizes = np.unique(deliveries.nbytes[rows[~last]])
        if len(sizes) != 1 or sizes[0] <= 0:
            continue
        held = deliveries.nbytes[rows] * batch_size
        short = last & (held > 0) & (held < sizes[0] * batch_size) & (held % sizes[0] == 0)
        samples[rows[short]] = held[short] // sizes[0]
    return samples


def _last_of_rounds(rounds: NDArray[np.int64], n_last: int) -> NDArray[np.bool_]:
    """Mark the last deliveries of each round: one for each process that may end with a rest."""
    order = np.argsort(rounds, kind="stable")
    _, first, counts = np.unique(rounds[order], return_index=True, return_counts=True)
    from_end = np.repeat(first + counts, counts) - np.arange(len(rounds))
    marks = np.zeros(len(rounds), dtype=bool)
    marks[order] = from_end <= n_last
    return marks
