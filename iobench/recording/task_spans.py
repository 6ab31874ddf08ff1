"""How a graph of tasks is recorded that threads compute for another thread, which waits."""

from __future__ import annotations

from typing import Final

GRAPH: Final = "dask"
"""Label of the span around all tasks of a graph, of kind preprocess, on the thread that asked for
it. What of it no task explains is the scheduler's own, and the way of tasks to threads and back."""
TASK: Final = "dask task"
"""Detail of the span of a task, of kind preprocess, on the thread that did it, at the position of
who asked."""
