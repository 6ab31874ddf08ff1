"""From the stored bytes of a chunk to those of its numbers: codecs of HDF5 and Zarr, by numcodecs.

Metadata are not trusted: they name codecs, and some codecs run what the chunks say, so only those
of `SAFE_CODECS` are made. Nor are chunks: memory is taken for no more bytes than a chunk has, and
streams are inflated no further. What the standard library inflates is inflated here, zlib and gzip
by isa-l where it is installed (660 MB/s of shuffled fields on one core, where zlib has 420).
"""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import warnings
import zlib
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import FileFormatError, MissingExtraError
from iobench.files.crc32c import crc32c
from iobench.files.memory import for_one_sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

GRIB_MESSAGE: Final = '{"id": "grib"}'
"""A chunk that is a whole GRIB message: decoded by `iobench.chunks.grib`, not here."""
CRC32C: Final = '{"id": "crc32c"}'
"""Zarr version 3's checksum: four bytes behind the content, little-endian, as of numcodecs."""
SAFE_CODECS: Final = frozenset({
    "blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd",
    "astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle",
    "adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3",
})  # fmt: skip
"""Ids of numcodecs that metadata may name: each turns numbers or bytes into such, by a bounded
factor, and nothing else. Never here: ``pickle``, which runs code that is in the data; ``json2``,
``msgpack2``, ``vlen-*`` and ``categorize``, which make objects. Others are for us to look at first.
"""
CHECKSUMS: Final = frozenset({"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"})
CHECKSUM_NBYTES = 4
DEFLATED: Final = {"zlib": zlib.MAX_WBITS, "gzip": zlib.MAX_WBITS | 16}
STREAMED: Final = frozenset({*DEFLATED, "bz2", "lzma"})
"""Compressors whose bytes do not say how many they become: a bomb shows while it is inflated."""

MAX_CODECS = 16
MAX_ITEMSIZE = 256
MAX_GROWTH = 16
"""How many bytes a codec between two others makes of one: ``i1`` becomes ``c16``."""
SPARE_NBYTES = 1 << 16
"""What incompressible bytes and checksums may add to a chunk on the way."""
MAX_DICTIONARY_NBYTES = 1 << 28
"""What inflating LZMA may take beside its result; the largest preset takes 65 MiB."""
BLOSC_HEADER_NBYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

DECODING_ERRORS: Final = (
    RuntimeError, ValueError, TypeError, IndexError, EOFError, OSError, MemoryError, zlib.error,
    lzma.LZMAError,
)  # fmt: skip


class DamagedChunkError(Exception):
    """A chunk cannot be decoded; whoever knows its name says so to the user."""


class _Step(NamedTuple):
    """A codec that is to be undone."""

    configuration: str  # as JSON
    name: str
    itemsize: int  # of what is shuffled
    nbytes: int | None  # of what was encoded; None: that depends on the numbers


def decode_bytes(
    stored: memoryview,
    codecs: tuple[str, ...],
    nbytes: int,
    mask: int = 0,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Return the bytes of a chunk's numbers; they are ``out`` where they could be decoded there.

    ``codecs`` are configurations of numcodecs as JSON, in the order in which they were applied;
    ``mask`` has as bits those that were left out.
    """
    content: Any = stored
    steps = _steps(codecs, nbytes, mask)
    for left, step in enumerate(steps, 1 - len(steps)):
        try:
            content = _undo(step, content, nbytes, None if left else out)
        except DECODING_ERRORS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DamagedChunkError(f"{step.name} cannot decode it: {reason}") from error
    flat = content if isinstance(content, np.ndarray) and content is out else as_bytes(content)
    if flat.nbytes != nbytes:
        raise DamagedChunkError(f"it holds {flat.nbytes} bytes, expected {nbytes}")
    return flat


@lru_cache(maxsize=1024)
def _steps(codecs: tuple[str, ...], nbytes: int, mask: int) -> tuple[_Step, ...]:
    """Return what is undone of a chunk: of small chunks this would take as long as inflating."""
    steps: list[_Step] = []
    expected: int | None = nbytes
    for bit, text in enumerate(codecs):
        if mask >> bit & 1:
            continue
        described = json.loads(text)
        name = described["id"]
        steps.insert(0, _Step(text, name, described.get("elementsize", 4), expected))
        if name in CHECKSUMS and expected is not None:
            expected += CHECKSUM_NBYTES
        elif name != "shuffle":
            expected = None
    return tuple(steps)


def codec_name(configuration: str) -> str:
    """Return what a codec is called, for people; of Blosc with the compressor inside."""
    described = json.loads(configuration)
    name = str(described["id"])
    return f"{name} ({described['cname']})" if "cname" in described else name


def inflated_file(content: memoryview, limit: int, where: str) -> bytes:
    """Inflate the content of a gzip file that holds no more than so many bytes."""
    try:
        return _inflated("gzip", content, limit)
    except (DamagedChunkError, *DECODING_ERRORS) as error:
        reason = " ".join(str(error).split())
        raise FileFormatError(
            f"{where}: gzip cannot decode it: {reason}; fetch the file again"
        ) from error


def as_bytes(content: Any) -> NDArray[np.uint8]:
    """Return bytes or numbers as flat bytes, without a copy."""
    if isinstance(content, np.ndarray):
        return content.reshape(-1, order="A").view(np.uint8)
    return np.frombuffer(content, dtype=np.uint8)


def _undo(step: _Step, content: Any, nbytes: int, out: NDArray[np.uint8] | None) -> Any:
    """Return the bytes, or numbers, before one codec was applied."""
    name, expected = step.name, step.nbytes
    limit = MAX_GROWTH * nbytes + SPARE_NBYTES if expected is None else expected
    if name == "shuffle":
        return unshuffle(content, step.itemsize, out)
    if step.configuration == CRC32C:
        return _without_crc32c(content)
    if name in STREAMED:
        return _inflated(name, content, limit)
    if name in ("blosc", "lz4", "zstd"):
        is_flat = isinstance(content, memoryview) and content.itemsize == 1
        stated = stated_nbytes(name, content if is_flat else as_bytes(content).data, expected)
        if stated > limit or expected not in (None, stated):
            raise DamagedChunkError(f"it decodes to {stated} bytes, expected {nbytes}")
        target = for_one_sample(stated) if out is None else out
        if name == "blosc":  # its codec looks at both again, which takes as long as a small chunk
            load_numcodecs().blosc.decompress(content, target)
        else:
            _codec(step.configuration).decode(content, target)
        return target
    undone = _codec(step.configuration).decode(content)
    if (n_bytes := as_bytes(undone).nbytes) > limit:
        raise DamagedChunkError(f"it decodes to {n_bytes} bytes, expected {nbytes}")
    return undone


@lru_cache(maxsize=1)
def _inflating() -> Any:
    """Return isa-l's zlib where it is installed: to look for it takes as long as a chunk."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


def _inflated(name: str, content: Any, limit: int) -> bytes:
    """Inflate a chunk, up to one byte more than it may hold."""
    library = _inflating()
    stream: Any
    if name in DEFLATED:
        stream = library.decompressobj(DEFLATED[name])
    elif name == "bz2":
        stream = bz2.BZ2Decompressor()
    else:
        stream = lzma.LZMADecompressor(memlimit=MAX_DICTIONARY_NBYTES)
    try:
        whole: bytes = stream.decompress(as_bytes(content).data, limit + 1)
    except library.error as error:
        raise zlib.error(str(error)) from error
    if len(whole) > limit:
        raise DamagedChunkError(f"it decodes to more than the {limit} bytes expected")
    if not stream.eof:
        raise EOFError("its compressed bytes end early")
    return whole


def unshuffle(
    content: Any, itemsize: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Undo a shuffle: byte 0 of all numbers, then byte 1 of all, then what is left over.

    What is returned is ``out``, where it has that size. numcodecs refuses what is left over.
    """
    flat = as_bytes(content)
    whole = len(flat) // itemsize * itemsize
    values = out if out is not None and len(out) == len(flat) else for_one_sample(len(flat))
    values[whole:] = flat[whole:]
    for byte, plane in enumerate(flat[:whole].reshape(itemsize, -1)):
        values[byte:whole:itemsize] = plane  # a quarter of the time that the transposed takes
    return values


def _without_crc32c(content: Any) -> memoryview:
    view = as_bytes(content).data
    if len(view) < CHECKSUM_NBYTES:
        raise DamagedChunkError(f"it holds {len(view)} bytes, fewer than a checksum")
    checked = view[:-CHECKSUM_NBYTES]
    stored, computed = int.from_bytes(view[-CHECKSUM_NBYTES:], "little"), crc32c(checked)
    if stored != computed:
        raise DamagedChunkError(f"crc32c {computed:#010x} instead of {stored:#010x}")
    return checked


def stated_nbytes(name: str, content: memoryview, expected: int | None) -> int:
    """Return to how many bytes a codec will decode, as its stored bytes say.

    Sources: README_CHUNK_FORMAT of c-blosc (a header of 16 bytes, with the sizes of the numbers at
    byte 4 and of the chunk at byte 12, which Blosc believes and would read past the end); lz4 of
    numcodecs; RFC 8878, section 3.1.1.1. A frame of zstd may not say it: then numcodecs decodes to
    as many bytes as it has room for, or fails.
    """
    if name == "blosc":
        if len(content) < BLOSC_HEADER_NBYTES:
            raise DamagedChunkError(f"it holds {len(content)} bytes, less than a Blosc header")
        plain, _, stored = struct.unpack_from("<III", content, 4)
        if stored > len(content):
            raise DamagedChunkError(
                f"it holds {len(content)} bytes, its Blosc header says {stored}"
            )
        return int(plain)
    if name == "lz4":
        return int.from_bytes(content[:4], "little")
    if content[:4] != ZSTD_MAGIC or len(content) < 5:
        raise ValueError("its bytes are no frame")
    descriptor = content[4]
    single_segment = descriptor >> 5 & 1
    length = (single_segment, 2, 4, 8)[descriptor >> 6]
    if not length:
        if expected is None:
            raise ValueError("it does not say its size")
        return expected
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(content[start : start + length], "little")
    return size + 256 if length == 2 else size


@lru_cache(maxsize=64)
def _codec(configuration: str) -> Any:
    return load_numcodecs().get_codec(json.loads(configuration))


@lru_cache(maxsize=1)
def load_numcodecs() -> Any:
    """Return numcodecs; raise MissingExtraError where it is not installed."""
    try:
        # Of what it would rather have installed; it puts a filter of its own before any other.
        with warnings.catch_warnings(record=True):
            import numcodecs
    except ImportError as error:
        raise MissingExtraError("compressed chunks need numcodecs", extra="zarr") from error
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
            load_numcodecs().get_codec(dict(configuration))
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
    return configuration.get("format") != lzma.FORMAT_RAW  # which says nothing of its memory


HDF5_FILTERS: Final = {
    1: "zlib", 2: "shuffle", 3: "fletcher32", 307: "bz2", 32001: "blosc", 32015: "zstd",
}  # fmt: skip
"""Those of HDF5 that are undone here, by their numbers.

Numbers and parameters (``cd_values``): the HDF5 reference manual, and "HDF5 Filter Plugins" of the
HDF Group (hdf5_plugins, docs/RegisteredFilterPlugins.md).
"""
_BLOSC_COMPRESSORS: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


class UnknownFilterError(Exception):
    """Only the HDF5 library can undo a filter; the message names it."""


def hdf5_codec(number: int, parameters: Sequence[int], name: bytes) -> str:
    """Return a filter of HDF5 as a codec; the file names those that have none.

    The seventh number of Blosc's is the compressor (hdf5-blosc, blosc_filter.c); a chunk is one
    buffer of Blosc's, which says all else.
    """
    described: dict[str, Any] = {"id": HDF5_FILTERS.get(number, "")}
    if number == 2 and any(parameters):
        described["elementsize"] = parameters[0]
    elif number == 32001:
        compressors = dict(enumerate(_BLOSC_COMPRESSORS))
        cname = compressors.get(parameters[6], "") if len(parameters) > 6 else "blosclz"
        if cname not in load_numcodecs().blosc.list_compressors():
            raise UnknownFilterError(f"HDF5 filter blosc ({cname})")
        described["cname"] = cname
    elif number not in HDF5_FILTERS or number == 2:
        raise UnknownFilterError(f"HDF5 filter {name.decode(errors='replace') or number}")
    return json.dumps(described, sort_keys=True)
