"""Tasks that threads did for another thread, laid into the time of the one that asked.

A graph of tasks that threads compute holds up who asked for it by its critical path: from the end
back to whatever task finished last before, and so on. Tasks on it stand for what the asking thread
did meanwhile: they are moved to its lane, inside the span of the graph, whose own time is then what
no task explains. The others stay where they ran, and are hidden behind these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.time_intervals import nesting
from iobench.recording.kinds import Kind
from iobench.recording.span_keys import key_of, lane_keys
from iobench.recording.task_spans import GRAPH, TASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles.contents import Profile

__all__ = ["laid_in_line"]


def laid_in_line(profile: Profile, spans: NDArray[Any]) -> NDArray[Any]:
    """Return spans of a profile with tasks on critical paths on the lanes that asked for them.

    The CPU time of what is around them there grows by theirs, as if the thread had spent it.
    """
    graph = profile.string_number(GRAPH)
    if graph < 0 or not (spans["label"] == graph).any():
        return spans
    spans = spans.copy()
    graphs = np.flatnonzero((spans["kind"] == Kind.PREPROCESS) & (spans["label"] == graph))
    task = profile.string_number(TASK)
    tasks = np.flatnonzero((spans["kind"] == Kind.PREPROCESS) & (spans["detail"] == task))
    lanes = _Lanes(spans)
    found = _Tasks(spans, tasks)
    # Graphs inside a task are shorter than the graph of that task.
    for row in graphs[np.argsort(_length(spans[graphs]), kind="stable")].tolist():
        path = found.critical_path(row)
        if path:
            lanes.move(path, row)
    return spans


def _length(spans: NDArray[Any]) -> NDArray[np.int64]:
    length: NDArray[np.int64] = spans["end_ns"] - spans["start_ns"]
    return length


class _Tasks:
    """Spans of tasks, by process and time; each is of one graph."""

    def __init__(self, spans: NDArray[Any], rows: NDArray[np.int64]) -> None:
        self._spans = spans
        order = np.lexsort((spans["start_ns"][rows], spans["process"][rows]))
        self._rows = rows[order]
        self._free = np.ones(len(rows), dtype=bool)
        self._start = spans["start_ns"][self._rows]
        processes = spans["process"][self._rows]
        self._first = {
            int(process): (
                int(np.searchsorted(processes, process)),
                int(np.searchsorted(processes, process, side="right")),
            )
            for process in np.unique(processes)
        }

    def critical_path(self, graph: int) -> list[int]:
        """Return the tasks of a graph on other threads that it waited for, the last one first."""
        spans, of = self._spans, self._spans[graph]
        low, high = self._first.get(int(of["process"]), (0, 0))
        low, high = low + np.searchsorted(self._start[low:high], (of["start_ns"], of["end_ns"]))
        place = np.arange(low, high)[self._free[low:high]]
        some = spans[self._rows[place]]
        mine = (some["end_ns"] <= of["end_ns"]) & (some["thread"] != of["thread"])
        for name in ("batch", "epoch", "sample"):
            mine &= some[name] == of[name]
        place, some = place[mine], some[mine]
        self._free[place] = False
        path = []
        at_ns = int(of["end_ns"])
        order = np.argsort(some["end_ns"], kind="stable")[::-1]
        for start_ns, end_ns, row in zip(
            some["start_ns"][order].tolist(),
            some["end_ns"][order].tolist(),
            self._rows[place[order]].tolist(),
            strict=True,
        ):
            if end_ns <= at_ns:
                path.append(row)
                at_ns = start_ns
        return path


class _Lanes:
    """Rows of spans by lane, as tasks are moved from one to another."""

    def __init__(self, spans: NDArray[Any]) -> None:
        self._spans = spans
        keys = lane_keys(spans)
        start, end = spans["start_ns"], spans["end_ns"]
        order = np.lexsort((-spans["sequence"].astype(np.int64), -end, start, keys))
        lanes, first = np.unique(keys[order], return_index=True)
        self._rows = dict(zip(lanes.tolist(), np.split(order, first[1:]), strict=True))
        parent = nesting(start[order], end[order], keys[order]).parent
        self._around = np.full(len(spans), -1, dtype=np.int64)
        self._around[order] = np.where(parent >= 0, order[parent], -1)
        self._moved: dict[int, list[int]] = {}

    def move(self, tasks: list[int], graph: int) -> None:
        """Move tasks with all that is inside them to the lane of their graph."""
        spans, to = self._spans, self._spans[graph]
        cpu_ns = spans["cpu_ns"][tasks]
        known = bool((cpu_ns >= 0).all())
        around = graph
        while around >= 0:
            before = spans["cpu_ns"][around]
            spans["cpu_ns"][around] = before + cpu_ns.sum() if known and before >= 0 else -1
            around = int(self._around[around])
        lane = key_of(int(to["process"]), int(to["thread"]))
        for row in tasks:
            inside = self._inside(spans[row])
            spans["thread"][inside] = to["thread"]
            self._moved.setdefault(lane, []).extend(inside)

    def _inside(self, task: np.void) -> list[int]:
        """Return the rows of a task and of what is inside it, moved there or not."""
        spans = self._spans
        lane = key_of(int(task["process"]), int(task["thread"]))
        rows, low_ns, high_ns = self._rows[lane], int(task["start_ns"]), int(task["end_ns"])
        low = np.searchsorted(spans["start_ns"][rows], low_ns)
        high = np.searchsorted(spans["start_ns"][rows], high_ns, side="right")
        moved = self._moved.pop(lane, [])
        inside = [row for row in moved if low_ns <= spans["start_ns"][row] <= high_ns]
        if len(inside) < len(moved):
            self._moved[lane] = [row for row in moved if row not in {*inside}]
        inside += rows[low:high].tolist()
        return [
            row
            for row in inside
            if spans["end_ns"][row] <= high_ns and spans["thread"][row] == task["thread"]
        ]
