"""The stages that read: how long, how much of it was storage, and whether that was a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.placement.placed_calls import monotonic_of_wall
from iobench.analysis.read_spans import NOT_SUMMED, names_interpreter
from iobench.analysis.time_intervals import covered
from iobench.findings.storage.evidence import has_all_segments
from iobench.json_keys import figure
from iobench.recording.kinds import (
    WORKER_KINDS,
    Kind,
    decodes_too,
    is_one_of,
    reads_storage,
    stage_name,
)
from iobench.recording.span_file import io_looks
from iobench.recording.span_keys import batch_keys, halves, lane_keys, stage_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from iobench.analysis.placement.placed_calls import ProcessPlacement
    from iobench.findings.storage.evidence import ReadEvidence
    from iobench.storage.storage_trace import ProcessTrace

FROM_CACHE: Final = "from cache"
FROM_DEVICE: Final = "from device"
MIXED: Final = "mixed"
UNKNOWN: Final = "unknown"

_EVER: Final = np.iinfo(np.int64)
"""When something was of which no time is known."""
FEW: Final = 0.05
"""Up to this share from the device is the cache's, and from one less this share the device's."""


class ProcessStorage(msgspec.Struct, frozen=True):
    """One stage in one process; as `StageStorage`, which sums it.

    Parameters
    ----------
    process : str
        Its name.
    busy_ns : int
        Own time of the stage in it.
    storage_ns : int or None
        Of which storage; None where the tracer did not see it.
    """

    process: str
    busy_ns: int
    storage_ns: int | None


class StageStorage(msgspec.Struct, frozen=True):
    """One stage that read: how much of it was storage.

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``.
    busy_ns : int
        Own time of the stage in all processes.
    storage_ns : int or None
        Union of the segments inside its spans, thread by thread, and what the tracer counted of
        ``fread``, which has no segments; None where the tracer did not see all its processes.
    rest_is_bound : bool
        Whether the stage also decodes, so that ``rest_s`` bounds the time of decoding; or reads
        in ways whose time was not recorded, so that part of it was storage.
    off_cpu_ns : int or None
        Time its threads were not on a CPU, where spans carry CPU time.
    nbytes : int or None
        What it handed on.
    verdict : str
        ``"from cache"``, ``"from device"``, ``"mixed"`` or ``"unknown"``.
    processes : tuple of ProcessStorage
        The processes that have it.
    """

    stage: str
    busy_ns: int
    storage_ns: int | None
    rest_is_bound: bool
    off_cpu_ns: int | None
    nbytes: int | None
    verdict: str
    processes: tuple[ProcessStorage, ...] = ()

    @figure
    def rest_ns(self) -> int | None:
        """What is left: decoding, Python, waiting for a lock or CPU."""
        return None if self.storage_ns is None else self.busy_ns - self.storage_ns


def verdict_of(read_nbytes: int | None, device_nbytes: int | None) -> str:
    """Return where bytes came from, given those that were read and those from the device."""
    if not read_nbytes or device_nbytes is None:
        return UNKNOWN
    share = device_nbytes / read_nbytes
    if share < FEW:
        return FROM_CACHE
    return FROM_DEVICE if share > 1 - FEW else MIXED


def stage_storage(known: ReadEvidence) -> tuple[StageStorage, ...]:
    """Return the stages that read or opened, or that segments lie in; the longest first."""
    profile = known.profile
    spans = profile.spans
    rows = np.flatnonzero(
        ((spans["flags"] & NOT_SUMMED) == 0) & is_one_of(spans["kind"], WORKER_KINDS)
    )
    work = spans[rows]
    lane = lane_keys(work)
    pieces = leaf_pieces(work, lane)
    # Reading of Python's own files has time of its own, and belongs to no stage of a loader.
    key = np.where(names_interpreter(profile)[rows], -1, stage_keys(work))
    process = work["process"].astype(np.int64)[pieces.span]
    times = _StorageTimes(known)
    found = []
    for value in np.unique(np.concatenate((key[key >= 0], times.stages))).tolist():
        of_kind, of_label = halves(value)
        kind, label = Kind(of_kind), profile.strings[of_label]
        reads = reads_storage(kind, label)
        if not reads and value not in times.stages:
            continue
        own = key[pieces.span] == value
        mine = work[key == value]
        busy = np.bincount(process[own], pieces.duration_ns[own], len(profile.processes))
        parts = tuple(
            ProcessStorage(
                process=profile.processes[index].name,
                busy_ns=int(busy[index]),
                storage_ns=times.of(value, index, int(busy[index])),
            )
            for index in np.unique(mine["process"]).tolist()
        )
        busy_ns = int(busy.sum())
        found.append(
            StageStorage(
                stage=stage_name(kind, label),
                busy_ns=busy_ns,
                storage_ns=_total(part.storage_ns for part in parts),
                rest_is_bound=decodes_too(kind, label) or value in times.unplaced,
                off_cpu_ns=_off_cpu_ns(busy_ns, pieces.cpu_ns[own & pieces.first]),
                nbytes=_total(each if each >= 0 else None for each in mine["nbytes"].tolist()),
                verdict=_verdict(known, mine) if reads else UNKNOWN,
                processes=parts,
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.busy_ns, row.stage)))


def _total(values: Iterable[int | None]) -> int | None:
    """Return the sum; None of nothing, and where one is not known."""
    known = list(values)
    return None if not known or None in known else sum(each or 0 for each in known)


def _off_cpu_ns(busy_ns: int, cpu_ns: NDArray[Any]) -> int | None:
    if not len(cpu_ns) or (cpu_ns < 0).any():
        return None
    # The clocks of threads advance in ticks: a short stage may show more CPU time than time.
    return max(busy_ns - int(cpu_ns.sum()), 0)


def _verdict(known: ReadEvidence, mine: NDArray[Any]) -> str:
    """Return where the bytes of the batches came from for which a stage ran."""
    processes = np.unique(mine["process"]).tolist()
    if not processes or any(known.counted[each].device is None for each in processes):
        return UNKNOWN
    spans = known.profile.spans
    looks = spans[io_looks(spans)]
    looks = looks[np.isin(batch_keys(looks), batch_keys(mine))]
    read, device = int(looks["nbytes"].sum()), int(looks["cpu_ns"].sum())
    handed_on = int(np.maximum(mine["nbytes"], 0).sum())
    # What is read through a mapping shows in the device's count alone.
    mapped = sum(known.counted[each].mapped for each in processes)
    if not mapped and read < FEW * handed_on:
        mapped = max(handed_on - read, 0)
    return verdict_of(read + mapped, device)


class _StorageTimes:
    """Storage time by stage and process.

    Attributes
    ----------
    stages : ndarray of int64
        Keys of stages that reads lie in.
    unplaced : set of int
        Keys of stages during which ``fread`` may have read as well, nobody knows how long.
    """

    def __init__(self, known: ReadEvidence) -> None:
        self._time: dict[tuple[int, int], int] = {}
        self._known: set[int] = set()
        self.unplaced: set[int] = set()
        self._profile, self._names = known.profile, known.names
        for placed, log in known.logs.values():
            self._add(placed, log)
        found = sorted({stage for (stage, _), length in self._time.items() if length})
        self.stages = np.array(found, dtype=np.int64)

    def of(self, stage: int, process: int, busy_ns: int) -> int | None:
        """Return a stage's storage time in a process, at most all of it; None where unknown."""
        if process not in self._known:
            return None
        return min(self._time.get((stage, process), 0), busy_ns)

    def _add(self, placed: ProcessPlacement, trace: ProcessTrace) -> None:
        if not has_all_segments(trace):
            return
        self._known.add(placed.process)
        segments = placed.segments
        segments = segments[segments["span"] >= 0]
        spans = self._profile.spans[segments["span"]]
        lane = np.stack((stage_keys(spans), spans["thread"].astype(np.int64)), axis=1)
        lanes, number = np.unique(lane, axis=0, return_inverse=True)
        order = np.argsort(number.reshape(-1), kind="stable")
        edges = np.cumsum(np.bincount(number.reshape(-1), minlength=len(lanes)))
        parts = np.split(order, edges[:-1]) if len(edges) else []
        for (stage, _), own in zip(lanes.tolist(), parts, strict=True):
            length = covered(segments["start_ns"][own], segments["end_ns"][own])
            self._count(stage, placed.process, length)
        self._add_streams(placed, trace)

    def _count(self, stage: int, process: int, length_ns: int) -> None:
        self._time[stage, process] = self._time.get((stage, process), 0) + length_ns

    def _add_streams(self, placed: ProcessPlacement, trace: ProcessTrace) -> None:
        """Add the time of ``fread``, file by file, where one stage alone can have spent it."""
        rows = trace.counters[trace.counters["stdio_reads"] > 0]
        if not len(rows):
            return
        who = self._profile.processes[placed.process]
        first_ns, last_ns = (
            np.where(rows[name] > 0, monotonic_of_wall(who, rows[name]) + late, unknown)
            for name, late, unknown in (
                ("stdio_first_read_ns", placed.high_ns, _EVER.min),
                ("stdio_last_read_ns", placed.low_ns, _EVER.max),
            )
        )
        by_file = self._spans_by_file(placed.process)
        for row, first, last in zip(rows, first_ns.tolist(), last_ns.tolist(), strict=True):
            name = self._names.of_file(trace.files[row["file"]])
            if name is None:
                continue
            spans = by_file.get(name if self._names else "")
            if spans is None:
                continue
            start, end, key = spans
            begin, finish = min(first, last), max(first, last)
            stages = set(np.unique(key[(start < finish) & (end > begin)]).tolist())
            if len(stages) == 1 and row["stdio_read_ns"] >= 0:
                self._count(stages.pop(), placed.process, int(row["stdio_read_ns"]))
            else:
                self.unplaced |= stages

    def _spans_by_file(self, process: int) -> dict[str, tuple[Any, Any, Any]]:
        """Return start, end and stage of the process's working spans, by the file they name."""
        spans = self._profile.spans
        chosen = ((spans["flags"] & NOT_SUMMED) == 0) & (spans["process"] == process)
        spans = spans[chosen & is_one_of(spans["kind"], WORKER_KINDS)]
        key = stage_keys(spans)
        details, of_span = np.unique(spans["detail"], return_inverse=True)
        texts = [self._names.of_text(self._profile.strings[each]) for each in details.tolist()]
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        number = np.array([distinct[text] for text in texts], dtype=np.int64)
        number = number[of_span.reshape(-1)]
        order = np.argsort(number, kind="stable")
        edges = np.searchsorted(number[order], np.arange(1, len(distinct)))
        return {
            text: (spans["start_ns"][own], spans["end_ns"][own], key[own])
            for text, own in zip(distinct, np.split(order, edges), strict=True)
        }
