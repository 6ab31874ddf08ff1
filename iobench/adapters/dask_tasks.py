"""Adapter to dask's own schedulers: what its threads do counts for the batch that asked for it.

A call that computes a graph is one span of the thread that asked, and each task one of the thread
that did it, with that thread's batch, epoch and sample; what is read and decoded inside has spans
of its own. Tasks in other processes are not seen: the call is `opaque`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any, Final

from iobench.adapters import scope
from iobench.recording import activation
from iobench.recording.kinds import GRAPH, TASK, Kind
from iobench.recording.outside import thread_lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.adapters.patches import Patches
    from iobench.recording.recorder import Lane

MARK: Final = "_iobench_times_tasks"


def adapt(patches: Patches, module: Any) -> None:
    """Time what ``get_async`` runs: threads, one thread, processes, and any executor, go there."""
    if not hasattr(module.get_async, MARK):  # imported from where it was replaced before
        patches.put(module, "get_async", _computing)
        setattr(module.get_async, MARK, True)


def _computing(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_async(submit: Any, num_workers: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = activation._active
        if recorder is None or scope.where_now() is None:
            return original(submit, num_workers, *args, **kwargs)
        how = _scheduler_of(submit)
        if how == "processes":
            kind, label = Kind.OPAQUE, "dask processes"
        else:
            kind, label = Kind.PREPROCESS, GRAPH
        span = scope.begin(recorder, kind, label, with_cpu=True, hiding=how == "processes")
        if how == "processes":
            with span or nullcontext():
                return original(submit, num_workers, *args, **kwargs)
        if span is None:  # the call around this one is timed as a whole, or nothing is
            silent = _Tasks(submit, thread_lane(), described=None)
            return original(silent.submit, num_workers, *args, **kwargs)
        span.detail = f"dask {how} {num_workers}"
        tasks = _Tasks(submit, span.lane, recorder.described(Kind.PREPROCESS, "", TASK))
        with span:
            return original(tasks.submit, num_workers, *args, **kwargs)

    return get_async


def _scheduler_of(submit: Any) -> str:
    """Return what runs the tasks: ``threads``, ``synchronous`` or ``processes``."""
    pool = getattr(submit, "__self__", None)
    if isinstance(pool, ThreadPoolExecutor) or isinstance(getattr(pool, "pool", None), ThreadPool):
        return "threads"
    # Of any other pool nobody knows whether it pickles what it is handed.
    return "synchronous" if type(pool).__name__ == "SynchronousExecutor" else "processes"


class _Tasks:
    """The tasks of one graph, each run for the thread that asked for the graph."""

    __slots__ = ("_described", "_lane", "_loading", "_position", "_submit")

    def __init__(self, submit: Callable[..., Any], lane: Lane | None, described: bytes | None):
        self._submit, self._lane, self._described = submit, lane, described
        if lane is not None:
            self._position, self._loading = lane.position, lane.loading

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        """Hand a task to the scheduler's threads, or run it, as dask would."""
        return self._submit(self._run, function, *args)

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        asking, lane = self._lane, thread_lane()
        if asking is None or lane is None or lane.recorder is not asking.recorder:
            return function(*args)  # a window that closed meanwhile
        before = lane.position, lane.loading, lane.quiet
        described = self._described
        lane.position, lane.loading = self._position, self._loading
        if described is None:
            lane.quiet += 1
            try:
                return function(*args)
            finally:
                lane.position, lane.loading, lane.quiet = before
        now_ns, read_cpu_ns = lane.now_ns, lane.cpu_ns
        start_ns = now_ns()
        cpu_ns = read_cpu_ns()
        try:
            return function(*args)
        finally:
            cpu_ns = read_cpu_ns() - cpu_ns
            lane.position = self._position
            lane.write(start_ns, now_ns(), -1, cpu_ns, described)
            lane.position, lane.loading, lane.quiet = before
