"""Reads of a run beside its stages: evidence of them, and storage time in stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.read_spans import (
    NOT_SUMMED,
    counted_bytes,
    find_read_spans,
    names_interpreter,
    names_of,
)
from iobench.analysis.time_intervals import covered
from iobench.recording.kinds import (
    WORKER_KINDS,
    Kind,
    halves,
    is_one_of,
    lane_keys,
    reads_storage,
    stage_keys,
    stage_name,
)
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.analysis.placement import ProcessPlacement
    from iobench.analysis.read_spans import CountedBytes, FileNames, ReadSpans
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData
    from iobench.storage.storage_trace import ProcessTrace

_EVER: Final = np.iinfo(np.int64)
"""When something was of which no time is known."""


class ReadEvidence(msgspec.Struct, frozen=True):
    """Evidence of the reads of a training process and its workers: spans, ``/proc``, Darshan."""

    profile: RunData
    reading: ReadSpans
    counted: tuple[CountedBytes, ...]
    names: FileNames
    logs: Mapping[int, tuple[ProcessPlacement, ProcessTrace]]


def evidence_of(run: RankRun) -> ReadEvidence:
    """Return the evidence of a run."""
    profile, trace, placement = run, run.trace, run.placement
    reading = find_read_spans(profile)
    logs = {}
    if trace is not None and placement is not None:
        logs = {each.process: (each, trace.processes[each.trace]) for each in placement.processes}
    counted = counted_bytes(profile, reading)
    return ReadEvidence(profile, reading, counted, names_of(profile, trace), logs)


def incomplete_modules(log: ProcessTrace) -> set[str]:
    """Return the modules of a log that do not hold all that happened, or could not be read."""
    return {each.name for each in log.modules if each.partial or each.problem}


def _has_all_segments(log: ProcessTrace) -> bool:
    """Return whether a log has every single read of its process, but for those by ``fread``."""
    names = {each.name for each in log.modules}
    return "DXT_POSIX" in names and not incomplete_modules(log) & {"POSIX", "STDIO", "DXT_POSIX"}


class StageStorage(msgspec.Struct, frozen=True):
    """One stage that read: its own time in all processes, and how much of it was storage."""

    busy_ns: int
    storage_ns: int | None


def stage_storage(known: ReadEvidence) -> dict[str, StageStorage]:
    """Return the stages that read or opened, or that segments lie in; the longest first."""
    profile = known.profile
    rows = _working(profile)
    work = profile.spans[rows]
    pieces = leaf_pieces(work, lane_keys(work))
    # Reading of Python's own files has time of its own, and belongs to no stage of a loader.
    key = np.where(names_interpreter(profile)[rows], -1, stage_keys(work))
    process = work["process"].astype(np.int64)[pieces.span]
    times = _storage_times(known)
    traced = {index for index, (_, log) in known.logs.items() if _has_all_segments(log)}
    with_reads = {stage for (stage, _), length in times.items() if length}
    result = {}
    for value in sorted({*np.unique(key[key >= 0]).tolist(), *with_reads}):
        of_kind, of_label = halves(value)
        kind, label = Kind(of_kind), profile.strings[of_label]
        if not reads_storage(kind, label) and value not in with_reads:
            continue
        own = key[pieces.span] == value
        busy = np.bincount(process[own], pieces.duration_ns[own], len(profile.processes))
        processes = set(np.unique(work["process"][key == value]).tolist())
        storage_ns = sum(min(times.get((value, index), 0), int(busy[index])) for index in processes)
        result[stage_name(kind, label)] = StageStorage(
            int(busy.sum()), storage_ns if processes <= traced else None
        )
    return dict(sorted(result.items(), key=lambda row: (-row[1].busy_ns, row[0])))


def _working(profile: RunData) -> NDArray[np.int64]:
    """Return the rows of spans in which threads worked."""
    spans = profile.spans
    chosen = ((spans["flags"] & NOT_SUMMED) == 0) & is_one_of(spans["kind"], WORKER_KINDS)
    return np.flatnonzero(chosen)


def _storage_times(known: ReadEvidence) -> dict[tuple[int, int], int]:
    """Return storage time by stage and process, of processes of which Darshan saw all reads."""
    times: dict[tuple[int, int], int] = {}
    for placed, log in known.logs.values():
        if not _has_all_segments(log):
            continue
        segments = placed.segments[placed.segments["span"] >= 0]
        spans = known.profile.spans[segments["span"]]
        lane = np.stack((stage_keys(spans), spans["thread"].astype(np.int64)), axis=1)
        lanes, number = np.unique(lane, axis=0, return_inverse=True)
        for index, (stage, _) in enumerate(lanes.tolist()):
            own = segments[number.reshape(-1) == index]
            at = (stage, placed.process)
            times[at] = times.get(at, 0) + covered(own["start_ns"], own["end_ns"])
        _add_streams(known, placed, log, times)
    return times


def _add_streams(
    known: ReadEvidence,
    placed: ProcessPlacement,
    log: ProcessTrace,
    times: dict[tuple[int, int], int],
) -> None:
    """Add the time of ``fread``, file by file, where one stage alone can have spent it."""
    rows = log.counters[log.counters["stdio_reads"] > 0]
    if not len(rows):
        return
    profile = known.profile
    first, last = (
        np.where(
            rows[name] > 0,
            profile.processes[placed.process].monotonic_ns(rows[name]) + late,
            unknown,
        )
        for name, late, unknown in (
            ("stdio_first_read_ns", placed.high_ns, _EVER.min),
            ("stdio_last_read_ns", placed.low_ns, _EVER.max),
        )
    )
    begin, finish = np.minimum(first, last), np.maximum(first, last)
    spans = profile.spans[_working(profile)]
    spans = spans[spans["process"] == placed.process]
    key, details = stage_keys(spans), spans["detail"]
    of_detail = {each: known.names.of_text(profile.strings[each]) for each in np.unique(details)}
    for index, row in enumerate(rows):
        name = known.names.of_file(log.files[row["file"]])
        if name is None or row["stdio_read_ns"] < 0:
            continue
        text = name if known.names else ""
        named = [detail for detail, each in of_detail.items() if each == text]
        during = (spans["start_ns"] < finish[index]) & (spans["end_ns"] > begin[index])
        stages = np.unique(key[during & np.isin(details, named)]).tolist()
        if len(stages) == 1:
            at = (stages[0], placed.process)
            times[at] = times.get(at, 0) + int(row["stdio_read_ns"])


def epoch_nbytes(run: RankRun) -> int | None:
    """Return what is read in an epoch of the training's own loader; None where that is unknown."""
    deliveries, spans = run.deliveries, run.spans
    chosen = deliveries.of_main & deliveries.trains
    chosen &= np.isin(deliveries.of_epoch, sorted(deliveries.complete_epochs))
    batches = deliveries.batch[chosen & (deliveries.batch >= 0)]
    reading = find_read_spans(run)
    inside = run.loop.mine[spans["process"]] & np.isin(spans["batch"], batches)
    nbytes = reading.nbytes[inside[reading.rows]]
    guessed = np.unique(spans["batch"][inside & ((spans["flags"] & Flag.ESTIMATED) != 0)])
    if len(np.setdiff1d(guessed, spans["batch"][reading.rows])) or (nbytes < 0).any():
        return None
    return int(nbytes.sum()) // len(deliveries.complete_epochs) if nbytes.sum() else None
