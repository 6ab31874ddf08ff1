"""What brings stretches of files or objects to where their bytes shall be."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from iobench.files.ranges import FileRange, join_ranges
from iobench.loaders.ring.read_ahead import are_cached, ask_for_ranges
from iobench.loaders.ring.stretches import CALL_NBYTES, REQUEST_NBYTES
from iobench.stores.object_extents import fill_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iobench.files.open_files import FileSet
    from iobench.loaders.ring.direct import AlignedReader

__all__ = ["Carrier", "FileCarrier", "ObjectCarrier", "RangeViews", "joined"]

RANGE_NBYTES: Final = (1 << 20, 8 << 20)
"""A request is for no less, where there are fewer than may be under way, and for no more."""


class RangeViews(NamedTuple):
    """Bytes of a file by its number, and the memory they go to, view after view."""

    range: FileRange[int]
    views: list[memoryview]


class Carrier(Protocol):
    """Brings bytes, for one thread at a time."""

    def fill(self, ranges: Sequence[RangeViews]) -> int:
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


def joined(ranges: Sequence[RangeViews], dropped: memoryview) -> list[RangeViews]:
    """Return ranges in the order they lie in, those next to each other as one.

    ``dropped`` is memory for what lies between two, of which it decides how much that may be.
    """
    made = []
    places = [one.range for one in ranges]
    for whole, members in join_ranges(places, len(dropped), overlapping=False):
        views: list[memoryview] = []
        at = whole.offset
        for number in members:
            one = ranges[number]
            if one.range.offset > at:
                views.append(dropped[: one.range.offset - at])
            views += one.views
            at = one.range.end
        made.append(RangeViews(whole, views))
    return made


class FileCarrier:
    """Reads stretches of files; asks for all of them first, where they are not in the page cache.

    Parameters
    ----------
    files : FileSet
        Of the store.
    aligned : AlignedReader, optional
        Reads around the page cache what is not in it, where ``is_direct`` says so.
    is_direct : callable, optional
        Called with ``files`` and ``aligned``.
    """

    def __init__(
        self,
        files: FileSet,
        aligned: AlignedReader | None = None,
        is_direct: Callable[[FileSet, AlignedReader], bool] | None = None,
    ) -> None:
        self._files = files
        self._aligned = aligned
        self._is_direct = is_direct
        self._dropped = memoryview(bytearray(CALL_NBYTES // 2))

    def fill(self, ranges: Sequence[RangeViews]) -> int:
        """Fill the memory of all ranges; see `Carrier`."""
        ordered = joined(ranges, self._dropped)
        if not ordered:
            return 0
        nbytes = sum(one.nbytes for one, _ in ordered)
        ends = [ordered[0].range, ordered[-1].range]
        if not are_cached([(one.file, one.offset) for one in ends], self._files):
            if self._aligned and self._is_direct and self._is_direct(self._files, self._aligned):
                for one, views in ordered:
                    data = self._aligned.read(one.file, one.offset, one.nbytes)
                    _scatter(data, views)
                return nbytes
            ask_for_ranges(
                np.array([one.file for one, _ in ordered]),
                np.array([one.offset for one, _ in ordered]),
                np.array([one.end for one, _ in ordered]),
                self._files,
            )
        for one, views in ordered:
            self._files.opened(one.file).fill_views(views, one.offset, one.end)
        return nbytes

    def close(self) -> None:
        """Nothing: the store's files are shared."""


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

    def fill(self, ranges: Sequence[RangeViews]) -> int:
        """Fill the memory of all ranges; see `Carrier`."""
        in_flight = self._in_flight()
        whole = joined(ranges, self._dropped)
        nbytes = sum(one.nbytes for one, _ in whole)
        longest = int(np.clip(nbytes // max(1, in_flight), *RANGE_NBYTES))
        asked = [part for one in whole for part in _divided(one, longest)]
        fill_ranges(
            [self._paths[one.file] for one, _ in asked],
            [one.offset for one, _ in asked],
            [views for _, views in asked],
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


def _divided(whole: RangeViews, longest: int) -> list[RangeViews]:
    """Return a long range as several of equal length."""
    one = whole.range
    count = -(-one.nbytes // longest)
    if count <= 1:
        return [whole]
    made = []
    views = list(whole.views)
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
        made.append(RangeViews(FileRange(one.file, one.offset + start, end - start), taken))
    return made
