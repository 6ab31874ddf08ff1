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
    Shard,
    ShardFile,
    ShardFileWriter,
    ShardInfo,
    crc32c,
    open_file_size,
    storage_errors,
)
from iobench_converters.blosc_chunks import BLOSC_HEADER_NBYTES, ChunkCompressor
from iobench_converters.zarr_layout import BLOSC_LZ4
from iobench_converters.zarr_rows import SMALL_NBYTES, GatheredRows, stored_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import Sample, SampleSpec
    from iobench_converters.zarr_layout import ArrayLayout
    from iobench_converters.zarr_rows import StoredRows

__all__ = ["ZarrWriter", "read_shard_index", "shard_name"]

ENTRY_NBYTES: Final = 16
CHECKSUM_NBYTES: Final = 4
ABSENT: Final = np.iinfo(np.uint64).max


def shard_name(array: ArrayLayout, shard: int) -> str:
    """Return the file of a shard, from the store's folder: one shard spans all but samples."""
    return f"{array.folder}/c.{'.'.join([str(shard), *('0' for _ in array.shape)])}"


class ZarrWriter:
    """Writes one shard of every array; see `iobench.stores.Writer`.

    Parameters
    ----------
    path : Path
        The store's folder. Unfinished shards lie in it, finished ones in the arrays' folders.
    spec : SampleSpec
        What a sample is.
    arrays : sequence of ArrayLayout
        What becomes of it.
    shard : int
        Number of the shard.
    n_samples : int or None
        Samples of a full shard, for which the index has places; None: as many as will come.
    codec : str
        Of the chunks.
    """

    def __init__(
        self,
        path: Path,
        spec: SampleSpec,
        arrays: Sequence[ArrayLayout],
        *,
        shard: int,
        n_samples: int | None,
        codec: str,
    ) -> None:
        self._spec = spec
        self._where = f"shard {shard} of {path}"
        self._room = n_samples
        self._n_samples = 0
        self._checksums = array("I")
        self._layouts = arrays
        self._rows = GatheredRows.of_small(arrays)
        self._spare: GatheredRows | None = None
        self._started: list[list[Future[StoredRows]]] = []
        self._compressor = ChunkCompressor() if codec == BLOSC_LZ4 else None
        self._arrays: list[_ArrayShard] = []
        try:
            for layout in arrays:
                file = ShardFileWriter(path / shard_name(layout, shard), below=path)
                self._arrays.append(_ArrayShard(layout, file))
        except BaseException:
            self.abort()
            raise

    def append(self, sample: Sample) -> None:
        """Write one sample; raise SampleError or StorageError."""
        self._spec.check(sample, where=f"sample {self._n_samples} of {self._where}")
        self._n_samples += 1
        if self._rows is not None:
            self._rows.fill(sample)
            if self._rows.is_full:
                self._write_rows(self._rows)
        elif self._compressor is None:
            self._checksums.extend(one.append(one.pieces(sample)) for one in self._arrays)
        else:
            self._compressor.add(chunk for one in self._arrays for chunk in one.chunks(sample))
            if self._compressor.is_full:
                self._write_compressed()

    def close(self) -> ShardInfo:
        """Write the indexes, flush to disk, rename into place, and return what was written."""
        try:
            if self._rows is not None:
                self._write_rows(self._rows)
                self._finish_rows()
            self._write_compressed()
            room = self._n_samples if self._room is None else self._room
            for one in self._arrays:
                one.end(room)
            files = tuple(one.file.commit() for one in self._arrays)
        except BaseException:
            self.abort()
            raise
        self._stop()
        return ShardInfo(Shard(self._n_samples, files), self._checksums)

    def abort(self) -> None:
        """Drop the unfinished shard."""
        self._stop()
        for one in self._arrays:
            one.file.abort()

    def _write_rows(self, rows: GatheredRows) -> None:
        """Write the small samples that were gathered, or leave them to the compressor."""
        if not rows.n_filled:
            return
        taken = rows.take()
        if self._compressor is None:
            self._put_rows([[stored_plainly(chunks)] for chunks in taken])
            return
        # These are compressed while those before are written and the next ones gathered.
        rooms = rows.rooms(BLOSC_HEADER_NBYTES)
        started = list(map(self._compressor.start, taken, rooms))
        self._finish_rows()
        self._started = started
        self._rows, self._spare = self._spare or GatheredRows(self._layouts), rows

    def _finish_rows(self) -> None:
        """Write the small samples that are being compressed."""
        started, self._started = self._started, []
        if started:
            self._put_rows([[part.result() for part in parts] for parts in started])

    def _put_rows(self, stored: Sequence[Sequence[StoredRows]]) -> None:
        """Write rows of each array, of the same samples."""
        by_array = [
            np.concatenate([one.append_rows(part) for part in parts])
            for one, parts in zip(self._arrays, stored, strict=True)
        ]
        self._checksums.frombytes(np.stack(by_array, axis=1).tobytes())

    def _write_compressed(self) -> None:
        stored = self._compressor.take() if self._compressor is not None else iter(())
        while first := list(islice(stored, self._arrays[0].layout.n_chunks)):
            self._checksums.append(self._arrays[0].append(first))
            for one in self._arrays[1:]:
                self._checksums.append(one.append(list(islice(stored, one.layout.n_chunks))))

    def _stop(self) -> None:
        if self._compressor is not None:
            self._compressor.close()


class _ArrayShard:
    """One array's part of a shard that is being written."""

    def __init__(self, layout: ArrayLayout, file: ShardFileWriter) -> None:
        self.layout = layout
        self.file = file
        self._lengths = array("q")
        self._names = [variable.name for variable in layout.variables]
        self._n_chunks = layout.n_chunks
        self._is_small = layout.nbytes < SMALL_NBYTES
        if self._n_chunks > 1 or len(self._names) > 1:
            self._sample = np.empty(layout.shape, dtype=layout.dtype)

    def pieces(self, sample: Sample) -> list[Any]:
        """Return buffers that, one after the other, are the chunks of a sample.

        Large ones are not copied unless they are cut; small ones cost less as one copy.
        """
        if self._n_chunks > 1:
            return [_octets(chunk) for chunk in self.chunks(sample)]
        if self._is_small:
            parts = [sample[name].tobytes() for name in self._names]
            return parts if len(parts) == 1 else [b"".join(parts)]
        return [_octets(sample[name]) for name in self._names]

    def chunks(self, sample: Sample) -> Iterator[NDArray[Any]]:
        """Yield the chunks of a sample, contiguous; they last until the next sample."""
        whole = self._gathered(sample)
        if self._n_chunks == 1:
            yield np.ascontiguousarray(whole)
            return
        for box in self.layout.boxes():
            inside = whole[box]
            chunk = np.zeros(self.layout.chunk, dtype=self.layout.dtype)
            chunk[tuple(slice(0, n) for n in inside.shape)] = inside
            yield chunk

    def append(self, pieces: Sequence[Any]) -> int:
        """Write the chunks of a sample; return the checksum of them all."""
        start = self.file.nbytes
        crc = 0
        for piece in pieces:
            crc = crc32c(piece, crc)
        self.file.write(*pieces)
        if self._n_chunks == 1:  # in several pieces, where variables share it
            self._lengths.append(self.file.nbytes - start)
        else:
            self._lengths.extend(map(len, pieces))
        return crc

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

    def _gathered(self, sample: Sample) -> NDArray[Any]:
        if len(self._names) == 1:
            return sample[self._names[0]]
        for variable, start, stop in self.layout.parts():
            part = self._sample[start:stop]
            part[...] = sample[variable.name].reshape(part.shape)
        return self._sample


def read_shard_index(
    path: Path, file: ShardFile, array: ArrayLayout, *, n_samples: int, room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offset and length of each sample's chunks in a shard, all of them together.

    Parameters
    ----------
    path : Path
        The store's folder.
    file : ShardFile
        The shard, as the manifest lists it.
    array : ArrayLayout
        The array.
    n_samples, room : int
        Samples it holds, and for how many its index has places.

    Raises
    ------
    StoreError
        If the file is missing, of another size, or its index is damaged or not as written: the
        chunks lie one after another from the beginning of the file.
    """
    name = path / file.name
    nbytes = open_file_size(name, expected=file.nbytes)
    index_nbytes = room * array.n_chunks * ENTRY_NBYTES
    data_nbytes = nbytes - index_nbytes - CHECKSUM_NBYTES
    if data_nbytes < 0:  # before anything is allocated
        raise StoreError(f"{name}: {nbytes} bytes are less than its index; convert again")
    with storage_errors(name), name.open("rb", buffering=0) as stream:
        stream.seek(data_nbytes)
        raw, stored = stream.read(index_nbytes), stream.read(CHECKSUM_NBYTES)
    if len(raw) != index_nbytes or crc32c(raw) != int.from_bytes(stored, "little"):
        raise StoreError(f"{name}: checksum of its index is wrong; convert the store again")
    index = np.frombuffer(raw, dtype="<u8").reshape(-1, 2)
    n_held = n_samples * array.n_chunks
    offsets, lengths = index[:n_held].astype(np.int64).T
    ends = np.cumsum(lengths)
    tiles = np.array_equal(offsets, ends - lengths) and (lengths > 0).all()
    if not tiles or ends[-1] != data_nbytes or (index[n_held:] != ABSENT).any():
        raise StoreError(
            f"{name}: its index does not describe the chunks of {n_samples} samples one after "
            "another; convert the store again"
        )
    first = offsets[:: array.n_chunks]
    return first, np.append(first[1:], data_nbytes) - first


def _octets(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
