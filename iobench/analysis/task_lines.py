"""Tasks that threads ran for another thread, laid into the time of the thread that asked.

A graph of tasks that threads compute holds up who asked for it by its critical path: from the end
back to whatever task finished last before, and so on. Tasks on it stand for what the asking thread
did meanwhile: they are moved to its lane, inside the span of the graph, whose own time is then what
no task explains. The others stay where they ran, and are hidden behind these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.time_intervals import nesting
from iobench.recording.kinds import GRAPH, TASK, Kind, lane_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.runs.contents import RunData

    Rows = NDArray[np.int64]


def laid_in_line(profile: RunData, spans: NDArray[Any]) -> NDArray[Any]:
    """Return spans of a profile with tasks on critical paths on the lanes that asked for them."""
    computed = spans["kind"] == Kind.PREPROCESS
    graphs = np.flatnonzero(computed & (spans["label"] == profile.string_number(GRAPH)))
    if not len(graphs):
        return spans
    tasks = np.flatnonzero(computed & (spans["detail"] == profile.string_number(TASK)))
    lanes, laid = _Lanes(spans), spans.copy()
    length = spans["end_ns"][graphs] - spans["start_ns"][graphs]
    # Graphs inside a task are shorter than the graph of that task.
    graphs = graphs[np.argsort(length, kind="stable")]
    paths = _critical_paths(spans, graphs, tasks)
    cpu_ns = laid["cpu_ns"]
    for graph, path in zip(graphs.tolist(), paths, strict=True):
        if not len(path):
            continue
        spent_ns, around = cpu_ns[path], graph
        while around >= 0:
            known = cpu_ns[around] >= 0 and spent_ns.min() >= 0
            cpu_ns[around] = cpu_ns[around] + spent_ns.sum() if known else -1
            around = lanes.around[around]
    for graph, path in zip(graphs[::-1].tolist(), paths[::-1], strict=True):
        for task in path.tolist():
            laid["thread"][lanes.inside(task)] = laid["thread"][graph]
    return laid


def _critical_paths(spans: NDArray[Any], graphs: Rows, tasks: Rows) -> list[Rows]:
    """Return of each graph the tasks on other threads that it waited for, the last one first."""
    names = ("start_ns", "end_ns", "process", "thread", "batch", "epoch", "sample")
    start, end, process, thread, *position = (spans[name] for name in names)
    tasks = tasks[np.argsort(start[tasks], kind="stable")]
    by_process = {each: tasks[process[tasks] == each] for each in np.unique(process[tasks])}
    unused = np.ones(len(spans), dtype=bool)
    paths = []
    for graph in graphs.tolist():
        some = by_process.get(process[graph], tasks[:0])
        low, high = np.searchsorted(start[some], (start[graph], end[graph]))
        some = some[low:high]
        mine = unused[some] & (end[some] <= end[graph]) & (thread[some] != thread[graph])
        for column in position:
            mine &= column[some] == column[graph]
        some = some[mine]
        unused[some] = False
        path, last_ns = [], end[graph]
        for task in some[np.argsort(-end[some], kind="stable")].tolist():
            if end[task] <= last_ns:
                path.append(task)
                last_ns = start[task]
        paths.append(np.array(path, dtype=np.int64))
    return paths


class _Lanes:
    """Spans by lane and time: what is inside of each, and directly around it."""

    def __init__(self, spans: NDArray[Any]) -> None:
        self._start, self._end, self._keys = spans["start_ns"], spans["end_ns"], lane_keys(spans)
        newest_first = -spans["sequence"].astype(np.int64)
        self._order = np.lexsort((newest_first, -self._end, self._start, self._keys))
        start, end = self._start[self._order], self._end[self._order]
        lanes, first = np.unique(self._keys[self._order], return_index=True)
        rows = [(each, self._start[each]) for each in np.split(self._order, first[1:])]
        self._rows = dict(zip(lanes.tolist(), rows, strict=True))
        parent = nesting(start, end, self._keys[self._order]).parent
        around = np.full(len(spans), -1, dtype=np.int64)
        around[self._order] = np.where(parent >= 0, self._order[parent], -1)
        self.around: list[int] = around.tolist()

    def inside(self, row: int) -> Rows:
        """Return the rows of a span and of what is inside it on its lane."""
        rows, start = self._rows[int(self._keys[row])]
        low = np.searchsorted(start, self._start[row])
        some = rows[low : np.searchsorted(start, self._end[row], "right")]
        inside: Rows = some[self._end[some] <= self._end[row]]
        return inside
