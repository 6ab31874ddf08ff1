"""The codecs of a store's chunks, as ``--codec`` has them: ``shuffle,zstd:level=3``.

A chain is applied from left to right, by numcodecs. ``bitround:keepbits=N``, which comes first, is
no codec of chunks: it rounds values before they are stored; see `iobench.stores.Encoding`.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.chunks.chunk_codecs import DamagedChunkError, decode_bytes, load_numcodecs
from iobench.errors import OptionError, StoreError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

BITROUND: Final = "bitround"
SHUFFLE: Final = "shuffle"
ZSTD_MOST: Final = 22
CODECS: Final = ("blosc", "bz2", "gzip", "lz4", "lzma", SHUFFLE, "zlib", "zstd")
"""Those of numcodecs that take bytes and lose nothing."""
SPELLED: Final = {"blosc-lz4": "blosc"}
SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
"""Blosc's, by number."""
MOST_NBYTES: Final = (1 << 31) - 1 - 16
"""What the codecs of numcodecs take at once."""
ERRORS: Final = (RuntimeError, ValueError, TypeError, OverflowError, zlib.error, lzma.LZMAError)

Decode = Callable[[memoryview, "NDArray[np.uint8]"], None]


class CodecChain(NamedTuple):
    """What is done to each chunk of a store, in order; nothing where it has no codecs."""

    codecs: tuple[str, ...] = ()  # as numcodecs configures them, in JSON

    def configurations(self, itemsize: int) -> list[dict[str, Any]]:
        """Return them as numcodecs has them, for numbers of so many bytes."""
        configurations: list[dict[str, Any]] = list(map(json.loads, self.codecs))
        for each in configurations:
            if each["id"] == SHUFFLE:
                each["elementsize"] = itemsize
        return configurations

    def encode(self, chunk: NDArray[Any]) -> memoryview:
        """Return the stored bytes of a chunk.

        Not from the main thread, where Blosc may use threads of its own: they lay a chunk's blocks
        down in the order they finish in, so that the bytes would differ from run to run.
        """
        content: Any = _plain(chunk)
        for codec in _made(self, chunk.dtype.itemsize):
            if codec.codec_id == "gzip":  # that of numcodecs notes the time
                content = gzip.compress(content, codec.level, mtime=0)
            else:
                content = codec.encode(content)
        return memoryview(content).cast("B")

    def decoder(self, itemsize: int) -> Decode:
        """Return what writes the bytes of a chunk's numbers; it raises StoreError of damage."""
        texts = tuple(map(json.dumps, self.configurations(itemsize)))

        def decode(data: memoryview, out: NDArray[np.uint8]) -> None:
            try:
                result = decode_bytes(data, texts, out.size, 0, out)
            except DamagedChunkError as error:
                raise StoreError(f"a chunk is damaged: {error}; verify the store") from error
            if result is not out:
                out[...] = result

        return decode


NO_CODECS: Final = CodecChain()


@lru_cache(maxsize=64)
def _made(chain: CodecChain, itemsize: int) -> tuple[Any, ...]:
    """Return the codecs as numcodecs has them."""
    return tuple(map(load_numcodecs().get_codec, chain.configurations(itemsize)))


@lru_cache(maxsize=64)
def parse_codecs(text: str) -> CodecChain:
    """Return the chain that ``--codec`` spells, without its rounding; ``none`` is an empty one."""
    if text == "none":
        return NO_CODECS
    kept_bits(text)
    pieces = [each for each in _pieces(text) if each[0] != BITROUND]
    sorts = [name == SHUFFLE for name, _ in pieces]
    if sorts != sorted(sorts, reverse=True):
        raise OptionError(f"--codec {text}: {SHUFFLE} sorts numbers; name it before others")
    try:
        chain = CodecChain(tuple(_codec(text, SPELLED.get(n, n), given) for n, given in pieces))
        chain.encode(np.zeros(64, dtype=np.float32))
    except ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OptionError(f"--codec {text}: numcodecs refuses it: {reason}") from error
    return chain


def kept_bits(text: str | None) -> int | None:
    """Return the bits of the mantissa that a chain keeps; None where it does not round."""
    for place, (name, given) in enumerate(_pieces(text or "none")):
        if name != BITROUND:
            continue
        bits = given.get("keepbits", "")
        if place:
            raise OptionError(f"--codec {text}: {BITROUND} rounds values; name it first")
        if set(given) != {"keepbits"} or not bits.isdecimal() or int(bits) > 52:
            raise OptionError(f"--codec {text}: expected {BITROUND}:keepbits=N, N from 0 to 52")
        return int(bits)
    return None


def _pieces(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return names and parameters: ``a:x=1,y=2,b`` are two, for a name has no ``=`` before it."""
    result: list[tuple[str, dict[str, str]]] = []
    for piece in text.split(","):
        before, colon, after = piece.partition(":")
        if not before.strip():
            raise OptionError(f"--codec {text}: expected the name of a codec, got nothing")
        if "=" not in before or not result:
            result.append((before.strip(), {}))
            piece = after
        if colon or piece:
            key, equals, value = map(str.strip, piece.partition("="))
            if not (equals and key and value) or key in result[-1][1]:
                raise OptionError(f"--codec {text}: expected NAME:PARAMETER=VALUE,...; got {piece}")
            result[-1][1][key] = value
    return result


def _codec(text: str, name: str, given: Mapping[str, str]) -> str:
    """Return all that numcodecs says of a codec, in JSON."""
    if name not in CODECS:
        raise UnknownNameError(
            f"--codec {text}: no codec {name!r}; there are none, {', '.join(CODECS)}, and "
            f"{BITROUND}:keepbits=N before them"
        )
    values: dict[str, Any] = dict(given)
    for key, value in given.items():
        if value.removeprefix("-").isdecimal():
            values[key] = int(value)
        elif name == "blosc" and value in SHUFFLES:
            values[key] = SHUFFLES.index(value)
    if name == "zstd" and values.get("level", 0) > ZSTD_MOST:  # which zarr-python refuses
        raise OptionError(f"--codec {text}: level: expected {ZSTD_MOST} or less")
    if name == SHUFFLE and values:
        raise OptionError(f"--codec {text}: {SHUFFLE}'s elements are the numbers; name it alone")
    return json.dumps(load_numcodecs().get_codec({"id": name, **values}).get_config())


def _plain(chunk: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of the same size that export a buffer of a kind every library knows."""
    kinds = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
    return np.ascontiguousarray(chunk).reshape(-1).view(kinds[chunk.dtype.itemsize])
