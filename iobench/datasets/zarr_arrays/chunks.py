"""One index of an array, or all of it: the bytes of the chunks that hold it, and its numbers."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.codec_chain import DamagedChunkError, decode_chunk
from iobench.datasets.cached import (
    ChunkedPart,
    Place,
    join_chunks,
    places_touched,
    read_parts,
)
from iobench.datasets.extents import read_extents
from iobench.datasets.memory import from_heap
from iobench.datasets.source_bytes import cached_source_file, file_nbytes, read_whole_files
from iobench.datasets.used_bytes import note_used
from iobench.errors import FileFormatError, MissingFileError
from iobench.files.ranges import FileRange
from iobench.files.urls import file_below, is_url
from iobench.stores.checksums import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.datasets.cached import StoredArrays
    from iobench.datasets.decoded_chunks import DecodedChunks
    from iobench.datasets.extents import Allocate
    from iobench.datasets.zarr_arrays.arrays import Chunking, Sharding, ZarrVariable

__all__ = [
    "Cut",
    "check_held",
    "chunk_nbytes",
    "cut_array",
    "cut_places",
    "decode_stored_chunk",
    "missing_keys",
    "read_chunks",
    "read_cut",
    "read_cuts",
    "read_shard_index",
]

ABSENT = (1 << 64) - 1
"""Offset and length of a chunk that a shard does not hold."""

SHARD_INDEXES = 256
LARGE_NBYTES, LARGE_LENGTH = 1 << 32, 1 << 22
"""Of an array, or along one of its axes: from there on chunks are counted before it is believed."""

SPARSE = 64
"""How many times the numbers of its chunks an array may have: the others were never written."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """One index of a variable along ``axis``; ``axis`` -1: all of it."""

    variable: ZarrVariable
    axis: int = -1
    index: int = -1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the cut: the variable's without ``axis``."""
        shape = self.variable.shape
        return shape if self.axis < 0 else shape[: self.axis] + shape[self.axis + 1 :]

    @property
    def start(self) -> tuple[int, ...]:
        """First index along each dimension of the variable."""
        axes = range(len(self.variable.shape))
        return tuple(self.index if axis == self.axis else 0 for axis in axes)

    @property
    def stop(self) -> tuple[int, ...]:
        """Behind the last index along each dimension of the variable."""
        ends = enumerate(self.variable.shape)
        return tuple(self.index + 1 if axis == self.axis else end for axis, end in ends)


def read_cut(cut: Cut) -> list[memoryview | None]:
    """Return the stored bytes of the chunks that hold the cut, None for those never written.

    Of a shard no more is read than its index, once, and those chunks.

    Raises
    ------
    FileFormatError
        If a shard's index is damaged, or a shard ends before a chunk does.
    StorageError
        If a file cannot be read.
    """
    if cut.axis < 0:
        check_held(cut.variable)
    return read_chunks(cut.variable, cut_places(cut))


def read_chunks(
    variable: ZarrVariable, places: Sequence[Place], *, allocate: Allocate = from_heap
) -> list[memoryview | None]:
    """Return the stored bytes of chunks as `read_cut` does, of those at these places."""
    chunking = _chunking(variable)
    if chunking.sharding is None:
        folder = variable.folder
        files = [file_below(folder, chunking.key(place)) for place in places]
        contents = read_whole_files(files, allocate=allocate)
        note_used([(f, 0, c) for f, c in zip(files, contents, strict=True) if c is not None])
        return contents
    found: list[memoryview | None] = [None] * len(places)
    extents = _extents_in_shards(variable, chunking, chunking.sharding, places)
    _check_ends(variable, chunking, extents)
    numbers = {place: number for number, place in enumerate(places)}
    buffers = read_extents(list(extents.values()), allocate=allocate)
    for place, buffer in zip(extents, buffers, strict=True):
        found[numbers[place]] = buffer
    return found


def check_held(variable: ZarrVariable) -> None:
    """Refuse an array whose metadata claim far more numbers than its chunks can hold.

    Lengths are what memory is asked for: a shape of a billion times is a few bytes of JSON. Nothing
    is counted of small arrays, nor of stores elsewhere, whose chunks it takes minutes to list.

    Raises
    ------
    FileFormatError
        If so: names store and array.
    """
    if variable.chunking is None or is_url(variable.folder) or not variable.shape:
        return
    itemsize = np.dtype(variable.dtype).itemsize
    n_numbers = math.prod(variable.shape)
    if n_numbers * itemsize <= LARGE_NBYTES and max(variable.shape) <= LARGE_LENGTH:
        return
    sharding = variable.chunking.sharding
    counts = (1,) * len(variable.shape) if sharding is None else sharding.chunks_per_shard
    chunk = [n * m for n, m in zip(variable.chunking.codecs.shape, counts, strict=True)]
    in_a_file = math.prod(map(min, chunk, variable.shape))
    needed = -(-n_numbers // (SPARSE * in_a_file))
    found = 0
    for _, _, files in os.walk(variable.folder):
        found += sum(not name.startswith((".z", "zarr.json")) for name in files)
        if found >= needed:
            return
    raise FileFormatError(
        f"{variable.store}: array {variable.name!r} claims the shape {list(variable.shape)}, and "
        f"its {found} chunks of {chunk} hold less than one in {SPARSE} of that; fetch the store "
        "again, or leave the array out with --variables"
    )


def chunk_nbytes(variable: ZarrVariable, place: Place) -> int:
    """Return the bytes that a chunk has in storage, 0 for one never written; reads none of it."""
    chunking = _chunking(variable)
    if chunking.sharding is None:
        return file_nbytes(variable.folder, chunking.key(place))
    extents = _extents_in_shards(variable, chunking, chunking.sharding, [place])
    return sum(length for _, _, length in extents.values())


def cut_array(cut: Cut, buffers: Sequence[memoryview | None]) -> NDArray[Any]:
    """Return the numbers of a cut as stored, from what `read_cut` returned.

    Raises
    ------
    FileFormatError
        If a chunk cannot be decoded, has a wrong size or checksum: names store, array and chunk.
    """
    chunks = dict(zip(cut_places(cut), buffers, strict=True))

    def decoded(place: Place) -> NDArray[Any] | None:
        stored = chunks[place]
        return None if stored is None else decode_stored_chunk(cut.variable, place, stored)

    variable = cut.variable
    joined = join_chunks(
        _chunking(variable).codecs.shape, cut.start, cut.stop, decoded,
        dtype=variable.dtype, fill=variable.fill,
    )  # fmt: skip
    return joined.reshape(cut.shape)


def read_cuts(kept: DecodedChunks, cuts: Sequence[Cut], sample: tuple[int, int]) -> StoredArrays:
    """Read what the cuts of a sample need and no thread has read or decoded already.

    Parameters
    ----------
    kept : DecodedChunks
        Of the source.
    cuts : sequence of Cut
        Of one store.
    sample : (int, int)
        Number of the store, index along the sample dimension.

    Returns
    -------
    StoredArrays
        Whose ``arrays()`` are what `cut_array` returns.
    """

    def read(wanted: Sequence[tuple[ChunkedPart, Place]]) -> list[memoryview | None]:
        places: dict[str, list[Place]] = {}
        for part, place in wanted:
            places.setdefault(part.name, []).append(place)
        variables = {part.name: part.source for part, _ in wanted}
        contents = {name: iter(read_chunks(variables[name], at)) for name, at in places.items()}
        return [next(contents[part.name]) for part, _ in wanted]

    return read_parts(kept, [_chunked_part(cut) for cut in cuts], sample, read)


def _chunked_part(cut: Cut) -> ChunkedPart:
    variable = cut.variable

    return ChunkedPart(
        source=variable,
        name=variable.name,
        array_shape=variable.shape,
        chunk=_chunking(variable).codecs.shape,
        start=cut.start,
        stop=cut.stop,
        shape=cut.shape,
        axis=cut.axis,
        of_all=False,
        dtype=variable.dtype,
        fill=variable.fill,
        decode=functools.partial(decode_stored_chunk, variable),
    )


def missing_keys(cuts: Sequence[Cut]) -> list[str | None]:
    """Return for each cut of one variable the first of its files that is not there, or None.

    One listing of the array's folder where all its chunks lie in it.
    """
    variable = cuts[0].variable
    chunking = _chunking(variable)
    nested = "/" in chunking.key([0] * len(variable.shape))
    present = set() if nested else {entry.name for entry in os.scandir(variable.folder)}
    found: list[str | None] = []
    for cut in cuts:
        keys = dict.fromkeys(_file_key(chunking, place) for place in cut_places(cut))
        if nested:
            absent = [key for key in keys if not Path(variable.folder, key).exists()]
        else:
            absent = [key for key in keys if key not in present]
        found.append(absent[0] if absent else None)
    return found


def _chunking(variable: ZarrVariable) -> Chunking:
    if variable.chunking is None:
        raise FileFormatError(
            f"{variable.store}: array {variable.name!r}: {variable.only_zarr}: read it through zarr"
        )
    return variable.chunking


def cut_places(cut: Cut) -> list[Place]:
    """Return the places of the chunks that the cut touches, in C order."""
    return list(places_touched(_chunking(cut.variable).codecs.shape, cut.start, cut.stop))


def decode_stored_chunk(variable: ZarrVariable, place: Place, stored: memoryview) -> NDArray[Any]:
    """Return the numbers of a chunk as stored, in the shape of a chunk, from its bytes.

    Raises
    ------
    FileFormatError
        If it cannot be decoded, has a wrong size or checksum: names store, array and chunk.
    """
    chunking = _chunking(variable)
    try:
        return decode_chunk(stored, chunking.codecs)
    except DamagedChunkError as error:
        raise _damaged(variable, _chunk_name(chunking, place), str(error)) from error


def _chunk_name(chunking: Chunking, place: Place) -> str:
    """Return the key of a chunk, for messages; of one in a shard, with its place."""
    key = _file_key(chunking, place)
    return key if chunking.sharding is None else f"{key} at {place}"


def _damaged(variable: ZarrVariable, name: str, reason: str) -> FileFormatError:
    return FileFormatError(
        f"{variable.store}: array {variable.name!r}: chunk {name} is damaged: {reason}; "
        "fetch the store again"
    )


def _file_key(chunking: Chunking, place: Place) -> str:
    if chunking.sharding is None:
        return chunking.key(place)
    counts = chunking.sharding.chunks_per_shard
    return chunking.key([number // count for number, count in zip(place, counts, strict=True)])


def _extents_in_shards(
    variable: ZarrVariable, chunking: Chunking, sharding: Sharding, places: Sequence[Place]
) -> dict[Place, FileRange[str]]:
    """Return where chunks are, but for those never written."""
    counts = sharding.chunks_per_shard
    extents = {}
    indexes: dict[str, NDArray[Any] | None] = {}
    for place in places:
        path = file_below(variable.folder, _file_key(chunking, place))
        if path not in indexes:
            indexes[path] = read_shard_index(variable, path, sharding)
        index = indexes[path]
        if index is None:
            continue
        offset, length = index[tuple(n % count for n, count in zip(place, counts, strict=True))]
        if int(offset) != ABSENT or int(length) != ABSENT:
            extents[place] = FileRange(path, int(offset), int(length))
    return extents


def _check_ends(
    variable: ZarrVariable, chunking: Chunking, extents: Mapping[Place, FileRange[str]]
) -> None:
    """Refuse chunks beyond the end of their shard, before memory is asked for them."""
    sharding = chunking.sharding
    behind = _index_nbytes(sharding) if sharding and sharding.index_at_end else 0
    sizes = {
        path: cached_source_file(path).nbytes for path in {each[0] for each in extents.values()}
    }
    for place, (path, offset, length) in extents.items():
        size = sizes[path] - behind
        if offset + length > size:
            reason = f"it ends at byte {offset + length}, the chunks of its shard at {size}"
            raise _damaged(variable, _chunk_name(chunking, place), reason)


def _index_nbytes(sharding: Sharding) -> int:
    return math.prod(sharding.chunks_per_shard) * 16 + 4 * sharding.index_checksum


def read_shard_index(variable: ZarrVariable, path: str, sharding: Sharding) -> NDArray[Any] | None:
    """Return offset and length of each chunk of a shard, or None where there is no shard.

    Of shape ``(*chunks_per_shard, 2)``; both are 2**64 - 1 of chunks that were never written.

    Raises
    ------
    FileFormatError
        If the index is cut short or damaged.
    """
    try:
        version = cached_source_file(path).version
        return _shard_index(variable.store, variable.name, path, version, sharding)
    except MissingFileError:
        return None  # not kept: it may be written yet


@functools.lru_cache(maxsize=SHARD_INDEXES)
def _shard_index(
    store: str, name: str, path: str, version: int | str, sharding: Sharding
) -> NDArray[Any]:
    """Return offset and length of each chunk of a shard, which is there in this version."""
    nbytes = math.prod(sharding.chunks_per_shard) * 16
    stored_nbytes = _index_nbytes(sharding)
    opened = cached_source_file(path)
    size = opened.nbytes
    said = f"{store}: array {name!r}: shard {path}"
    if size < stored_nbytes:
        raise FileFormatError(
            f"{said} is cut short: {size} bytes, its index alone has {stored_nbytes}; "
            "fetch the store again"
        )
    start = size - stored_nbytes if sharding.index_at_end else 0
    content = memoryview(bytearray(stored_nbytes))
    opened.fill(content, start)
    if sharding.index_checksum:
        stored, found = int.from_bytes(content[nbytes:], "little"), crc32c(content[:nbytes])
        if stored != found:
            raise FileFormatError(
                f"{said}: its index is damaged: crc32c {found:#010x} instead of {stored:#010x}; "
                "fetch the store again"
            )
    values = np.frombuffer(content[:nbytes], dtype=sharding.index_dtype)
    return values.astype("<u8").reshape(*sharding.chunks_per_shard, 2)
