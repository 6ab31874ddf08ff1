"""The shards of an array: written chunk after chunk with the index at the end, and read back.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html: offset
and length of each chunk as little-endian uint64, both 2**64 - 1 where there is none, and the
CRC-32C of that.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import StoreError
from iobench.stores import (
    Encode,
    EncodedStack,
    ShardFile,
    ShardWriter,
    crc32c,
    octets,
    open_file_size,
    row_checksums,
    storage_errors,
)
from iobench_converters.zarr_chunks import compressor
from iobench_converters.zarr_layout import BLOSC_LZ4

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec
    from iobench_converters.zarr_layout import ArrayLayout

ENTRY_NBYTES: Final = 16
CHECKSUM_NBYTES: Final = 4
ABSENT: Final = np.iinfo(np.uint64).max


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
        self._full_n_samples = n_samples
        self._layouts = arrays
        self._lengths = [array("q") for _ in arrays]
        super().__init__(
            path,
            spec,
            shard=shard,
            files=[shard_name(layout, place) for layout in arrays],
            encode=encoder(arrays, codec),
        )

    def wrote(self, stack: EncodedStack) -> None:
        """Note the lengths of the chunks."""
        for known, lengths in zip(self._lengths, stack.lengths, strict=True):
            known.frombytes(lengths.tobytes())

    def finish(self) -> None:
        """Write the indexes, with places for all samples of a full shard."""
        n_samples = self.n_samples if self._full_n_samples is None else self._full_n_samples
        for layout, file, known in zip(self._layouts, self.files, self._lengths, strict=True):
            index = np.full((n_samples * layout.n_chunks, 2), ABSENT, dtype="<u8")
            lengths = np.array(known, dtype=np.int64)
            index[: lengths.size, 0] = np.cumsum(lengths) - lengths
            index[: lengths.size, 1] = lengths
            data = index.reshape(-1).view(np.uint8).data
            file.write(data, crc32c(data).to_bytes(CHECKSUM_NBYTES, "little"))


def encoder(arrays: Sequence[ArrayLayout], codec: str) -> Encode:
    """Return what cuts samples side by side into the chunks of each array, and compresses them."""
    compress = compressor() if codec == BLOSC_LZ4 else None

    def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
        stored = [_stored(each, rows[each.variable.name], compress) for each in arrays]
        checksums = np.stack([each.checksums for each in stored], axis=1)
        buffers = [each.buffers for each in stored]
        return EncodedStack(len(checksums), buffers, checksums, [each.lengths for each in stored])

    return encode


class _StoredRows(NamedTuple):
    """The chunks of several samples as they are in the file of their array."""

    buffers: Sequence[Any]
    lengths: NDArray[np.int64]  # of each chunk
    checksums: NDArray[np.uint32]  # of the chunks of each sample


def _stored(
    layout: ArrayLayout, rows: NDArray[Any], compress: Callable[[Any], bytes] | None
) -> _StoredRows:
    chunks = rows if layout.n_chunks == 1 else _cut(layout, rows)
    if compress is None:
        data = octets(chunks)
        lengths = np.full(len(rows) * layout.n_chunks, layout.chunk_nbytes, dtype=np.int64)
        return _StoredRows([data.reshape(-1).data], lengths, row_checksums(data))
    flat = np.ascontiguousarray(chunks).reshape(len(rows) * layout.n_chunks, -1)
    pieces = [compress(chunk) for chunk in flat]
    crcs = []
    for start in range(0, len(pieces), layout.n_chunks):
        crc = 0
        for piece in pieces[start : start + layout.n_chunks]:
            crc = crc32c(piece, crc)
        crcs.append(crc)
    lengths = np.array(list(map(len, pieces)), dtype=np.int64)
    return _StoredRows(pieces, lengths, np.array(crcs, dtype=np.uint32))


def _cut(layout: ArrayLayout, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the chunks of samples, (samples, chunks, ...); what is beyond the edges is zero."""
    chunks = np.zeros((len(rows), layout.n_chunks, *layout.chunk), dtype=layout.dtype)
    for place, box in enumerate(layout.boxes()):
        inside = rows[(slice(None), *box)]
        chunks[:, place][(slice(None), *(slice(0, n) for n in inside.shape[1:]))] = inside
    return chunks


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
