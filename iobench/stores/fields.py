"""Where the bytes of each variable lie in a sample's extents, for readers that need no decoding.

Most containers keep numbers as memory has them. Whoever knows where they lie reads them to where
they are needed, and leaves out the bytes around them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray


class FieldPart(msgspec.Struct, frozen=True):
    """Bytes of an extent: those of one variable, or others, whose name is empty."""

    name: str
    start: int
    nbytes: int


class FieldLayout(msgspec.Struct, frozen=True):
    """Where variables lie in the extents of a sample, and the bytes around them."""

    # for each extent of a sample what it is made of, without gaps. Variables of no bytes are left
    # out
    extents: tuple[tuple[FieldPart, ...], ...]
    # for each extent the bytes that are no variable's, one after another. A sample for which they
    # differ is laid out otherwise, and has to be decoded. None: they say nothing
    around: tuple[bytes, ...] | None = None
    # variables whose bytes are not as memory has them, but varints, packed. In another sample they
    # may take as many bytes and be fewer or more numbers: it is laid out otherwise then
    varints: frozenset[str] = frozenset()

    @classmethod
    def of_views(
        cls,
        raw: Sequence[memoryview],
        arrays: Mapping[str, NDArray[Any]],
        *,
        is_tagged: bool,
        varints: Collection[str] = (),
    ) -> FieldLayout | None:
        """Return where arrays lie that were decoded from ``raw``."""
        if not all(map(len, raw)):
            return None
        octets = [np.frombuffer(data, dtype=np.uint8) for data in raw]
        result: list[list[FieldPart]] = [[] for _ in raw]
        for name, array in arrays.items():
            if not array.nbytes:
                continue
            for data, parts in zip(octets, result, strict=True):
                start = array.ctypes.data - data.ctypes.data
                if array.flags.c_contiguous and 0 <= start <= data.size - array.nbytes:
                    parts.append(FieldPart(name, start, array.nbytes))
                    break
            else:
                return None
        extents = []
        for data, parts in zip(octets, result, strict=True):
            tiled = _tiled(parts, data.size)
            if tiled is None:
                return None
            extents.append(tiled)
        around = tuple(
            b"".join(
                bytes(data[one.start : one.start + one.nbytes]) for one in tiled if not one.name
            )
            for data, tiled in zip(octets, extents, strict=True)
        )
        return cls(tuple(extents), around if is_tagged else None, frozenset(varints))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Bytes of each extent."""
        return tuple(sum(one.nbytes for one in extent) for extent in self.extents)


def _tiled(parts: list[FieldPart], nbytes: int) -> tuple[FieldPart, ...] | None:
    """Return all of an extent, the bytes between variables too; None where two overlap."""
    tiled = []
    end = 0
    for part in sorted(parts, key=lambda one: one.start):
        if part.start < end:
            return None
        if part.start > end:
            tiled.append(FieldPart("", end, part.start - end))
        tiled.append(part)
        end = part.start + part.nbytes
    if end < nbytes:
        tiled.append(FieldPart("", end, nbytes - end))
    return tuple(tiled)


class ChunkedArray(msgspec.Struct, frozen=True):
    """A variable in chunks of one shape, in C order, numbers in C order."""

    name: str  # of the variable
    shape: tuple[int, ...]
    chunk: tuple[int, ...]  # of the whole array, and of each chunk; those at the edge are as large
    dtype: str  # as stored
    extent: int  # the first of its extents of a sample
    is_encoded: bool  # then each chunk is an extent; else one has them all, as memory has them

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the numbers of a chunk."""
        return math.prod(self.chunk) * np.dtype(self.dtype).itemsize

    @property
    def n_chunks(self) -> int:
        """Chunks of a sample."""
        return math.prod(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))


@runtime_checkable
class ChunkedDecoder(Protocol):
    """A decoder of samples in chunks, each to be had without the others."""

    chunk_samples: int  # that share a chunk

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays of all samples of some chunks, side by side."""
        ...

    def chunked_arrays(self) -> tuple[ChunkedArray, ...]:
        """Return the variables of a sample."""
        ...

    def decode_chunk(self, number: int, data: memoryview, out: NDArray[np.uint8]) -> None:
        """Write the numbers of the chunk that is extent ``number`` of a sample.

        Raises StoreError where it is damaged.
        """
        ...

    def decode_array(self, name: str, chunks: Sequence[memoryview]) -> NDArray[Any]:
        """Return one of the arrays of samples that share chunks, from its own."""
        ...
