"""Reading ranges, opening files and copying memory by threads, each call timed, within a time."""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import StorageError
from iobench.storage.limits.probe_figures import OpenFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.recording.clocks import Clock
    from iobench.storage.limits.probed_files import ProbeFile


__all__ = [
    "ALIGNMENT",
    "ProbedFiles",
    "Timed",
    "aligned",
    "at_once",
    "copied_nbytes",
    "copy_rate",
    "latency_figures",
    "open_figures",
    "read_ranges",
]

ALIGNMENT: Final = 4096
"""Of offsets, lengths and buffers of direct reads; no device in use asks for more."""


@dataclass(slots=True)
class Timed:
    """What one thread did: when it began and ended, how long each call took, what it returned."""

    start_ns: int = 0
    end_ns: int = 0
    nbytes: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    error: OSError | None = None


class ProbedFiles:
    """Files open for reading; closed as a context. Their access times are kept where we may."""

    def __init__(self, files: Sequence[ProbeFile], flags: int = 0) -> None:
        self.fds: list[int] = []
        try:
            for file in files:
                self.fds.append(open_quietly(file.path, flags))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> ProbedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all."""
        while self.fds:
            os.close(self.fds.pop())


def open_quietly(path: os.PathLike[str], flags: int = 0) -> int:
    """Open for reading, without leaving a time of access where that is ours to choose."""
    flags |= os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # a file of somebody else
        return os.open(path, flags)


def aligned(requests: NDArray[Any]) -> NDArray[Any]:
    """Return the requests widened to what direct reads need."""
    made = requests.copy()
    made["offset"] = requests["offset"] // ALIGNMENT * ALIGNMENT
    end = requests["offset"] + requests["nbytes"]
    made["nbytes"] = -(-end // ALIGNMENT) * ALIGNMENT - made["offset"]
    return made


def read_ranges(
    fds: Sequence[int],
    shares: Sequence[NDArray[Any]],
    buffers: Sequence[mmap.mmap],
    *,
    clock: Clock,
    deadline_ns: int,
) -> list[Timed]:
    """Read each share of the requests by a thread of its own; none begins after the deadline.

    What the system refuses ends a thread; it is in `Timed.error`.
    """

    def read(number: int, timed: Timed, stop: threading.Event) -> None:
        now_ns, preadv = clock.now_ns, os.preadv
        with memoryview(buffers[number]) as whole:
            for file, offset, nbytes in shares[number].tolist():
                with whole[:nbytes] as part:
                    start_ns = now_ns()
                    if start_ns >= deadline_ns or stop.is_set():
                        return
                    timed.nbytes += preadv(fds[file], [part], offset)
                    timed.end_ns = now_ns()
                timed.latencies_ns.append(timed.end_ns - start_ns)
                timed.start_ns = timed.start_ns or start_ns

    return at_once(len(shares), read)


def at_once(n: int, work: Callable[[int, Timed, threading.Event], None]) -> list[Timed]:
    """Run ``work`` in ``n`` threads and return what each did; an interruption ends them all."""
    told = [Timed() for _ in range(n)]
    stop = threading.Event()

    def run(number: int) -> None:
        try:
            work(number, told[number], stop)
        except OSError as error:
            told[number].error = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(n)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return told


def latency_figures(latencies_ns: Sequence[int]) -> tuple[int, ...]:
    """Return median, 90th and 99th percentile and maximum; nothing of nothing.

    Each is a latency that was measured: of an even number, the lower one.
    """
    if not latencies_ns:
        return ()
    ordered = np.sort(np.asarray(latencies_ns, np.int64))
    places = [max(0, -(-len(ordered) * percent // 100) - 1) for percent in (50, 90, 99, 100)]
    return tuple(int(ordered[place]) for place in places)


def refuse(error: OSError, path: os.PathLike[str] | str) -> StorageError:
    """Return what is said of a read that failed."""
    return StorageError(f"{path}: cannot be read: {error.strerror or error}")


FEW_OPENS: Final = 256
COPIED_NBYTES: Final = 128 << 20
LEAST_COPIED_NBYTES, MOST_COPIED_NBYTES = 8 << 20, 1 << 30
"""By a thread, so that no cache of its own holds it; by all, so that no memory is filled."""
TURNS: Final = 5


def open_figures(
    paths: Sequence[Path], threads: int, *, clock: Clock, deadline_ns: int
) -> OpenFigures:
    """Open and close the files in turn, by threads at once, each once or 256 times in all.

    Raises
    ------
    StorageError
        If one cannot be opened.
    """

    def open_all(number: int, timed: Timed, stop: threading.Event) -> None:
        now_ns = clock.now_ns
        for turn in range(max(FEW_OPENS, len(paths)) // threads):
            start_ns = now_ns()
            if start_ns >= deadline_ns or stop.is_set():
                return
            os.close(open_quietly(paths[(number + turn * threads) % len(paths)]))
            timed.end_ns = now_ns()
            timed.latencies_ns.append(timed.end_ns - start_ns)
            timed.start_ns = timed.start_ns or start_ns

    told = at_once(threads, open_all)
    for timed in told:
        if timed.error is not None:
            raise refuse(timed.error, timed.error.filename) from timed.error
    at_work = [timed for timed in told if timed.latencies_ns]
    if not at_work:
        return OpenFigures(threads=threads, n_opens=0, wall_ns=0)
    latencies = [each for timed in at_work for each in timed.latencies_ns]
    return OpenFigures(
        threads=threads,
        n_opens=len(latencies),
        wall_ns=max(t.end_ns for t in at_work) - min(t.start_ns for t in at_work),
        latency_ns=latency_figures(latencies),
    )


def copied_nbytes(threads: int) -> int:
    """Return how much each of so many threads copies in a turn."""
    return max(COPIED_NBYTES // threads, min(LEAST_COPIED_NBYTES, MOST_COPIED_NBYTES // threads))


def copy_rate(threads: int, *, clock: Clock, deadline_ns: int) -> float | None:
    """Return bytes per second copied within memory by threads at once: the best of five turns.

    None where the deadline leaves no turn.
    """
    n = copied_nbytes(threads)
    pairs = [(np.ones(n, np.uint8), np.ones(n, np.uint8)) for _ in range(threads)]

    def copy(number: int, timed: Timed, stop: threading.Event) -> None:
        to, source = pairs[number]
        timed.start_ns = clock.now_ns()
        np.copyto(to, source)
        timed.end_ns = clock.now_ns()

    best = 0.0
    for _ in range(TURNS):
        if clock.now_ns() >= deadline_ns:
            break
        told = at_once(threads, copy)
        wall_ns = max(t.end_ns for t in told) - min(t.start_ns for t in told)
        best = max(best, n * threads / wall_ns * 1e9 if wall_ns > 0 else 0.0)
    return best or None
