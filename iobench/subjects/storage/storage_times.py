"""Time of storage inside stages: what a tracer's reads cover of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.placement.wall_clock import monotonic_of_wall
from iobench.analysis.read_spans import NOT_SUMMED
from iobench.analysis.time_intervals import covered
from iobench.recording.kinds import WORKER_KINDS, is_one_of
from iobench.recording.span_keys import stage_keys
from iobench.subjects.storage.traced_bytes import modules_of

if TYPE_CHECKING:
    from iobench.analysis.placement.placed_calls import Placement, ProcessPlacement
    from iobench.profiles.contents import Profile
    from iobench.storage.traces.contents import ProcessTrace, StorageTrace
    from iobench.subjects.storage.named_files import NamedFiles

__all__ = ["StorageTimes"]

_EVER: Final = np.iinfo(np.int64)
"""When something was of which no time is known."""


class StorageTimes:
    """Storage time by stage and process.

    Attributes
    ----------
    stages : ndarray of int64
        Keys of stages that reads lie in.
    unplaced : set of int
        Keys of stages during which ``fread`` may have read as well, nobody knows how long.
    """

    def __init__(
        self,
        profile: Profile,
        trace: StorageTrace | None,
        placement: Placement | None,
        names: NamedFiles,
    ) -> None:
        self._time: dict[tuple[int, int], int] = {}
        self._known: set[int] = set()
        self.unplaced: set[int] = set()
        self._profile, self._names = profile, names
        if trace is not None and placement is not None:
            for placed in placement.processes:
                if placed.trace >= 0:
                    self._add(placed, trace.processes[placed.trace])
        found = sorted({stage for (stage, _), length in self._time.items() if length})
        self.stages = np.array(found, dtype=np.int64)

    def of(self, stage: int, process: int, busy_ns: int) -> int | None:
        """Return a stage's storage time in a process, at most all of it; None where unknown."""
        if process not in self._known:
            return None
        return min(self._time.get((stage, process), 0), busy_ns)

    def _add(self, placed: ProcessPlacement, trace: ProcessTrace) -> None:
        modules = modules_of(trace)
        if not modules.segments or modules.segments_partial or modules.partial:
            return
        if len(trace.segments) and not placed.is_clock_known:
            return
        self._known.add(placed.process)
        segments = placed.segments
        segments = segments[(segments["span"] >= 0) & ~segments["stray"] & ~segments["write"]]
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
        low = placed.low_ns if placed.matched else placed.offset_ns + placed.low_ns
        high = placed.high_ns if placed.matched else placed.offset_ns + placed.high_ns
        first_ns, last_ns = (
            np.where(rows[name] > 0, monotonic_of_wall(who, rows[name]) + late, unknown)
            for name, late, unknown in (
                ("stdio_first_read_ns", high, _EVER.min),
                ("stdio_last_read_ns", low, _EVER.max),
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
