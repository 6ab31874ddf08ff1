"""Extents read with ``preadv`` straight to the rows of a batch."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import StoreError
from iobench.recording import Kind
from iobench.stores import storage_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.ring.laps import Laps
    from iobench.stores import ExtentTable, FieldPart

__all__ = ["Octets", "OpenFiles", "RowReads", "gap_nbytes"]

Octets = dict[str, "NDArray[np.uint8]"]
"""Bytes of each variable's rows: (samples, bytes), contiguous."""
MAX_OPEN_FILES: Final = 64
"""Of one thread; there are as many as threads, and a process has 1024."""
MAX_VIEWS: Final = 1024
"""What ``preadv`` takes at once (``IOV_MAX`` of Linux)."""


class OpenFiles:
    """Files of a store that one thread reads from: opened when needed, checked in each batch.

    A file that shrinks under a mapping ends the process with SIGBUS, and one that was written anew
    is another store; so both are looked for before each use.

    Parameters
    ----------
    paths : sequence of Path
        The files, by number.
    nbytes : mapping of Path to int
        How long they are, where that is known; else what they are when first opened.
    """

    def __init__(self, paths: Sequence[Path], nbytes: Mapping[Path, int]) -> None:
        self.paths = paths
        self._nbytes = nbytes
        self._open: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def descriptor(self, number: int) -> int:
        """Return the descriptor of a file, which is as long as it was.

        Raises
        ------
        StoreError
            If it is missing, was replaced, or has another length than at first.
        """
        found = self._open.get(number)
        if found is None:
            found = self._opened(number)
        descriptor, nbytes = found
        status = os.fstat(descriptor)
        if status.st_size != nbytes:
            raise StoreError(
                f"{self.paths[number]}: {status.st_size} bytes, it had {nbytes} when the store was "
                "opened; convert the store again"
            )
        if not status.st_nlink:
            raise StoreError(
                f"{self.paths[number]} was removed or replaced while it was read; open the store "
                "again"
            )
        return descriptor

    def _opened(self, number: int) -> tuple[int, int]:
        path = self.paths[number]
        while len(self._open) >= MAX_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1][0])
        try:
            with storage_errors(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                nbytes = self._nbytes.get(path)
                if nbytes is None:
                    nbytes = os.fstat(descriptor).st_size
        except FileNotFoundError as error:
            raise StoreError(
                f"{path} is missing, its store's manifest lists it; convert the store again"
            ) from error
        self._open[number] = found = descriptor, nbytes
        return found

    def close(self) -> None:
        """Close them."""
        while self._open:
            os.close(self._open.popitem()[1][0])


def gap_nbytes(parts: Sequence[FieldPart]) -> int:
    """Return how many bytes of an extent are no variable's."""
    return sum(one.nbytes for one in parts if not one.name)


_Target = tuple[memoryview, int, int, int]
"""Where a part goes: view, pitch, start, bytes; row ``r`` from byte ``r * pitch + start``."""


class RowReads:
    """Reads some of the extents of samples to their rows, in the order they lie in.

    Parameters
    ----------
    table : ExtentTable
        Where extents are.
    extents : mapping of int to tuple of FieldPart
        Which of a sample's extents, and what they are made of.
    files : OpenFiles
        Of the thread.
    """

    name = "pread"

    def __init__(
        self, table: ExtentTable, extents: Mapping[int, Sequence[FieldPart]], files: OpenFiles
    ) -> None:
        self._table = table
        self._numbers = np.array(list(extents))
        self._parts = list(extents.values())
        self._lengths = [sum(one.nbytes for one in parts) for parts in self._parts]
        self._files = files

    def read(
        self,
        samples: NDArray[np.int64],
        octets: Octets,
        gaps: Mapping[int, NDArray[np.uint8]],
        laps: Laps,
    ) -> None:
        """Fill the rows of these samples.

        Parameters
        ----------
        samples : ndarray of int64
            Which samples.
        octets : mapping of str to ndarray of uint8
            Rows of each variable.
        gaps : mapping of int to ndarray of uint8
            By number of the extent: rows for the bytes of it that are no variable's.
        laps : Laps
            Notes what it took.

        Raises
        ------
        StoreError
            Naming file and sample of the first extent that is not all there.
        """
        chosen = np.ix_(samples, self._numbers)
        file = self._table.file[chosen].reshape(-1)
        offset = self._table.offset[chosen].reshape(-1)
        order = np.lexsort((offset, file))
        files, offsets = file[order].tolist(), offset[order].tolist()
        targets = [
            _targets(parts, octets, gaps.get(number))
            for number, parts in zip(self._numbers.tolist(), self._parts, strict=True)
        ]
        n_extents = len(targets)
        places = order.tolist()
        descriptor, last, end, first = -1, -1, -1, 0
        views: list[memoryview] = []
        laps.start()
        for at, place in enumerate(places):
            row, extent = divmod(place, n_extents)
            if files[at] != last or offsets[at] != end or len(views) >= MAX_VIEWS:
                if views:
                    self._fill(descriptor, last, views, offsets[first], end)
                if files[at] != last:
                    last = files[at]
                    descriptor = self._files.descriptor(last)
                first, views = at, []
            end = offsets[at] + self._lengths[extent]
            for view, pitch, start, nbytes in targets[extent]:
                start += row * pitch
                views.append(view[start : start + nbytes])
        if views:
            self._fill(descriptor, last, views, offsets[first], end)
        laps.end(Kind.READ, sum(self._lengths) * len(samples))

    def _fill(
        self, descriptor: int, file: int, views: list[memoryview], offset: int, end: int
    ) -> None:
        """Read bytes ``offset`` to ``end`` of a file into memory that lies in pieces."""
        while offset < end:
            try:
                count = os.preadv(descriptor, views[:MAX_VIEWS], offset)
            except OSError:
                with storage_errors(self._files.paths[file]):
                    raise
            if count == 0:
                raise StoreError(
                    f"{self._files.paths[file]}: the file ends at byte {offset}, "
                    f"{end - offset} bytes more were expected; convert the store again"
                )
            offset += count
            if offset < end:
                views = _rest(views, count)


def _targets(
    parts: Sequence[FieldPart], octets: Octets, gaps: NDArray[np.uint8] | None
) -> list[_Target]:
    targets: list[_Target] = []
    at = 0
    for part in parts:
        if part.name:
            view = octets[part.name].reshape(-1).data
            targets.append((view, part.nbytes, 0, part.nbytes))
        else:
            assert gaps is not None
            pitch = gaps.shape[1]
            targets.append((gaps.reshape(-1).data, pitch, at, part.nbytes))
            at += part.nbytes
    return targets


def _rest(views: list[memoryview], done: int) -> list[memoryview]:
    """Return what is left of views after their first ``done`` bytes."""
    for number, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[number + 1 :]]
        done -= len(view)
    return []
