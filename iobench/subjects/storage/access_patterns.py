"""How a run read: sizes and order of its reads, what it read for what it used, what they cost."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.time_intervals import covered
from iobench.frozen import frozen
from iobench.json_keys import key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.profiles.contents import Profile
    from iobench.subjects.storage.single_reads import SingleReads

SIZE_EDGES: Final = tuple(1 << power for power in range(10, 28, 2))
"""1 KiB to 64 MiB, each four times the last."""
SMALL_READ: Final = 64 << 10
SHOWN: Final = 20
NEARLY_ALL: Final = 0.95


@frozen
class ReadCost:
    """One read, and what it cost the training loop.

    Parameters
    ----------
    process : str
        Who read.
    file : str
        Null where unknown.
    offset, nbytes : int or None
        Where in it, and how much; None where unknown.
    start_ns : int
        On the run's clock.
    duration_ns : int
        How long it took.
    exposed_ns : int
        How much of that the training loop waited for.
    """

    process: str
    file: str
    offset: int | None
    nbytes: int | None
    start_ns: int = field(metadata=key("start_ns"))
    duration_ns: int
    exposed_ns: int


@frozen
class AccessFigures:
    """How the run read: sizes, order, and what it read for what it used.

    Calls that returned nothing, as at the end of every file, are left out.

    Parameters
    ----------
    n_reads : int
        Single reads.
    of_segments : bool
        Whether these are a tracer's segments; else they are what stages read at once.
    size_edges : tuple of int
        Upper edges in bytes of the histogram's bins, the last one open; a size on an edge is in
        the bin above it.
    size_counts, size_nbytes : tuple of int
        Reads and bytes of each bin, one more than edges.
    consecutive_fraction, sequential_fraction, random_fraction : float or None
        Of the reads after the first of each file and process: where the last one ended; further
        on; elsewhere.
    stride : int or None
        Bytes from read to read, where more than half of the reads have it and it is not their size.
    small_read_fraction : float or None
        Reads of less than 64 KiB.
    reread_factor : float or None
        Bytes read over distinct bytes read.
    read_per_used : float or None
        Bytes read over bytes of the samples that were delivered.
    bytes_per_s : mapping of str to float
        Of each process, bytes read over the time of its reads.
    top_fraction, top_exposed_fraction : float or None
        "3 % of the reads cost 61 % of the wait": the fewest reads, dearest first, that cost more
        than half of the time that all reads were waited for.
    """

    n_reads: int = field(metadata=key("reads"))
    of_segments: bool
    size_edges: tuple[int, ...]
    size_counts: tuple[int, ...]
    size_nbytes: tuple[int, ...]
    consecutive_fraction: float | None
    sequential_fraction: float | None
    random_fraction: float | None
    stride: int | None
    small_read_fraction: float | None
    reread_factor: float | None
    read_per_used: float | None
    bytes_per_s: Mapping[str, float]
    top_fraction: float | None
    top_exposed_fraction: float | None


def access_figures(
    profile: Profile,
    found: SingleReads,
    *,
    read_nbytes: int | None,
    used_nbytes: int | None,
) -> AccessFigures:
    """Return sizes, order and rates of the reads of a run.

    Parameters
    ----------
    read_nbytes, used_nbytes : int or None
        Bytes read by any means, and bytes of the samples that were delivered.
    """
    reads = found.reads
    sized = reads[reads["nbytes"] > 0]
    size_bin = np.searchsorted(SIZE_EDGES, sized["nbytes"], side="right")
    placed = reads[reads["offset"] >= 0]
    order = _order_of(placed) if len(placed) == len(reads) else None
    dearest = dearest_half(found)
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
        bytes_per_s=_rates(profile, reads),
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


def _rates(profile: Profile, reads: NDArray[Any]) -> Mapping[str, float]:
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
    return {name: nbytes / ns * 1e9 for name, (nbytes, ns) in total.items()}


def _known(value: int) -> int | None:
    return int(value) if value >= 0 else None


def costliest_reads(profile: Profile, found: SingleReads) -> tuple[ReadCost, ...]:
    """Return the reads that were waited for longest; none where that is known of none."""
    reads = found.reads
    length = reads["end_ns"] - reads["start_ns"]
    order = np.lexsort((reads["start_ns"], -length, -reads["exposed_ns"]))[:SHOWN]
    return tuple(
        ReadCost(
            process=profile.processes[read["process"]].name,
            file=found.files[read["file"]],
            offset=_known(read["offset"]),
            nbytes=_known(read["nbytes"]),
            start_ns=int(read["start_ns"]),
            duration_ns=int(read["end_ns"] - read["start_ns"]),
            exposed_ns=int(read["exposed_ns"]),
        )
        for read in reads[order]
        if read["exposed_ns"] > 0
    )


def dearest_half(found: SingleReads) -> tuple[float, float] | None:
    """Return the fewest reads that cost more than half of what all cost, and what they cost.

    Returns
    -------
    (float, float) or None
        Their share of the reads, and of the exposed time of all; None where reads were not waited
        for, or that is not known of nearly all of them.
    """
    exposed_ns = found.reads["exposed_ns"]
    known = exposed_ns[exposed_ns >= 0]
    if not known.sum() or len(known) < NEARLY_ALL * len(exposed_ns):
        return None
    cost = np.cumsum(np.sort(np.maximum(exposed_ns, 0))[::-1])
    place = int(np.searchsorted(2 * cost, cost[-1], side="right"))
    return (place + 1) / len(cost), float(cost[place] / cost[-1])
