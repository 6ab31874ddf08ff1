"""What Darshan saw of the processes of a run: files, counters, segments.

Times are wall-clock nanoseconds as Darshan reports them: its zero may be off by tens of
milliseconds, which `place_segments` corrects by a marker. -1 is unknown wherever it stands.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEGMENT_DTYPE: Final = np.dtype(
    [("start_ns", "<i8"), ("end_ns", "<i8"), ("offset", "<i8"), ("nbytes", "<i8"), ("file", "<i4")]
)
"""One call that read; ``file`` is an index into ``ProcessTrace.files``."""
COUNTERS: Final = {
    "POSIX": {
        "posix_opens": "POSIX_OPENS",
        "posix_reads": "POSIX_READS",
        "posix_read_nbytes": "POSIX_BYTES_READ",
        "posix_mmaps": "POSIX_MMAPS",
    },
    "STDIO": {
        "stdio_opens": "STDIO_OPENS",
        "stdio_reads": "STDIO_READS",
        "stdio_read_nbytes": "STDIO_BYTES_READ",
        "stdio_read_ns": "STDIO_F_READ_TIME",
        "stdio_first_read_ns": "STDIO_F_READ_START_TIMESTAMP",
        "stdio_last_read_ns": "STDIO_F_READ_END_TIMESTAMP",
    },
}
"""Our counters of a file, and Darshan's, by its module; those with ``_F_`` are in seconds."""
COUNTER_DTYPE: Final = np.dtype(
    [("file", "<i4"), *((name, "<i8") for columns in COUNTERS.values() for name in columns)]
)
"""Sums over one file in one process; first and last are wall-clock times."""
NO_SEGMENTS: Final[NDArray[Any]] = np.zeros(0, SEGMENT_DTYPE)


class ModuleState(msgspec.Struct, frozen=True):
    """One sort of calls that Darshan followed in one process: ``"POSIX"``, ``"DXT_POSIX"``.

    `partial`: it ran out of memory. `problem`: why its content could not be read, and what to do.
    """

    name: str
    version: int
    partial: bool = False
    problem: str = ""


class ProcessTrace(msgspec.Struct, frozen=True):
    """What Darshan saw of one process, or of all that share a log.

    ``marks`` are reads that `mark_clock` made: their offsets are times of our monotonic clock.
    """

    path: Path  # of the log
    pid: int = -1  # where the name of the log does not have it
    job_id: int = -1
    host: str = ""
    start_ns: int = -1
    modules: tuple[ModuleState, ...] = ()
    files: tuple[str, ...] = ()  # without standard streams and Python's own code and packages
    # At most one row for each file; segments and marks by start.
    counters: NDArray[Any] = msgspec.field(default_factory=lambda: np.zeros(0, COUNTER_DTYPE))
    segments: NDArray[Any] = msgspec.field(default_factory=lambda: NO_SEGMENTS)
    marks: NDArray[Any] = msgspec.field(default_factory=lambda: NO_SEGMENTS)

    @property
    def partial_modules(self) -> tuple[str, ...]:
        """Names of the modules that do not hold all that happened."""
        return tuple(each.name for each in self.modules if each.partial)

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read of it, in words."""
        return tuple(each.problem for each in self.modules if each.problem)


class StorageTrace(msgspec.Struct, frozen=True):
    """The logs of a run; ``notes`` has a line for each that is not in it: which, and why."""

    processes: tuple[ProcessTrace, ...] = ()
    notes: tuple[str, ...] = ()


INTERPRETER: Final = re.compile(
    r"(?:/lib(?:64)?/python\d[\d.]*(?:/|\.?zip$)|/(?:site|dist)-packages/|/pyvenv\.cfg$"
    r"|\.py$|\.py[co](?:\.\d+)?$|\.so(?:\.[\d.]+)?$|\.pth$)"
)
"""Files of Python itself: code, libraries, anything in a packages folder."""


def is_of_interpreter(name: str) -> bool:
    """Return whether a file is Python's own: code, libraries, anything in a packages folder."""
    return INTERPRETER.search(name) is not None
