"""What Darshan saw of the processes of a run, on the run's clock, and how much that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np

from iobench.json_keys import figure, key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.runs.contents import Process

PLACED_DTYPE: Final = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("span", "<i8"),
        ("exposed_ns", "<i8"),
        ("file", "<i4"),
        ("stray", "?"),
    ]
)
"""One read on the run's clock.

``span`` is the row in ``RunData.spans`` of the stage it lies in, -1 if in none. ``stray`` marks
what Darshan credited to the wrong file; it counts nowhere. ``exposed_ns`` is the part of it that
the training loop waited for, -1 where exposure is not known. ``file`` is an index into
``ProcessPlacement.files``.
"""
_PAGE: Final = 4096
"""The smallest there is."""


class ProcessPlacement(msgspec.Struct, frozen=True):
    """One process of a run and its log.

    Parameters
    ----------
    process, trace : int
        Indices in ``RunData.processes`` and ``StorageTrace.processes``.
    low_ns, high_ns : int
        What may be added to the log's wall-clock times, by the marker; `offset_ns` is added.
    segments : ndarray of PLACED_DTYPE
        By start.
    """

    process: int
    trace: int
    low_ns: int
    high_ns: int
    files: tuple[str, ...]
    segments: NDArray[Any]

    @property
    def offset_ns(self) -> int:
        """What was added to the log's wall-clock times: the middle of what the marker allows."""
        return (self.low_ns + self.high_ns) // 2

    @property
    def is_page_probe(self) -> NDArray[np.bool_]:
        """Which reads are none of the loader's: iobench tests whether pages are in the cache.

        Where the system does not count them it reads one byte at the beginning of some pages,
        outside of all stages.
        """
        segments = self.segments
        probes: NDArray[np.bool_] = (
            (segments["nbytes"] == 1) & (segments["offset"] % _PAGE == 0) & (segments["span"] < 0)
        )
        return probes


class OtherLogs(msgspec.Struct, frozen=True):
    """Sums over the logs that have no marker of a process of the run.

    Parameters
    ----------
    n_logs, n_files : int
        Logs, one for each rank of an MPI job; different files that were read.
    posix_nbytes, stdio_nbytes : int
        Bytes read by POSIX calls and by ``fread``.
    """

    n_logs: int
    n_files: int
    posix_nbytes: int
    stdio_nbytes: int
    JSON_KEYS: ClassVar = {
        "n_logs": key("logs"),
        "n_files": key("files"),
    }


class TraceCoverage(msgspec.Struct, frozen=True):
    """How much of the run Darshan saw; what comes before any other figure.

    Parameters
    ----------
    n_expected, n_found : int
        Processes of the run that read, and those of them with a log that has their marker.
    missing : tuple of str
        Processes without one, by name and pid.
    partial : tuple of str
        Logs that ran out of memory: ``"worker-0 (process 12): POSIX, DXT_POSIX"``.
    n_files_read : int or None
        Files that the spans name; None where they name none.
    n_files_seen : int
        Of these (else in all) those that Darshan has.
    n_segments, n_placed, n_stray : int
        Single reads; those that lie in a stage; those credited to the wrong file, which count
        nowhere. Tests whether a page is in the cache are none of them.
    stray_nbytes : int
        Of those credited to the wrong file.
    problems : tuple of str
        What could not be read and what to do.
    others : OtherLogs or None
        Logs without a marker of the run.
    """

    n_expected: int
    n_found: int
    missing: tuple[str, ...]
    partial: tuple[str, ...]
    n_files_read: int | None
    n_files_seen: int
    n_segments: int
    n_placed: int
    n_stray: int
    stray_nbytes: int
    problems: tuple[str, ...]
    others: OtherLogs | None = None
    JSON_KEYS: ClassVar = {
        "n_expected": key("logs_expected"),
        "n_found": key("logs_found"),
        "n_files_read": key("files_read"),
        "n_files_seen": key("files_seen"),
        "n_segments": key("segments"),
        "n_placed": key("segments_placed"),
        "n_stray": key("segments_stray"),
        "others": key("other_logs"),
    }

    @figure
    def complete(self) -> bool:
        """Whether Darshan's figures are of all that was read."""
        return (
            self.n_found == self.n_expected
            and not self.partial
            and not self.problems
            and self.n_files_seen == (self.n_files_read or self.n_files_seen)
        )


class Placement(msgspec.Struct, frozen=True):
    """The processes of a run that have logs, with their reads in stages."""

    processes: tuple[ProcessPlacement, ...]
    coverage: TraceCoverage


def monotonic_of_wall(who: Process, wall_ns: NDArray[Any]) -> NDArray[np.int64]:
    """Return wall-clock times of a process on its monotonic clock.

    The difference of the clocks is that of the first anchor: both are steered alike, so that it
    changes only where the wall clock is set.
    """
    first = who.anchors[0]
    moved: NDArray[np.int64] = wall_ns.astype(np.int64) - (first.wall_ns - first.monotonic_ns)
    return moved
