"""Which file each sample is in, and its index there, as rows of one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def chosen(where: Sequence[Any], numbers: Sequence[int]) -> Sequence[Any]:
    """Return where some samples are, of whatever kind that is, by their numbers."""
    if isinstance(where, FileIndexes):
        return FileIndexes(where.rows[np.fromiter(numbers, np.int64, len(numbers))])
    return [where[number] for number in numbers]
