"""What brings stretches of files or objects to where their bytes shall be."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from iobench.loaders.ring.read_ahead import are_cached, ask_for_ranges
from iobench.loaders.ring.stretches import CALL_NBYTES, REQUEST_NBYTES
from iobench.stores.object_extents import fill_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iobench.loaders.ring.direct import AlignedReader
    from iobench.loaders.ring.files import OpenFiles

__all__ = ["Carrier", "FileCarrier", "ObjectCarrier", "Range", "joined"]

RANGE_NBYTES: Final = (1 << 20, 8 << 20)
"""A request is for no less, where there are fewer than may be under way, and for no more."""


@dataclass(slots=True)
class Range:
    """Bytes of a file by its number, and the memory they go to, piece after piece."""

    file: int
    offset: int
    nbytes: int
    views: list[memoryview]

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + self.nbytes


class Carrier(Protocol):
    """Brings bytes, for one thread at a time."""

    def fill(self, ranges: Sequence[Range]) -> int:
        """Fill the memory of all ranges; return how many bytes were read for that.

        Raises
        ------
        StoreError, StorageError
            Naming the file that is missing, ends too early, or cannot be read.
        """
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


def joined(ranges: Sequence[Range], dropped: memoryview) -> list[Range]:
    """Return ranges in the order they lie in, those next to each other as one.

    ``dropped`` is memory for what lies between two, of which it decides how much that may be.
    """
    made: list[Range] = []
    for one in sorted(ranges, key=lambda one: (one.file, one.offset)):
        gap = one.offset - made[-1].end if made and made[-1].file == one.file else -1
        if 0 <= gap <= len(dropped):
            last = made[-1]
            last.nbytes += gap + one.nbytes
            last.views += [dropped[:gap], *one.views] if gap else one.views
        else:
            made.append(Range(one.file, one.offset, one.nbytes, list(one.views)))
    return made


class FileCarrier:
    """Reads stretches of files; asks for all of them first, where they are not in the page cache.

    Parameters
    ----------
    files : OpenFiles
        Of the thread.
    aligned : AlignedReader, optional
        Reads around the page cache what is not in it, where ``is_direct`` says so.
    is_direct : callable, optional
        Called with ``files`` and ``aligned``.
    """

    def __init__(
        self,
        files: OpenFiles,
        aligned: AlignedReader | None = None,
        is_direct: Callable[[OpenFiles, AlignedReader], bool] | None = None,
    ) -> None:
        self._files = files
        self._aligned = aligned
        self._is_direct = is_direct
        self._dropped = memoryview(bytearray(CALL_NBYTES // 2))

    def fill(self, ranges: Sequence[Range]) -> int:
        """Fill the memory of all ranges; see `Carrier`."""
        ordered = joined(ranges, self._dropped)
        if not ordered:
            return 0
        nbytes = sum(one.nbytes for one in ordered)
        ends = [ordered[0], ordered[-1]]
        if not are_cached([(one.file, one.offset) for one in ends], self._files):
            if self._aligned and self._is_direct and self._is_direct(self._files, self._aligned):
                for one in ordered:
                    data = self._aligned.read(one.file, one.offset, one.nbytes)
                    _scatter(data, one.views)
                return nbytes
            ask_for_ranges(
                np.array([one.file for one in ordered]),
                np.array([one.offset for one in ordered]),
                np.array([one.end for one in ordered]),
                self._files,
            )
        for one in ordered:
            self._files.read_into(one.file, one.views, one.offset, one.end)
        return nbytes

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        if self._aligned is not None:
            self._aligned.close()


class ObjectCarrier:
    """Reads stretches of objects by requests for ranges, many at once.

    Parameters
    ----------
    paths : sequence of Path
        The objects, by number: `URL`.
    in_flight : callable
        Returns how many requests may be under way at once.
    """

    def __init__(self, paths: Sequence[Path], in_flight: Callable[[], int]) -> None:
        self._paths = paths
        self._in_flight = in_flight
        self._dropped = memoryview(bytearray(REQUEST_NBYTES // 2))

    def fill(self, ranges: Sequence[Range]) -> int:
        """Fill the memory of all ranges; see `Carrier`."""
        in_flight = self._in_flight()
        whole = joined(ranges, self._dropped)
        nbytes = sum(one.nbytes for one in whole)
        longest = int(np.clip(nbytes // max(1, in_flight), *RANGE_NBYTES))
        asked = [part for one in whole for part in _divided(one, longest)]
        fill_ranges(
            [self._paths[one.file] for one in asked],
            [one.offset for one in asked],
            [one.views for one in asked],
            in_flight=in_flight,
        )
        return nbytes

    def close(self) -> None:
        """Nothing: who speaks to the objects is shared."""


def _scatter(data: memoryview, views: Sequence[memoryview]) -> None:
    """Copy bytes to memory that lies in pieces."""
    done = 0
    for view in views:
        view[:] = data[done : done + len(view)]
        done += len(view)


def _divided(one: Range, longest: int) -> list[Range]:
    """Return a long range as several of equal length."""
    count = -(-one.nbytes // longest)
    if count <= 1:
        return [one]
    made = []
    views = list(one.views)
    edges = [one.nbytes * number // count for number in range(count + 1)]
    for start, end in pairwise(edges):
        taken, left = [], end - start
        while left:
            view = views.pop(0)
            if len(view) > left:
                views.insert(0, view[left:])
                view = view[:left]
            taken.append(view)
            left -= len(view)
        made.append(Range(one.file, one.offset + start, end - start, taken))
    return made
