"""Small samples gathered side by side, so that what a file is written in costs little for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.stores import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.samples import Sample

__all__ = ["RecordBuffer", "checksums_of"]

BUFFER_NBYTES: Final = 1 << 20
"""What is gathered before it is written: more than this would leave the processor's cache."""


class RecordBuffer:
    """Records that lie one after another, each made of the arrays of one sample.

    Parameters
    ----------
    dtype : numpy.dtype
        Of a record: structured, with any bytes between its fields.
    n_records : int, optional
        How many there is room for; by default as many as are worth writing at once.
    names : mapping of str to str, optional
        Array of the sample by field; of the same names by default.
    around : bytes, optional
        One record with what shall be between its fields; zeros by default.

    Attributes
    ----------
    records : ndarray
        All of them, filled or not.
    n_filled : int
        Those filled since the buffer was cleared.
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        n_records: int | None = None,
        *,
        names: Mapping[str, str] | None = None,
        around: bytes = b"",
    ) -> None:
        if n_records is None:
            n_records = max(1, BUFFER_NBYTES // max(1, dtype.itemsize))
        self.records: NDArray[Any] = np.zeros(n_records, dtype=dtype)
        self._octets = self.records.view(np.uint8).reshape(n_records, dtype.itemsize)
        if around:
            self._octets[:] = np.frombuffer(around, dtype=np.uint8)
        fields = dtype.names or ()
        self._fields = [(names[f] if names else f, self.records[f]) for f in fields]
        self.n_filled = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room left."""
        return self.n_filled == len(self.records)

    @property
    def octets(self) -> NDArray[np.uint8]:
        """Bytes of the filled records, one row each."""
        return self._octets[: self.n_filled]

    def fill(self, sample: Sample) -> None:
        """Copy the arrays of a sample, which has been checked, into the next record."""
        at = self.n_filled
        for name, values in self._fields:
            values[at] = sample[name]
        self.n_filled = at + 1

    def clear(self) -> None:
        """Begin anew."""
        self.n_filled = 0


def checksums_of(
    rows: NDArray[np.uint8], start: int = 0, stop: int | None = None
) -> NDArray[np.uint32]:
    """Return the CRC-32C of bytes ``start`` to ``stop`` of each row; rows lie side by side."""
    n_rows, nbytes = rows.shape
    first, last, _ = slice(start, stop).indices(nbytes)
    data = rows.reshape(-1).data
    places = (row * nbytes for row in range(n_rows))
    return np.array([crc32c(data[at + first : at + last]) for at in places], dtype=np.uint32)
