"""How far ahead to read: from how long a read takes, and how much comes in when many are under way.

What is under way at once has to be, in bytes, the rate times the time that each read takes
(Little: A Proof for the Queuing Formula L = lambda W, Operations Research 9, 1961). One batch asked
for as a whole is so many reads; where that is not enough further threads fill further batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_THREADS: Final = 32
"""Batches filled at once."""
HELD_BY_LOOP: Final = 2
"""This batch, and the last one until this one is there."""
N_ALONE: Final = 3
STEPS: Final = (4, 16, 64)
"""Reads under way at once, tried one after the other while more come in."""
MIN_GAIN: Final = 1.25
N_PATIENT: Final = 12
"""Times of a read that measuring may take in any case."""
MAX_NS: Final = 1_000_000_000
"""What measuring takes by default, but for the step that goes beyond it."""


class TimedReads(Protocol):
    """Reads of one length that have not been made before."""

    nbytes: int
    """Of each."""

    def read(self, count: int) -> int:
        """Make some reads, all under way at once; return how many there were left to make."""
        ...


@dataclass(frozen=True, slots=True)
class ReadSpeeds:
    """How long a read takes alone, and how much comes in when several are under way."""

    nbytes: int  # of a read
    alone_ns: int  # A read's time, where it is the only one
    # bytes per second by reads in flight at once
    rates: Mapping[int, float] = field(default_factory=dict)

    @property
    def best_rate(self) -> float:
        """Bytes per second, of as many at once as gave most."""
        return max(self.rates.values())

    @property
    def n_needed(self) -> int:
        """Reads under way for the best rate; no more than were tried."""
        of_law = math.ceil(self.best_rate * self.alone_ns / 1e9 / self.nbytes - 1e-6)
        return max(1, min(of_law, max(self.rates)))


@dataclass(frozen=True, slots=True)
class AheadChoice:
    """How far ahead batches are filled, and why."""

    threads: int
    depth: int  # of the ring
    in_flight: int  # reads that a thread has under way, where it can say so
    speeds: ReadSpeeds | None  # what was measured
    why: str  # in words

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.depth} buffers: {self.why}"


def measure(reads: TimedReads, clock: Callable[[], int], max_ns: int = MAX_NS) -> ReadSpeeds | None:
    """Return how fast reads are; None where there are too few of them to tell."""
    alone = []
    begun_ns = clock()
    for _ in range(N_ALONE):
        start_ns = clock()
        if reads.read(1) < 1:
            break
        alone.append(max(1, clock() - start_ns))
    if not alone:
        return None
    alone_ns = sorted(alone)[len(alone) // 2]
    rates = {1: reads.nbytes * 1e9 / alone_ns}
    limit_ns = min(MAX_NS, max(max_ns, N_PATIENT * alone_ns))
    for count in STEPS:
        start_ns = clock()
        if start_ns - begun_ns > limit_ns or reads.read(count) < count:
            break
        rate = count * reads.nbytes * 1e9 / max(1, clock() - start_ns)
        is_better = rate >= MIN_GAIN * max(rates.values())
        rates[count] = rate
        if not is_better:
            break
    return ReadSpeeds(reads.nbytes, alone_ns, rates)


def choose_ahead(
    speeds: ReadSpeeds | None,
    *,
    batch_reads: int,
    buffer_nbytes: int,
    threads: int,
    depth: int,
    max_bytes: int,
) -> AheadChoice:
    """Return how many threads and buffers keep enough reads in flight."""
    if speeds is None:
        why = "what is read is in the page cache, or cannot be measured"
        return AheadChoice(threads, depth, batch_reads, None, why)
    needed = speeds.n_needed
    wanted = min(MAX_THREADS, max(threads, math.ceil(needed / max(1, batch_reads))))
    buffers = max(depth, wanted + HELD_BY_LOOP)
    fitting = max(depth, max_bytes // max(1, buffer_nbytes))
    why = (
        f"a read of {speeds.nbytes} bytes takes {speeds.alone_ns / 1e6:.2f} ms, up to "
        f"{speeds.best_rate / 1e6:.0f} MB/s come in: {needed} reads in flight, a batch is "
        f"{batch_reads}"
    )
    if buffers > fitting:
        buffers = fitting
        why += f"; {wanted} threads would need more memory than {max_bytes} bytes"
    chosen = max(threads, min(wanted, buffers - HELD_BY_LOOP))
    return AheadChoice(chosen, buffers, max(1, math.ceil(needed / chosen)), speeds, why)
