"""Reads around the page cache (``O_DIRECT``), for stores that are larger than memory anyway.

The disk then writes to aligned memory of the thread, whole blocks at a time, and what was asked for
is copied from there. That costs a copy, which is little beside a disk, and no page of the cache.
"""

from __future__ import annotations

import errno
import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import OptionError, StorageError
from iobench.files.open_file import refused
from iobench.files.ranges import read_into
from iobench.loaders.ring.read_ahead import ask_for, is_cached
from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.files.open_file import OpenFile
    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.checks import SampleChecks
    from iobench.loaders.ring.log import Laps
    from iobench.loaders.ring.reads import Octets, SampleRanges
    from iobench.stores.extents import ExtentTable

SECTOR: Final = 4096
"""Offsets and lengths have to be multiples of the device's blocks, which are no larger."""
N_COMPARED: Final = 8
"""Samples read each way, at most, to see which is faster."""


@dataclass(frozen=True, slots=True)
class DirectChoice:
    """Whether what is not cached is read around the page cache, and why."""

    is_direct: bool  # whether it is
    # bytes per second of ``"direct"`` and ``"cached"`` where they were compared
    speeds: Mapping[str, float]


class AlignedReader:
    """Reads extents around the page cache, one at a time, for one thread."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._room = mmap.mmap(-1, SECTOR)

    def read(self, file: int, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent, until the next one is read."""
        first = offset // SECTOR * SECTOR
        length = -(-(offset + nbytes) // SECTOR) * SECTOR - first
        if len(self._room) < length:
            self._room = mmap.mmap(-1, length)
        view = memoryview(self._room)[:length]
        end = offset + nbytes
        opened = self._opened(file)
        try:
            at = read_into(opened.descriptor, [view], first, end, sector=SECTOR)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise _unable(opened.path) from error
            raise refused(opened.path, error) from error
        if at < end:
            raise opened.ends_early(at, end)
        return view[offset - first : end - first]

    def _opened(self, file: int) -> OpenFile:
        try:
            return self._files.opened(file)
        except StorageError as error:
            if error.errno != errno.EINVAL:
                raise
            raise _unable(str(error).partition(":")[0]) from error


class DirectReads:
    """Reads extents, or parts of them, around the page cache; see `Reads`."""

    def __init__(self, ranges: SampleRanges, reader: AlignedReader) -> None:
        self._ranges = ranges
        self._reader = reader

    def read(
        self,
        samples: NDArray[np.int64],
        octets: Octets,
        gaps: Mapping[int, NDArray[np.uint8]],
        laps: Laps,
        checks: SampleChecks | None = None,
    ) -> None:
        """Fill the rows of these samples."""
        laps.start()
        file, offset = (each.reshape(-1) for each in self._ranges.places(samples))
        targets = self._ranges.targets(octets, gaps)
        for place in np.lexsort((offset, file)).tolist():
            row, at = divmod(place, len(targets))
            nbytes = self._ranges.lengths[at]
            data = self._reader.read(int(file[place]), int(offset[place]), nbytes)
            done = 0
            for view, pitch, start, length in targets[at]:
                start += row * pitch
                view[start : start + length] = data[done : done + length]
                done += length
            laps.end(Kind.READ, nbytes)
            if checks is not None:
                checks.compare(row, self._ranges.extents[at], [data])
                laps.end(Kind.VERIFY, nbytes)


def choose_direct(table: ExtentTable, files: FileSet, reader: AlignedReader) -> DirectChoice | None:
    """Compare reading around the page cache with reading through it, on what is not in it."""
    random = np.random.default_rng(0)
    tried = np.unique(random.integers(0, len(table), 8 * N_COMPARED))
    random.shuffle(tried)
    cold = [one for one in tried if not is_cached(table, np.array([one]), 0, files)]
    half = min(len(cold) // 2, N_COMPARED)
    if not half:
        return None
    groups = {"direct": np.array(cold[:half]), "cached": np.array(cold[half : 2 * half])}
    speeds = {}
    for way, samples in groups.items():
        start_ns = now_ns()
        if way == "cached":
            ask_for(table, samples, files)
        try:
            nbytes = sum(_read(table, int(sample), way, files, reader) for sample in samples)
        except OptionError:
            return DirectChoice(False, {})
        speeds[way] = nbytes * 1e9 / max(1, now_ns() - start_ns)
    return DirectChoice(speeds["direct"] > speeds["cached"], speeds)


def _read(table: ExtentTable, sample: int, way: str, files: FileSet, reader: AlignedReader) -> int:
    total = 0
    for file, offset, nbytes in table.places(sample):
        if way == "direct":
            reader.read(file, offset, nbytes)
        else:
            files.opened(file).fill(memoryview(bytearray(nbytes)), offset)
        total += nbytes
    return total


def _unable(path: str) -> OptionError:
    return OptionError(
        f"{path}: its file system cannot read around the page cache; take "
        'direct="auto", or leave it out'
    )
