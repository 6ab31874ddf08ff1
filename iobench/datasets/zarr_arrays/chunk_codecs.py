"""From the stored bytes of one chunk to its numbers.

Codecs are undone by numcodecs; version 3's ``crc32c`` is checked here, and what the standard
library inflates is inflated here, no further than a chunk is long. Metadata are not trusted: they
name codecs, and some codecs run what the chunks say. So only those of `SAFE_CODECS` are ever made.
"""

from __future__ import annotations

import bz2
import json
import lzma
import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import MissingExtraError
from iobench.stores.checksums import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "CHECKSUM",
    "SAFE_CODECS",
    "TEXT_CODECS",
    "ChunkCodecs",
    "DamagedChunkError",
    "decode_chunk",
    "refused_codecs",
]

CHECKSUM = "checksum"
"""Id of version 3's ``crc32c``: four bytes behind the content, little-endian."""

BLOSC_HEADER_NBYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SAFE_CODECS = frozenset({
    "blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd",
    "astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle",
    "adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3",
})  # fmt: skip
"""Ids of numcodecs that metadata may name: each turns numbers or bytes into such, by a bounded
factor, and nothing else. Never here: ``pickle``, which runs code that is in the data; ``json2``,
``msgpack2``, ``vlen-*`` and ``categorize``, which make objects. Others are for us to look at first.
"""

TEXT_CODECS = frozenset({"vlen-utf8", "vlen-bytes"})
"""Never made here; a library may make them of a store that we hand to it whole, for its names."""

MAX_CODECS = 16
MAX_GROWTH = 16
"""How many bytes a codec between two others makes of one: ``i1`` becomes ``c16``."""

SPARE_NBYTES = 1 << 16
"""What incompressible bytes and checksums may add to a chunk on the way."""

MAX_DICTIONARY_NBYTES = 1 << 28
"""What inflating LZMA may take beside its result; the largest preset takes 65 MiB."""

MAX_ITEMSIZE = 256
MAX_STREAMS = 1024
"""Of one chunk, one behind the other; writers make one."""

DECODING_ERRORS = (RuntimeError, ValueError, TypeError, EOFError, OSError, MemoryError)


STREAMED: dict[str, Callable[[Any], Any]] = {
    "zlib": lambda _: zlib.decompressobj(),
    "gzip": lambda _: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    "bz2": lambda _: bz2.BZ2Decompressor(),
    "lzma": lambda codec: lzma.LZMADecompressor(
        codec.format,
        None if codec.format == lzma.FORMAT_RAW else MAX_DICTIONARY_NBYTES,
        codec.filters if codec.format == lzma.FORMAT_RAW else None,
    ),
}
"""Compressors whose bytes do not say how many they become: a bomb shows while it is inflated."""


class DamagedChunkError(Exception):
    """A chunk cannot be decoded; whoever knows its name says so to the user."""


@dataclass(frozen=True, slots=True)
class ChunkCodecs:
    """How numbers became the bytes of a chunk.

    Parameters
    ----------
    dtype : str
        Of the stored numbers, with byte order.
    shape : tuple of int
        Of a chunk; those at the edge of an array are stored in full.
    axes : tuple of int
        Order of the axes in which the numbers were written: ``(0, 1)`` is C order.
    applied : tuple of str
        What was applied then, in this order: JSON of configurations that numcodecs knows, with
        their ``id``; `CHECKSUM` is ours.
    """

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    applied: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a chunk's numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def decode_chunk(stored: memoryview, codecs: ChunkCodecs) -> NDArray[Any]:
    """Return the numbers of a chunk, writable, from its stored bytes.

    Raises
    ------
    DamagedChunkError
        If the bytes cannot be decoded, or to another size, or a checksum is wrong.
    MissingExtraError
        If numcodecs is needed and missing.
    """
    content: Any = stored
    for position in reversed(range(len(codecs.applied))):
        content = _undone(content, codecs.applied[position], codecs.nbytes, last=position == 0)
    flat = _as_bytes(content)
    if flat.nbytes != codecs.nbytes:
        raise DamagedChunkError(f"it holds {flat.nbytes} bytes, expected {codecs.nbytes}")
    if not flat.flags.writeable:
        flat = flat.copy()
    values = flat.view(codecs.dtype)
    if list(codecs.axes) == sorted(codecs.axes):
        return values.reshape(codecs.shape)
    written = tuple(codecs.shape[axis] for axis in codecs.axes)
    return values.reshape(written).transpose(np.argsort(codecs.axes))


def _as_bytes(content: Any) -> NDArray[np.uint8]:
    if isinstance(content, np.ndarray):
        return content.reshape(-1, order="A").view(np.uint8)
    return np.frombuffer(content, dtype=np.uint8)


def _undone(content: Any, applied: str, nbytes: int, *, last: bool) -> Any:
    if applied == CHECKSUM:
        return _checked(content)
    codec = _codec(applied)
    name = codec.codec_id
    limit = nbytes if last else MAX_GROWTH * nbytes + SPARE_NBYTES
    plain = _plain_nbytes(name, _as_bytes(content).data)
    if plain is not None and (plain > limit or (last and plain != nbytes)):
        raise DamagedChunkError(f"it decodes to {plain} bytes, expected {nbytes}")
    try:
        if name in STREAMED:
            return _inflated(name, codec, content, limit)
        if last and (plain is not None or name == "zstd"):
            return codec.decode(content, np.empty(nbytes, dtype=np.uint8))
        if name == "zstd" and plain is None:
            raise ValueError("it does not say its size")
        undone = codec.decode(content)
    except (*DECODING_ERRORS, zlib.error, lzma.LZMAError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedChunkError(f"{name} cannot decode it: {reason}") from error
    if (found := _as_bytes(undone).nbytes) > limit:
        raise DamagedChunkError(f"it decodes to {found} bytes, expected {nbytes}")
    return undone


def _inflated(name: str, codec: Any, content: Any, limit: int) -> bytes:
    """Inflate all streams of a chunk, up to one byte more than it may hold."""
    parts: list[bytes] = []
    left, n_bytes = _as_bytes(content).data, 0
    while len(left) or not parts:
        if len(parts) == MAX_STREAMS:
            raise DamagedChunkError(f"it has more than {MAX_STREAMS} streams of {name}")
        stream = STREAMED[name](codec)
        try:
            part = stream.decompress(left, limit + 1 - n_bytes)
        except (OSError, zlib.error, lzma.LZMAError):
            if parts and name in ("bz2", "lzma"):  # what follows the last stream is no stream
                break
            raise
        parts.append(part)
        n_bytes += len(part)
        if n_bytes > limit:
            raise DamagedChunkError(f"it decodes to more than the {limit} bytes expected")
        if not stream.eof:
            raise EOFError("its compressed bytes end early")
        left = memoryview(b"" if name == "zlib" else stream.unused_data.lstrip(b"\0"))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _checked(content: Any) -> memoryview:
    view = memoryview(content).cast("B")
    if len(view) < 4:
        raise DamagedChunkError(f"it holds {len(view)} bytes, no room for a checksum")
    stored, found = int.from_bytes(view[-4:], "little"), crc32c(view[:-4])
    if stored != found:
        raise DamagedChunkError(f"crc32c {found:#010x} instead of {stored:#010x}")
    return view[:-4]


def _plain_nbytes(name: str, content: memoryview) -> int | None:
    """Return to how many bytes a codec will decode, None where its stored bytes do not say.

    Only then it may decode into an array made for it: what it does not fill would be garbage.
    """
    if name == "blosc":
        return _plain_nbytes_of_blosc(content)
    if name == "lz4" and len(content) >= 4:
        return int.from_bytes(content[:4], "little")
    if name == "zstd" and content[:4] == ZSTD_MAGIC and len(content) > 4:
        return _plain_nbytes_of_zstd(content)
    return None


def _plain_nbytes_of_blosc(content: memoryview) -> int:
    """Read a header, and compare the stored size: Blosc believes it and would read past the end.

    Source: README_CHUNK_FORMAT of c-blosc: a header of 16 bytes, with the sizes of the numbers at
    byte 4 and of the chunk at byte 12.
    """
    if len(content) < BLOSC_HEADER_NBYTES:
        raise DamagedChunkError(f"it holds {len(content)} bytes, less than a Blosc header")
    plain, stored = (int.from_bytes(content[at : at + 4], "little") for at in (4, 12))
    if stored > len(content):
        raise DamagedChunkError(f"it holds {len(content)} bytes, its Blosc header says {stored}")
    return plain


def _plain_nbytes_of_zstd(content: memoryview) -> int | None:
    """Read the content size of a frame. Source: RFC 8878, section 3.1.1.1."""
    descriptor = content[4]
    single_segment = descriptor >> 5 & 1
    length = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if length == 0 or len(content) < start + length:
        return None
    size = int.from_bytes(content[start : start + length], "little")
    return size + 256 if length == 2 else size


@lru_cache(maxsize=64)
def _codec(configuration: str) -> Any:
    return _numcodecs().get_codec(json.loads(configuration))


def _numcodecs() -> Any:
    try:
        import numcodecs
    except ImportError as error:
        raise MissingExtraError(
            "compressed Zarr stores need numcodecs: pip install 'iobench[zarr]'"
        ) from error
    return numcodecs


def refused_codecs(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of those codecs that are not made: unsafe, or numcodecs does not know them.

    Nothing is made of a configuration before its id and what it says of dtypes were looked at.

    Raises
    ------
    ValueError
        If there are more of them than any chunk goes through.
    """
    if len(configurations) > MAX_CODECS:
        raise ValueError(f"{len(configurations)} codecs, expected {MAX_CODECS} at most")
    refused = []
    for configuration in configurations:
        name = configuration.get("id")
        if name not in SAFE_CODECS or not _is_of_numbers(configuration):
            refused.append(str(name))
            continue
        try:
            _numcodecs().get_codec(dict(configuration))
        except (ValueError, TypeError, KeyError):  # UnknownCodecError is a ValueError
            refused.append(str(name))
    return refused


def _is_of_numbers(configuration: Mapping[str, Any]) -> bool:
    """Return whether a codec makes numbers of a usual size, and needs no more memory for it."""
    for name in ("dtype", "astype", "encode_dtype", "decode_dtype"):
        value = configuration.get(name)
        if value is not None and (
            not isinstance(value, str) or np.dtype(value).kind not in "biufcMm"
        ):
            return False
    itemsize = configuration.get("elementsize", 1)
    if not isinstance(itemsize, int) or not 0 < itemsize <= MAX_ITEMSIZE:
        return False
    filters = configuration.get("filters") or ()
    return all(each.get("dict_size", 0) <= MAX_DICTIONARY_NBYTES for each in filters)
