"""Zarr v3: a group of sharded arrays, readable by zarr-python, xarray, tensorstore and others.

An inner chunk is one sample (``chunk-samples``: several; ``inner-chunk``: a patch), a shard of the
plan is the file ``c.0.0.0`` in the folder of each array: chunk after chunk, the index at the end.
That has offset and length of each chunk as little-endian uint64, both 2**64 - 1 where there is
none, and the CRC-32C of it. Raw by default: a sample is an extent of each array and needs no
decoding; ``codec`` encodes each chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    ChunkedArray,
    ChunkedStore,
    Encode,
    EncodedStack,
    ExtentStore,
    ExtentTable,
    FieldLayout,
    Manifest,
    ShardFile,
    ShardPlan,
    ShardWriter,
    Store,
    canonical_json,
    crc32c,
    label_store,
    octets,
    open_file_size,
    read_index,
    row_checksums,
    storage_errors,
    write_atomically,
)
from iobench_converters.zarr_metadata import (
    ZarrOptions,
    array_metadata,
    check_folders,
    coordinate_chunk,
    coordinate_metadata,
    group_metadata,
    is_free,
    plan_arrays,
    shard_box,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec
    from iobench.stores import Decode

METADATA_NAME: Final = "zarr.json"
MAX_METADATA_NBYTES: Final = 1 << 28
ENTRY_NBYTES: Final = 16
CHECKSUM_NBYTES: Final = 4
ABSENT: Final = np.iinfo(np.uint64).max


@dataclass(frozen=True, slots=True)
class ZarrFormat:
    """The format ``zarr``: version 3, an array for each variable, a chunk for each sample.

    Option ``codec`` is ``none`` (default), or what encodes each chunk: ``zstd``,
    ``blosc:cname=zstd,clevel=3``, ``shuffle,lz4``; ``bitround:keepbits=10,zstd`` rounds before.

    Option ``chunk-samples`` is how many samples a chunk holds: 1 (default) or more.

    Option ``inner-chunk`` cuts samples into chunks, as ``inner-chunk=y=256,x=256``.
    """

    name: str = "zarr"
    version: int = 1

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the file that does not fit."""
        try:
            options = ZarrOptions.parse(manifest.options)
            arrays = plan_arrays(manifest.spec, options)
        except (OptionError, SampleError) as error:
            raise StoreError(
                f"{path}: its manifest says what zarr does not hold: {error}"
            ) from error
        box = _full_shard(path, manifest, f"{arrays[0].folder}/{METADATA_NAME}")
        offsets, lengths = [], []
        for number, shard in enumerate(manifest.shards):
            names = shard_names(arrays, number, [*manifest.sample_grid.values()], box)
            if [file.name for file in shard.files] != names:
                raise StoreError(f"{path}: shard {number} is not one file for each array")
            result = [
                _read_extents(path, file, array, n_samples=shard.n_samples, capacity=math.prod(box))
                for file, array in zip(shard.files, arrays, strict=True)
            ]
            offsets.append(np.concatenate([offset for offset, _ in result], axis=1))
            lengths.append(np.concatenate([length for _, length in result], axis=1))
        starts = [array.extent for array in arrays]
        files = np.searchsorted(starts, np.arange(arrays[-1].extents.stop), side="right") - 1
        table = ExtentTable.of_shards(
            path, manifest.shards, offsets, np.concatenate(lengths), file_numbers=files
        )
        kind = ChunkedStore if options.chunk_samples > 1 else ExtentStore
        store = kind(path, manifest, table=table, decode=ChunkDecoder(manifest.spec, arrays))
        store.codec = manifest.options.get("codec", "none")
        return store

    def encoder(self, spec: SampleSpec, options: Mapping[str, str]) -> Encode:
        """Return what cuts samples side by side into the chunks of each array, and encodes them."""
        arrays = plan_arrays(spec, ZarrOptions.parse(options))

        def encode(rows: Mapping[str, NDArray[Any]]) -> EncodedStack:
            stored = [_stored(each, rows[each.variable.name]) for each in arrays]
            buffers, lengths, checksums = zip(*stored, strict=True)
            return EncodedStack(buffers, np.concatenate(checksums, axis=1), lengths)

        return encode

    def writer(
        self, path: Path, spec: SampleSpec, plan: ShardPlan, options: Mapping[str, str]
    ) -> ZarrWriter:
        """Return a writer of a shard of the store at ``path``."""
        return ZarrWriter(path, plan, plan_arrays(spec, ZarrOptions.parse(options)))

    def chunk_samples(self, options: Mapping[str, str]) -> int:
        """Return how many samples a chunk holds; shards begin at multiples of it."""
        return ZarrOptions.parse(options).chunk_samples

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise OptionError for one that there is not."""
        ZarrOptions.parse(options)

    def renamed(self, spec: SampleSpec) -> Mapping[str, str]:
        """Return the array of each variable whose name is none that an array can have."""
        arrays = plan_arrays(spec, ZarrOptions())
        return {a.variable.name: a.folder for a in arrays if a.folder != a.variable.name}

    def describe(self, path: Path, manifest: Manifest, *, n_samples: int) -> tuple[ShardFile, ...]:
        """Write ``zarr.json`` of arrays and coordinates, then that of the group; return all files.

        Those of coordinates, too, which are arrays of a chunk each.
        """
        options = ZarrOptions.parse(manifest.options)
        arrays = plan_arrays(manifest.spec, options)
        check_folders(path, arrays)
        known = read_index(path, manifest).meteorology
        labels = label_store(
            {array.folder: array.variable for array in arrays},
            known,
            manifest.n_samples,
            manifest.sample_grid,
            is_free=lambda name: is_free(name, arrays),
        )
        box = shard_shape([*manifest.sample_grid.values()], n_samples)
        described = {a.folder: array_metadata(a, labels, shard=box) for a in arrays}
        described |= {each.name: coordinate_metadata(each) for each in labels.coordinates}
        group = group_metadata(described, title=manifest.dataset, attributes=known.attributes)
        texts = {f"{n}/{METADATA_NAME}": canonical_json(v).encode() for n, v in described.items()}
        for each in labels.coordinates:
            key, chunk = coordinate_chunk(each)
            texts[f"{each.name}/{key}"] = chunk
        texts[METADATA_NAME] = canonical_json(group).encode()
        for name, text in texts.items():
            file = path / name
            with storage_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)  # a coordinate's first file
            write_atomically(file, text)
        return tuple(ShardFile(name, len(text), crc32c(text)) for name, text in texts.items())


FORMAT: Final = ZarrFormat()


# ---- writing


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


def shard_names(
    arrays: Sequence[ChunkedArray], shard: int, grid: Sequence[int], shape: Sequence[int]
) -> list[str]:
    """Return the files of a shard, from the store's folder: one shard spans all but samples."""
    place = shard_place(shard, grid, shape)
    return [f"{a.folder}/c.{'.'.join(map(str, [*place, *(0 for _ in a.shape)]))}" for a in arrays]


class ZarrWriter(ShardWriter):
    """Writes one shard of every array."""

    def __init__(self, path: Path, plan: ShardPlan, arrays: Sequence[ChunkedArray]) -> None:
        grid = [*plan.sample_grid.values()]
        box = shard_shape(grid, plan.full_n_samples)
        super().__init__(path, plan, shard_names(arrays, plan.number, grid, box))
        self._layouts = arrays

    def finish(self) -> None:
        """Write the indexes, with places for all samples of a full shard."""
        for layout, file, known in zip(self._layouts, self.files, self.lengths, strict=True):
            n_rows = -(-self.plan.full_n_samples // layout.n_samples)
            index = np.full((n_rows * layout.n_chunks, 2), ABSENT, dtype="<u8")
            lengths = np.array(known, dtype=np.int64)
            index[: lengths.size, 0] = np.cumsum(lengths) - lengths
            index[: lengths.size, 1] = lengths
            data = index.reshape(-1).view(np.uint8).data
            file.write(data, crc32c(data).to_bytes(CHECKSUM_NBYTES, "little"))


def _stored(
    layout: ChunkedArray, rows: NDArray[Any]
) -> tuple[Sequence[Any], NDArray[np.int64], NDArray[np.uint32]]:
    """Return samples as they are in the file of their array: buffers, lengths, checksums."""
    n_samples, n_each = len(rows), layout.n_samples
    if n_samples % n_each:  # the last ones of the store: what is beyond them is zero
        more = np.zeros((n_each - n_samples % n_each, *rows.shape[1:]), dtype=rows.dtype)
        rows = np.concatenate([rows, more])
    chunks = rows if layout.n_chunks == 1 else _cut(layout, rows)
    if not layout.is_encoded:
        data = octets(chunks)
        lengths = np.full(n_samples * layout.n_chunks, layout.chunk_nbytes, dtype=np.int64)
        return [data.reshape(-1).data], lengths, row_checksums(data)[:, None]
    flat = np.ascontiguousarray(chunks).reshape(-1, n_each * math.prod(layout.chunk))
    pieces = [layout.codecs.encode(chunk) for chunk in flat]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    crcs = np.array(list(map(crc32c, pieces)), dtype=np.uint32).reshape(-1, layout.n_chunks)
    return pieces, lengths, np.repeat(crcs, n_each, axis=0)[:n_samples]


def _cut(layout: ChunkedArray, rows: NDArray[Any]) -> NDArray[Any]:
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


# ---- reading


def _read_extents(
    path: Path, file: ShardFile, array: ChunkedArray, *, n_samples: int, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offset and length of the extents of each sample of a shard: (samples, extents).

    ``capacity`` is for how many samples its index has places.
    """
    name, n_each = path / file.name, array.n_samples
    nbytes = open_file_size(name, expected=file.nbytes)
    n_rows = -(-n_samples // n_each)
    index_nbytes = capacity // n_each * array.n_chunks * ENTRY_NBYTES
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


class ChunkDecoder:
    """Turns the stored chunks of one sample into its arrays; views where nothing is encoded.

    Where chunks hold several samples, of all of these side by side.
    """

    def __init__(self, spec: SampleSpec, arrays: tuple[ChunkedArray, ...]) -> None:
        self.spec, self.arrays = spec, arrays
        # What does not change from sample to sample is worked out once: small samples notice.
        self.chunk_samples = arrays[0].n_samples
        self._extents: list[tuple[ChunkedArray, tuple[slice, ...], Decode]] = []
        for array in arrays:
            decode = array.codecs.decoder(array.dtype.itemsize)
            boxes = list(array.boxes()) if array.is_encoded else [()]
            self._extents += [(array, box, decode) for box in boxes]
        self._by_name = {
            name: (array, array.extents, not array.is_encoded and array.n_chunks == 1)
            for name, array in zip(spec.names, arrays, strict=True)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkDecoder, (self.spec, self.arrays)

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise StoreError where the bytes are not those of a sample."""
        result: dict[str, NDArray[Any]] = {}
        for name, (array, some, is_view) in self._by_name.items():
            if is_view:
                data = _sized(array, raw[some.start])
                result[name] = np.frombuffer(data, array.dtype).reshape(array.shape)
            else:
                rows = self.decode_array(name, raw[some])
                result[name] = rows if array.n_samples > 1 else rows[0]
        return result

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout | None:
        """Return where the arrays lie, None where chunks are encoded or several a sample."""
        if not all(is_view for *_, is_view in self._by_name.values()):
            return None
        return FieldLayout.of_views(raw, self(raw), is_tagged=False)

    def decode_chunk(self, number: int, data: memoryview, out: NDArray[np.uint8]) -> None:
        """Write the numbers of one encoded chunk."""
        self._extents[number][2](data, out)

    def decode_array(self, name: str, chunks: Sequence[memoryview]) -> NDArray[Any]:
        """Return a variable of all samples of its chunks, side by side."""
        array, some, _ = self._by_name[name]
        rows = np.empty((array.n_samples, *array.shape), dtype=array.dtype)
        for number, data in enumerate(chunks, some.start):
            self._decode(number, data, rows)
        return rows

    def decode_into(self, number: int, data: memoryview, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write one extent to its row."""
        self._decode(number, data, rows[self._extents[number][0].variable.name][None])

    def _decode(self, number: int, data: memoryview, rows: NDArray[Any]) -> None:
        """Write one extent; what of a chunk is beyond the edges is left out."""
        array, box, decode = self._extents[number]
        if array.is_encoded and array.n_chunks == 1:
            decode(data, rows.reshape(-1).view(np.uint8))
            return
        if array.is_encoded:
            chunks, boxes = np.empty((1, len(rows), *array.chunk), array.dtype), [box]
            decode(data, chunks.reshape(-1).view(np.uint8))
        else:
            chunks = np.frombuffer(_sized(array, data), dtype=array.dtype)
            chunks, boxes = chunks.reshape(-1, 1, *array.chunk), list(array.boxes())
        for chunk, place in zip(chunks, boxes, strict=True):
            target = rows[(slice(None), *place)]
            target[...] = chunk[(slice(None), *(slice(0, n) for n in target.shape[1:]))]


def _sized(array: ChunkedArray, data: memoryview) -> memoryview:
    if len(data) != array.n_chunks * array.chunk_nbytes:
        raise StoreError(f"{len(data)} bytes are not one sample of {array.folder}")
    return data


def _full_shard(path: Path, manifest: Manifest, name: str) -> tuple[int, ...]:
    """Return how many samples a full shard holds along each dimension, by an array's metadata."""
    for each in manifest.metadata:
        open_file_size(path / each.name, expected=each.nbytes)
    file = next((each for each in manifest.metadata if each.name == name), None)
    if file is None:
        raise StoreError(f"{path}: its manifest does not list {name}; convert to a new folder")
    with storage_errors(path / name):
        content = (path / name).read_bytes() if file.nbytes <= MAX_METADATA_NBYTES else b""
    if crc32c(content) != file.crc32c:
        raise StoreError(f"{path / name}: not as written; convert to a new folder")
    box = shard_box(path / name, content, max(1, len(manifest.sample_grid)))
    capacity = math.prod(box)
    if any(shard.n_samples > capacity for shard in manifest.shards) or any(
        shard.n_samples != capacity for shard in manifest.shards[:-1]
    ):
        raise StoreError(
            f"{path / name}: shards are not of {capacity} samples each; convert to a new folder"
        )
    return box
