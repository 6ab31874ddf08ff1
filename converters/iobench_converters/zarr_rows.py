"""Small samples of a Zarr store, gathered array by array: the chunks of each are one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench_converters.record_buffer import BUFFER_NBYTES, checksums_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iobench.samples import Sample
    from iobench_converters.zarr_layout import ArrayLayout

__all__ = ["SMALL_NBYTES", "GatheredRows", "StoredRows", "stored_plainly"]

SMALL_NBYTES = 1 << 16
"""Arrays of fewer bytes a sample cost more to handle than to copy."""


class StoredRows(NamedTuple):
    """The chunks of several samples, as they are in the file of their array."""

    data: Any
    """A buffer of bytes."""
    lengths: NDArray[np.int64]
    """Of each chunk, in bytes."""
    checksums: NDArray[np.uint32]
    """CRC-32C of the chunks of each sample."""


def stored_plainly(chunks: NDArray[Any]) -> StoredRows:
    """Return chunks, of shape (samples, chunks, numbers), as they are stored without a codec."""
    octets = chunks.reshape(-1).view(np.uint8)
    lengths = np.full(chunks[..., 0].size, chunks[0, 0].nbytes, dtype=np.int64)
    return StoredRows(octets.data, lengths, checksums_of(octets.reshape(len(chunks), -1)))


class GatheredRows:
    """Room for as many samples as are worth writing at once.

    Parameters
    ----------
    arrays : sequence of ArrayLayout
        What a sample becomes.

    Attributes
    ----------
    n_filled : int
        Samples gathered.
    """

    def __init__(self, arrays: Sequence[ArrayLayout]) -> None:
        self._layouts = arrays
        self._rooms: list[NDArray[np.uint8]] = []
        nbytes = sum(array.nbytes for array in arrays)
        self._n_rows = max(1, BUFFER_NBYTES // nbytes)
        self._arrays = [_ArrayRows(array, self._n_rows) for array in arrays]
        self._fields = [field for array in self._arrays for field in array.fields()]
        self.n_filled = 0

    @classmethod
    def of_small(cls, arrays: Sequence[ArrayLayout]) -> GatheredRows | None:
        """Return room for samples of these arrays, None where one of them is large."""
        return cls(arrays) if all(a.nbytes < SMALL_NBYTES for a in arrays) else None

    @property
    def is_full(self) -> bool:
        """Whether there is no room left."""
        return self.n_filled == self._n_rows

    def fill(self, sample: Sample) -> None:
        """Copy the arrays of a sample, which has been checked."""
        at = self.n_filled
        for name, values in self._fields:
            values[at] = sample[name]
        self.n_filled = at + 1

    def take(self) -> list[NDArray[Any]]:
        """Return what was filled in, and begin anew: its memory is used again.

        For each array the numbers of its chunks, of shape (samples, chunks, numbers).
        """
        taken = [array.cut(self.n_filled) for array in self._arrays]
        self.n_filled = 0
        return taken

    def rooms(self, overhead_nbytes: int) -> list[NDArray[np.uint8]]:
        """Return memory for the samples of each array, once they are compressed.

        Of shape (samples, bytes), with ``overhead_nbytes`` more for each chunk than it has itself.
        The same at every call.
        """
        if not self._rooms:
            for array in self._layouts:
                nbytes = array.n_chunks * (array.chunk_nbytes + overhead_nbytes)
                self._rooms.append(np.empty((self._n_rows, nbytes), dtype=np.uint8))
        return self._rooms


class _ArrayRows:
    """The rows of one array."""

    def __init__(self, layout: ArrayLayout, n_rows: int) -> None:
        self._layout = layout
        self._whole = np.empty((n_rows, *layout.shape), dtype=layout.dtype)
        self._n_chunks = layout.n_chunks
        if self._n_chunks > 1:  # what is beyond the edges stays zero
            self._cut = np.zeros((n_rows, self._n_chunks, *layout.chunk), dtype=layout.dtype)

    def fields(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield each variable and where its numbers go, sample by sample."""
        layout = self._layout
        if len(layout.variables) == 1:
            yield layout.variables[0].name, self._whole
            return
        for variable, start, stop in layout.parts():
            has_axis = len(variable.shape) == len(layout.shape)
            yield variable.name, self._whole[:, start:stop] if has_axis else self._whole[:, start]

    def cut(self, n_rows: int) -> NDArray[Any]:
        """Return the chunks of the first rows."""
        chunks = self._whole
        if self._n_chunks > 1:
            chunks = self._cut
            for number, box in enumerate(self._layout.boxes()):
                inside = self._whole[:n_rows][(slice(None), *box)]
                chunk = chunks[:n_rows, number]
                chunk[tuple(slice(0, n) for n in inside.shape)] = inside
        return chunks[:n_rows].reshape(n_rows, self._n_chunks, -1)
