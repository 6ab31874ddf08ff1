"""Bounded, read-only probes of what storage can do, by reading files that are there.

Each arm of one is one order, one way and one number of threads. ``iobench limits`` tries several:
arms read ranges of their own as far as there are enough, direct ones first, so that what one left
in the page cache is not read by the next. A run's probe is of one shape, in short turns: what
these differ by tells chance from a storage that others load. It leaves the page cache as it was:
through it only such ranges are read of which it holds nothing, and these are dropped again, or of
which it holds all. Who served an arm is told by evidence
(`iobench.storage.limit_figures.served_by`), never by what was meant.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError
from iobench.files.urls import is_url
from iobench.frozen import frozen
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.this_process import host_name, read_process_io
from iobench.storage.file_systems import file_system_of, mount_of, read_mounts
from iobench.storage.limit_figures import (
    AGAIN,
    BUFFERED,
    DIRECT,
    STORAGE,
    UNKNOWN,
    ReadFigures,
    StorageLimits,
    served_by,
)
from iobench.storage.page_cache import pages_of
from iobench.storage.probe_reads import (
    ALIGNMENT,
    ProbedFiles,
    RequestSlots,
    aligned,
    choose_files,
    latency_figures,
    open_figures,
    open_quietly,
    read_ranges,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock
    from iobench.storage.limit_figures import OpenFigures
    from iobench.storage.probe_reads import ProbeFile, Timed

ASKED_RANGES: Final = 64
"""Of so many ranges of an arm it is asked whether the page cache holds them."""
OPENS_SHARE, LISTING_SHARE = 0.05, 0.15
"""Of the time: for opening files, for all numbers of threads, and for listing them."""
OF_PYTHON: Final = "for reads as short as these, part of the time is Python overhead"
SMALL_REQUEST: Final = 32 << 10
DEFAULT_REQUEST_NBYTES: Final = 1 << 20
MAX_REQUEST_NBYTES: Final = 64 << 20
MAX_HELD_NBYTES: Final = 4 << 30
"""Of the buffers of all threads."""
DROP_TRIES: Final = 4
"""A page that the kernel is moving just then is dropped at the next."""
ORDERS: Final = ("random", "sequential")

LIMITS: Final = "IOBENCH_LIMITS"
"""What ``--limits auto`` stands for: seconds, or ``off``."""
DEFAULT_S, MOST_S = "2", 60.0
TURNS: Final = 5
"""Of each way of a run's probe, spread over its time."""
TURN_NBYTES, TURN_READS = 32 << 20, 256
"""What ends a turn: its figure stands then."""
HELD_NBYTES: Final = 256 << 20
"""Of all buffers of a run's probe: larger requests are read in parts."""
MOST_READERS: Final = 128


@frozen(kw_only=True)
class Probe:
    """What to read and for how long at most; all of it within these bounds.

    Parameters
    ----------
    path : Path
        A file or folder.
    request_nbytes : int
        One read; at most 64 MiB, larger ones are cut to that.
    orders : tuple of str
        ``"random"`` and ``"sequential"``, or one of them.
    like : str
        Whose requests these are, in words.
    """

    path: Path
    threads: tuple[int, ...] = (1,)
    request_nbytes: int = DEFAULT_REQUEST_NBYTES
    orders: tuple[str, ...] = ORDERS
    like: str = ""
    duration_s: float = 20.0
    max_nbytes: int = 4 << 30

    def __post_init__(self) -> None:
        if not self.threads or min(self.threads) < 1 or max(self.threads) > 1024:
            raise OptionError(f"threads {self.threads}: expected numbers from 1 to 1024")
        if self.request_nbytes < 1 or self.max_nbytes < 1 or not 0 < self.duration_s < 1e6:
            raise OptionError("a probe needs a request, a size and a duration of more than 0")
        held = max(self.threads) * min(self.request_nbytes, MAX_REQUEST_NBYTES)
        if held > MAX_HELD_NBYTES:
            raise OptionError(
                f"{max(self.threads)} threads with {held} B of buffers: expected fewer threads; "
                f"buffers may have {MAX_HELD_NBYTES} B in all"
            )
        if not self.orders or set(self.orders) - set(ORDERS):
            raise OptionError(f"orders {self.orders}: expected some of {', '.join(ORDERS)}")


def probe_limits(probe: Probe, *, clock: Clock = SYSTEM_CLOCK, seed: int = 0) -> StorageLimits:
    """Read existing files as the probe says and return what that reached.

    Raises
    ------
    IobenchError
        If the path is missing, holds nothing to read, or a file cannot be read.
    """
    start_ns = clock.now_ns()
    duration_ns = round(probe.duration_s * 1e9)
    request = min(probe.request_nbytes, MAX_REQUEST_NBYTES, probe.max_nbytes)
    listing_ns = start_ns + round(LISTING_SHARE * duration_ns)
    chosen = choose_files(probe.path, request, clock=clock, deadline_ns=listing_ns)
    files, unreadable = _readable(chosen.files)
    running = _Running(files, request, clock, start_ns, start_ns + duration_ns)
    running.notes += [*chosen.notes, *unreadable]
    ends = sorted({min(probe.threads), max(probe.threads)})
    paths = [file.path for file in files]
    opens_ns = round(OPENS_SHARE * duration_ns) // len(ends)
    opens = tuple(
        open_figures(
            paths,
            n,
            clock=clock,
            deadline_ns=min(running.deadline_ns, clock.now_ns() + opens_ns),
        )
        for n in ends
    )
    pairs = [(order, n) for order in probe.orders for n in sorted(set(probe.threads))]
    n_reads = probe.max_nbytes // (3 * len(pairs)) // (request + 2 * ALIGNMENT)
    slots = RequestSlots([file.nbytes for file in files], request, 2 * len(pairs))
    if slots.shared:
        running.notes.append("too little data for each set of reads to have its own")
    rng = np.random.default_rng(seed)
    steps = [
        _Step(order, n, n_reads, slots.requests(number, n_reads, order, rng), number >= len(pairs))
        for number, (order, n) in enumerate(2 * pairs)
    ]
    return running.measure(steps, probe.path.resolve(), probe.request_nbytes, probe.like, opens)


def _readable(files: Sequence[ProbeFile]) -> tuple[list[ProbeFile], list[str]]:
    """Return the files that can be opened, and how many cannot, in words."""
    found, last = [], None
    for file in files:
        try:
            os.close(open_quietly(file.path))
        except OSError as error:
            last = (error, file.path)
        else:
            found.append(file)
    if last is None:
        return found, []
    if not found:
        raise refuse(*last) from last[0]
    return found, [f"{len(files) - len(found)} files cannot be opened"]


def probe_seconds(asked: str, environ: Mapping[str, str] = os.environ) -> float | None:
    """Return how long the probes of a run may take, by ``--limits``; None for none.

    Raises
    ------
    OptionError
        If it is neither ``auto`` nor ``off`` nor a number of seconds.
    """
    text = environ.get(LIMITS, DEFAULT_S) if asked == "auto" else asked
    if text == "off":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MOST_S:
        named = f"{LIMITS}={text}" if asked == "auto" else f"--limits {text}"
        raise OptionError(f"{named}: expected off, or seconds, more than 0 and at most {MOST_S:g}")
    return seconds


def probe_run(
    files: Sequence[Path],
    request_nbytes: int,
    readers: int,
    *,
    like: str,
    duration_s: float,
    clock: Clock = SYSTEM_CLOCK,
    seed: int = 0,
) -> StorageLimits:
    """Read ranges of a run's files as the run does, for so long at most, and return what that gave.

    A read that was begun by then is waited for.

    Parameters
    ----------
    files : sequence of Path
        What the run reads; a folder stands for the files below it.
    request_nbytes : int
        Bytes of one read.
    readers : int
        How many read at once.
    like : str
        Whose requests these are, in words.
    seed : int
        Of the ranges: those of two probes differ.

    Raises
    ------
    IobenchError
        Where there is nothing to probe, or it cannot be read.
    """
    start_ns = clock.now_ns()
    deadline_ns = start_ns + round(duration_s * 1e9)
    if not files:
        raise OptionError("which files are read is unknown")
    if any(map(is_url, files)):
        raise OptionError("the files are read over the network, from no mounted folder")
    mounts = read_mounts()
    if len({mount_of(file.resolve(), mounts) for file in files}) > 1:
        raise OptionError("the files lie on several mounts")
    readers = min(readers, MOST_READERS)
    request = max(1, min(request_nbytes, HELD_NBYTES // readers))
    chosen = choose_files(list(files), request, clock=clock, deadline_ns=deadline_ns)
    running = _Running(chosen.files, request, clock, start_ns, deadline_ns, is_gentle=True)
    running.notes += chosen.notes
    n = min(TURN_READS, max(readers, TURN_NBYTES // request))
    n = -(-n // readers) * readers
    slots = RequestSlots([file.nbytes for file in chosen.files], request, 1)
    rng = np.random.default_rng(seed)
    # No two turns read the same, as far as there is enough.
    found = aligned(slots.requests(0, 2 * TURNS * n, "random", rng))
    steps = []
    for turn, start in enumerate(range(0, 2 * TURNS * n, n)):
        is_through = turn % 2 == 1
        n_own = min(n, len(found)) if is_through else n
        own = found[np.arange(start, start + n_own) % len(found)]
        steps.append(_Step("random", readers, n, own, is_through))
    path = os.path.commonpath([file.path.resolve() for file in chosen.files])
    return running.measure(steps, path, request_nbytes, like)


@frozen
class _Step:
    """Requests past the page cache, or through it and what was read once more, ``n`` in all."""

    order: str
    threads: int
    n: int
    requests: NDArray[Any]
    is_through: bool


@dataclass(slots=True)
class _Arm:
    """One way of reading, over its turns."""

    order: str
    threads: int
    way: str
    resident: float | None = None
    refused: str = ""
    nbytes: int = 0
    wall_ns: int = 0
    device_nbytes: int | None = 0
    latencies_ns: list[int] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)

    def add(self, told: Sequence[Timed], device_nbytes: int | None) -> None:
        at_work = [timed for timed in told if timed.latencies_ns]
        if not at_work:
            return
        nbytes = sum(timed.nbytes for timed in at_work)
        wall_ns = max(t.end_ns for t in at_work) - min(t.start_ns for t in at_work)
        self.nbytes += nbytes
        self.wall_ns += wall_ns
        if self.device_nbytes is None or device_nbytes is None:
            self.device_nbytes = None
        else:
            self.device_nbytes += device_nbytes
        self.latencies_ns += [each for timed in at_work for each in timed.latencies_ns]
        if wall_ns and len(at_work) == len(told):
            self.turns.append(nbytes / wall_ns * 1e9)


class _Running:
    """A probe on its way; where it is gentle, it leaves the page cache as it was."""

    def __init__(
        self,
        files: Sequence[ProbeFile],
        request_nbytes: int,
        clock: Clock,
        start_ns: int,
        deadline_ns: int,
        *,
        is_gentle: bool = False,
    ) -> None:
        self.files, self.request_nbytes, self.clock = files, request_nbytes, clock
        self.start_ns, self.deadline_ns, self.is_gentle = start_ns, deadline_ns, is_gentle
        self.file_system = file_system_of(files[0].path)
        self.notes = [OF_PYTHON] if request_nbytes < SMALL_REQUEST else []
        self.arms: dict[tuple[str, int, str], _Arm] = {}
        self.left = 0
        """Reads that are not yet begun: each has an equal share of what is left of the time."""

    def measure(
        self,
        steps: Sequence[_Step],
        path: Path | str,
        asked_nbytes: int,
        like: str,
        opens: tuple[OpenFigures, ...] = (),
    ) -> StorageLimits:
        if asked_nbytes > self.request_nbytes:
            self.notes.append(
                f"requests of {asked_nbytes} B are read in parts of {self.request_nbytes} B"
            )
        size = (-(-self.request_nbytes // ALIGNMENT) + 2) * ALIGNMENT
        # Anonymous mappings: aligned as direct reads need it, and touched before the first.
        self.buffers = [mmap.mmap(-1, size) for _ in range(max(step.threads for step in steps))]
        try:
            for buffer in self.buffers:
                buffer[:: mmap.PAGESIZE] = bytes(len(buffer[:: mmap.PAGESIZE]))
            self._read_all(steps)
        except OSError as error:
            raise refuse(error, error.filename or path) from error
        finally:
            for buffer in self.buffers:
                buffer.close()
        file_system = self.file_system
        reads = tuple(map(self._figures, self.arms.values()))
        return StorageLimits(
            path=str(path),
            mount="" if file_system.mount is None else str(file_system.mount),
            host=host_name(),
            file_system=file_system.name,
            reach=file_system.reach,
            wall_ns=self.clock.wall_ns(),
            like=like,
            request_nbytes=self.request_nbytes,
            n_files=len(self.files),
            files_nbytes=sum(file.nbytes for file in self.files),
            reads=reads,
            opens=opens,
            spent_ns=self.clock.now_ns() - self.start_ns,
            read_nbytes=sum(each.nbytes for each in reads),
            notes=tuple(self.notes),
        )

    def _read_all(self, steps: Sequence[_Step]) -> None:
        self.left = sum(1 + step.is_through for step in steps)
        with ExitStack() as stack:
            past = self._opened_past(stack)
            through = stack.enter_context(ProbedFiles(self.files)).fds
            if self.is_gentle:  # nothing beside a range is read
                for fd in through:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            self._arm(DIRECT, steps[0])  # told of even where no time is left for any
            for step in steps:
                if self.is_gentle and self.clock.now_ns() >= self.deadline_ns:
                    break
                if step.is_through and self.is_gentle:
                    self._through_gently(step, through)
                elif step.is_through:
                    done = self._read(BUFFERED, step, through, step.requests)
                    self._read_again(step, through, done)
                elif isinstance(past, str):
                    self._arm(DIRECT, step).refused = past
                    self.left -= 1
                else:
                    self._read(DIRECT, step, past, aligned(step.requests))

    def _opened_past(self, stack: ExitStack) -> list[int] | str:
        """Return the files open for direct reads, or why that cannot be."""
        try:
            return stack.enter_context(ProbedFiles(self.files, os.O_DIRECT)).fds
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return f"{self.file_system.name} refuses O_DIRECT"

    def _through_gently(self, step: _Step, fds: list[int]) -> None:
        """Read ranges through the page cache of which it holds nothing, else those it holds."""
        found = None
        if self.file_system.in_page_cache:
            found = [
                pages_of(fds[file], offset, nbytes, tries=False)
                for file, offset, nbytes in step.requests.tolist()
            ]
        if found is None or None in found:
            why = (
                "how much of these files the page cache holds cannot be queried, so it is left "
                "alone"
            )
            self._arm(BUFFERED, step).refused = why
            self.left -= 2
            return
        held = np.array([pages.resident / max(pages.n, 1) for pages in found if pages])
        cold, kept = step.requests[held == 0.0], step.requests[held == 1.0]
        if not len(cold):
            self.left -= 1
            if len(kept):
                self._read(BUFFERED, step, fds, np.resize(kept, step.n), 1.0)
            return
        try:
            done = self._read(BUFFERED, step, fds, cold, 0.0)
            self._read_again(step, fds, done, 1.0)
        finally:
            self._drop(fds, cold)

    def _drop(self, fds: list[int], requests: NDArray[Any]) -> None:
        left = requests.tolist()
        n_left = 0
        for _ in range(DROP_TRIES):
            found = []
            for file, offset, nbytes in left:
                os.posix_fadvise(fds[file], offset, nbytes, os.POSIX_FADV_DONTNEED)
                found.append(pages_of(fds[file], offset, nbytes, tries=False))
            stayed = [0 if pages is None else pages.resident for pages in found]
            left = [request for request, n in zip(left, stayed, strict=True) if n]
            n_left = sum(stayed)
            if not left:
                return
        self.notes.append(f"{n_left} pages that it read stayed in the page cache")

    def _arm(self, way: str, step: _Step, held: float | None = None) -> _Arm:
        key = step.order, step.threads, f"{way} {held}"
        return self.arms.setdefault(key, _Arm(step.order, step.threads, way, held))

    def _read_again(
        self, step: _Step, fds: list[int], done: Iterable[NDArray[Any]], held: float | None = None
    ) -> None:
        n = step.n // step.threads  # what is in memory may be read often
        shares = [np.resize(share, n) if len(share) else share for share in done]
        self._read(AGAIN, step, fds, np.concatenate(shares), held)

    def _read(
        self,
        way: str,
        step: _Step,
        fds: list[int],
        requests: NDArray[Any],
        held: float | None = None,
    ) -> list[NDArray[Any]]:
        """Read for this read's share of the time; return what each thread came to.

        ``held`` is which share of it the page cache holds, where that is known.
        """
        arm = self._arm(way, step, held)
        shares = np.array_split(requests, step.threads)
        now_ns = self.clock.now_ns()
        deadline_ns = now_ns + max(0, self.deadline_ns - now_ns) // max(self.left, 1)
        self.left -= 1
        if not self.is_gentle:
            if not min(map(len, shares)):
                arm.refused = arm.refused or "fewer ranges are left than threads"
                return [share[:0] for share in shares]
            arm.resident = self._resident(fds, requests)
        before = read_process_io()
        told = read_ranges(fds, shares, self.buffers, clock=self.clock, deadline_ns=deadline_ns)
        after = read_process_io()
        failed = next((timed.error for timed in told if timed.error is not None), None)
        if failed is None:
            arm.add(told, None if before is None or after is None else after[1] - before[1])
        elif way == DIRECT and failed.errno == errno.EINVAL:
            arm.refused = f"{self.file_system.name} refuses O_DIRECT"
        else:
            raise failed
        return [share[: len(timed.latencies_ns)] for share, timed in zip(shares, told, strict=True)]

    def _resident(self, fds: list[int], requests: NDArray[Any]) -> float | None:
        """Return the share of the pages that the page cache holds, of some of the ranges."""
        if not self.file_system.in_page_cache:
            return None
        some = requests[:: max(1, len(requests) // ASKED_RANGES)]
        found = [pages_of(fds[file], offset, nbytes) for file, offset, nbytes in some.tolist()]
        known = [pages for pages in found if pages is not None]
        n = sum(pages.n for pages in known)
        return sum(pages.resident for pages in known) / n if n else None

    def _figures(self, arm: _Arm) -> ReadFigures:
        found = ReadFigures(order=arm.order, way=arm.way, threads=arm.threads)
        if not arm.latencies_ns:
            return replace(found, refused=arm.refused or "no time was left for it")
        by = served_by(
            self.file_system,
            arm.way,
            nbytes=arm.nbytes,
            resident_fraction=arm.resident,
            device_nbytes=arm.device_nbytes,
        )
        if by == UNKNOWN and self.is_gentle and arm.resident == 0.0:
            by = STORAGE  # or whatever keeps it for others: not this machine's page cache
        return replace(
            found,
            n_reads=len(arm.latencies_ns),
            nbytes=arm.nbytes,
            wall_ns=arm.wall_ns,
            latency_ns=latency_figures(arm.latencies_ns),
            resident_fraction=arm.resident,
            device_nbytes=arm.device_nbytes,
            served_by=by,
            turns_bytes_per_s=tuple(arm.turns),
        )
