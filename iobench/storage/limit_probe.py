"""A bounded, read-only probe of what storage gives a reader of a run's shape, by existing files.

It reads in short turns, past the page cache and through it: what the turns differ by tells chance
from a storage that others load. It leaves the page cache as it was: through it only such ranges are
read of which it holds nothing, and these are dropped again, or of which it holds all. Who served
reads is known by evidence (`iobench.storage.limit_figures.served_by`), never by what was meant.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.errors import OptionError
from iobench.files.urls import is_url
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
    aligned,
    choose_files,
    latency_figures,
    random_requests,
    read_ranges,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock
    from iobench.storage.probe_reads import ProbeFile, Timed

OF_PYTHON: Final = "for reads as short as these, part of the time is Python overhead"
SMALL_REQUEST: Final = 32 << 10
DEFAULT_REQUEST_NBYTES: Final = 1 << 20
DROP_TRIES: Final = 4
"""A page that the kernel is moving just then is dropped at the next."""

LIMITS: Final = "IOBENCH_LIMITS"
"""What ``--limits auto`` stands for: seconds, or ``off``."""
DEFAULT_S, MOST_S = "2", 60.0
TURNS: Final = 5
"""Of each way of reading, spread over the time."""
TURN_NBYTES, TURN_READS = 32 << 20, 256
"""What ends a turn: its figure stands then."""
HELD_NBYTES: Final = 256 << 20
"""Of all buffers: larger requests are read in parts."""
MOST_READERS: Final = 128


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
    listing_ns = (start_ns + deadline_ns) // 2
    chosen = choose_files(list(files), request, clock=clock, deadline_ns=listing_ns)
    probe = _Probe(chosen.files, request, readers, clock, start_ns, deadline_ns)
    probe.notes += chosen.notes
    n = min(TURN_READS, max(readers, TURN_NBYTES // request))
    n = -(-n // readers) * readers
    # No two turns read the same, as far as there is enough.
    sizes = [file.nbytes for file in chosen.files]
    found = aligned(random_requests(sizes, request, 2 * TURNS * n, np.random.default_rng(seed)))
    turns = []
    for turn, start in enumerate(range(0, 2 * TURNS * n, n)):
        n_own = min(n, len(found)) if turn % 2 else n
        turns.append(found[np.arange(start, start + n_own) % len(found)])
    path = os.path.commonpath([file.path.resolve() for file in chosen.files])
    return probe.measure(turns, n, path, request_nbytes, like)


@dataclass(slots=True)
class _Arm:
    """One way of reading, over its turns."""

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


class _Probe:
    """A probe that is being made."""

    def __init__(
        self,
        files: Sequence[ProbeFile],
        request_nbytes: int,
        readers: int,
        clock: Clock,
        start_ns: int,
        deadline_ns: int,
    ) -> None:
        self.files, self.request_nbytes, self.readers = files, request_nbytes, readers
        self.clock, self.start_ns, self.deadline_ns = clock, start_ns, deadline_ns
        self.file_system = file_system_of(files[0].path)
        self.notes = [OF_PYTHON] if request_nbytes < SMALL_REQUEST else []
        self.arms: dict[tuple[str, float | None], _Arm] = {}
        self.left = 0
        """Reads that are not yet begun: each has an equal share of what is left of the time."""

    def measure(
        self, turns: Sequence[NDArray[Any]], n: int, path: str, requested_nbytes: int, like: str
    ) -> StorageLimits:
        """Read turns past the page cache and through it, one after the other, ``n`` reads each."""
        if requested_nbytes > self.request_nbytes:
            self.notes.append(
                f"requests of {requested_nbytes} B are read in parts of {self.request_nbytes} B"
            )
        size = (-(-self.request_nbytes // ALIGNMENT) + 2) * ALIGNMENT
        # Anonymous mappings: aligned as direct reads need it, and touched before the first.
        self.buffers = [mmap.mmap(-1, size) for _ in range(self.readers)]
        try:
            for buffer in self.buffers:
                buffer[:: mmap.PAGESIZE] = bytes(len(buffer[:: mmap.PAGESIZE]))
            self._read_all(turns, n)
        except OSError as error:
            raise refuse(error, error.filename or path) from error
        finally:
            for buffer in self.buffers:
                buffer.close()
        file_system = self.file_system
        reads = tuple(map(self._figures, self.arms.values()))
        return StorageLimits(
            path=path,
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
            spent_ns=self.clock.now_ns() - self.start_ns,
            read_nbytes=sum(each.nbytes for each in reads),
            notes=tuple(self.notes),
        )

    def _read_all(self, turns: Sequence[NDArray[Any]], n: int) -> None:
        self.left = 3 * len(turns) // 2  # through the cache twice
        with ExitStack() as stack:
            past = self._opened_past(stack)
            through = stack.enter_context(ProbedFiles(self.files)).fds
            for fd in through:  # nothing beside a range is read
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            self._arm(DIRECT)  # a figure even where no time is left for any
            for number, requests in enumerate(turns):
                if self.clock.now_ns() >= self.deadline_ns:
                    break
                if number % 2:
                    self._through(requests, n, through)
                elif isinstance(past, str):
                    self._arm(DIRECT).refused = past
                    self.left -= 1
                else:
                    self._read(DIRECT, past, requests)

    def _opened_past(self, stack: ExitStack) -> list[int] | str:
        """Return the files open for direct reads, or why that cannot be."""
        try:
            return stack.enter_context(ProbedFiles(self.files, os.O_DIRECT)).fds
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return f"{self.file_system.name} refuses O_DIRECT"

    def _through(self, requests: NDArray[Any], n: int, fds: list[int]) -> None:
        """Read ranges through the page cache of which it holds nothing, else those it holds."""
        found = None
        if self.file_system.in_page_cache:
            found = [
                pages_of(fds[file], offset, nbytes) for file, offset, nbytes in requests.tolist()
            ]
        if found is None or None in found:
            why = (
                "how much of these files the page cache holds cannot be queried, so it is left "
                "alone"
            )
            self._arm(BUFFERED).refused = why
            self.left -= 2
            return
        held = np.array([pages.resident / max(pages.n, 1) for pages in found if pages])
        cold, kept = requests[held == 0.0], requests[held == 1.0]
        if not len(cold):
            self.left -= 1
            if len(kept):
                self._read(BUFFERED, fds, np.resize(kept, n), 1.0)
            return
        try:
            done = self._read(BUFFERED, fds, cold, 0.0)
            # What is in memory may be read often.
            shares = [np.resize(part, n // self.readers) if len(part) else part for part in done]
            self._read(AGAIN, fds, np.concatenate(shares), 1.0)
        finally:
            self._drop(fds, cold)

    def _drop(self, fds: list[int], requests: NDArray[Any]) -> None:
        left = requests.tolist()
        n_left = 0
        for _ in range(DROP_TRIES):
            found = []
            for file, offset, nbytes in left:
                os.posix_fadvise(fds[file], offset, nbytes, os.POSIX_FADV_DONTNEED)
                found.append(pages_of(fds[file], offset, nbytes))
            stayed = [0 if pages is None else pages.resident for pages in found]
            left = [request for request, n in zip(left, stayed, strict=True) if n]
            n_left = sum(stayed)
            if not left:
                return
        self.notes.append(f"{n_left} pages that it read stayed in the page cache")

    def _arm(self, way: str, held: float | None = None) -> _Arm:
        return self.arms.setdefault((way, held), _Arm(way, held))

    def _read(
        self, way: str, fds: list[int], requests: NDArray[Any], held: float | None = None
    ) -> list[NDArray[Any]]:
        """Read for this read's share of the time; return what each thread came to.

        ``held`` is which share of it the page cache holds, where that is known.
        """
        arm = self._arm(way, held)
        shares = np.array_split(requests, self.readers)
        now_ns = self.clock.now_ns()
        deadline_ns = now_ns + max(0, self.deadline_ns - now_ns) // max(self.left, 1)
        self.left -= 1
        before = read_process_io()
        done = read_ranges(fds, shares, self.buffers, clock=self.clock, deadline_ns=deadline_ns)
        after = read_process_io()
        failed = next((timed.error for timed in done if timed.error is not None), None)
        if failed is None:
            arm.add(done, None if before is None or after is None else after[1] - before[1])
        elif way == DIRECT and failed.errno == errno.EINVAL:
            arm.refused = f"{self.file_system.name} refuses O_DIRECT"
        else:
            raise failed
        return [share[: len(timed.latencies_ns)] for share, timed in zip(shares, done, strict=True)]

    def _figures(self, arm: _Arm) -> ReadFigures:
        found = ReadFigures(way=arm.way, threads=self.readers)
        if not arm.latencies_ns:
            return replace(found, refused=arm.refused or "no time was left for it")
        by = served_by(
            self.file_system,
            arm.way,
            nbytes=arm.nbytes,
            resident_fraction=arm.resident,
            device_nbytes=arm.device_nbytes,
        )
        if by == UNKNOWN and arm.resident == 0.0:
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
