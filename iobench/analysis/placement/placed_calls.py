"""What a tracer saw of the processes of a run, on the profile's clock, and how much that is."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.frozen import frozen
from iobench.json_keys import HIDDEN, figure, key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles.contents import Process

PLACED_DTYPE: Final = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("span", "<i8"),
        ("exposed_ns", "<i8"),
        ("file", "<i4"),
        ("write", "?"),
        ("stray", "?"),
    ]
)
"""One segment on the profile's clock.

``span`` is the row in ``Profile.spans`` of the stage it lies in, -1 if in none. ``stray`` marks
what the tracer credited to the wrong file; it counts nowhere. ``exposed_ns`` is the part of it that
the training loop waited for, -1 where exposure is not known. ``file`` is an index into
``ProcessPlacement.files``.
"""


_STEP_NS: Final = 1_000_000
"""By more than this two anchors do not differ unless the wall clock was set."""
_PAGE: Final = 4096
"""The smallest there is."""


def asks_for_page(segments: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark calls that look like those by which iobench asks whether a page is in the cache."""
    marks: NDArray[np.bool_] = (
        (segments["nbytes"] == 1) & (segments["offset"] % _PAGE == 0) & ~segments["write"]
    )
    return marks


@frozen
class ProcessPlacement:
    """One process of the profile and what a tracer saw of it.

    Parameters
    ----------
    process : int
        Index in ``Profile.processes``.
    trace : int
        Index in ``StorageTrace.processes``, -1 if there is none.
    reason : str
        Why there is none, or why its segments could not be placed; ``""``.
    offset_ns : int
        To be added to the tracer's wall-clock times to reach those of the process.
    low_ns, high_ns : int
        The window of offsets that a marker allows, or that place as many segments; the offset is
        the middle of its widest part, of the whole as a rule.
    matched : bool
        Whether the offset was told by a marker or found by matching; else it is 0, and the window
        what is known of the tracer's zero.
    segments : ndarray of PLACED_DTYPE
        By start.
    marked : bool
        Whether a marker told the offset: reads that the process itself made at known times.
    """

    process: int
    trace: int
    reason: str
    offset_ns: int
    low_ns: int
    high_ns: int
    matched: bool
    files: tuple[str, ...]
    segments: NDArray[Any]
    marked: bool = False

    @property
    def is_page_question(self) -> NDArray[np.bool_]:
        """Which segments are none of the loader's reads: iobench asks whether pages are cached.

        Where the system does not count them it reads one byte at the beginning of some pages,
        outside of all stages.
        """
        return asks_for_page(self.segments) & (self.segments["span"] < 0)

    @property
    def n_placed(self) -> int:
        """Reads that lie inside a stage."""
        return int(((self.segments["span"] >= 0) & ~self.segments["write"]).sum())

    @property
    def n_stray(self) -> int:
        """Reads credited to the wrong file."""
        return int((self.segments["stray"] & ~self.segments["write"]).sum())


@frozen
class TraceCoverage:
    """How much of the run the tracer saw; what comes before any other figure.

    Parameters
    ----------
    n_expected, n_found : int
        Processes of the run that read, and logs of them.
    missing : tuple of str
        Processes without a log, by name and pid.
    partial : tuple of str
        Logs that ran out of room: ``"worker-0 (process 12): POSIX, DXT_POSIX"``.
    n_files_read : int or None
        Files that the spans name; None where they name none.
    n_files_seen : int
        Of these (else in all) those the tracer has.
    n_segments, n_placed, n_stray : int
        Single calls that read; those that lie in a stage; those credited to the wrong file, which
        count nowhere. Questions whether a page is in the cache are none of them.
    stray_nbytes : int
        Of those credited to the wrong file.
    problems : tuple of str
        What could not be read and what to do.
    extra : tuple of str
        One line for each log of other processes or jobs: which, and why it is not of the run.
    """

    n_expected: int = field(metadata=key("logs_expected"))
    n_found: int = field(metadata=key("logs_found"))
    missing: tuple[str, ...]
    partial: tuple[str, ...]
    n_files_read: int | None = field(metadata=key("files_read"))
    n_files_seen: int = field(metadata=key("files_seen"))
    n_segments: int = field(metadata=key("segments"))
    n_placed: int = field(metadata=key("segments_placed"))
    n_stray: int = field(metadata=key("segments_stray"))
    stray_nbytes: int
    problems: tuple[str, ...]
    extra: tuple[str, ...] = field(default=(), metadata=HIDDEN)

    @figure
    def complete(self) -> bool:
        """Whether figures of the tracer are of all that was read."""
        return (
            self.n_found == self.n_expected
            and not self.partial
            and not self.problems
            and self.n_files_seen == (self.n_files_read or self.n_files_seen)
        )

    @figure.named("extra_logs")
    def n_extra_logs(self) -> int:
        """Logs of other processes of the job, or of other jobs."""
        return len(self.extra)


@frozen
class Placement:
    """The processes of a profile with what a tracer saw of them, on one clock."""

    processes: tuple[ProcessPlacement, ...]
    coverage: TraceCoverage


def monotonic_of_wall(who: Process, wall_ns: NDArray[Any]) -> NDArray[np.int64]:
    """Return wall-clock times of a process on its monotonic clock.

    The difference of the clocks is that of the first anchor: both are steered alike, so that it
    changes only where the wall clock is set. What two anchors differ by, some microseconds, is the
    time between reading one clock and the other; to follow it would make a drift of it.
    """
    first = who.anchors[0]
    moved: NDArray[np.int64] = wall_ns.astype(np.int64) - (first.wall_ns - first.monotonic_ns)
    return moved


def clock_was_set(who: Process) -> bool:
    """Tell whether the two clocks disagree at the end by more than at the start."""
    first, last = who.anchors[0], who.anchors[-1]
    change = (last.wall_ns - last.monotonic_ns) - (first.wall_ns - first.monotonic_ns)
    return abs(change) > _STEP_NS
