"""The one model of a stored variable: its chunks, how each is encoded, where each lies.

Whatever container holds it, a variable is a `ChunkManifest`, made by a parser of its format. CDF's
records and contiguous data are chunks without codecs; inner chunks of Zarr's shards are chunks at
offsets; a GRIB message is a chunk, and those of a variable may lie in several files. Else it says
nothing of paths, so that what was found out about a file holds where the file is called otherwise:
readers bring the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.codec_chain import ChunkCodecs, decode_chunk
from iobench.chunks.grib.decoding import decode_message
from iobench.chunks.single_codec import DamagedChunkError
from iobench.errors import FileFormatError
from iobench.files.ranges import FileRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.packing import Packing

Place = tuple[int, ...]
"""Where a chunk is in the grid of chunks."""


class ContiguousNumbers(msgspec.Struct, frozen=True):
    """All numbers in C order from byte ``offset`` of the file; -1: never written, fill value."""

    offset: int


class ChunkRanges(msgspec.Struct, frozen=True, eq=False):
    """Chunks that are ranges of the file, or of several."""

    offsets: NDArray[np.int64]
    nbytes: NDArray[np.int64]  # where each chunk is (-1: never written), and its stored size
    # as bits the codecs that were left out for each chunk; None: none for any
    masks: NDArray[np.uint32] | None = None

    # of chunks in several files those, and which of them each is in; None: all are in one
    files: tuple[str, ...] = ()
    numbers: NDArray[np.int32] | None = None

    def range_at(self, file: str, place: Place) -> FileRange[str]:
        """Return where a chunk is that was written, of a variable of ``file``."""
        if self.numbers is not None:
            file = self.files[self.numbers[place]]
        return FileRange(file, int(self.offsets[place]), int(self.nbytes[place]))


class Sharding(msgspec.Struct, frozen=True):
    """How chunks lie together in a shard, a file of many."""

    chunks_per_shard: tuple[int, ...]  # along each dimension
    index_at_end: bool  # else the index of chunks is the beginning of the file
    index_checksum: bool  # whether the index ends with a CRC-32C
    index_dtype: str  # of its offsets and lengths


class ChunkKeys(msgspec.Struct, frozen=True):
    """Chunks that are files of a folder, each alone or with others in a shard."""

    key_prefix: str
    separator: str
    key_of_scalar: str  # A chunk, or shard, is the file ``key_prefix + separator.join(places)``
    sharding: Sharding | None = None  # none: every chunk is a file

    def key(self, place: Sequence[int]) -> str:
        """Return the name of the file of a chunk, or of a shard, by its place in their grid."""
        if not place:
            return self.key_of_scalar
        return self.key_prefix + self.separator.join(map(str, place))

    def file_key(self, place: Place) -> str:
        """Return the name of the file that a chunk is in."""
        if self.sharding is None:
            return self.key(place)
        counts = self.sharding.chunks_per_shard
        return self.key([number // count for number, count in zip(place, counts, strict=True)])


class ChunkManifest(msgspec.Struct, frozen=True, eq=False):
    """How the chunks of a variable are encoded, and where they lie."""

    codecs: ChunkCodecs  # dtype and byte order of the stored numbers, shape of a chunk, codecs
    # where they lie. Of numbers that are contiguous, one chunk, parts are read alone
    chunks: ContiguousNumbers | ChunkRanges | ChunkKeys

    @property
    def chunk(self) -> tuple[int, ...]:
        """Shape of a chunk."""
        return self.codecs.shape

    @property
    def is_contiguous(self) -> bool:
        """Whether numbers lie as they are, in one piece."""
        return isinstance(self.chunks, ContiguousNumbers)

    @property
    def offset(self) -> int:
        """Where contiguous numbers begin; raise TypeError where they are not."""
        if not isinstance(self.chunks, ContiguousNumbers):
            raise TypeError("numbers in chunks do not lie in one piece")
        return self.chunks.offset

    @property
    def ranges(self) -> ChunkRanges:
        """Where the chunks lie in the one file; raise TypeError where they are files."""
        if not isinstance(self.chunks, ChunkRanges):
            raise TypeError("chunks that are files have no ranges")
        return self.chunks

    @property
    def keys(self) -> ChunkKeys:
        """Which files the chunks are; raise TypeError where they are ranges of one."""
        if not isinstance(self.chunks, ChunkKeys):
            raise TypeError("chunks that are ranges of a file are no files")
        return self.chunks


class StoredVariable(msgspec.Struct, frozen=True, eq=False):
    """A numeric variable of a file or store: its schema and where its numbers lie."""

    name: str  # its name in the file; that of the folder where a Zarr store is the array
    dims: tuple[str, ...]
    shape: tuple[int, ...]  # in file order
    packing: Packing  # how stored numbers become numbers
    fill: Any  # what never written parts hold, as stored
    # none: only the format's library can read it; ``only_library`` says why
    storage: ChunkManifest | None
    attributes: Mapping[str, str]  # those that are texts
    only_library: str = ""  # see above
    folder: str = ""  # where chunks that are files lie

    @property
    def manifest(self) -> ChunkManifest:
        """Where its numbers lie; raise TypeError where only the library knows."""
        if self.storage is None:
            raise TypeError(f"variable {self.name!r} has no known chunks: {self.only_library}")
        return self.storage

    def axis(self, dim: str | None) -> int:
        """Return which of its dimensions ``dim`` is; -1 where it lacks that."""
        return self.dims.index(dim) if dim in self.dims else -1

    @property
    def fill_array(self) -> NDArray[Any]:
        """One number, of a part never written."""
        return np.full(1, self.fill, dtype=self.packing.stored)


def as_packed(manifest: ChunkManifest, packing: Packing) -> ChunkManifest:
    """Return a manifest with the signedness that ``_Unsigned`` gives the stored numbers."""
    if manifest.codecs.dtype == packing.stored:
        return manifest
    return replace(manifest, codecs=replace(manifest.codecs, dtype=packing.stored))


def in_ranges(
    dtype: str,
    chunk: tuple[int, ...],
    applied: tuple[str, ...],
    offsets: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    masks: NDArray[np.uint32] | None = None,
) -> ChunkManifest:
    """Return the manifest of chunks in C order that are ranges of one file."""
    codecs = ChunkCodecs(dtype, chunk, tuple(range(len(chunk))), applied)
    if masks is not None and not masks.any():
        masks = None
    return ChunkManifest(codecs, ChunkRanges(offsets, nbytes, masks))


def contiguous(dtype: str, shape: tuple[int, ...], offset: int) -> ChunkManifest:
    """Return the manifest of numbers that lie in C order from an offset; -1: never written."""
    codecs = ChunkCodecs(dtype, shape, tuple(range(len(shape))))
    return ChunkManifest(codecs, ContiguousNumbers(offset))


def decode_stored_chunk(
    file: str,
    variable: StoredVariable,
    place: Place,
    stored: memoryview,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return the numbers of a chunk as stored, in the shape of a chunk, from its bytes.

    They are ``out``, of that shape and dtype and in C order, where they could be decoded there.
    """
    manifest = variable.manifest
    if manifest.codecs.is_message:
        values = np.empty(manifest.chunk, dtype=np.float32) if out is None else out
        path, offset, _ = manifest.ranges.range_at(file, place)
        where = f"{path}: the GRIB message at offset {offset}"
        decode_message(stored, where=where, out=values.reshape(-1))
        return values
    try:
        return decode_chunk(stored, manifest.codecs, mask_of(manifest, place), out)
    except DamagedChunkError as error:
        raise damaged_chunk(file, variable, place, str(error)) from error


def mask_of(manifest: ChunkManifest, place: Place) -> int:
    """Return as bits the codecs that were left out for a chunk."""
    masks = manifest.chunks.masks if isinstance(manifest.chunks, ChunkRanges) else None
    return 0 if masks is None else int(masks[place])


def damaged_chunk(
    file: str, variable: StoredVariable, place: Place, reason: str
) -> FileFormatError:
    """Return the error for a chunk, by the name that its container gives it."""
    chunks = variable.manifest.chunks
    if not isinstance(chunks, ChunkKeys):
        kind, name, whole = "variable", str(place), "file"
    else:
        inside = "" if chunks.sharding is None else f" at {place}"
        kind, name, whole = "array", f"{chunks.file_key(place)}{inside}", "store"
    return FileFormatError(
        f"{file}: {kind} {variable.name!r}: chunk {name} is damaged: {reason}; "
        f"fetch the {whole} again"
    )
