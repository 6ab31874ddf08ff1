"""One codec of a chunk: which may be made at all, and what its bytes were before it.

Codecs are undone by numcodecs. What the standard library inflates is inflated here, no further than
a chunk is long: zlib by libdeflate where it is installed, else as gzip by isa-l, else by the
standard library (740, 570 and 310 MB/s of shuffled fields on one core). HDF5's shuffle, its
framing of LZ4 and the checksums that numcodecs does not have are undone here, too. Metadata are not
trusted: they name codecs, and some codecs run what the chunks say. So only those of `SAFE_CODECS`
are ever made.
"""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import threading
import warnings
import zlib
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iobench.errors import FileFormatError, MissingExtraError
from iobench.files.crc32c import crc32c
from iobench.files.memory import for_one_sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CHECKSUM = "checksum"
"""Id of Zarr version 3's ``crc32c``: four bytes behind the content, little-endian."""

HDF5_LZ4 = "hdf5-lz4"
"""Id of LZ4 as HDF5 frames it, in blocks; numcodecs' own ``lz4`` is one block with its size."""

BLOSC_HEADER_NBYTES = 16
BLOSC_SHUFFLED, BLOSC_ONE_STREAM = 0x1, 0x10
FRAMED_NBYTES = 1 << 18
"""Unshuffled at once: it stays in the caches of a core, and a call for less costs more than it."""
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

CHECKSUMS = frozenset({CHECKSUM, "adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"})
CHECKSUM_NBYTES = 4

MAX_CODECS = 16
MAX_GROWTH = 16
"""How many bytes a codec between two others makes of one: ``i1`` becomes ``c16``."""

SPARE_NBYTES = 1 << 16
"""What incompressible bytes and checksums may add to a chunk on the way."""

MAX_DICTIONARY_NBYTES = 1 << 28
"""What inflating LZMA may take beside its result; the largest preset takes 65 MiB."""

FRAMED_LEAST_NBYTES = 1 << 14
"""NumPy is as fast for less."""
MAX_ITEMSIZE = 256
MAX_STREAMS = 1024
"""Of one chunk, one behind the other; writers make one."""

SLICE_NBYTES = 1 << 18
INFLATED_NBYTES = 1 << 20
"""A slice of constant numbers inflates to a thousand times its size, if it is let."""

DECODING_ERRORS = (
    RuntimeError, ValueError, TypeError, IndexError, EOFError, OSError, MemoryError, zlib.error,
    lzma.LZMAError,
)  # fmt: skip
DEFLATED = {"zlib": zlib.MAX_WBITS, "gzip": zlib.MAX_WBITS | 16}
MOST_TIMES = 1032
"""Deflate makes no more bytes of one."""
STREAMED = frozenset({*DEFLATED, "bz2", "lzma"})
"""Compressors whose bytes do not say how many they become: a bomb shows while it is inflated."""


class DamagedChunkError(Exception):
    """A chunk cannot be decoded; whoever knows its name says so to the user."""


class CodecStep(NamedTuple):
    """One codec; ``elementsize`` is of ``shuffle``, 0 of others."""

    name: str
    configuration: str
    elementsize: int


@lru_cache(maxsize=256)
def codec_step(configuration: str) -> CodecStep:
    """Return a codec as it was configured."""
    if configuration in (CHECKSUM, HDF5_LZ4):
        return CodecStep(configuration, configuration, 0)
    described = json.loads(configuration)
    shuffles = described["id"] == "shuffle"
    return CodecStep(described["id"], configuration, described.get("elementsize", 4) * shuffles)


def codec_name(configuration: str) -> str:
    """Return what a codec is called, for people; of Blosc with the compressor inside."""
    if configuration in (CHECKSUM, HDF5_LZ4):
        return {CHECKSUM: "crc32c", HDF5_LZ4: "lz4"}[configuration]
    described = json.loads(configuration)
    name = str(described["id"])
    return f"{name} ({described['cname']})" if "cname" in described else name


def inflated_slices(name: str, content: memoryview) -> Iterator[bytes]:
    """Inflate zlib or gzip, some 100 KB at a time; an `EOFError` where its bytes end early."""
    inflating = _inflater(name)
    for start in range(0, len(content), SLICE_NBYTES):
        waiting: Any = content[start : start + SLICE_NBYTES]
        while len(waiting) and not inflating.eof:
            inflated = _inflate(inflating, waiting, INFLATED_NBYTES)
            waiting = inflating.unconsumed_tail
            yield inflated
    while not inflating.eof:
        inflated = _inflate(inflating, b"", INFLATED_NBYTES)
        if not inflated:
            raise EOFError("its compressed bytes end early")
        yield inflated


def inflated_file(content: memoryview, limit: int, where: str) -> bytes:
    """Inflate the content of a gzip file that holds no more than so many bytes."""
    try:
        return _inflated(codec_step('{"id": "gzip"}'), content, limit)
    except DamagedChunkError as error:
        raise FileFormatError(f"{where}: {error}; fetch the file again") from error
    except DECODING_ERRORS as error:
        raise FileFormatError(
            f"{where}: {cannot_decode('gzip', error)}; fetch the file again"
        ) from error


def decodes_to_more(limit: int) -> DamagedChunkError:
    """Return the error for a chunk that grows past what it may hold."""
    return DamagedChunkError(f"it decodes to more than the {limit} bytes expected")


def cannot_decode(name: str, error: Exception) -> DamagedChunkError:
    """Return the error for a chunk, with a codec's own reason in one line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return DamagedChunkError(f"{name} cannot decode it: {reason}")


def as_bytes(content: Any) -> NDArray[np.uint8]:
    """Return bytes or numbers as flat bytes, without a copy."""
    if isinstance(content, np.ndarray):
        return content.reshape(-1, order="A").view(np.uint8)
    return np.frombuffer(content, dtype=np.uint8)


def undo_codec(
    step: CodecStep,
    content: Any,
    nbytes: int,
    expected: int | None,
    out: NDArray[np.uint8] | None = None,
) -> Any:
    """Return the bytes, or numbers, before one codec was applied."""
    name = step.name
    limit = MAX_GROWTH * nbytes + SPARE_NBYTES if expected is None else expected
    if step.elementsize:
        return unshuffle(content, step.elementsize, out)
    if name == CHECKSUM:
        return _without_crc32c(content)
    if name == "fletcher32":
        return _without_fletcher32(content)
    if name == HDF5_LZ4:
        return _hdf5_lz4(as_bytes(content).data, limit)
    if name in STREAMED:
        whole = _inflated_whole(content, limit) if name == "zlib" and expected else None
        return _inflated(step, content, limit) if whole is None else whole
    plain = _plain_nbytes(name, as_bytes(content).data)
    if plain is not None and (plain > limit or expected not in (None, plain)):
        raise DamagedChunkError(f"it decodes to {plain} bytes, expected {nbytes}")
    codec = _codec(step.configuration)
    if expected is not None and (plain is not None or name == "zstd"):
        if out is None or plain is None:
            return codec.decode(content, for_one_sample(expected))
        codec.decode(content, out)
        return out
    if name == "zstd" and plain is None:
        raise ValueError("it does not say its size")
    undone = codec.decode(content)
    if (found := as_bytes(undone).nbytes) > limit:
        raise DamagedChunkError(f"it decodes to {found} bytes, expected {nbytes}")
    return undone


def _inflated_whole(content: Any, expected: int) -> bytearray | None:
    """Inflate zlib to so many bytes at once; None where it cannot be, for whoever says why."""
    library = _library("deflate")
    if library is None:
        return None
    stored = as_bytes(content).data
    if expected > MOST_TIMES * len(stored):  # no memory is taken for what is not there
        return None
    try:
        inflated: bytearray = library.zlib_decompress(stored, expected)
    except (library.DeflateError, MemoryError):
        return None
    return inflated if len(inflated) == expected else None


def _inflater(name: str) -> Any:
    library = _library("isal.isal_zlib") or zlib
    return library.decompressobj(DEFLATED[name])


def _inflating_errors() -> tuple[type[Exception], ...]:
    library = _library("isal.isal_zlib")
    return (zlib.error,) if library is None else (zlib.error, library.error)


@lru_cache(maxsize=8)
def _library(name: str) -> Any:
    """Return a module, None where it is not installed: to look for it takes as long as a chunk."""
    try:
        return import_module(name)
    except ImportError:
        return None


def _inflate(inflating: Any, content: Any, limit: int) -> bytes:
    try:
        inflated: bytes = inflating.decompress(content, limit)
    except _inflating_errors() as error:
        raise zlib.error(str(error)) from error
    return inflated


def _stream(step: CodecStep) -> Any:
    if step.name in DEFLATED:
        return _inflater(step.name)
    if step.name == "bz2":
        return bz2.BZ2Decompressor()
    codec = _codec(step.configuration)
    raw = codec.format == lzma.FORMAT_RAW
    return lzma.LZMADecompressor(
        codec.format, None if raw else MAX_DICTIONARY_NBYTES, codec.filters if raw else None
    )


def _inflated(step: CodecStep, content: Any, limit: int) -> bytes:
    """Inflate all streams of a chunk, up to one byte more than it may hold."""
    parts: list[bytes] = []
    left, n_bytes = as_bytes(content).data, 0
    while len(left) or not parts:
        if len(parts) == MAX_STREAMS:
            raise DamagedChunkError(f"it has more than {MAX_STREAMS} streams of {step.name}")
        stream = _stream(step)
        try:
            part = _inflate(stream, left, limit + 1 - n_bytes)
        except (OSError, zlib.error, lzma.LZMAError):
            if parts and step.name in ("bz2", "lzma"):  # what follows the last is no stream
                break
            raise
        parts.append(part)
        n_bytes += len(part)
        if n_bytes > limit:
            raise decodes_to_more(limit)
        if not stream.eof:
            raise EOFError("its compressed bytes end early")
        left = memoryview(b"" if step.name == "zlib" else stream.unused_data.lstrip(b"\0"))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unshuffle(
    content: Any, itemsize: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Undo a shuffle: byte 0 of all numbers, then byte 1 of all, then what is left over.

    What is returned is ``out``, where it has that size.
    """
    flat = as_bytes(content)
    count = len(flat) // itemsize
    whole = count * itemsize
    values = out if out is not None and len(out) == len(flat) else for_one_sample(len(flat))
    numbers, planes = values[:whole].reshape(-1, itemsize), flat[:whole].reshape(itemsize, -1)
    values[whole:] = flat[whole:]
    is_framed = whole >= FRAMED_LEAST_NBYTES and itemsize < 256
    blosc = _library("numcodecs.blosc") if is_framed else None
    if blosc is None:
        for byte in range(itemsize):  # a quarter of the time that the transposed takes
            numbers[:, byte] = planes[byte]
        return values
    step = FRAMED_NBYTES // itemsize
    for start in range(0, count, step):
        some = planes[:, start : start + step]
        blosc.decompress(_frames.frame(some), values[start * itemsize : (start + step) * itemsize])
    return values


class _Frames(threading.local):
    """Memory of each thread for shuffled bytes as Blosc frames them, not compressed.

    Blosc unshuffles with vector instructions, NumPy byte by byte. Source: README_CHUNK_FORMAT of
    c-blosc: versions, flags (shuffled, one stream), size of a number; sizes of numbers, block and
    frame; where the block begins, and the size of its stream: all of it, so it is a copy.
    """

    def __init__(self) -> None:
        self._room = np.empty(BLOSC_HEADER_NBYTES + 8 + FRAMED_NBYTES, dtype=np.uint8)

    def frame(self, planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the frame of one block, until the next is asked for."""
        itemsize, nbytes, start = len(planes), planes.size, BLOSC_HEADER_NBYTES + 8
        frame = self._room[: start + nbytes]
        words = (nbytes, nbytes, start + nbytes, BLOSC_HEADER_NBYTES + 4, nbytes)
        frame[:start] = np.frombuffer(
            struct.pack("<4B5I", 2, 1, BLOSC_SHUFFLED | BLOSC_ONE_STREAM, itemsize, *words),
            dtype=np.uint8,
        )
        frame[start:].reshape(planes.shape)[...] = planes
        return frame


_frames = _Frames()


def _checksum_of(content: Any) -> tuple[memoryview, memoryview]:
    view = as_bytes(content).data
    if len(view) < CHECKSUM_NBYTES:
        raise DamagedChunkError(f"it holds {len(view)} bytes, no room for a checksum")
    return view[:-CHECKSUM_NBYTES], view[-CHECKSUM_NBYTES:]


def _without_crc32c(content: Any) -> memoryview:
    checked, checksum = _checksum_of(content)
    stored, found = int.from_bytes(checksum, "little"), crc32c(checked)
    if stored != found:
        raise DamagedChunkError(f"crc32c {found:#010x} instead of {stored:#010x}")
    return checked


def _without_fletcher32(content: Any) -> Any:
    """Check HDF5's Fletcher-32, whose sum numcodecs knows."""
    checked, checksum = _checksum_of(content)
    codec = _codec('{"id": "fletcher32"}')
    try:
        return codec.decode(content)
    except RuntimeError:
        found = bytes(codec.encode(checked)[-CHECKSUM_NBYTES:])
    # HDF5 1.6.2 wrote the two bytes of each half swapped; every HDF5 since accepts both.
    if bytes(checksum) != bytes(found[place] for place in (1, 0, 3, 2)):
        stored, sums = (int.from_bytes(each, "little") for each in (checksum, found))
        raise DamagedChunkError(f"checksum {sums:#010x} instead of {stored:#010x}")
    return checked


def _hdf5_lz4(content: memoryview, limit: int) -> NDArray[np.uint8]:
    """Undo LZ4 as HDF5's filter 32004 frames it.

    Source: "Filter description for LZ4 compression in HDF5" (support.hdfgroup.org,
    services/filters/HDF5_LZ4.pdf): big-endian, 8 bytes of the size of all and 4 of that of a block,
    then each block behind 4 bytes of its stored size; one that did not shrink is stored as it is.
    """
    size, step = (int.from_bytes(content[a:b], "big") for a, b in ((0, 8), (8, 12)))
    if len(content) < 12 or size > limit or (size and not step):
        raise DamagedChunkError(f"it decodes to {size} bytes in blocks of {step}")
    codec, values, place = _codec('{"id": "lz4"}'), np.empty(size, dtype=np.uint8), 12
    for start in range(0, size, max(step, 1)):
        target = values[start : start + step]
        end = place + 4 + int.from_bytes(content[place : place + 4], "big")
        stored = content[place + 4 : end]
        if end > len(content) or end - place == 4:
            raise EOFError("its compressed bytes end early")
        if len(stored) == len(target):
            target[:] = np.frombuffer(stored, dtype=np.uint8)
        else:
            header = len(target).to_bytes(4, "little")
            codec.decode(b"".join((header, stored)), target)
        place = end
    return values


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
        # Of what it would rather have installed; it puts a filter of its own before any other.
        with warnings.catch_warnings(record=True):
            import numcodecs
    except ImportError as error:
        raise MissingExtraError(
            "compressed chunks need numcodecs: pip install 'iobench[zarr]'"
        ) from error
    return numcodecs


def refused_codecs(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of those codecs that are not made: unsafe, or numcodecs does not know them.

    Nothing is made of a configuration before its id and what it says of dtypes were looked at.
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
