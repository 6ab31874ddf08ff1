"""The single reads of a run: their sizes, their order, what was waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.time_intervals import covered
from iobench.findings.storage.evidence import has_all_segments
from iobench.json_keys import key
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import lane_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from iobench.analysis.read_spans import ReadSpans
    from iobench.findings.storage.evidence import ReadEvidence
    from iobench.runs.contents import RunData

READ_DTYPE: Final = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("exposed_ns", "<i8"),
        ("process", "<i4"),
        ("file", "<i4"),
    ]
)
"""``file`` is a number of the file; offset, bytes, exposed time -1 where unknown."""
SIZE_EDGES: Final = tuple(1 << power for power in range(10, 28, 2))
"""1 KiB to 64 MiB, each four times the last."""
SMALL_READ: Final = 64 << 10
NEARLY_ALL: Final = 0.95
"""Segments of less than this share of a process's bytes do not stand for its reads."""


class AccessFigures(msgspec.Struct, frozen=True):
    """How the run read: sizes, order, and what it read for what it used.

    Calls that returned nothing, as at the end of every file, are left out.

    Parameters
    ----------
    n_reads : int
        Single reads.
    of_segments : bool
        Whether these are Darshan's segments; else they are what stages read at once.
    size_edges : tuple of int
        Upper edges in bytes of the histogram's bins, the last one open; a size on an edge is in
        the bin above it.
    size_counts, size_nbytes : tuple of int
        Reads and bytes of each bin, one more than edges.
    consecutive_fraction, sequential_fraction, random_fraction : float or None
        Of the reads after the first of each file and process: where the last one ended; further
        on; elsewhere.
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

    n_reads: int
    of_segments: bool
    size_edges: tuple[int, ...]
    size_counts: tuple[int, ...]
    size_nbytes: tuple[int, ...]
    consecutive_fraction: float | None
    sequential_fraction: float | None
    random_fraction: float | None
    small_read_fraction: float | None
    reread_factor: float | None
    read_per_used: float | None
    bytes_per_s: Mapping[str, float]
    top_fraction: float | None
    top_exposed_fraction: float | None
    JSON_KEYS: ClassVar = {
        "n_reads": key("reads"),
    }


def access_figures(
    known: ReadEvidence, *, read_nbytes: int | None, used_nbytes: int | None
) -> AccessFigures | None:
    """Return sizes, order and rates of the reads of a run; None where only sums are known.

    Parameters
    ----------
    read_nbytes, used_nbytes : int or None
        Bytes read by any means, and bytes of the samples that were delivered.
    """
    found = _single_reads(known)
    if found is None:
        return None
    reads, of_segments = found
    sized = reads[reads["nbytes"] > 0]
    size_bin = np.searchsorted(SIZE_EDGES, sized["nbytes"], side="right")
    n_bins = len(SIZE_EDGES) + 1
    size_nbytes = np.zeros(n_bins, np.int64)
    np.add.at(size_nbytes, size_bin, sized["nbytes"])
    has_places = bool((reads["offset"] >= 0).all())
    order = _order_of(reads) if has_places else None
    distinct = distinct_nbytes(reads) if has_places else 0
    dearest = dearest_half(reads["exposed_ns"])
    return AccessFigures(
        n_reads=len(reads),
        of_segments=of_segments,
        size_edges=SIZE_EDGES,
        size_counts=tuple(np.bincount(size_bin, minlength=n_bins).tolist()),
        size_nbytes=tuple(size_nbytes.tolist()),
        consecutive_fraction=order[0] if order else None,
        sequential_fraction=order[1] if order else None,
        random_fraction=order[2] if order else None,
        small_read_fraction=float((sized["nbytes"] < SMALL_READ).mean()) if len(sized) else None,
        reread_factor=float(reads["nbytes"].sum() / distinct) if distinct else None,
        read_per_used=read_nbytes / used_nbytes if read_nbytes and used_nbytes else None,
        bytes_per_s=_rates(known.profile, reads),
        top_fraction=dearest[0] if dearest else None,
        top_exposed_fraction=dearest[1] if dearest else None,
    )


def _single_reads(known: ReadEvidence) -> tuple[NDArray[Any], bool] | None:
    """Return every read of a run, and whether all are segments; None where only sums are known."""
    profile, reading = known.profile, known.reading
    files: dict[str, int] = {}
    parts, all_segments = [], True
    own = _own_times(profile, reading)
    process = profile.spans["process"][reading.rows]
    for index in range(len(profile.processes)):
        here = np.flatnonzero(process == index)
        part = _of_segments(known, index, files)
        if part is None and len(here):
            all_segments = False
            part = _of_spans(known, reading.rows[here], own[here], files)
            if part is None:
                return None
        if part is not None:
            parts.append(part)
    reads = np.concatenate(parts) if parts else np.zeros(0, READ_DTYPE)
    return (
        (reads[np.argsort(reads["start_ns"], kind="stable")], all_segments) if len(reads) else None
    )


def _numbers(texts: Iterable[str], known: dict[str, int]) -> NDArray[np.int32]:
    """Return the number of each text, a new one where it is seen first."""
    return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int32)


def _of_segments(known: ReadEvidence, index: int, files: dict[str, int]) -> NDArray[Any] | None:
    """Return a process's segments of data; None where they are not nearly all of its reading."""
    if index not in known.logs or not has_all_segments(known.logs[index][1]):
        return None
    placed, log = known.logs[index]
    of_data = np.array([known.names.of_file(name) is not None for name in log.files], dtype=bool)
    segments = placed.segments
    chosen = (segments["nbytes"] > 0) & ~segments["stray"] & ~placed.is_page_probe
    segments = segments[chosen & (of_data[segments["file"]] | (segments["span"] >= 0))]
    rows = log.counters[of_data[log.counters["file"]]]
    streams, calls = (
        np.maximum(rows[f"{kind}_read_nbytes"], 0).astype(np.int64) for kind in ("stdio", "posix")
    )
    # What the netCDF library reads at each opening, to recognise the format, is no reading of data.
    headers = (rows["stdio_reads"] > 0) & (calls > streams)
    if segments["nbytes"].sum() < NEARLY_ALL * (calls.sum() + streams[~headers].sum()):
        return None
    found = np.zeros(len(segments), READ_DTYPE)
    for name in ("start_ns", "end_ns", "offset", "nbytes", "exposed_ns"):
        found[name] = segments[name]
    found["process"], found["file"] = index, _numbers(log.files, files)[segments["file"]]
    return found


def _own_times(profile: RunData, reading: ReadSpans) -> NDArray[np.int64]:
    """Return the time of each span less that of read spans inside it."""
    spans = profile.spans[reading.rows]
    pieces = leaf_pieces(spans, lane_keys(spans))
    total = np.zeros(len(spans), np.int64)
    np.add.at(total, pieces.span, pieces.duration_ns)
    return total


def _of_spans(
    known: ReadEvidence, rows: NDArray[np.int64], own_ns: NDArray[np.int64], files: dict[str, int]
) -> NDArray[Any] | None:
    """Return what single spans read; None where one is a sum over several samples."""
    spans, share = known.profile.spans[rows], known.share[rows]
    if (((spans["flags"] & Flag.SUMMED) != 0) & (spans["pieces"] > 1)).any():
        return None
    details, of_span = np.unique(spans["detail"], return_inverse=True)
    texts = [known.names.of_text(known.profile.strings[each]) for each in details.tolist()]
    number = _numbers(texts, files)
    found = np.zeros(len(rows), READ_DTYPE)
    found["start_ns"], found["end_ns"] = spans["start_ns"], spans["start_ns"] + own_ns
    found["offset"], found["nbytes"] = -1, spans["nbytes"]
    waited_for = own_ns * np.nan_to_num(share)
    found["exposed_ns"] = np.where(np.isnan(share), -1, np.rint(waited_for))
    found["process"], found["file"] = spans["process"], number[of_span.reshape(-1)]
    some: NDArray[Any] = found[spans["nbytes"] != 0]
    return some


def _order_of(reads: NDArray[Any]) -> tuple[float, float, float] | None:
    """Return which shares of the reads went on where the last ended, further on, elsewhere.

    Of the reads after the first of each file and process.
    """
    ordered = reads[np.lexsort((reads["start_ns"], reads["file"], reads["process"]))]
    after, before = ordered[1:], ordered[:-1]
    same = (after["file"] == before["file"]) & (after["process"] == before["process"])
    if not same.any():
        return None
    distance = (after["offset"] - before["offset"] - before["nbytes"])[same]
    return float((distance == 0).mean()), float((distance > 0).mean()), float((distance < 0).mean())


def distinct_nbytes(reads: NDArray[Any]) -> int:
    """Return how many bytes of all files were read at least once."""
    ordered = reads[np.lexsort((reads["offset"], reads["file"]))]
    edges = np.flatnonzero(np.diff(ordered["file"])) + 1
    return sum(
        covered(own["offset"], own["offset"] + own["nbytes"]) for own in np.split(ordered, edges)
    )


def _rates(profile: RunData, reads: NDArray[Any]) -> Mapping[str, float]:
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


def dearest_half(exposed_ns: NDArray[np.int64]) -> tuple[float, float] | None:
    """Return the fewest reads that cost more than half of what all cost, and what they cost.

    Returns
    -------
    (float, float) or None
        Their share of the reads, and of the exposed time of all; None where reads were not waited
        for, or that is not known of nearly all of them.
    """
    known = exposed_ns[exposed_ns >= 0]
    if not known.sum() or len(known) < NEARLY_ALL * len(exposed_ns):
        return None
    cost = np.cumsum(np.sort(np.maximum(exposed_ns, 0))[::-1])
    place = int(np.searchsorted(2 * cost, cost[-1], side="right"))
    return (place + 1) / len(cost), float(cost[place] / cost[-1])
