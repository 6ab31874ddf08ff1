"""Where the bytes of each variable lie in a sample's extents, for readers that need no decoding.

Most containers keep numbers as memory has them. Whoever knows where they lie reads them to where
they are needed, and leaves out the bytes around them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from iobench.stores.codec_chain import NO_CODECS, CodecChain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.samples import Variable


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
    """A variable in chunks of one shape, in C order; those at the edge are stored in full.

    Shapes are those of one sample.
    """

    variable: Variable  # as stored
    chunk: tuple[int, ...]
    folder: str = ""  # its name in the container
    n_samples: int = 1  # of a chunk
    codecs: CodecChain = NO_CODECS
    extent: int = 0  # the first of its extents of a sample

    @property
    def is_encoded(self) -> bool:
        """Whether each chunk is an extent; else all of a sample are one, as memory has them."""
        return bool(self.codecs.codecs) or self.n_samples > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array without the dimensions of samples."""
        return self.variable.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the stored numbers."""
        return np.dtype(self.variable.dtype)

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks of one sample along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def n_chunks(self) -> int:
        """Chunks of one sample."""
        return math.prod(self.grid)

    @property
    def extents(self) -> slice:
        """Which extents of a sample are its own."""
        return slice(self.extent, self.extent + (self.n_chunks if self.is_encoded else 1))

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the numbers of a chunk."""
        return self.n_samples * math.prod(self.chunk) * self.dtype.itemsize

    def boxes(self) -> Iterator[tuple[slice, ...]]:
        """Yield where in the array each chunk of a sample lies, in the order of the index."""
        for place in np.ndindex(*self.grid):
            yield tuple(
                slice(p * c, min((p + 1) * c, n))
                for p, c, n in zip(place, self.chunk, self.shape, strict=True)
            )


@runtime_checkable
class ChunkedDecoder(Protocol):
    """A decoder of samples in chunks, each to be had without the others."""

    arrays: tuple[ChunkedArray, ...]  # the variables of a sample
    chunk_samples: int  # that share a chunk

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays of all samples of some chunks, side by side."""
        ...

    def decode_chunk(self, number: int, data: memoryview, out: NDArray[np.uint8]) -> None:
        """Write the numbers of the chunk that is extent ``number`` of a sample.

        Raises StoreError where it is damaged.
        """
        ...

    def decode_array(self, name: str, chunks: Sequence[memoryview]) -> NDArray[Any]:
        """Return one of the arrays of samples that share chunks, from its own."""
        ...
