"""The one model of a stored variable: its schema, how its chunks are encoded, where each lies.

Parsers of all containers make it. CDF's records are chunks without codecs; inner chunks of Zarr's
shards are chunks at offsets; a GRIB message is a chunk, and those of a variable may lie in several
files. Else it says nothing of paths, so that what was found out about a file holds where the file
is called otherwise: readers bring the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray  # noqa: TC002 - msgspec asks

from iobench.chunks.chunk_codecs import GRIB_MESSAGE, DamagedChunkError, as_bytes, decode_bytes
from iobench.chunks.grib.messages import decode_message
from iobench.chunks.library_chunks import read_decoded
from iobench.chunks.packing import Packing  # noqa: TC001 - msgspec asks
from iobench.errors import FileFormatError, MissingFileError
from iobench.files.crc32c import crc32c
from iobench.files.ranges import (
    FileRange,
    cached_source_file,
    read_extents,
    read_whole_files,
)
from iobench.files.urls import file_below

if TYPE_CHECKING:
    from collections.abc import Sequence

Place = tuple[int, ...]
"""Where a chunk is in the grid of chunks."""
MOST_CHUNKS: Final = 1 << 28
ABSENT: Final = (1 << 64) - 1
"""Offset and length of a chunk that a shard does not hold."""


class ChunkKeys(msgspec.Struct, frozen=True):
    """Chunks that are files of a folder, each alone or with others in a shard."""

    prefix: str
    separator: str
    scalar_key: str  # a chunk, or shard, is the file ``prefix + separator.join(place)``
    # of shards, files of many chunks, how many are in one along each dimension; empty: no shards
    chunks_per_shard: tuple[int, ...] = ()
    index_at_end: bool = True  # else the index of chunks is the beginning of the file
    index_checksum: bool = False  # whether the index ends with a CRC-32C

    @property
    def is_sharded(self) -> bool:
        """Whether a file holds several chunks."""
        return bool(self.chunks_per_shard)

    def file_key(self, place: Sequence[int]) -> str:
        """Return the name of the file that a chunk is in."""
        if not place:
            return self.scalar_key
        if self.chunks_per_shard:
            counts = self.chunks_per_shard
            place = [number // count for number, count in zip(place, counts, strict=True)]
        return self.prefix + self.separator.join(map(str, place))


class ChunkedVariable(msgspec.Struct, frozen=True, eq=False):
    """A numeric variable of a file or store."""

    name: str  # its name in the file; that of the folder where a Zarr store is the array
    dims: tuple[str, ...]
    shape: tuple[int, ...]  # in file order
    packing: Packing  # how stored numbers become numbers
    fill: Any  # what never written parts hold, as stored
    attributes: Mapping[str, str]  # those that are texts
    why_unread: str = ""  # why it is not read here; then nothing below is said
    values: NDArray[Any] | None = None  # of a short coordinate all its numbers, as stored
    # shape of a chunk; those at the edge are stored in full
    chunk: tuple[int, ...] = ()
    codecs: tuple[str, ...] = ()  # what was applied, as `decode_bytes` takes it
    axes: tuple[int, ...] = ()  # in which order they were written; empty: C order
    # where numbers begin that lie in C order as they are, in one piece; -1: never written
    offset: int = -1
    # else where each chunk begins (-1: never written), and its bytes in storage
    offsets: NDArray[np.int64] | None = None
    sizes: NDArray[np.int64] | None = None
    masks: NDArray[np.uint32] | None = None  # as bits the codecs that were left out for each chunk
    # whether chunks are parts of numbers that lie in one piece: those at the edge are shorter
    is_cut: bool = False
    # of chunks in several files those, and which of them each is in
    files: tuple[str, ...] = ()
    numbers: NDArray[np.int32] | None = None  # -1: in ``inline``
    inline: NDArray[np.uint8] | None = None  # bytes of chunks that lie in no file
    # of chunks that a library reads and decodes in one which of `library_chunks.LIBRARIES`, and
    # what it finds the variable by is its folder
    library: str = ""
    folder: str = ""  # where chunks lie that are files
    keys: ChunkKeys | None = None  # and which files these are

    @property
    def is_contiguous(self) -> bool:
        """Whether numbers lie as they are, in one piece."""
        return not self.is_in_chunks and not self.why_unread

    @property
    def is_in_chunks(self) -> bool:
        """Whether the numbers are in chunks that are known."""
        return self.offsets is not None or self.keys is not None or self.library != ""

    @property
    def ends_short(self) -> bool:
        """Whether chunks at the edge hold no more numbers than the variable has."""
        return self.is_cut or self.library != ""

    @property
    def is_message(self) -> bool:
        """Whether a chunk is a GRIB message."""
        return self.codecs == (GRIB_MESSAGE,)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of the numbers of a chunk."""
        return _nbytes(self.chunk, self.packing.stored)

    def axis(self, dim: str | None) -> int:
        """Return which of its dimensions ``dim`` is; -1 where it lacks that."""
        return self.dims.index(dim) if dim in self.dims else -1


@lru_cache(maxsize=1024)
def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def check_known(file: str, variable: ChunkedVariable) -> None:
    """Raise FileFormatError of a variable that is not read here, or claims too many chunks."""
    if variable.why_unread:
        is_zarr = variable.folder != ""
        write = "xarray.open_zarr(OLD).to_zarr(NEW)" if is_zarr else "h5repack -f GZIP=4 OLD NEW"
        raise FileFormatError(
            f"{file}: variable {variable.name!r} has no known chunks ({variable.why_unread}); "
            f"leave it out with --variables, or write it again: {write}"
        )
    lengths = zip(variable.shape, variable.chunk, strict=False)
    if (n_chunks := math.prod(-(-n // max(1, length)) for n, length in lengths)) > MOST_CHUNKS:
        raise FileFormatError(
            f"{file}: variable {variable.name!r} claims {n_chunks} chunks, expected {MOST_CHUNKS} "
            "at most; leave it out with --variables, or fetch it again"
        )


# -- the bytes of chunks: ranges of a file, files of a folder, in shards -------------------------

StoredChunk = tuple[str, ChunkedVariable, Place]
"""A chunk: the file or store, the variable, and its place in the grid."""


def read_chunks(chunks: Sequence[StoredChunk]) -> list[memoryview | None]:
    """Return the stored bytes of chunks, None for those never written; neighbours at once."""
    stored: list[memoryview | None] = [None] * len(chunks)
    ranges, of_ranges, files, of_files, of_libraries = [], [], [], [], []
    for number, (file, variable, place) in enumerate(chunks):
        keys = variable.keys
        if variable.library:
            of_libraries.append(number)
        elif (content := _inline_chunk(variable, place)) is not None:
            stored[number] = content
        elif keys is not None and not keys.is_sharded:
            files.append(file_below(variable.folder, keys.file_key(place)))
            of_files.append(number)
        elif (inner := chunk_range(file, variable, place)) is not None:
            ranges.append(inner)
            of_ranges.append(number)
    decoded = read_decoded([chunks[number] for number in of_libraries])
    for numbers, contents in (
        (of_ranges, read_extents(ranges)),
        (of_files, read_whole_files(files)),
        (of_libraries, decoded),
    ):
        for number, content in zip(numbers, contents, strict=True):
            stored[number] = content
    return stored


def _inline_chunk(variable: ChunkedVariable, place: Place) -> memoryview | None:
    """Return the bytes of a chunk that lies in no file."""
    offsets, sizes, numbers = variable.offsets, variable.sizes, variable.numbers
    if variable.inline is None or offsets is None or sizes is None or numbers is None:
        return None
    if numbers[place] >= 0 or (offset := int(offsets[place])) < 0:
        return None
    return variable.inline[offset : offset + int(sizes[place])].data


def chunk_range(file: str, variable: ChunkedVariable, place: Place) -> FileRange[str] | None:
    """Return where a chunk is in its file or shard, None of one that was never written."""
    keys, offsets, sizes = variable.keys, variable.offsets, variable.sizes
    if keys is None:
        assert offsets is not None
        assert sizes is not None
        if (offset := int(offsets[place])) < 0:
            return None
        if variable.numbers is not None:
            file = variable.files[variable.numbers[place]]
        return FileRange(file, offset, int(sizes[place]))
    path = file_below(variable.folder, keys.file_key(place))
    try:
        opened = cached_source_file(path)
    except MissingFileError:
        return None
    index = _shard_index(f"{file}: array {variable.name!r}", path, opened.version, keys)
    inside = tuple(n % count for n, count in zip(place, keys.chunks_per_shard, strict=True))
    offset, length = map(int, index[inside])
    if offset == ABSENT and length == ABSENT:
        return None
    end = opened.nbytes - keys.index_at_end * (index.nbytes + 4 * keys.index_checksum)
    if offset + length > end:
        reason = f"it ends at byte {offset + length}, the chunks of its shard at {end}"
        raise damaged_chunk(file, variable, place, reason)
    return FileRange(path, offset, length)


@lru_cache(maxsize=256)
def _shard_index(array: str, path: str, version: int | str, keys: ChunkKeys) -> NDArray[Any]:
    """Return offset and length of each chunk of a shard, which is there in this version."""
    nbytes = math.prod(keys.chunks_per_shard) * 16
    stored_nbytes = nbytes + 4 * keys.index_checksum
    opened = cached_source_file(path)
    if opened.nbytes < stored_nbytes:  # before memory is asked for it
        raise FileFormatError(
            f"{array}: shard {path} is cut short: {opened.nbytes} bytes, its index alone has "
            f"{stored_nbytes}; fetch the store again"
        )
    content = memoryview(bytearray(stored_nbytes))
    opened.fill(content, opened.nbytes - len(content) if keys.index_at_end else 0)
    if keys.index_checksum:
        stored, actual = int.from_bytes(content[nbytes:], "little"), crc32c(content[:nbytes])
        if stored != actual:
            raise FileFormatError(
                f"{array}: shard {path}: its index is damaged: crc32c {actual:#010x} instead of "
                f"{stored:#010x}; fetch the store again"
            )
    return np.frombuffer(content[:nbytes], "<u8").reshape(*keys.chunks_per_shard, 2)


# -- the numbers of a chunk ----------------------------------------------------------------------


def decode_chunk(
    file: str,
    variable: ChunkedVariable,
    place: Place,
    stored: memoryview,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the numbers of a chunk as stored, in the shape of a chunk, from its bytes."""
    if variable.is_message:
        values = np.empty(variable.chunk, dtype=np.float32) if out is None else out
        extent = chunk_range(file, variable, place)
        where = f"{extent.file}: the GRIB message at offset {extent.offset}" if extent else file
        decode_message(stored, where=where, out=values.reshape(-1))
        return values
    if variable.ends_short:
        ends = zip(place, variable.chunk, variable.shape, strict=True)
        lengths = [min(length, n - number * length) for number, length, n in ends]
        return np.frombuffer(stored, variable.packing.stored).reshape(lengths)
    mask = 0 if variable.masks is None else int(variable.masks[place])
    target = None if out is None or variable.axes else as_bytes(out)
    try:
        flat = decode_bytes(stored, variable.codecs, variable.chunk_nbytes, mask, target)
    except DamagedChunkError as error:
        raise damaged_chunk(file, variable, place, str(error)) from error
    if out is not None and flat is target:
        return out
    numbers = flat.view(variable.packing.stored)
    if not variable.axes:
        return numbers.reshape(variable.chunk)
    written = tuple(variable.chunk[axis] for axis in variable.axes)
    return numbers.reshape(written).transpose(np.argsort(variable.axes))


def damaged_chunk(
    file: str, variable: ChunkedVariable, place: Place, reason: str
) -> FileFormatError:
    """Return the error for a chunk, by the name that its container gives it."""
    kind, name, whole = "variable", str(place), "file"
    if variable.keys is not None:
        inside = f" at {place}" if variable.keys.is_sharded else ""
        kind, name, whole = "array", f"{variable.keys.file_key(place)}{inside}", "store"
    return FileFormatError(
        f"{file}: {kind} {variable.name!r}: chunk {name} is damaged: {reason}; "
        f"fetch the {whole} again"
    )
