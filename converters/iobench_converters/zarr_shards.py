"""The shards of an array: written chunk after chunk with the index at the end, and read back.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html: offset
and length of each chunk as little-endian uint64, both 2**64 - 1 where there is none, and the
CRC-32C of that.
"""

from __future__ import annotations

from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import StoreError
from iobench.stores import (
    Gatherer,
    ShardFile,
    ShardFileWriter,
    ShardInfo,
    ShardWriter,
    crc32c,
    open_file_size,
    storage_errors,
)
from iobench_converters.zarr_chunks import (
    BLOSC_HEADER_NBYTES,
    ChunkCompressor,
    stored_plainly,
)
from iobench_converters.zarr_layout import BLOSC_LZ4

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec
    from iobench_converters.zarr_chunks import StoredRows
    from iobench_converters.zarr_layout import ArrayLayout

ENTRY_NBYTES: Final = 16
CHECKSUM_NBYTES: Final = 4
ABSENT: Final = np.iinfo(np.uint64).max
SMALL_NBYTES: Final = 1 << 16
"""Arrays of fewer bytes a sample cost more to handle than to copy."""
COMPRESSED_NBYTES: Final = 1 << 19
"""Samples up to this are compressed several at a time: a hand-over to threads costs too."""


def shard_name(array: ArrayLayout, place: Sequence[int]) -> str:
    """Return the file of a shard, from the store's folder: one shard spans all but samples.

    ``place`` is where it lies along each of the samples' dimensions.
    """
    return f"{array.folder}/c.{'.'.join(map(str, [*place, *(0 for _ in array.shape)]))}"


def shard_shape(grid: Sequence[int], n_samples: int) -> tuple[int, ...]:
    """Return how long a full shard of so many samples is along each of their dimensions.

    Of dimensions that a shard has all of, or a share of one, it is a box.
    """
    shape: list[int] = []
    for length in reversed(grid[1:]):
        shape.insert(0, min(length, n_samples))
        n_samples = max(1, n_samples // length)
    return (n_samples, *shape)


def shard_place(shard: int, grid: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return where a shard lies along each of the samples' dimensions, by its number."""
    counts = [-(-length // each) for length, each in zip(grid[1:], shape[1:], strict=True)]
    place: list[int] = []
    for count in reversed(counts):
        shard, at = divmod(shard, count)
        place.insert(0, at)
    return (shard, *place)


class ChunkGatherer(Gatherer):
    """Small samples, gathered array by array: the chunks of each are one row."""

    def __init__(self, arrays: Sequence[ArrayLayout]) -> None:
        super().__init__([np.dtype([(one.variable.name, one.dtype, one.shape)]) for one in arrays])
        self._layouts = arrays
        self._cut = [  # what is beyond the edges stays zero
            np.zeros((self.n_rows, layout.n_chunks, *layout.chunk), dtype=layout.dtype)
            for layout in arrays
            if layout.n_chunks > 1
        ]
        self._rooms: list[NDArray[np.uint8]] = []

    def chunks(self) -> list[NDArray[Any]]:
        """Return for each array the numbers of its chunks: (samples, chunks, numbers)."""
        cut = iter(self._cut)
        found = []
        for number, layout in enumerate(self._layouts):
            chunks = whole = self.octets(number).view(layout.dtype).reshape(-1, *layout.shape)
            if layout.n_chunks > 1:
                chunks = next(cut)[: len(whole)]
                for place, box in enumerate(layout.boxes()):
                    inside = whole[(slice(None), *box)]
                    chunks[:, place][tuple(slice(0, n) for n in inside.shape)] = inside
            found.append(chunks.reshape(len(whole), layout.n_chunks, -1))
        return found

    def rooms(self) -> list[NDArray[np.uint8]]:
        """Return memory for the compressed samples of each array: the same at every call."""
        if not self._rooms:
            for layout in self._layouts:
                nbytes = layout.n_chunks * (layout.chunk_nbytes + BLOSC_HEADER_NBYTES)
                self._rooms.append(np.empty((self.n_rows, nbytes), dtype=np.uint8))
        return self._rooms


class ZarrWriter(ShardWriter):
    """Writes one shard of every array."""

    def __init__(
        self,
        path: Path,
        spec: SampleSpec,
        arrays: Sequence[ArrayLayout],
        *,
        shard: int,
        n_samples: int | None,
        codec: str,
        place: tuple[int, ...],
    ) -> None:
        self._room = n_samples
        self._layouts = arrays
        self._compressor = ChunkCompressor() if codec == BLOSC_LZ4 else None
        self._started: list[list[Future[StoredRows]]] = []
        self._spare: ChunkGatherer | None = None
        are_small = all(layout.nbytes < SMALL_NBYTES for layout in arrays)
        if self._compressor is not None:
            are_small |= sum(layout.nbytes for layout in arrays) <= COMPRESSED_NBYTES
        super().__init__(
            path,
            spec,
            shard=shard,
            files=[shard_name(layout, place) for layout in arrays],
            gatherer=ChunkGatherer(arrays) if are_small else None,
        )
        self._arrays = [_ArrayShard(*each) for each in zip(arrays, self.files, strict=True)]
        self.is_by_variable = not are_small or (
            all(one.is_plain for one in self._arrays) and codec != BLOSC_LZ4
        )

    def write_sample(self, sample: Sample) -> None:
        """Write the chunks of each array."""
        if self._compressor is None:
            self.checksums.extend(one.append(one.pieces(sample[one.name])) for one in self._arrays)
            return
        chunks = [chunk for one in self._arrays for chunk in one.chunks(sample[one.name])]
        stored = self._compressor.compressed(chunks)
        for one in self._arrays:
            self.checksums.append(one.append(list(islice(stored, one.layout.n_chunks))))

    def write_variable(self, number: int, rows: NDArray[Any]) -> NDArray[np.uint32]:
        """Write the chunks of some samples of one array."""
        one = self._arrays[number]
        if one.is_plain and self._compressor is None:
            return one.append_plain(rows)
        return np.array([one.append(self._pieces(one, row)) for row in rows], dtype=np.uint32)

    def _pieces(self, one: _ArrayShard, values: NDArray[Any]) -> Sequence[Any]:
        """Return buffers that, one after the other, are the chunks of an array as stored."""
        if self._compressor is None:
            return one.pieces(values)
        return list(self._compressor.compressed(list(one.chunks(values))))

    def write_gathered(self, gatherer: Gatherer) -> Gatherer:
        """Write the chunks of the gathered samples, or leave them to the compressor."""
        assert isinstance(gatherer, ChunkGatherer)
        chunks = gatherer.chunks()
        if self._compressor is None:
            self._put([[stored_plainly(each)] for each in chunks])
            gatherer.clear()
            return gatherer
        # These are compressed while those before are written and the next ones gathered.
        started = list(map(self._compressor.start, chunks, gatherer.rooms()))
        self._put_started()
        self._started = started
        gatherer.clear()
        following, self._spare = self._spare or ChunkGatherer(self._layouts), gatherer
        return following

    def finish(self) -> None:
        """Write what is being compressed, and the indexes."""
        self._put_started()
        room = self.n_samples if self._room is None else self._room
        for one in self._arrays:
            one.end(room)

    def close(self) -> ShardInfo:
        """Flush to disk, rename into place, and return what was written."""
        info = super().close()
        self._stop()
        return info

    def abort(self) -> None:
        """Drop the unfinished shard."""
        self._stop()
        super().abort()

    def _put_started(self) -> None:
        """Write the gathered samples that are being compressed."""
        started, self._started = self._started, []
        if started:
            self._put([[part.result() for part in parts] for parts in started])

    def _put(self, stored: Sequence[Sequence[StoredRows]]) -> None:
        """Write rows of each array, of the same samples."""
        by_array = [
            np.concatenate([one.append_rows(part) for part in parts])
            for one, parts in zip(self._arrays, stored, strict=True)
        ]
        self.checksums.frombytes(np.stack(by_array, axis=1).tobytes())

    def _stop(self) -> None:
        if self._compressor is not None:
            self._compressor.close()


class _ArrayShard:
    """One array's part of a shard that is being written."""

    def __init__(self, layout: ArrayLayout, file: ShardFileWriter) -> None:
        self.layout = layout
        self.file = file
        self._lengths = array("q")
        self.name = layout.variable.name
        self._n_chunks = layout.n_chunks
        self._is_small = layout.nbytes < SMALL_NBYTES
        self.is_plain = layout.n_chunks == 1

    def pieces(self, values: NDArray[Any]) -> list[Any]:
        """Return buffers that, one after the other, are the chunks of a sample.

        Large ones are not copied unless they are cut; small ones cost less as one copy.
        """
        if self._n_chunks > 1:
            return [_octets(chunk) for chunk in self.chunks(values)]
        return [values.tobytes() if self._is_small else _octets(values)]

    def chunks(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the chunks of a sample, contiguous."""
        if self._n_chunks == 1:
            yield np.ascontiguousarray(values)
            return
        for box in self.layout.boxes():
            inside = values[box]
            chunk = np.zeros(self.layout.chunk, dtype=self.layout.dtype)
            chunk[tuple(slice(0, n) for n in inside.shape)] = inside
            yield chunk

    def append(self, pieces: Sequence[Any]) -> int:
        """Write the chunks of a sample; return the checksum of them all."""
        crc = 0
        for piece in pieces:
            crc = crc32c(piece, crc)
        self.file.write(*pieces)
        self._lengths.extend(map(len, pieces))
        return crc

    def append_plain(self, rows: NDArray[Any]) -> NDArray[np.uint32]:
        """Write several samples, a chunk each, as they are; return the checksum of each."""
        self._lengths.extend([self.layout.nbytes] * len(rows))
        return self.file.write_rows(rows)

    def append_rows(self, rows: StoredRows) -> NDArray[np.uint32]:
        """Write the chunks of several samples; return the checksum of each."""
        self.file.write(rows.data)
        self._lengths.frombytes(rows.lengths.tobytes())
        return rows.checksums

    def end(self, room: int) -> None:
        """Write the index, with places for ``room`` samples."""
        index = np.full((room * self._n_chunks, 2), ABSENT, dtype="<u8")
        lengths = np.array(self._lengths, dtype=np.int64)
        index[: lengths.size, 0] = np.cumsum(lengths) - lengths
        index[: lengths.size, 1] = lengths
        data = _octets(index)
        self.file.write(data, crc32c(data).to_bytes(CHECKSUM_NBYTES, "little"))


def read_shard_index(
    path: Path, file: ShardFile, array: ArrayLayout, *, n_samples: int, room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offset and length of each sample's chunks in a shard, all of them together."""
    lengths = read_chunk_lengths(path, file, array, n_samples=n_samples, room=room).sum(axis=1)
    return np.cumsum(lengths) - lengths, lengths


def read_chunk_lengths(
    path: Path, file: ShardFile, array: ArrayLayout, *, n_samples: int, room: int
) -> NDArray[np.int64]:
    """Return the bytes of each chunk of the samples of a shard, in the order they lie in.

    Parameters and errors as of `read_shard_index`.
    """
    name = path / file.name
    nbytes = open_file_size(name, expected=file.nbytes)
    index_nbytes = room * array.n_chunks * ENTRY_NBYTES
    data_nbytes = nbytes - index_nbytes - CHECKSUM_NBYTES
    if data_nbytes < 0:  # before anything is allocated
        raise StoreError(f"{name}: {nbytes} bytes are less than its index; convert to a new folder")
    with storage_errors(name), name.open("rb", buffering=0) as stream:
        stream.seek(data_nbytes)
        raw, stored = stream.read(index_nbytes), stream.read(CHECKSUM_NBYTES)
    if len(raw) != index_nbytes or crc32c(raw) != int.from_bytes(stored, "little"):
        raise StoreError(f"{name}: checksum of its index is wrong; convert to a new folder")
    index = np.frombuffer(raw, dtype="<u8").reshape(-1, 2)
    n_held = n_samples * array.n_chunks
    offsets, lengths = index[:n_held].astype(np.int64).T
    ends = np.cumsum(lengths)
    tiles = np.array_equal(offsets, ends - lengths) and (lengths > 0).all()
    if not tiles or ends[-1] != data_nbytes or (index[n_held:] != ABSENT).any():
        raise StoreError(
            f"{name}: its index does not describe the chunks of {n_samples} samples one after "
            "another; convert to a new folder"
        )
    by_sample: NDArray[np.int64] = lengths.reshape(n_samples, array.n_chunks)
    return by_sample


def _octets(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
