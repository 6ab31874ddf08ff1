"""What storage did beside what the loader did: frozen values, without formatting.

All times are monotonic nanoseconds of the profile; -1 or None is unknown, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "PLACED_DTYPE",
    "UNSEEN",
    "AccessFigures",
    "ByteGap",
    "ByteRow",
    "Placement",
    "ProcessPlacement",
    "ProcessStorage",
    "ReadCost",
    "SanityLine",
    "StageStorage",
    "StorageFigures",
    "TraceCoverage",
    "asks_for_page",
]

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


_PAGE: Final = 4096
"""The smallest there is."""


def asks_for_page(segments: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark calls that look like those by which iobench asks whether a page is in the cache."""
    marks: NDArray[np.bool_] = (
        (segments["nbytes"] == 1) & (segments["offset"] % _PAGE == 0) & ~segments["write"]
    )
    return marks


WELL_TOLD_NS: Final = 1_000_000
"""A tracer's zero that is known to so much needs no matching: DFTracer's is, to microseconds."""


@dataclass(frozen=True, slots=True)
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
        The window of offsets that place as many segments; the offset is the middle of its widest
        part, of the whole as a rule.
    matched : bool
        Whether the offset was found by matching; else it is 0, and the window what is known of
        the tracer's zero.
    files : tuple of str
    segments : ndarray of PLACED_DTYPE
        By start.
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

    @property
    def is_clock_known(self) -> bool:
        """Whether its times are good: by matching, or since the tracer itself tells them well."""
        return self.matched or self.high_ns - self.low_ns <= WELL_TOLD_NS

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


@dataclass(frozen=True, slots=True)
class TraceCoverage:
    """How much of the run the tracer saw; what comes before any other figure.

    Parameters
    ----------
    n_expected, n_found : int
        Processes of the profile that read, and logs of them.
    missing : tuple of str
        Processes without a log, by name and pid.
    partial : tuple of str
        ``"worker-0 (process 12): POSIX, DXT_POSIX"``.
    n_files_read : int or None
        Files that the spans name; None where they name none.
    n_files_seen : int
        Of these (else in all) those the tracer has.
    n_segments, n_placed, n_stray : int
        Of reads alone, but for `ProcessPlacement.is_page_question`.
    stray_nbytes : int
    n_extra_logs : int
        Logs of other processes of the job, or of other jobs.
    problems : tuple of str
        What could not be read and what to do.
    extra : tuple of str
        One line for each of the extra logs: which, and why it is of no process of the run.
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
    n_extra_logs: int
    problems: tuple[str, ...]
    extra: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether figures of the tracer are of all that was read."""
        return (
            self.n_found == self.n_expected
            and not self.partial
            and not self.problems
            and self.n_files_seen == (self.n_files_read or self.n_files_seen)
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """The processes of a profile with what a tracer saw of them, on one clock."""

    processes: tuple[ProcessPlacement, ...]
    coverage: TraceCoverage


UNSEEN: Final = frozenset({"no log", "partial log"})
"""Gaps as large as the difference they explain, whatever else was missing."""


@dataclass(frozen=True, slots=True)
class ByteGap:
    """Bytes by which two columns of a row differ, with the name of the reason.

    Parameters
    ----------
    name : str
        ``"header read twice"``, ``"compression"``, ``"metadata"``, ``"format sniffing"``,
        ``"mapping"``, ``"read-ahead"``, ``"partial log"``, ``"stray segments"``, ``"no log"``,
        ``"outside stages"``, ``"other stages"``, ``"own reads"``, ``"start-up"``,
        ``"samples not timed"``, ``"headers and buffers"``, ``"page cache"``,
        ``"read for other processes"``; ``""`` is a gap that nothing explains.
    nbytes : int
        Positive: the first column has more.
    between : tuple of str
        Names of the two columns.
    """

    name: str
    nbytes: int
    between: tuple[str, str]


@dataclass(frozen=True, slots=True)
class ByteRow:
    """Bytes read by one process, of one file, or by the run; None is unknown.

    Parameters
    ----------
    scope : str
        ``"run"``, ``"process"`` or ``"file"``.
    name : str
    asked : int or None
        What the read stages handed on.
    posix, stdio, segments : int or None
        What the tracer counted, by sort of call.
    rchar, device : int or None
        What ``/proc`` counted: by any read call, and from the device.
    gaps : tuple of ByteGap
    """

    scope: str
    name: str
    asked: int | None
    posix: int | None
    stdio: int | None
    segments: int | None
    rchar: int | None
    device: int | None
    gaps: tuple[ByteGap, ...]

    @property
    def settled(self) -> bool:
        """Whether somebody counted what the stages handed on, and every gap has a name.

        Never where part of it was unseen: anything could hide in such a gap.
        """
        counted = any(each is not None for each in (self.posix, self.segments, self.rchar))
        named = all(gap.name and gap.name not in UNSEEN for gap in self.gaps)
        return self.asked is not None and counted and named


@dataclass(frozen=True, slots=True)
class ProcessStorage:
    """One stage in one process; as `StageStorage`, which sums it."""

    process: str
    busy_ns: int
    storage_ns: int | None


@dataclass(frozen=True, slots=True)
class StageStorage:
    """One stage that read: how much of it was storage.

    Parameters
    ----------
    stage : str
        ``kind`` or ``kind:label``.
    busy_ns : int
    storage_ns : int or None
        Union of the segments inside its spans, thread by thread, and what the tracer counted of
        ``fread``, which has no segments; None where the tracer did not see all its processes.
    rest_ns : int or None
        What is left: decoding, Python, waiting for a lock or CPU.
    rest_is_bound : bool
        Whether the stage also decodes, so that ``rest_ns`` bounds the time of decoding; or reads
        in ways whose time nobody saw, so that part of it was storage.
    off_cpu_ns : int or None
        Time its threads were not on a CPU, where spans carry CPU time.
    nbytes : int or None
    verdict : str
        ``"from cache"``, ``"from device"``, ``"mixed"`` or ``"unknown"``.
    processes : tuple of ProcessStorage
        The processes that have it.
    """

    stage: str
    busy_ns: int
    storage_ns: int | None
    rest_ns: int | None
    rest_is_bound: bool
    off_cpu_ns: int | None
    nbytes: int | None
    verdict: str
    processes: tuple[ProcessStorage, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadCost:
    """One read, and what it cost the training loop; offset and bytes -1 where unknown."""

    process: str
    file: str
    offset: int
    nbytes: int
    start_ns: int
    duration_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class SanityLine:
    """MLPerf HPC's check: what reading an epoch should take, against what the epoch took.

    Parameters
    ----------
    nbytes : int
        Read in an epoch by all processes, for the batches of the training's loader.
    n_processes : int
        Processes and threads that read in an epoch; those made anew for the next one count once.
    bandwidth : float
        Of one of them while it reads, in bytes/s.
    epoch_s, wait_s : float
        What an epoch took, and how much of it the training loop waited.
    """

    nbytes: int
    n_processes: int
    bandwidth: float
    epoch_s: float
    wait_s: float

    @property
    def estimated_s(self) -> float:
        """Seconds of reading in an epoch: bytes / processes / bandwidth."""
        return self.nbytes / self.n_processes / self.bandwidth

    @property
    def fits(self) -> bool:
        """Whether the rest of the training is long enough to hide the reading."""
        return self.estimated_s <= self.epoch_s - self.wait_s


@dataclass(frozen=True, slots=True)
class AccessFigures:
    """How the run read: sizes, order, and what it read for what it used.

    Calls that returned nothing, as at the end of every file, are left out.

    Parameters
    ----------
    n_reads : int
    of_segments : bool
        Whether these are a tracer's segments; else they are what stages read at once.
    size_edges : tuple of int
        Upper edges in bytes of the histogram's bins, the last one open; a size on an edge is in
        the bin above it.
    size_counts, size_nbytes : tuple of int
        One more than edges.
    consecutive_fraction, sequential_fraction, random_fraction : float or None
        Of the reads after the first of each file and process: where the last one ended; further
        on; elsewhere.
    stride : int or None
        Bytes from read to read, where more than half of the reads have it and it is not their size.
    small_read_fraction : float or None
        Reads of less than 64 KiB.
    reread_factor : float or None
        Bytes read over distinct bytes read.
    read_per_used : float or None
        Bytes read over bytes of the samples that were delivered.
    bandwidths : tuple of (str, float)
        Of each process, bytes read over the time of its reads, in bytes/s.
    top_fraction, top_exposed_fraction : float or None
        "3 % of the reads cost 61 % of the wait": the fewest reads, dearest first, that cost more
        than half of the time that all reads were waited for.
    """

    n_reads: int
    of_segments: bool
    size_edges: tuple[int, ...]
    size_counts: tuple[int, ...]
    size_nbytes: tuple[int, ...]
    consecutive_fraction: float | None
    sequential_fraction: float | None
    random_fraction: float | None
    stride: int | None
    small_read_fraction: float | None
    reread_factor: float | None
    read_per_used: float | None
    bandwidths: tuple[tuple[str, float], ...]
    top_fraction: float | None
    top_exposed_fraction: float | None


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """What storage did in a run of one training process.

    Parameters
    ----------
    placement : Placement or None
        None without a tracer's logs.
    rows : tuple of ByteRow
        The run first, then processes, then files, largest first.
    stages : tuple of StageStorage
    costliest : tuple of ReadCost
        Reads by exposed time, the dearest first; at most 20.
    access : AccessFigures or None
        None where single reads are not known.
    sanity : SanityLine or None
        None where bytes, bandwidths or epochs are not known.
    """

    placement: Placement | None
    rows: tuple[ByteRow, ...]
    stages: tuple[StageStorage, ...]
    costliest: tuple[ReadCost, ...]
    access: AccessFigures | None
    sanity: SanityLine | None = None
