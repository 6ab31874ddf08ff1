"""Which way to read a store is faster here: measured on its own extents when it is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.loaders.ring.log import BatchLog, Laps
from iobench.loaders.ring.read_ahead import is_cached
from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.reads import Reads
    from iobench.stores.extents import ExtentTable
    from iobench.stores.fields import FieldPart

PREAD: Final = "pread"
GATHER: Final = "gather"
PROBE_NBYTES: Final = 4 << 20
"""Read in each turn of a comparison."""
MAX_EXTENTS: Final = 256
N_TURNS: Final = 4
"""The first one brings pages and memory in and is not counted."""
N_LOOKED_AT: Final = 8


@dataclass(frozen=True, slots=True)
class ReadChoice:
    """How each extent of a sample is read, and what that was decided by."""

    ways: tuple[str, ...]  # ``"pread"`` or ``"gather"`` for each extent of a sample
    # bytes per second measured, by length of extents and way; empty where there was nothing to
    # choose
    speeds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    # False where the store was not in the page cache, so that nothing could be compared yet
    is_final: bool = True

    def __str__(self) -> str:
        told = [f"{self.ways.count(way)} by {way}" for way in sorted(set(self.ways))]
        measured = [
            f"{length} bytes "
            + ", ".join(f"{way} {speed / 1e9:.1f} GB/s" for way, speed in speeds.items())
            for length, speeds in self.speeds.items()
        ]
        cold = [] if self.is_final else ["not in the page cache"]
        return "; ".join([f"extents of a sample: {', '.join(told)}", *measured, *cold])


def choose_reads(
    table: ExtentTable,
    extents: Sequence[Sequence[FieldPart]],
    can_gather: Sequence[bool],
    files: FileSet,
    make: Callable[[int, str], Reads],
) -> ReadChoice:
    """Compare ways to read each extent of a sample, once for extents of the same length."""
    numbers = [number for number, can in enumerate(can_gather) if can]
    ways = [PREAD] * len(extents)
    speeds: dict[int, dict[str, float]] = {}
    if not numbers:
        return ReadChoice(tuple(ways))
    random = np.random.default_rng(0)
    for number in numbers:
        length = sum(part.nbytes for part in extents[number])
        if length not in speeds:
            count = int(np.clip(PROBE_NBYTES // max(length, 1), 1, min(MAX_EXTENTS, len(table))))
            samples = np.unique(random.integers(0, len(table), count))
            looked_at = samples[:: max(1, len(samples) // N_LOOKED_AT)]
            if not is_cached(table, looked_at, number, files):
                return ReadChoice((PREAD,) * len(extents), {}, is_final=False)
            random.shuffle(samples)
            readers = {way: make(number, way) for way in (PREAD, GATHER)}
            speeds[length] = _compared(readers, samples, number, extents[number], length)
        measured = speeds[length]
        ways[number] = max(measured, key=lambda way: measured[way])
    return ReadChoice(tuple(ways), speeds)


def _compared(
    readers: Mapping[str, Reads],
    samples: NDArray[np.int64],
    number: int,
    parts: Sequence[FieldPart],
    length: int,
) -> dict[str, float]:
    """Return bytes per second of each way, of its fastest turn."""
    count = len(samples)
    octets = {part.name: np.empty((count, part.nbytes), np.uint8) for part in parts if part.name}
    n_gaps = sum(part.nbytes for part in parts if not part.name)
    gaps = {number: np.empty((count, n_gaps), np.uint8)}
    laps = Laps(BatchLog())
    fastest: dict[str, int] = {}
    for turn in range(N_TURNS):
        for way, reads in readers.items():
            start_ns = now_ns()
            reads.read(samples, octets, gaps, laps)
            spent_ns = max(1, now_ns() - start_ns)
            if turn:
                fastest[way] = min(spent_ns, fastest.get(way, spent_ns))
    return {way: count * length * 1e9 / spent_ns for way, spent_ns in fastest.items()}
