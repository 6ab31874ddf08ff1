"""Which file each sample is in, and its index there, as rows of one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class FileIndexes(Sequence[tuple[int, ...]]):
    """A tuple for each sample, made as it is asked for: a hundred thousand of them take long."""

    __slots__ = ("rows",)

    def __init__(self, rows: ArrayLike) -> None:
        self.rows: NDArray[np.int64] = np.asarray(rows, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> FileIndexes: ...

    def __getitem__(self, index: int | slice) -> tuple[int, ...] | FileIndexes:
        if isinstance(index, slice):
            return FileIndexes(self.rows[index])
        return tuple(self.rows[index].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(tuple, self.rows.tolist())


def index_rows(where: Sequence[tuple[int, ...]]) -> NDArray[np.int64]:
    """Return files and indexes of samples, one row each."""
    if isinstance(where, FileIndexes):
        return where.rows
    if not len(where):
        return np.empty((0, 2), dtype=np.int64)
    # A hundred thousand pairs: a third of the time that NumPy takes to see that they are pairs.
    width = len(where[0])
    every = np.fromiter(chain.from_iterable(where), np.int64, width * len(where))
    return every.reshape(-1, width)


def chosen(where: Sequence[Any], numbers: Sequence[int]) -> Sequence[Any]:
    """Return where some samples are, of whatever kind that is, by their numbers."""
    if isinstance(where, FileIndexes):
        return FileIndexes(where.rows[np.fromiter(numbers, np.int64, len(numbers))])
    return [where[number] for number in numbers]


def joined(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Return where the samples of several parts are."""
    if len(parts) == 1:
        return parts[0]
    if parts and all(isinstance(part, FileIndexes) for part in parts):
        return FileIndexes(np.concatenate([index_rows(part) for part in parts]))
    return [each for part in parts for each in part]
