"""The stored bytes of chunks, wherever they lie: ranges of a file, files of a folder, in shards."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.boxes import Box, box_ranges, contiguous_array, join_chunks, places_touched
from iobench.chunks.chunk_manifest import (
    ChunkRanges,
    Place,
    Sharding,
    StoredVariable,
    damaged_chunk,
    decode_stored_chunk,
)
from iobench.chunks.packing import unpack
from iobench.errors import FileFormatError, MissingFileError
from iobench.files.crc32c import crc32c
from iobench.files.memory import for_one_sample
from iobench.files.ranges import FileRange
from iobench.files.source_files import cached_source_file, file_nbytes, read_whole_files
from iobench.files.source_ranges import read_extents
from iobench.files.urls import file_below
from iobench.files.used_bytes import note_used

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iobench.files.source_ranges import Allocate

ABSENT = (1 << 64) - 1
"""Offset and length of a chunk that a shard does not hold."""

SHARD_INDEXES = 256

StoredChunk = tuple[str, StoredVariable, Place]
"""A chunk: the file or store, the variable, and its place in the grid."""


def read_chunks(
    wanted: Sequence[StoredChunk],
    *,
    beside: Sequence[FileRange[str]] = (),
    allocate: Allocate = for_one_sample,
) -> tuple[list[memoryview | None], list[memoryview]]:
    """Return the stored bytes of chunks, None for those never written; neighbours at once.

    Of a shard no more is read than its index, once, and those chunks.
    """
    found: list[memoryview | None] = [None] * len(wanted)
    ranges, of_ranges = list(beside), [-1] * len(beside)
    files, of_files = [], []
    shards: _Shards = {}
    for number, (file, variable, place) in enumerate(wanted):
        chunks = variable.manifest.chunks
        if isinstance(chunks, ChunkRanges):
            if chunks.offsets[place] >= 0:
                ranges.append(chunks.range_at(file, place))
                of_ranges.append(number)
        elif variable.manifest.keys.sharding is None:
            files.append(file_below(variable.folder, variable.manifest.keys.key(place)))
            of_files.append(number)
        elif (inner := _range_in_shard(file, variable, place, shards)) is not None:
            ranges.append(inner)
            of_ranges.append(number)
    buffers = read_extents(ranges, allocate=allocate) if ranges else []
    for number, buffer in zip(of_ranges, buffers, strict=True):
        if number >= 0:
            found[number] = buffer
    if files:
        contents = read_whole_files(files, allocate=allocate)
        note_used([(str(f), 0, c) for f, c in zip(files, contents, strict=True) if c is not None])
        for number, content in zip(of_files, contents, strict=True):
            found[number] = content
    return found, buffers[: len(beside)]


def chunk_nbytes(file: str, variable: StoredVariable, place: Place) -> int:
    """Return the bytes that a chunk has in storage, 0 for one never written; reads none of it."""
    chunks = variable.manifest.chunks
    if isinstance(chunks, ChunkRanges):
        return int(chunks.nbytes[place])
    keys = variable.manifest.keys
    if keys.sharding is None:
        return file_nbytes(variable.folder, keys.key(place))
    inner = _range_in_shard(file, variable, place, {})
    return 0 if inner is None else inner.nbytes


def read_stored_box(box: Box) -> NDArray[Any]:
    """Return the numbers of a box as stored."""
    manifest = box.variable.manifest
    if manifest.is_contiguous:
        return contiguous_array(box, read_extents(box_ranges(box)))
    places = list(places_touched(manifest.chunk, box.start, box.stop))
    contents, _ = read_chunks([(box.file, box.variable, place) for place in places])
    stored = dict(zip(places, contents, strict=True))

    def decoded(place: Place, out: NDArray[Any] | None) -> NDArray[Any] | None:
        content = stored.pop(place)
        if content is None:
            return None
        return decode_stored_chunk(box.file, box.variable, place, content, out)

    joined = join_chunks(
        manifest.chunk, box.start, box.stop, decoded,
        dtype=manifest.codecs.dtype, fill=box.variable.fill,
    )  # fmt: skip
    return joined.reshape(box.shape)


def read_box(box: Box) -> NDArray[Any]:
    """Return the numbers of a box unpacked, equal to what xarray decodes; raises as above."""
    return unpack(read_stored_box(box), box.variable.packing)


_Shards = dict[str, "tuple[NDArray[Any] | None, int]"]
"""Of shards that were looked into: the index, and where their chunks end."""


def _range_in_shard(
    file: str, variable: StoredVariable, place: Place, shards: _Shards
) -> FileRange[str] | None:
    """Return where a chunk is in its shard, None of one that was never written.

    One beyond the end of its shard is refused before memory is asked for it.
    """
    keys = variable.manifest.keys
    path = file_below(variable.folder, keys.file_key(place))
    if path not in shards:
        index = _read_shard_index(file, variable, path)
        shards[path] = index, 0 if index is None else _chunks_end(path, keys.sharding)
    index, end = shards[path]
    if index is None or keys.sharding is None:
        return None
    counts = keys.sharding.chunks_per_shard
    offset, length = index[tuple(n % count for n, count in zip(place, counts, strict=True))]
    inner = FileRange(path, int(offset), int(length))
    if inner.offset == ABSENT and inner.nbytes == ABSENT:
        return None
    if inner.end > end:
        reason = f"it ends at byte {inner.end}, the chunks of its shard at {end}"
        raise damaged_chunk(file, variable, place, reason)
    return inner


def _chunks_end(path: str, sharding: Sharding | None) -> int:
    behind = _index_nbytes(sharding) if sharding is not None and sharding.index_at_end else 0
    return cached_source_file(path).nbytes - behind


def _index_nbytes(sharding: Sharding) -> int:
    return math.prod(sharding.chunks_per_shard) * 16 + 4 * sharding.index_checksum


def _read_shard_index(file: str, variable: StoredVariable, path: str) -> NDArray[Any] | None:
    """Return offset and length of each chunk of a shard, or None where there is no shard.

    Of shape ``(*chunks_per_shard, 2)``; both are 2**64 - 1 of chunks that were never written.
    """
    sharding = variable.manifest.keys.sharding
    if sharding is None:
        raise TypeError(f"array {variable.name!r} has no shards")
    try:
        version = cached_source_file(path).version
        return _shard_index(file, variable.name, path, version, sharding)
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
