"""Tasks that threads did for another thread, laid into the time of the one that asked.

A graph of tasks that threads compute holds up who asked for it by its critical path: from the end
back to whatever task finished last before, and so on. Tasks on it stand for what the asking thread
did meanwhile: they are moved to its lane, inside the span of the graph, whose own time is then what
no task explains. The others stay where they ran, and are hidden behind these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.time_intervals import nesting
from iobench.recording.kinds import Kind
from iobench.recording.span_keys import key_of, lane_keys
from iobench.recording.task_spans import GRAPH, TASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.runs.contents import Profile


def laid_in_line(profile: Profile, spans: NDArray[Any]) -> NDArray[Any]:
    """Return spans of a profile with tasks on critical paths on the lanes that asked for them.

    The CPU time of what is around them there grows by theirs, as if the thread had spent it.
    """
    graph = profile.string_number(GRAPH)
    if graph < 0 or not (spans["label"] == graph).any():
        return spans
    table = _Table(spans)
    graphs = np.flatnonzero((spans["kind"] == Kind.PREPROCESS) & (spans["label"] == graph))
    task = profile.string_number(TASK)
    tasks = np.flatnonzero((spans["kind"] == Kind.PREPROCESS) & (spans["detail"] == task))
    found = _Tasks(table, tasks)
    lanes = _Lanes(table)
    length = spans["end_ns"][graphs] - spans["start_ns"][graphs]
    # Graphs inside a task are shorter than the graph of that task.
    for row in graphs[np.argsort(length, kind="stable")].tolist():
        path = found.critical_path(row)
        if path:
            lanes.move(path, row)
    laid = spans.copy()
    laid["thread"], laid["cpu_ns"] = table.thread, table.cpu_ns
    return laid


class _Table:
    """Columns of spans as lists: of each graph a few rows are looked at, one by one."""

    def __init__(self, spans: NDArray[Any]) -> None:
        self.spans = spans
        self.start_ns: list[int] = spans["start_ns"].tolist()
        self.end_ns: list[int] = spans["end_ns"].tolist()
        self.process: list[int] = spans["process"].tolist()
        self.thread: list[int] = spans["thread"].tolist()
        self.cpu_ns: list[int] = spans["cpu_ns"].tolist()
        self.position = list(
            zip(*(spans[name].tolist() for name in ("batch", "epoch", "sample")), strict=True)
        )


class _Tasks:
    """Spans of tasks, by process and time; each is of one graph."""

    def __init__(self, table: _Table, rows: NDArray[np.int64]) -> None:
        self._table = table
        spans = table.spans
        order = np.lexsort((spans["start_ns"][rows], spans["process"][rows]))
        by_process: dict[int, list[int]] = {}
        for row in rows[order].tolist():
            by_process.setdefault(table.process[row], []).append(row)
        self._rows = by_process
        self._used: set[int] = set()

    def critical_path(self, graph: int) -> list[int]:
        """Return the tasks of a graph on other threads that it waited for, the last one first."""
        table, used = self._table, self._used
        rows = self._rows.get(table.process[graph], [])
        low_ns, high_ns = table.start_ns[graph], table.end_ns[graph]
        low = bisect_left(rows, low_ns, key=table.start_ns.__getitem__)
        high = bisect_left(rows, high_ns, key=table.start_ns.__getitem__)
        thread, position = table.thread[graph], table.position[graph]
        mine = [
            row
            for row in rows[low:high]
            if row not in used
            and table.end_ns[row] <= high_ns
            and table.thread[row] != thread
            and table.position[row] == position
        ]
        used.update(mine)
        path = []
        for row in sorted(mine, key=table.end_ns.__getitem__, reverse=True):
            if table.end_ns[row] <= high_ns:
                path.append(row)
                high_ns = table.start_ns[row]
        return path


class _Lanes:
    """Rows of spans by lane, as tasks are moved from one to another."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        spans = table.spans
        keys = lane_keys(spans)
        start, end = spans["start_ns"], spans["end_ns"]
        order = np.lexsort((-spans["sequence"].astype(np.int64), -end, start, keys))
        lanes, first = np.unique(keys[order], return_index=True)
        parts = np.split(order, first[1:])
        self._rows = {lane: part.tolist() for lane, part in zip(lanes.tolist(), parts, strict=True)}
        parent = nesting(start[order], end[order], keys[order]).parent
        around = np.full(len(spans), -1, dtype=np.int64)
        around[order] = np.where(parent >= 0, order[parent], -1)
        self._around: list[int] = around.tolist()
        self._moved: dict[int, list[int]] = {}

    def move(self, tasks: list[int], graph: int) -> None:
        """Move tasks with all that is inside them to the lane of their graph."""
        table = self._table
        cpu_ns = [table.cpu_ns[row] for row in tasks]
        known, spent_ns = min(cpu_ns) >= 0, sum(cpu_ns)
        around = graph
        while around >= 0:
            before = table.cpu_ns[around]
            table.cpu_ns[around] = before + spent_ns if known and before >= 0 else -1
            around = self._around[around]
        to = table.thread[graph]
        moved = self._moved.setdefault(key_of(table.process[graph], to), [])
        for row in tasks:
            inside = self._inside(row)
            for each in inside:
                table.thread[each] = to
            moved += inside

    def _inside(self, task: int) -> list[int]:
        """Return the rows of a task and of what is inside it, moved there or not."""
        table = self._table
        lane = key_of(table.process[task], table.thread[task])
        rows, low_ns, high_ns = self._rows[lane], table.start_ns[task], table.end_ns[task]
        low = bisect_left(rows, low_ns, key=table.start_ns.__getitem__)
        high = bisect_right(rows, high_ns, key=table.start_ns.__getitem__)
        some = rows[low:high]
        moved = self._moved.get(lane)
        if moved:
            here = [row for row in moved if low_ns <= table.start_ns[row] <= high_ns]
            some += here
            gone = {*here}
            self._moved[lane] = [row for row in moved if row not in gone]
        thread = table.thread[task]
        return [row for row in some if table.end_ns[row] <= high_ns and table.thread[row] == thread]
