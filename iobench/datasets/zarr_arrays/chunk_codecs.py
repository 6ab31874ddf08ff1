"""From the stored bytes of one chunk to its numbers.

Codecs are undone by numcodecs, but for version 3's ``crc32c``, which is checked here.
"""

from __future__ import annotations

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
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["CHECKSUM", "ChunkCodecs", "DamagedChunkError", "decode_chunk", "unknown_codecs"]

CHECKSUM = "checksum"
"""Id of version 3's ``crc32c``: four bytes behind the content, little-endian."""

BLOSC_HEADER_NBYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
UNSAFE = ("pickle",)
"""Runs code that is in the data; no number is stored that way."""

DECODING_ERRORS = (RuntimeError, ValueError, TypeError, EOFError, OSError, MemoryError)


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
    output = None
    plain = _plain_nbytes(name, _as_bytes(content).data)
    if last and plain is not None:
        if plain != nbytes:
            raise DamagedChunkError(f"it decodes to {plain} bytes, expected {nbytes}")
        output = np.empty(nbytes, dtype=np.uint8)
    try:
        return codec.decode(content, output) if output is not None else codec.decode(content)
    except (*DECODING_ERRORS, zlib.error, lzma.LZMAError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DamagedChunkError(f"{name} cannot decode it: {reason}") from error


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


def unknown_codecs(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of those codecs that numcodecs does not know."""
    unknown = []
    for configuration in configurations:
        if configuration.get("id") in UNSAFE:
            unknown.append(str(configuration["id"]))
            continue
        try:
            _numcodecs().get_codec(dict(configuration))
        except (ValueError, TypeError, KeyError):  # UnknownCodecError is a ValueError
            unknown.append(str(configuration.get("id")))
    return unknown
