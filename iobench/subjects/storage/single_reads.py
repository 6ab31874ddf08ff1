"""The single reads of a run: a tracer's segments where they are all there, else what spans read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.frozen import frozen
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import lane_keys
from iobench.subjects.storage.traced_bytes import modules_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from iobench.analysis.placement.file_names import NamedFiles
    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.analysis.read_spans import ReadSpans
    from iobench.profiles.contents import Profile
    from iobench.storage.storage_trace import ProcessTrace
    from iobench.subjects.storage.evidence import ReadEvidence

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
"""``file`` is an index into ``SingleReads.files``; offset, bytes, exposed time -1 where unknown."""
MOST: Final = 0.95
"""Segments of less than this share of a process's bytes do not stand for its reads."""


@frozen
class SingleReads:
    """The reads of a run that returned something.

    Parameters
    ----------
    reads : ndarray of READ_DTYPE
        By start.
    files : tuple of str
        ``""`` for reads that nobody gave a file.
    of_segments : bool
        Whether all are a tracer's segments.
    """

    reads: NDArray[Any]
    files: tuple[str, ...]
    of_segments: bool


def find_single_reads(known: ReadEvidence) -> SingleReads | None:
    """Return every read of a run; None where only sums over several are known."""
    profile, reading = known.profile, known.reading
    files: dict[str, int] = {}
    parts, all_segments = [], True
    own = _own_times(profile, reading)
    process = profile.spans["process"][reading.rows]
    for index in range(len(profile.processes)):
        here = np.flatnonzero(process == index)
        part = None
        if index in known.logs:
            part = _of_segments(*known.logs[index], known.names, files)
        if part is not None:
            parts.append(part)
            continue
        if not len(here):
            continue
        all_segments = False
        part = _of_spans(known, reading.rows[here], own[here], files)
        if part is None:
            return None
        parts.append(part)
    reads = np.concatenate(parts) if parts else np.zeros(0, READ_DTYPE)
    if not len(reads):
        return None
    reads = reads[np.argsort(reads["start_ns"], kind="stable")]
    return SingleReads(reads, tuple(files), all_segments)


def _numbers(texts: Iterable[str], known: dict[str, int]) -> NDArray[np.int32]:
    """Return the number of each text, a new one where it is seen first."""
    return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int32)


def _of_segments(
    placed: ProcessPlacement, trace: ProcessTrace, names: NamedFiles, files: dict[str, int]
) -> NDArray[Any] | None:
    """Return a process's segments of data; None where they are not nearly all of its reading."""
    modules = modules_of(trace)
    segments = placed.segments
    if not modules.segments or modules.segments_partial or modules.partial:
        return None
    known = [names.of_file(name) for name in trace.files]
    of_data = np.array([name is not None for name in known], dtype=bool)
    chosen = (segments["nbytes"] > 0) & ~segments["stray"] & ~placed.is_page_probe
    chosen &= of_data[segments["file"]] | (segments["span"] >= 0)
    segments = segments[chosen]
    if modules.posix:
        rows = trace.counters[of_data[trace.counters["file"]]]
        streams = int(np.maximum(rows["stdio_read_nbytes"], 0).sum())
        counted = int(np.maximum(rows["posix_read_nbytes"], 0).sum()) + streams
        if segments["nbytes"].sum() < MOST * (counted - _sniffed(rows)):
            return None
    number = _numbers(trace.files, files)
    found = np.zeros(len(segments), READ_DTYPE)
    for name in ("start_ns", "end_ns", "offset", "nbytes", "exposed_ns"):
        found[name] = segments[name]
    found["process"], found["file"] = placed.process, number[segments["file"]]
    return found


def _sniffed(rows: NDArray[Any]) -> int:
    """Return what STDIO read of files once per opening, to find out what they are."""
    looked = (rows["stdio_reads"] > 0) & (rows["posix_read_nbytes"] > rows["stdio_read_nbytes"])
    return int(rows["stdio_read_nbytes"][looked].sum())


def _own_times(profile: Profile, reading: ReadSpans) -> NDArray[np.int64]:
    """Return the time of each span less that of read spans inside it."""
    spans = profile.spans[reading.rows]
    lane = lane_keys(spans)
    pieces = leaf_pieces(spans, lane)
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
    told: NDArray[Any] = found[spans["nbytes"] != 0]
    return told
