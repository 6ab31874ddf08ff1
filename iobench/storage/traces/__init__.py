"""What tracers of system calls saw: the logs of a run, read into one shape."""

from iobench.storage.traces.contents import (
    COUNTER_DTYPE,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
    StorageTrace,
)

__all__ = [
    "COUNTER_DTYPE",
    "SEGMENT_DTYPE",
    "ModuleState",
    "ProcessTrace",
    "StorageTrace",
]
