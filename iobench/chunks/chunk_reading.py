"""The stored bytes of chunks, wherever they lie: ranges of a file, files of a folder, in shards."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.boxes import Box, box_ranges, contiguous_array, join_chunks, places_touched
from iobench.chunks.chunked_variable import (
    ChunkedVariable,
    ChunkKeys,
    Place,
    damaged_chunk,
    decode_chunk,
)
from iobench.chunks.packing import unpack
from iobench.errors import FileFormatError, MissingFileError
from iobench.files.crc32c import crc32c
from iobench.files.ranges import (
    FileRange,
    cached_source_file,
    file_nbytes,
    read_extents,
    read_whole_files,
)
from iobench.files.urls import file_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


ABSENT = (1 << 64) - 1
"""Offset and length of a chunk that a shard does not hold."""
SHARD_INDEXES = 256

StoredChunk = tuple[str, ChunkedVariable, Place]
"""A chunk: the file or store, the variable, and its place in the grid."""
_Shards = dict[str, "tuple[NDArray[Any] | None, int]"]
"""Of shards that were looked into: the index, and where their chunks end."""


def read_chunks(
    chunks: Sequence[StoredChunk],
    *,
    also: Sequence[FileRange[str]] = (),
) -> tuple[list[memoryview | None], list[memoryview]]:
    """Return the stored bytes of chunks, None for those never written; neighbours at once.

    Of a shard no more is read than its index, once, and those chunks.
    """
    stored: list[memoryview | None] = [None] * len(chunks)
    ranges, of_ranges = list(also), [-1] * len(also)
    files, of_files = [], []
    shards: _Shards = {}
    for number, (file, variable, place) in enumerate(chunks):
        keys = variable.keys
        if keys is not None and not keys.is_sharded:
            files.append(file_below(variable.folder, keys.file_key(place)))
            of_files.append(number)
        elif (inner := _range_at(file, variable, place, shards)) is not None:
            ranges.append(inner)
            of_ranges.append(number)
    buffers = read_extents(ranges) if ranges else []
    for number, buffer in zip(of_ranges, buffers, strict=True):
        if number >= 0:
            stored[number] = buffer
    if files:
        contents = read_whole_files(files)
        for number, content in zip(of_files, contents, strict=True):
            stored[number] = content
    return stored, buffers[: len(also)]


def chunk_nbytes(file: str, variable: ChunkedVariable, place: Place) -> int:
    """Return the bytes that a chunk has in storage, 0 for one never written; reads none of it."""
    keys = variable.keys
    if keys is not None and not keys.is_sharded:
        return file_nbytes(variable.folder, keys.file_key(place))
    extent = _range_at(file, variable, place, {})
    return 0 if extent is None else extent.nbytes


def read_stored_box(box: Box) -> NDArray[Any]:
    """Return the numbers of a box as stored."""
    file, variable = box.file, box.variable
    if variable.is_contiguous:
        return contiguous_array(box, read_extents(box_ranges(box)))
    places = list(places_touched(variable.chunk, box.start, box.stop))
    contents, _ = read_chunks([(file, variable, place) for place in places])
    stored = dict(zip(places, contents, strict=True))

    def decoded(place: Place, out: NDArray[Any] | None) -> NDArray[Any] | None:
        content = stored.pop(place)
        return None if content is None else decode_chunk(file, variable, place, content, out)

    joined = join_chunks(
        variable.chunk, box.start, box.stop, decoded,
        dtype=variable.packing.stored, fill=variable.fill,
    )  # fmt: skip
    return joined.reshape(box.shape)


def read_box(box: Box) -> NDArray[Any]:
    """Return the numbers of a box unpacked, equal to what xarray decodes; raises as above."""
    return unpack(read_stored_box(box), box.variable.packing)


def _range_at(
    file: str, variable: ChunkedVariable, place: Place, shards: _Shards
) -> FileRange[str] | None:
    """Return where a chunk is in its file or shard, None of one that was never written.

    One beyond the end of its shard is refused before memory is asked for it.
    """
    keys = variable.keys
    if keys is None:
        return variable.range_at(file, place)
    path = file_below(variable.folder, keys.file_key(place))
    if path not in shards:
        shards[path] = _shard(file, variable.name, path, keys)
    index, end = shards[path]
    if index is None:
        return None
    inside = tuple(n % count for n, count in zip(place, keys.chunks_per_shard, strict=True))
    offset, length = map(int, index[inside])
    if offset == ABSENT and length == ABSENT:
        return None
    if offset + length > end:
        reason = f"it ends at byte {offset + length}, the chunks of its shard at {end}"
        raise damaged_chunk(file, variable, place, reason)
    return FileRange(path, offset, length)


def _shard(store: str, name: str, path: str, keys: ChunkKeys) -> tuple[NDArray[Any] | None, int]:
    """Return the index of a shard, None where there is no shard, and where its chunks end."""
    try:
        opened = cached_source_file(path)
    except MissingFileError:
        return None, 0  # not kept: it may be written yet
    index = _shard_index(store, name, path, opened.version, keys)
    return index, opened.nbytes - keys.index_at_end * keys.index_nbytes


@functools.lru_cache(maxsize=SHARD_INDEXES)
def _shard_index(
    store: str, name: str, path: str, version: int | str, keys: ChunkKeys
) -> NDArray[Any]:
    """Return offset and length of each chunk of a shard, which is there in this version.

    Of shape ``(*chunks_per_shard, 2)``; both are 2**64 - 1 of chunks that were never written.
    """
    stored_nbytes = keys.index_nbytes
    opened = cached_source_file(path)
    where = f"{store}: array {name!r}: shard {path}"
    if opened.nbytes < stored_nbytes:
        raise FileFormatError(
            f"{where} is cut short: {opened.nbytes} bytes, its index alone has {stored_nbytes}; "
            "fetch the store again"
        )
    content = memoryview(bytearray(stored_nbytes))
    opened.fill(content, opened.nbytes - stored_nbytes if keys.index_at_end else 0)
    nbytes = stored_nbytes - 4 * keys.index_checksum
    if keys.index_checksum:
        stored, actual = int.from_bytes(content[nbytes:], "little"), crc32c(content[:nbytes])
        if stored != actual:
            raise FileFormatError(
                f"{where}: its index is damaged: crc32c {actual:#010x} instead of {stored:#010x}; "
                "fetch the store again"
            )
    return np.frombuffer(content[:nbytes], "<u8").reshape(*keys.chunks_per_shard, 2)
