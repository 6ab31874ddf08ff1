"""A bounded, read-only probe of what storage can do, by reading files that are there.

Each arm of it is one order, one way and one number of threads. Arms read ranges of their own as
far as there are enough, direct ones first, so that what one left in the page cache is not read by
the next; only those called "again" read what was just read. Who served an arm is told by evidence
(`iobench.storage.limit_figures.served_by`), never by what was meant.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.this_process import host_name, read_process_io
from iobench.storage.file_systems import FileSystem, file_system_of
from iobench.storage.limit_figures import (
    AGAIN,
    BUFFERED,
    DIRECT,
    ReadFigures,
    StorageLimits,
    served_by,
)
from iobench.storage.page_cache import pages_of
from iobench.storage.probe_reads import (
    ALIGNMENT,
    ProbedFiles,
    RequestSlots,
    Timed,
    aligned,
    choose_files,
    copy_rate,
    latency_figures,
    open_figures,
    open_quietly,
    read_ranges,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock
    from iobench.storage.probe_reads import ProbeFile

__all__ = [
    "DEFAULT_REQUEST_NBYTES",
    "MAX_HELD_NBYTES",
    "MAX_REQUEST_NBYTES",
    "ORDERS",
    "Probe",
    "probe_limits",
]

ASKED_RANGES: Final = 64
"""Of so many ranges of an arm it is asked whether the page cache holds them."""
OPENS_SHARE, LISTING_SHARE, COPIES_SHARE = 0.05, 0.15, 0.1
"""Of the time: for opening files, for all numbers of threads, for listing them, and for copies."""
OF_PYTHON: Final = "of reads as short as these a part of the time is Python's own"
SMALL_REQUEST: Final = 32 << 10


@dataclass(frozen=True, slots=True)
class _Arm:
    order: str
    way: str
    threads: int


def probe_limits(probe: Probe, *, clock: Clock = SYSTEM_CLOCK, seed: int = 0) -> StorageLimits:
    """Read existing files as the probe says and return what that reached.

    Raises
    ------
    IobenchError
        If the path is missing, holds nothing to read, or a file cannot be read.
    """
    start_ns = clock.now_ns()
    running = _Running(probe, clock, np.random.default_rng(seed), start_ns)
    return running.measure()


class _Running:
    """A probe on its way: what is left of its time and bytes."""

    def __init__(self, probe: Probe, clock: Clock, rng: np.random.Generator, start_ns: int) -> None:
        self.clock, self.rng, self.probe = clock, rng, probe
        self.start_ns = start_ns
        self.duration_ns = round(probe.duration_s * 1e9)
        self.deadline_ns = start_ns + self.duration_ns
        self.left_nbytes = probe.max_nbytes
        self.request_nbytes = min(probe.request_nbytes, MAX_REQUEST_NBYTES, probe.max_nbytes)
        chosen = choose_files(
            probe.path,
            self.request_nbytes,
            clock=clock,
            deadline_ns=start_ns + round(LISTING_SHARE * self.duration_ns),
        )
        self.notes = [*chosen.notes]
        self.files = self._readable(chosen.files)
        self.file_system: FileSystem = file_system_of(probe.path)
        size = (-(-self.request_nbytes // ALIGNMENT) + 2) * ALIGNMENT
        # Anonymous mappings: aligned as direct reads need it, and touched before the first.
        self.buffers = [mmap.mmap(-1, size) for _ in range(max(probe.threads))]
        for buffer in self.buffers:
            buffer[:: mmap.PAGESIZE] = bytes(len(buffer[:: mmap.PAGESIZE]))

    def measure(self) -> StorageLimits:
        probe = self.probe
        if probe.request_nbytes > self.request_nbytes:
            self.notes.append(f"a sample of {probe.request_nbytes} B is read in parts")
        if self.request_nbytes < SMALL_REQUEST:
            self.notes.append(OF_PYTHON)
        ends = sorted({min(probe.threads), max(probe.threads)})
        paths = [file.path for file in self.files]
        opens_ns = round(OPENS_SHARE * self.duration_ns) // len(ends)
        try:
            copies_ns = self.clock.now_ns() + round(COPIES_SHARE * self.duration_ns)
            memcpy = {n: copy_rate(n, clock=self.clock, deadline_ns=copies_ns) for n in ends}
            opens = tuple(
                open_figures(
                    paths,
                    n,
                    clock=self.clock,
                    deadline_ns=min(self.deadline_ns, self.clock.now_ns() + opens_ns),
                )
                for n in ends
            )
            reads = self._reads()
        finally:
            for buffer in self.buffers:
                buffer.close()
        mount = self.file_system.mount
        return StorageLimits(
            path=str(probe.path.resolve()),
            mount="" if mount is None else str(mount),
            host=host_name(),
            file_system=self.file_system.name,
            reach=self.file_system.reach,
            wall_ns=self.clock.wall_ns(),
            like=probe.like,
            request_nbytes=self.request_nbytes,
            n_files=len(self.files),
            files_nbytes=sum(file.nbytes for file in self.files),
            reads=reads,
            opens=opens,
            memcpy_bytes_per_s={threads: rate for threads, rate in memcpy.items() if rate},
            spent_ns=self.clock.now_ns() - self.start_ns,
            read_nbytes=probe.max_nbytes - self.left_nbytes,
            notes=tuple(self.notes),
        )

    def _readable(self, files: Sequence[ProbeFile]) -> list[ProbeFile]:
        found, last = [], None
        for file in files:
            try:
                os.close(open_quietly(file.path))
            except OSError as error:
                last = (error, file.path)
            else:
                found.append(file)
        if last is not None and not found:
            raise refuse(*last) from last[0]
        if last is not None:
            self.notes.append(f"{len(files) - len(found)} files cannot be opened")
        return found

    def _reads(self) -> tuple[ReadFigures, ...]:
        threads = sorted(set(self.probe.threads))
        direct = [_Arm(order, DIRECT, n) for order in self.probe.orders for n in threads]
        buffered = [_Arm(order, BUFFERED, n) for order in self.probe.orders for n in threads]
        slots = RequestSlots(
            [file.nbytes for file in self.files],
            self.request_nbytes,
            len(direct) + len(buffered),
        )
        if slots.shared:
            self.notes.append("too little data for each set of reads to have its own")
        # What is not yet begun, with the repetitions: each has an equal share of what is left.
        left = len(direct) + 2 * len(buffered)
        made: list[ReadFigures] = []
        for number, arm in enumerate([*direct, *buffered]):
            requests = self._requests(slots, number, arm, left)
            figures, done = self._read(arm, requests, left)
            made.append(figures)
            left -= 1
            if arm.way == BUFFERED:
                n = self._affordable(left) // arm.threads
                repeated = [_repeated(share, n) for share in done]
                made.append(self._read(replace(arm, way=AGAIN), repeated, left)[0])
                left -= 1
        return tuple(made)

    def _affordable(self, left: int) -> int:
        return self.left_nbytes // left // (self.request_nbytes + 2 * ALIGNMENT)

    def _requests(
        self, slots: RequestSlots, number: int, arm: _Arm, left: int
    ) -> list[NDArray[Any]]:
        requests = slots.requests(number, self._affordable(left), arm.order, self.rng)
        if arm.way == DIRECT:
            requests = aligned(requests)
        return list(np.array_split(requests, arm.threads))

    def _read(
        self, arm: _Arm, shares: list[NDArray[Any]], left: int
    ) -> tuple[ReadFigures, list[NDArray[Any]]]:
        """Return what an arm reached, and the requests that it came to."""
        figures = ReadFigures(order=arm.order, way=arm.way, threads=arm.threads)
        none = [share[:0] for share in shares]
        flag = getattr(os, "O_DIRECT", 0) if arm.way == DIRECT else 0
        if arm.way == DIRECT and not flag:
            return replace(figures, refused="this system has no O_DIRECT"), none
        if not min(map(len, shares)):
            return replace(figures, refused="fewer ranges are left than threads"), none
        now_ns = self.clock.now_ns()
        deadline_ns = now_ns + max(0, self.deadline_ns - now_ns) // left
        try:
            with ProbedFiles(self.files, flag) as opened:
                resident = self._resident(opened.fds, shares)
                before = read_process_io()
                told = read_ranges(
                    opened.fds, shares, self.buffers, clock=self.clock, deadline_ns=deadline_ns
                )
                after = read_process_io()
        except OSError as error:
            if arm.way == DIRECT and error.errno == errno.EINVAL:
                return replace(figures, refused=self._direct_refused()), none
            raise refuse(error, error.filename or self.probe.path) from error
        self.left_nbytes -= sum(timed.nbytes for timed in told)
        failed = next((timed.error for timed in told if timed.error is not None), None)
        if failed is not None:
            if arm.way == DIRECT and failed.errno == errno.EINVAL:
                return replace(figures, refused=self._direct_refused()), none
            raise refuse(failed, self.probe.path) from failed
        delivered = None if before is None or after is None else after[1] - before[1]
        done = [share[: len(timed.latencies_ns)] for share, timed in zip(shares, told, strict=True)]
        return self._figures(figures, told, resident, delivered), done

    def _direct_refused(self) -> str:
        return f"{self.file_system.name} refuses O_DIRECT"

    def _figures(
        self, of: ReadFigures, told: list[Timed], resident: float | None, delivered: int | None
    ) -> ReadFigures:
        nbytes = sum(timed.nbytes for timed in told)
        n_reads = sum(len(timed.latencies_ns) for timed in told)
        if not n_reads:
            return replace(of, refused="no time was left for it")
        at_work = [timed for timed in told if timed.latencies_ns]
        return replace(
            of,
            n_reads=n_reads,
            nbytes=nbytes,
            wall_ns=max(t.end_ns for t in at_work) - min(t.start_ns for t in at_work),
            latency_ns=latency_figures([each for t in at_work for each in t.latencies_ns]),
            resident_fraction=resident,
            device_nbytes=delivered,
            served_by=served_by(
                self.file_system,
                of.way,
                nbytes=nbytes,
                resident_fraction=resident,
                device_nbytes=delivered,
            ),
        )

    def _resident(self, fds: list[int], shares: list[NDArray[Any]]) -> float | None:
        """Return the share of the pages that the page cache holds, of some of the ranges."""
        if not self.file_system.in_page_cache:
            return None
        requests = np.concatenate(shares)
        some = requests[:: max(1, len(requests) // ASKED_RANGES)]
        found = [pages_of(fds[file], offset, nbytes) for file, offset, nbytes in some.tolist()]
        known = [pages for pages in found if pages is not None]
        n = sum(pages.n for pages in known)
        return sum(pages.resident for pages in known) / n if n else None


def _repeated(requests: NDArray[Any], n: int) -> NDArray[Any]:
    """Return the requests again and again, ``n`` in all: what is in memory may be read often."""
    return requests[np.arange(n) % len(requests)] if len(requests) else requests


DEFAULT_REQUEST_NBYTES: Final = 1 << 20
MAX_REQUEST_NBYTES: Final = 64 << 20
MAX_HELD_NBYTES: Final = 4 << 30
"""Of the buffers of all threads."""
ORDERS: Final = ("random", "sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What to read and for how long at most; all of it within these bounds.

    Parameters
    ----------
    path : Path
        A file or folder.
    threads : tuple of int
    request_nbytes : int
        One read; at most 64 MiB, larger ones are cut to that.
    orders : tuple of str
        ``"random"`` and ``"sequential"``, or one of them.
    like : str
        Whose requests these are, in words.
    duration_s : float
    max_nbytes : int
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
