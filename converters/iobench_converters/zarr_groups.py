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

from iobench.coordinates import SampleLabels
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
    parse_json,
    read_meteorology,
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
    METADATA_NAME,
    array_metadata,
    coordinate_chunk,
    coordinate_metadata,
    group_metadata,
    read_shard_shape,
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
    from iobench.stores import StoreLabels


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
        box = _check_metadata(path, manifest, arrays)
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
        known = read_meteorology(path, manifest)
        labels = label_store(
            {array.folder: array.variable for array in arrays},
            known,
            manifest.n_samples,
            manifest.sample_grid,
            is_free=lambda name: is_free(name, arrays),
        )
        box = shard_shape([*manifest.sample_grid.values()], n_samples)
        described = _described(arrays, labels, box)
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
        self._is_encoded = arrays[0].is_encoded
        ends = np.cumsum([array.n_extents for array in arrays]).tolist()
        self._firsts = [end - array.n_extents for end, array in zip(ends, arrays, strict=True)]
        self._places = [
            (array, box)
            for array in arrays
            for box in (array.boxes() if array.is_encoded else [()])
        ]
        decoders = [array.codecs.decoder(array.dtype.itemsize) for array in arrays]
        self._decoders = [
            decode
            for array, decode in zip(arrays, decoders, strict=True)
            for _ in range(array.n_extents)
        ]
        self._whole = [
            (array.dtype, array.shape, array.nbytes)
            if not array.is_encoded and array.n_chunks == 1
            else None
            for array in arrays
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkDecoder, (self.spec, self.arrays)

    def __call__(self, raw: Sequence[memoryview]) -> dict[str, NDArray[Any]]:
        """Return the arrays; raise StoreError where the bytes are not those of a sample."""
        found: dict[str, NDArray[Any]] = {}
        for name, array, first, whole in zip(
            self.spec.names, self.arrays, self._firsts, self._whole, strict=True
        ):
            if whole is None:
                rows = self._rows(array, first, raw[first : first + array.n_extents])
                found[name] = rows if array.n_samples > 1 else rows[0]
                continue
            dtype, shape, nbytes = whole
            if len(raw[first]) != nbytes:
                raise _wrong_size(array, raw[first])
            found[name] = np.frombuffer(raw[first], dtype).reshape(shape)
        return found

    def fields(self, raw: Sequence[memoryview]) -> FieldLayout | None:
        """Return where the arrays lie, None where chunks are encoded or several a sample."""
        if None in self._whole:
            return None
        return FieldLayout.of_views(raw, self(raw), is_tagged=False)

    def chunked_arrays(self) -> tuple[ChunkedArray, ...]:
        """Return the variables; `iobench.stores.fields.ChunkedDecoder`."""
        return tuple(
            ChunkedArray(
                array.variable.name, array.shape, array.chunk, array.dtype.str, first,
                array.is_encoded,
            )
            for array, first in zip(self.arrays, self._firsts, strict=True)
        )  # fmt: skip

    def decode_chunk(self, number: int, data: memoryview, out: NDArray[np.uint8]) -> None:
        """Write the numbers of one encoded chunk."""
        self._decoders[number](data, out)

    def decode_array(self, name: str, chunks: Sequence[memoryview]) -> NDArray[Any]:
        """Return a variable of all samples of its chunks, side by side."""
        number = self.spec.names.index(name)
        return self._rows(self.arrays[number], self._firsts[number], chunks)

    def decode_into(self, number: int, data: memoryview, rows: Mapping[str, NDArray[Any]]) -> None:
        """Write one extent to its row; `iobench.stores.RowDecoder`."""
        array, box = self._places[number]
        row = rows[array.variable.name]
        if not self._is_encoded:
            _join(array, data, row[None])
        elif array.n_chunks == 1:
            self.decode_chunk(number, data, row.reshape(-1).view(np.uint8))
        else:
            self._decode_box(number, data, row[None], box)

    def _rows(self, array: ArrayLayout, first: int, chunks: Sequence[memoryview]) -> NDArray[Any]:
        rows = np.empty((array.n_samples, *array.shape), dtype=array.dtype)
        if not array.is_encoded:
            _join(array, chunks[0], rows)
            return rows
        for number, data in enumerate(chunks, first):
            if array.n_chunks == 1:
                self.decode_chunk(number, data, rows.reshape(-1).view(np.uint8))
            else:
                self._decode_box(number, data, rows, self._places[number][1])
        return rows

    def _decode_box(
        self, number: int, data: memoryview, rows: NDArray[Any], box: tuple[slice, ...]
    ) -> None:
        array = self._places[number][0]
        numbers = np.empty((len(rows), *array.chunk), dtype=array.dtype)
        self.decode_chunk(number, data, numbers.reshape(-1).view(np.uint8))
        _place(numbers, rows, box)


def _join(array: ArrayLayout, data: memoryview, rows: NDArray[Any]) -> None:
    """Write a sample from its chunks, without what is beyond its edges."""
    if len(data) != array.n_chunks * array.chunk_nbytes:
        raise _wrong_size(array, data)
    chunks = np.frombuffer(data, dtype=array.dtype).reshape(-1, 1, *array.chunk)
    for chunk, box in zip(chunks, array.boxes(), strict=True):
        _place(chunk, rows, box)


def _place(chunk: NDArray[Any], rows: NDArray[Any], box: tuple[slice, ...]) -> None:
    target = rows[(slice(None), *box)]
    target[...] = chunk[(slice(None), *(slice(0, n) for n in target.shape[1:]))]


def _wrong_size(array: ArrayLayout, data: memoryview) -> StoreError:
    return StoreError(f"{len(data)} bytes are not one sample of {array.folder}")


def _described(
    arrays: Sequence[ArrayLayout], labels: StoreLabels, box: Sequence[int]
) -> dict[str, dict[str, Any]]:
    return {array.folder: array_metadata(array, labels, shard=box) for array in arrays}


def _check_metadata(
    path: Path, manifest: Manifest, arrays: Sequence[ArrayLayout]
) -> tuple[int, ...]:
    """Return for how many samples a shard has room, after comparing every ``zarr.json``.

    Along each of the samples' dimensions. That is all that is taken from the files: all of it is
    as the manifest's checksums say, and what tells readers where samples lie as it should be.
    """
    listed = {file.name: file for file in manifest.metadata}
    names = [f"{array.folder}/{METADATA_NAME}" for array in arrays]
    if not {*names, METADATA_NAME} <= listed.keys():
        raise StoreError(
            f"{path}: its manifest lists no {METADATA_NAME} of it or its arrays; convert the store "
            "again"
        )
    grid = manifest.sample_grid
    box = read_shard_shape(path, listed[names[0]], max(1, len(grid)))
    labels = label_store(
        {array.folder: array.variable for array in arrays}, SampleLabels(), manifest.n_samples, grid
    )
    described = _described(arrays, labels, box)
    expected = {f"{name}/{METADATA_NAME}": each for name, each in described.items()}
    for name, file in listed.items():
        open_file_size(path / name, expected=file.nbytes)
        if not name.endswith(METADATA_NAME):
            continue  # the numbers of a coordinate, which opening does not need
        with storage_errors(path / name):
            content = (path / name).read_bytes()
        if crc32c(content) != file.crc32c or not _is_placed(content, expected.get(name)):
            raise StoreError(f"{path / name}: not as written; convert to a new folder")
    room = math.prod(box)
    if any(shard.n_samples > room for shard in manifest.shards) or any(
        shard.n_samples != room for shard in manifest.shards[:-1]
    ):
        raise StoreError(f"{path}: shards are not of {room} samples each; convert to a new folder")
    return box


def _is_placed(content: bytes, expected: Mapping[str, Any] | None) -> bool:
    """Return whether a document says of an array what is expected of it, if that is known."""
    if expected is None:
        return True
    try:
        return _placed(parse_json(content)) == _placed(expected)
    except (ValueError, AttributeError):  # no JSON, or no object
        return False


def _placed(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array but for names and attributes."""
    return {k: v for k, v in metadata.items() if k not in ("attributes", "dimension_names")}
