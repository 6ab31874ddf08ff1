"""What bounds reading from beside: how fast files are opened, and how fast memory is copied."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.storage.limits.figures import OpenFigures
from iobench.storage.limits.reads import Timed, at_once, latency_figures, open_quietly, refuse

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.recording.clocks import Clock

__all__ = ["copied_nbytes", "copy_rate", "open_figures"]

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
