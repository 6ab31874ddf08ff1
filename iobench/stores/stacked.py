"""Samples of a batch that lie beside each other already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StackedSamples"]


class StackedSamples(Sequence["dict[str, NDArray[Any]]"]):
    """A sequence of samples that are rows of the arrays of a batch.

    Parameters
    ----------
    arrays : dict of str to ndarray
        The batch: samples are the first axis of each array.
    n_samples : int
        How many.

    Attributes
    ----------
    arrays : dict of str to ndarray
        For who wants the batch as it is.
    """

    def __init__(self, arrays: dict[str, NDArray[Any]], n_samples: int) -> None:
        self.arrays = arrays
        self._n_samples = n_samples

    def __len__(self) -> int:
        return self._n_samples

    @overload
    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, NDArray[Any]]]: ...

    def __getitem__(self, index: Any) -> Any:
        rows = range(self._n_samples)[index]
        return self._row(rows) if isinstance(rows, int) else [self._row(row) for row in rows]

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return map(self._row, range(self._n_samples))

    def _row(self, row: int) -> dict[str, NDArray[Any]]:
        return {name: array[row, ...] for name, array in self.arrays.items()}
