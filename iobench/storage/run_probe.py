"""What storage gives a reader of a run's shape, with the page cache left as it was found.

Reads of the run's own files, in the size of its requests and by as many at once, past the page
cache and through it, in short turns: what these differ by tells chance from a storage that others
load. Through the page cache only such ranges are read of which it holds nothing, and these are
dropped again, or of which it holds all; where it cannot be asked it is left alone.
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
from iobench.storage.limit_probe import OF_PYTHON, SMALL_REQUEST
from iobench.storage.page_cache import pages_of
from iobench.storage.probe_reads import (
    ALIGNMENT,
    ProbedFiles,
    RequestSlots,
    aligned,
    choose_files,
    latency_figures,
    read_ranges,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock
    from iobench.storage.probe_reads import ProbeFile, Timed

__all__ = ["LIMITS", "probe_run", "probe_seconds"]

LIMITS: Final = "IOBENCH_LIMITS"
"""What ``--limits auto`` stands for: seconds, or ``off``."""
DEFAULT_S, MOST_S = "2", 60.0

TURNS: Final = 5
"""Of each way of reading, spread over the time of the probe."""
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
    duration_s : float
    clock : Clock
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
        raise OptionError("the files that are read are not known")
    if any(map(is_url, files)):
        raise OptionError("the files are read over the network, from no mounted folder")
    mounts = read_mounts()
    if len({mount_of(file.resolve(), mounts) for file in files}) > 1:
        raise OptionError("the files lie on several mounts")
    readers = min(readers, MOST_READERS)
    request = max(1, min(request_nbytes, HELD_NBYTES // readers))
    chosen = choose_files(list(files), request, clock=clock, deadline_ns=deadline_ns)
    running = _Running(chosen.files, request, readers, clock, deadline_ns, seed)
    running.measure()
    file_system = running.file_system
    notes = [*chosen.notes, *running.notes]
    if request < request_nbytes:
        notes.append(f"requests of {request_nbytes} B are read in parts of {request} B")
    reads = tuple(each.figures(running) for each in running.arms.values())
    return StorageLimits(
        path=os.path.commonpath([file.path.resolve() for file in chosen.files]),
        mount="" if file_system.mount is None else str(file_system.mount),
        host=host_name(),
        file_system=file_system.name,
        reach=file_system.reach,
        wall_ns=clock.wall_ns(),
        like=like,
        request_nbytes=request,
        n_files=len(chosen.files),
        files_nbytes=sum(file.nbytes for file in chosen.files),
        reads=reads,
        memcpy_bytes_per_s={},
        spent_ns=clock.now_ns() - start_ns,
        read_nbytes=sum(each.nbytes for each in reads),
        notes=tuple(notes),
    )


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

    def figures(self, running: _Running) -> ReadFigures:
        found = ReadFigures(order="random", way=self.way, threads=running.readers)
        if not self.latencies_ns:
            return replace(found, refused=self.refused or "no time was left for it")
        by = served_by(
            running.file_system,
            self.way,
            nbytes=self.nbytes,
            resident_fraction=self.resident,
            device_nbytes=self.device_nbytes,
        )
        if by == UNKNOWN and self.resident == 0.0:
            by = STORAGE  # or whatever keeps it for others: not this machine's page cache
        return replace(
            found,
            n_reads=len(self.latencies_ns),
            nbytes=self.nbytes,
            wall_ns=self.wall_ns,
            latency_ns=latency_figures(self.latencies_ns),
            resident_fraction=self.resident,
            device_nbytes=self.device_nbytes,
            served_by=by,
            turns_bytes_per_s=tuple(self.turns),
        )


class _Running:
    """A probe on its way."""

    def __init__(
        self,
        files: Sequence[ProbeFile],
        request_nbytes: int,
        readers: int,
        clock: Clock,
        deadline_ns: int,
        seed: int,
    ) -> None:
        self.files, self.readers, self.clock = files, readers, clock
        self.deadline_ns, self.left = deadline_ns, 2 * TURNS
        self.file_system = file_system_of(files[0].path)
        self.notes = [OF_PYTHON] if request_nbytes < SMALL_REQUEST else []
        self.arms: dict[str, _Arm] = {"past": _Arm(DIRECT)}
        n = min(TURN_READS, max(readers, TURN_NBYTES // request_nbytes))
        self.n = -(-n // readers) * readers
        slots = RequestSlots([file.nbytes for file in files], request_nbytes, 1)
        # No two turns read the same, as far as there is enough.
        found = aligned(
            slots.requests(0, 2 * TURNS * self.n, "random", np.random.default_rng(seed))
        )
        self.turns = [
            found[np.arange(start, start + min(self.n, len(found))) % len(found)]
            for start in range(0, 2 * TURNS * self.n, self.n)
        ]
        size = (-(-request_nbytes // ALIGNMENT) + 2) * ALIGNMENT
        self.buffers = [mmap.mmap(-1, size) for _ in range(readers)]
        for buffer in self.buffers:
            buffer[:: mmap.PAGESIZE] = bytes(len(buffer[:: mmap.PAGESIZE]))

    def measure(self) -> None:
        try:
            with ExitStack() as stack:
                past = self._opened_past(stack)
                through = stack.enter_context(ProbedFiles(self.files)).fds
                if hasattr(os, "posix_fadvise"):  # nothing beside a range is read ahead
                    for fd in through:
                        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                for own, others in zip(self.turns[::2], self.turns[1::2], strict=True):
                    if self.clock.now_ns() >= self.deadline_ns:
                        break
                    if past:
                        self._read("past", past, np.resize(own, self.n))
                    self._through(through, others)
        except OSError as error:
            raise refuse(error, error.filename or self.files[0].path) from error
        finally:
            for buffer in self.buffers:
                buffer.close()

    def _opened_past(self, stack: ExitStack) -> list[int]:
        flag, arm = getattr(os, "O_DIRECT", 0), self.arms["past"]
        if not flag:
            arm.refused = "this system has no O_DIRECT"
            return []
        try:
            return stack.enter_context(ProbedFiles(self.files, flag)).fds
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            arm.refused = f"{self.file_system.name} refuses O_DIRECT"
            return []

    def _through(self, fds: list[int], requests: NDArray[Any]) -> None:
        """Read ranges through the page cache of which it holds nothing, else those it holds."""
        found = None
        if self.file_system.in_page_cache and hasattr(os, "posix_fadvise"):
            found = [
                pages_of(fds[file], offset, nbytes, tries=False)
                for file, offset, nbytes in requests.tolist()
            ]
        if found is None or None in found:
            why = "what the page cache holds of these files cannot be asked, so it is left alone"
            self.arms.setdefault("through", _Arm(BUFFERED, refused=why))
            self.left -= 1
            return
        held = np.array([pages.resident / max(pages.n, 1) for pages in found if pages])
        cold, kept = requests[held == 0.0], requests[held == 1.0]
        if not len(cold):
            if len(kept):
                self._read("held", fds, np.resize(kept, self.n))
            return
        try:
            self._read("through", fds, cold, goes_on=True)
            self._read("again", fds, np.resize(cold, self.n))
        finally:
            self._drop(fds, cold)

    def _drop(self, fds: list[int], requests: NDArray[Any]) -> None:
        left = 0
        for file, offset, nbytes in requests.tolist():
            os.posix_fadvise(fds[file], offset, nbytes, os.POSIX_FADV_DONTNEED)
            pages = pages_of(fds[file], offset, nbytes, tries=False)
            left += 0 if pages is None else pages.resident
        if left:
            self.notes.append(f"{left} pages that it read stayed in the page cache")

    def _read(
        self, name: str, fds: list[int], requests: NDArray[Any], *, goes_on: bool = False
    ) -> None:
        """Read for what of the time is this turn's; ``goes_on``: the next one is of the same."""
        arm = self.arms.setdefault(name, _ARMS[name]())
        now_ns = self.clock.now_ns()
        deadline_ns = now_ns + max(0, self.deadline_ns - now_ns) // max(self.left, 1)
        self.left -= not goes_on
        before = read_process_io()
        told = read_ranges(
            fds,
            np.array_split(requests, self.readers),
            self.buffers,
            clock=self.clock,
            deadline_ns=deadline_ns,
        )
        after = read_process_io()
        failed = next((timed.error for timed in told if timed.error is not None), None)
        if failed is None:
            arm.add(told, None if before is None or after is None else after[1] - before[1])
        elif arm.way == DIRECT and failed.errno == errno.EINVAL:
            arm.refused = f"{self.file_system.name} refuses O_DIRECT"
        else:
            raise failed


_ARMS: Final = {
    "past": lambda: _Arm(DIRECT),
    "through": lambda: _Arm(BUFFERED, 0.0),
    "again": lambda: _Arm(AGAIN, 1.0),
    "held": lambda: _Arm(BUFFERED, 1.0),
}
