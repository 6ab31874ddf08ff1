"""Zarr v3: a group of sharded arrays, readable by zarr-python, xarray, tensorstore and others.

An inner chunk is one sample (``chunk-samples``: several; ``inner-chunk``: a patch), a shard of the
plan is the file ``c.0.0.0`` in the folder of each array. Raw by default: a sample is an extent of
each array and needs no decoding; ``codec`` encodes each chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, SampleError, StoreError
from iobench.stores import (
    ChunkedArray,
    ChunkedStore,
    Encode,
    ExtentStore,
    ExtentTable,
    FieldLayout,
    Manifest,
    ShardFile,
    Store,
    crc32c,
    label_store,
    open_file_size,
    read_labels,
    storage_errors,
    write_atomically,
)
from iobench_converters.zarr_layout import (
    OPTION_DEFAULTS,
    OPTION_NAMES,
    ArrayLayout,
    ZarrOptions,
    check_folders,
    is_free,
    plan_arrays,
    renamed_variables,
)
from iobench_converters.zarr_metadata import (
    MAX_METADATA_NBYTES,
    METADATA_NAME,
    array_metadata,
    coordinate_chunk,
    coordinate_metadata,
    group_metadata,
    shard_box,
    to_bytes,
)
from iobench_converters.zarr_shards import (
    ZarrWriter,
    encoder,
    read_extents,
    shard_name,
    shard_place,
    shard_shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.samples import SampleSpec
    from iobench.stores import Decode


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
    option_names: tuple[str, ...] = OPTION_NAMES
    grid: tuple[int, ...] = ()
    """Lengths of the samples' dimensions, of a store with several."""
    box: tuple[int, ...] = (1,)
    """What a full shard has of each."""

    @property
    def option_defaults(self) -> Mapping[str, str]:
        """What an option is that is not given."""
        return OPTION_DEFAULTS

    def open(self, path: Path, manifest: Manifest) -> Store:
        """Open a finished store; raise StoreError naming the file that does not fit."""
        try:
            options = ZarrOptions.parse(manifest.options)
            arrays = plan_arrays(manifest.spec, options)
        except (OptionError, SampleError) as error:
            raise StoreError(
                f"{path}: its manifest says what zarr does not hold: {error}"
            ) from error
        names = [f"{array.folder}/{METADATA_NAME}" for array in arrays]
        box = _check_metadata(path, manifest, names)
        room, grid = math.prod(box), [*manifest.sample_grid.values()]
        offsets, lengths = [], []
        for number, shard in enumerate(manifest.shards):
            place = shard_place(number, grid, box)
            if [file.name for file in shard.files] != [shard_name(a, place) for a in arrays]:
                raise StoreError(f"{path}: shard {number} is not one file for each array")
            found = [
                read_extents(path, file, array, n_samples=shard.n_samples, room=room)
                for file, array in zip(shard.files, arrays, strict=True)
            ]
            offsets.append(np.concatenate([offset for offset, _ in found], axis=1))
            lengths.append(np.concatenate([length for _, length in found], axis=1))
        counts = [shard.n_samples for shard in manifest.shards]
        first = np.repeat(np.arange(len(counts)) * len(arrays), counts)[:, None]
        files = np.repeat(np.arange(len(arrays)), [array.n_extents for array in arrays])
        table = ExtentTable(
            files=tuple(path / file.name for shard in manifest.shards for file in shard.files),
            file=(first + files).astype(np.uint32),
            offset=np.concatenate(offsets),
            length=np.concatenate(lengths),
        )
        kind = ChunkedStore if options.chunk_samples > 1 else ExtentStore
        store = kind(path, manifest, table=table, decode=ChunkDecoder(manifest.spec, arrays))
        store.codec = manifest.options.get("codec", "none")
        return store

    def writer(
        self,
        path: Path,
        spec: SampleSpec,
        *,
        shard: int,
        options: Mapping[str, str],
        n_samples: int | None = None,
    ) -> ZarrWriter:
        """Return a writer of shard number ``shard`` of the store at ``path``."""
        chosen = ZarrOptions.parse(options)
        arrays = plan_arrays(spec, chosen)
        return ZarrWriter(
            path,
            spec,
            arrays,
            shard=shard,
            n_samples=n_samples,
            place=shard_place(shard, self.grid, self.box),
        )

    def encoder(self, spec: SampleSpec, options: Mapping[str, str]) -> Encode:
        """Return what encodes samples side by side, in any thread."""
        return encoder(plan_arrays(spec, ZarrOptions.parse(options)))

    def chunk_samples(self, options: Mapping[str, str]) -> int:
        """Return how many samples a chunk holds; shards begin at multiples of it."""
        return ZarrOptions.parse(options).chunk_samples

    def check_options(self, options: Mapping[str, str]) -> None:
        """Raise OptionError for a value that there is not."""
        ZarrOptions.parse(options)

    def renamed(self, spec: SampleSpec) -> Mapping[str, str]:
        """Return the array of each variable whose name is none that an array can have."""
        return renamed_variables(spec)

    def on_grid(self, grid: Mapping[str, int], *, n_samples: int) -> ZarrFormat:
        """Return the format for a store whose samples have several dimensions."""
        lengths = tuple(grid.values())
        return replace(self, grid=lengths, box=shard_shape(lengths, n_samples))

    def describe(self, path: Path, manifest: Manifest, *, n_samples: int) -> tuple[ShardFile, ...]:
        """Write ``zarr.json`` of arrays and coordinates, then that of the group; return all files.

        Those of coordinates, too, which are arrays of a chunk each.
        """
        options = ZarrOptions.parse(manifest.options)
        arrays = plan_arrays(manifest.spec, options)
        check_folders(path, arrays)
        known = read_labels(path, manifest)
        labels = label_store(
            {array.folder: array.variable for array in arrays},
            known,
            manifest.n_samples,
            manifest.sample_grid,
            is_free=lambda name: is_free(name, arrays),
        )
        box = shard_shape([*manifest.sample_grid.values()], n_samples)
        described = {a.folder: array_metadata(a, labels, shard=box) for a in arrays}
        texts = {f"{name}/{METADATA_NAME}": to_bytes(each) for name, each in described.items()}
        for each in labels.coordinates:
            described[each.name] = coordinate_metadata(each)
            texts[f"{each.name}/{METADATA_NAME}"] = to_bytes(described[each.name])
            key, chunk = coordinate_chunk(each)
            texts[f"{each.name}/{key}"] = chunk
        group = group_metadata(described, title=manifest.dataset, attributes=known.attributes)
        texts[METADATA_NAME] = to_bytes(group)
        for name, text in texts.items():
            file = path / name
            with storage_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)  # a coordinate's first file
            write_atomically(file, text)
        return tuple(ShardFile(name, len(text), crc32c(text)) for name, text in texts.items())


FORMAT: Final = ZarrFormat()


class ChunkDecoder:
    """Turns the stored chunks of one sample into its arrays; views where nothing is encoded.

    Where chunks hold several samples, of all of these side by side.
    """

    def __init__(self, spec: SampleSpec, arrays: tuple[ArrayLayout, ...]) -> None:
        self.spec, self.arrays = spec, arrays
        # What does not change from sample to sample is worked out once: small samples notice.
        self.chunk_samples = arrays[0].n_samples
        self._slices: dict[str, slice] = {}
        self._extents: list[tuple[ArrayLayout, tuple[slice, ...], Decode]] = []
        for name, array in zip(spec.names, arrays, strict=True):
            first, decode = len(self._extents), array.codecs.decoder(array.dtype.itemsize)
            boxes = list(array.boxes()) if array.is_encoded else [()]
            self._extents += [(array, box, decode) for box in boxes]
            self._slices[name] = slice(first, len(self._extents))
        self._are_views = [not array.is_encoded and array.n_chunks == 1 for array in arrays]

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkDecoder, (self.spec, self.arrays)

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise StoreError where the bytes are not those of a sample."""
        found: dict[str, NDArray[Any]] = {}
        for (name, some), array, is_view in zip(
            self._slices.items(), self.arrays, self._are_views, strict=True
        ):
            if is_view:
                data = _sized(array, raw[some.start])
                found[name] = np.frombuffer(data, array.dtype).reshape(array.shape)
            else:
                rows = self.decode_array(name, raw[some])
                found[name] = rows if array.n_samples > 1 else rows[0]
        return found

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout | None:
        """Return where the arrays lie, None where chunks are encoded or several a sample."""
        if not all(self._are_views):
            return None
        return FieldLayout.of_views(raw, self(raw), is_tagged=False)

    def chunked_arrays(self) -> tuple[ChunkedArray, ...]:
        """Return the variables; `iobench.stores.fields.ChunkedDecoder`."""
        return tuple(
            ChunkedArray(
                name, array.shape, array.chunk, array.dtype.str, some.start, array.is_encoded
            )
            for (name, some), array in zip(self._slices.items(), self.arrays, strict=True)
        )

    def decode_chunk(self, number: int, data: memoryview, out: NDArray[np.uint8]) -> None:
        """Write the numbers of one encoded chunk."""
        self._extents[number][2](data, out)

    def decode_array(self, name: str, chunks: Sequence[memoryview]) -> NDArray[Any]:
        """Return a variable of all samples of its chunks, side by side."""
        array = self.arrays[self.spec.names.index(name)]
        rows = np.empty((array.n_samples, *array.shape), dtype=array.dtype)
        for number, data in enumerate(chunks, self._slices[name].start):
            self._decode(number, data, rows)
        return rows

    def decode_into(self, number: int, data: memoryview, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write one extent to its row; `iobench.stores.RowDecoder`."""
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


def _sized(array: ArrayLayout, data: memoryview) -> memoryview:
    if len(data) != array.n_chunks * array.chunk_nbytes:
        raise StoreError(f"{len(data)} bytes are not one sample of {array.folder}")
    return data


def _check_metadata(path: Path, manifest: Manifest, names: Sequence[str]) -> tuple[int, ...]:
    """Return how many samples a full shard holds along each of their dimensions.

    Every ``zarr.json`` is compared with the manifest's checksum first.
    """
    listed = {file.name: file for file in manifest.metadata}
    if not {*names, METADATA_NAME} <= listed.keys():
        raise StoreError(
            f"{path}: its manifest lists no {METADATA_NAME} of it or its arrays; convert the store "
            "again"
        )
    box: tuple[int, ...] = ()
    for name, file in listed.items():
        open_file_size(path / name, expected=file.nbytes)
        if not name.endswith(METADATA_NAME):
            continue  # the numbers of a coordinate, which opening does not need
        with storage_errors(path / name):
            content = (path / name).read_bytes() if file.nbytes <= MAX_METADATA_NBYTES else b""
        if crc32c(content) != file.crc32c:
            raise StoreError(f"{path / name}: not as written; convert to a new folder")
        if name == names[0]:
            box = shard_box(path / name, content, max(1, len(manifest.sample_grid)))
    room = math.prod(box)
    if any(shard.n_samples > room for shard in manifest.shards) or any(
        shard.n_samples != room for shard in manifest.shards[:-1]
    ):
        raise StoreError(
            f"{path / names[0]}: shards are not of {room} samples each; convert to a new folder"
        )
    return box
