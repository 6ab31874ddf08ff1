"""The shards of an array: written chunk after chunk with the index at the end, and read back.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html: offset
and length of each chunk as little-endian uint64, both 2**64 - 1 where there is none, and the
CRC-32C of that.
"""

from __future__ import annotations

import math
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
            encode=encoder(arrays),
            at_once=arrays[0].n_samples,
        )

    def wrote(self, stack: EncodedStack) -> None:
        """Note the lengths of the chunks."""
        for known, lengths in zip(self._lengths, stack.lengths, strict=True):
            known.frombytes(lengths.tobytes())

    def finish(self) -> None:
        """Write the indexes, with places for all samples of a full shard."""
        n_samples = self.n_samples if self._full_n_samples is None else self._full_n_samples
        for layout, file, known in zip(self._layouts, self.files, self._lengths, strict=True):
            n_rows = -(-n_samples // layout.n_samples)
            index = np.full((n_rows * layout.n_chunks, 2), ABSENT, dtype="<u8")
            lengths = np.array(known, dtype=np.int64)
            index[: lengths.size, 0] = np.cumsum(lengths) - lengths
            index[: lengths.size, 1] = lengths
            data = index.reshape(-1).view(np.uint8).data
            file.write(data, crc32c(data).to_bytes(CHECKSUM_NBYTES, "little"))


def encoder(arrays: Sequence[ArrayLayout]) -> Encode:
    """Return what cuts samples side by side into the chunks of each array, and encodes them."""

    def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
        stored = [_stored(each, rows[each.variable.name]) for each in arrays]
        checksums = np.concatenate([each.checksums for each in stored], axis=1)
        buffers = [each.buffers for each in stored]
        return EncodedStack(len(checksums), buffers, checksums, [each.lengths for each in stored])

    return encode


class _StoredRows(NamedTuple):
    """The chunks of several samples as they are in the file of their array."""

    buffers: Sequence[Any]
    lengths: NDArray[np.int64]  # of each chunk
    checksums: NDArray[np.uint32]  # (samples, extents)


def _stored(layout: ArrayLayout, rows: NDArray[Any]) -> _StoredRows:
    n_samples, n_each = len(rows), layout.n_samples
    if n_samples % n_each:  # the last ones of the store: what is beyond them is zero
        more = np.zeros((n_each - n_samples % n_each, *rows.shape[1:]), dtype=rows.dtype)
        rows = np.concatenate([rows, more])
    chunks = rows if layout.n_chunks == 1 else _cut(layout, rows)
    if not layout.is_encoded:
        data = octets(chunks)
        lengths = np.full(n_samples * layout.n_chunks, layout.chunk_nbytes, dtype=np.int64)
        return _StoredRows([data.reshape(-1).data], lengths, row_checksums(data)[:, None])
    flat = np.ascontiguousarray(chunks).reshape(-1, n_each * math.prod(layout.chunk))
    pieces = [layout.codecs.encode(chunk) for chunk in flat]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    crcs = np.array(list(map(crc32c, pieces)), dtype=np.uint32).reshape(-1, layout.n_chunks)
    return _StoredRows(pieces, lengths, np.repeat(crcs, n_each, axis=0)[:n_samples])


def _cut(layout: ArrayLayout, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the chunks of samples, (rows of chunks, chunks, samples of one, ...).

    What is beyond the edges is zero.
    """
    n_each = layout.n_samples
    n_rows = len(rows) // n_each
    chunks = np.zeros((n_rows, layout.n_chunks, n_each, *layout.chunk), dtype=layout.dtype)
    for place, box in enumerate(layout.boxes()):
        inside = rows[(slice(None), *box)]
        lengths = inside.shape[1:]
        target = chunks[:, place][(slice(None), slice(None), *(slice(0, n) for n in lengths))]
        target[...] = inside.reshape(n_rows, n_each, *lengths)
    return chunks


def read_extents(
    path: Path, file: ShardFile, array: ArrayLayout, *, n_samples: int, room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offset and length of the extents of each sample of a shard: (samples, extents).

    ``room`` is for how many samples its index has places.
    """
    name, n_each = path / file.name, array.n_samples
    nbytes = open_file_size(name, expected=file.nbytes)
    n_rows = -(-n_samples // n_each)
    index_nbytes = room // n_each * array.n_chunks * ENTRY_NBYTES
    data_nbytes = nbytes - index_nbytes - CHECKSUM_NBYTES
    if data_nbytes < 0:  # before anything is allocated
        raise StoreError(f"{name}: {nbytes} bytes are less than its index; convert to a new folder")
    with storage_errors(name), name.open("rb", buffering=0) as stream:
        stream.seek(data_nbytes)
        raw, stored = stream.read(index_nbytes), stream.read(CHECKSUM_NBYTES)
    if len(raw) != index_nbytes or crc32c(raw) != int.from_bytes(stored, "little"):
        raise StoreError(f"{name}: checksum of its index is wrong; convert to a new folder")
    index = np.frombuffer(raw, dtype="<u8").reshape(-1, 2)
    n_held = n_rows * array.n_chunks
    offsets, lengths = index[:n_held].astype(np.int64).T
    ends = np.cumsum(lengths)
    tiles = np.array_equal(offsets, ends - lengths) and (lengths > 0).all()
    if not tiles or ends[-1] != data_nbytes or (index[n_held:] != ABSENT).any():
        raise StoreError(
            f"{name}: its index does not describe the chunks of {n_samples} samples one after "
            "another; convert to a new folder"
        )
    starts, sizes = offsets.reshape(n_rows, -1), lengths.reshape(n_rows, -1)
    if not array.is_encoded:  # all of a sample are one extent
        return starts[:, :1], sizes.sum(axis=1, keepdims=True)
    of_samples = np.arange(n_samples) // n_each
    return starts[of_samples], sizes[of_samples]
