"""How a run read: sizes and order of its reads, and what it read for what it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.placement.placed_calls import AccessFigures
from iobench.analysis.time_intervals import covered
from iobench.subjects.storage.read_costs import dearest_half

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles.contents import Profile
    from iobench.subjects.storage.single_reads import SingleReads

__all__ = ["access_figures", "distinct_nbytes"]

SIZE_EDGES: Final = tuple(1 << power for power in range(10, 28, 2))
"""1 KiB to 64 MiB, each four times the last."""
SMALL_READ: Final = 64 << 10


def access_figures(
    profile: Profile,
    found: SingleReads,
    timed: SingleReads | None,
    *,
    read_nbytes: int | None,
    used_nbytes: int | None,
) -> AccessFigures:
    """Return sizes, order and rates of the reads of a run.

    Parameters
    ----------
    profile : Profile
    found : SingleReads
    timed : SingleReads or None
        Reads of which is known what they cost.
    read_nbytes, used_nbytes : int or None
        Bytes read by any means, and bytes of the samples that were delivered.
    """
    reads = found.reads
    sized = reads[reads["nbytes"] > 0]
    size_bin = np.searchsorted(SIZE_EDGES, sized["nbytes"], side="right")
    placed = reads[reads["offset"] >= 0]
    order = _order_of(placed) if len(placed) == len(reads) else None
    dearest = dearest_half(timed) if timed else None
    n_bins = len(SIZE_EDGES) + 1
    return AccessFigures(
        n_reads=len(reads),
        of_segments=found.of_segments,
        size_edges=SIZE_EDGES,
        size_counts=tuple(np.bincount(size_bin, minlength=n_bins).tolist()),
        size_nbytes=_sums(size_bin, sized["nbytes"], n_bins),
        consecutive_fraction=order[0] if order else None,
        sequential_fraction=order[1] if order else None,
        random_fraction=order[2] if order else None,
        stride=_stride(placed) if order else None,
        small_read_fraction=float((sized["nbytes"] < SMALL_READ).mean()) if len(sized) else None,
        reread_factor=_reread_factor(placed) if len(placed) == len(reads) else None,
        read_per_used=read_nbytes / used_nbytes if read_nbytes and used_nbytes else None,
        bandwidths=_bandwidths(profile, reads),
        top_fraction=dearest[0] if dearest else None,
        top_exposed_fraction=dearest[1] if dearest else None,
    )


def _sums(size_bin: NDArray[np.int64], nbytes: NDArray[np.int64], n_bins: int) -> tuple[int, ...]:
    total = np.zeros(n_bins, np.int64)
    np.add.at(total, size_bin, nbytes)
    return tuple(total.tolist())


def _followers(reads: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the reads after the first of each file and process, and the one before each."""
    ordered = reads[np.lexsort((reads["start_ns"], reads["file"], reads["process"]))]
    after, before = ordered[1:], ordered[:-1]
    same = (after["file"] == before["file"]) & (after["process"] == before["process"])
    return after[same], before[same]


def _order_of(reads: NDArray[Any]) -> tuple[float, float, float] | None:
    """Return which shares of the reads went on where the last ended, further on, elsewhere."""
    after, before = _followers(reads)
    if not len(after):
        return None
    end = before["offset"] + before["nbytes"]
    consecutive = float((after["offset"] == end).mean())
    sequential = float((after["offset"] > end).mean())
    return consecutive, sequential, float((after["offset"] < end).mean())


def _stride(reads: NDArray[Any]) -> int | None:
    """Return the distance of reads that most have; None where that is what they read."""
    after, before = _followers(reads)
    if not len(after):
        return None
    distance = after["offset"] - before["offset"]
    values, counts = np.unique(distance, return_counts=True)
    most = int(values[np.argmax(counts)])
    chosen = distance == most
    if 2 * chosen.sum() <= len(distance) or not most:
        return None
    return None if (before["nbytes"][chosen] == most).all() else most


def distinct_nbytes(reads: NDArray[Any]) -> int:
    """Return how many bytes of all files were read at least once."""
    total = 0
    ordered = reads[np.lexsort((reads["offset"], reads["file"]))]
    edges = np.flatnonzero(np.diff(ordered["file"])) + 1
    for own in np.split(ordered, edges):
        # Stretches of a file, as of time.
        total += covered(own["offset"], own["offset"] + own["nbytes"])
    return total


def _reread_factor(reads: NDArray[Any]) -> float | None:
    distinct = distinct_nbytes(reads)
    return float(reads["nbytes"].sum() / distinct) if distinct else None


def _bandwidths(profile: Profile, reads: NDArray[Any]) -> tuple[tuple[str, float], ...]:
    """Return the rate of each process while it read, in bytes/s."""
    total: dict[str, tuple[int, int]] = {}
    for index in np.unique(reads["process"]).tolist():
        own = reads[reads["process"] == index]
        length_ns = covered(own["start_ns"], own["end_ns"])
        if length_ns and (own["nbytes"] >= 0).all():
            # Workers made anew for each epoch have one name, one after another.
            name = profile.processes[index].name
            nbytes, before_ns = total.get(name, (0, 0))
            total[name] = nbytes + int(own["nbytes"].sum()), before_ns + length_ns
    return tuple((name, nbytes / ns * 1e9) for name, (nbytes, ns) in total.items())
