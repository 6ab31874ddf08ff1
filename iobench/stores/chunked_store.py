"""Stores whose chunks hold several samples each: what is decoded is kept for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.decoded_chunks import ChunkRow, DecodedChunks, count_decoded, count_used
from iobench.errors import StoreError
from iobench.samples import SharedBytes
from iobench.stores.extents import ExtentStore
from iobench.stores.rounding import unpack
from iobench.stores.verification import ExtentChecks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.decoded_chunks import ChunkKey, DecodedChunk, Stored
    from iobench.stores.fields import ChunkedDecoder


class ChunkedStore(ExtentStore):
    """A store read through chunks that samples share.

    The extents of a sample are the chunks it is in, which are those of its neighbours as well;
    ``decode`` returns the arrays of all of them, a row each.
    """

    decoder: ChunkedDecoder
    _last: tuple[int, dict[str, NDArray[Any]]] = (-1, {})

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        extents = self.extents(index)  # raises IndexError beyond the last
        row, place = divmod(range(len(self))[index], self.decoder.chunk_samples)
        last, rows = self._last
        if last != row:  # neighbours come one after another, as to xarray
            rows = self.decode(self.read(extents))
            self._last = row, rows
        return {name: array[place, ...].copy() for name, array in rows.items()}

    def __getitems__(self, indices: Sequence[int]) -> Sequence[dict[str, NDArray[Any]]]:
        return [self[index] for index in indices]

    def close(self) -> None:
        """Close the files, and let go of what is decoded."""
        super().close()
        self._last = -1, {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": (-1, {})}


class _StoredChunks(SharedBytes, frozen=True):
    """What was read for a sample, and all the chunks it takes: those of each variable."""

    chunks: Sequence[DecodedChunk]


class StoredSamples:
    """The samples of a chunked store by the two steps read and decode; picklable.

    ``chunk_cache`` is told the order of a pass. With ``verify`` chunks are compared with their
    checksums when they are read.
    """

    def __init__(
        self, store: ChunkedStore, verify: bool = False, chunk_cache: DecodedChunks | None = None
    ) -> None:
        self._store, self._checks = store, ExtentChecks(store) if verify else None
        decoder = store.decoder
        self._n_each = decoder.chunk_samples
        self._extents = {each.variable.name: each.extents for each in decoder.arrays}
        self.chunk_cache = chunk_cache or DecodedChunks((self._n_each,))

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredSamples, (self._store, self._checks is not None, self.chunk_cache)

    def read(self, where: int) -> _StoredChunks:
        """Read what a sample needs and no thread has read or decoded already."""
        row = (where // self._n_each,)
        keys = [(ChunkRow(0, name, (self._n_each,), row), ()) for name in self._extents]
        chunks, own = self.chunk_cache.take(keys, (0, where), self._read)
        return _StoredChunks(own, chunks)

    def _read(self, keys: Sequence[ChunkKey]) -> Sequence[Stored]:
        first = keys[0][0].numbers[0] * self._n_each
        extents = self._store.extents(first)
        numbers = [range(len(extents))[self._extents[row.variable]] for row, _ in keys]
        raw = self._store.read([extents[number] for some in numbers for number in some])
        contents = iter(raw)
        result = [[next(contents) for _ in some] for some in numbers]
        if self._checks is not None:
            for some, stored in zip(numbers, result, strict=True):
                for number, content in zip(some, stored, strict=True):
                    self._checks.compare([first], number, [content])
        return result

    def decode(
        self, raw: _StoredChunks, where: int, out: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample, copied to ``out`` where it is given."""
        arrays = {}
        of_each = dict(zip(self._extents, raw.chunks, strict=True))
        for variable, stored in zip(self._store.spec, self._store.manifest.spec, strict=True):
            name = variable.name
            row = self._rows(name, of_each[name], where)[where % self._n_each]
            count_used(row.nbytes, of_each[name].n_chunks)
            target = out[name] if out is not None else np.empty(variable.shape, variable.dtype)
            if stored.packed is None:
                target[...] = row
            else:
                unpack(np.ascontiguousarray(row), stored.packed, target)
            arrays[name] = target
        return arrays

    def _rows(self, name: str, chunk: DecodedChunk, where: int) -> NDArray[Any]:
        """Return a variable of all samples of some chunks; decoded by whoever is first."""

        def decoded(_: Any, stored: Stored, __: Any) -> NDArray[Any]:
            present = [content for content in stored if content is not None]
            rows = self._store.decoder.decode_array(name, present)
            count_decoded(rows.nbytes)
            return rows

        try:
            rows = chunk.values(decoded)
        except StoreError as error:
            raise StoreError(f"{self._store.path}: sample {where}: {error}") from error
        assert rows is not None, "all chunks are written"
        return rows
