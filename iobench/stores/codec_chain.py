"""The codecs of a store's chunks, as ``--codec`` has them: ``shuffle,zstd:level=3``.

A chain is applied from left to right, by numcodecs. ``bitround:keepbits=N``, which comes first, is
no codec of chunks: it rounds values before they are stored; see `iobench.stores.Encoding`.
"""

from __future__ import annotations

import gzip
import json
import lzma
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.chunks.chunk_codecs import DamagedChunkError, decode_bytes, stated_nbytes
from iobench.errors import MissingExtraError, OptionError, StoreError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

BITROUND: Final = "bitround"
SHUFFLE: Final = "shuffle"
ZSTD_MOST: Final = 22
CODECS: Final[Mapping[str, Mapping[str, Any]]] = {
    "blosc": {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "bz2": {"level": 1},
    "gzip": {"level": 1},
    "lz4": {"acceleration": 1},
    "lzma": {"preset": 6},
    "shuffle": {"elementsize": 0},  # 0: the size of the numbers
    "zlib": {"level": 1},
    "zstd": {"level": 0},
}
"""Codecs of bytes that lose nothing, their parameters and what these are by default.

Not numcodecs' own defaults, which are others in other versions: a store is the same in all.
"""
SPELLED: Final = {"blosc-lz4": "blosc"}
SHUFFLES: Final = ("noshuffle", "shuffle", "bitshuffle")
"""Blosc's, by number."""
SIZED: Final = frozenset({"blosc", "lz4", "zstd"})
"""Codecs whose bytes say how many they become."""
MOST_NBYTES: Final = (1 << 31) - 1 - 16
"""What the codecs of numcodecs take at once."""
ERRORS: Final = (RuntimeError, ValueError, TypeError, OverflowError, zlib.error, lzma.LZMAError)


Decode = Callable[[memoryview, "NDArray[np.uint8]"], None]


class Codec(NamedTuple):
    """One codec of a chain, with all its parameters."""

    name: str
    parameters: tuple[tuple[str, Any], ...]

    def configuration(self, itemsize: int) -> dict[str, Any]:
        """Return it as numcodecs has it, for numbers of so many bytes."""
        values: dict[str, Any] = {"id": self.name, **dict(self.parameters)}
        if self.name == SHUFFLE:
            values["elementsize"] = values["elementsize"] or itemsize
        return values


class CodecChain(NamedTuple):
    """What is done to each chunk of a store, in order; nothing where it has no codecs."""

    codecs: tuple[Codec, ...] = ()

    def encode(self, chunk: NDArray[Any]) -> memoryview:
        """Return the stored bytes of a chunk: the same from whatever thread.

        On the main one Blosc may use threads of its own, which lay a chunk's blocks down in the
        order they finish in: the bytes would differ from run to run.
        """
        is_threaded = any(codec.name == "blosc" for codec in self.codecs)
        if is_threaded and threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.encode, chunk).result()
        content: Any = _plain(chunk)
        for codec in _made(self, chunk.dtype.itemsize):
            if codec.codec_id == "gzip":  # that of numcodecs notes the time
                content = gzip.compress(content, codec.level, mtime=0)
            else:
                content = codec.encode(content)
        return memoryview(content).cast("B")

    def fits(self, nbytes: int, itemsize: int) -> bool:
        """Tell whether a chunk of so many bytes has whole elements of each shuffle."""
        sizes = [codec.configuration(itemsize).get("elementsize", 1) for codec in self.codecs]
        return not any(nbytes % size for size in sizes)

    def decoder(self, itemsize: int) -> Decode:
        """Return what writes the bytes of a chunk's numbers; it raises StoreError of damage."""
        name = self.codecs[0].name if len(self.codecs) == 1 else ""
        one = _made(self, itemsize)[0] if name in SIZED else None
        texts = tuple(json.dumps(codec.configuration(itemsize)) for codec in self.codecs)

        def decode(data: memoryview, out: NDArray[np.uint8]) -> None:
            try:
                if one is None:
                    result = decode_bytes(data, texts, out.size, 0, out)
                    if result is not out:
                        out[...] = result
                    return
                # As `decode_bytes` does, in a third of its time: small chunks feel it.
                if (stated := stated_nbytes(name, data, out.size)) != out.size:
                    raise DamagedChunkError(f"it decodes to {stated} bytes, expected {out.size}")
                one.decode(data, out)
            except (DamagedChunkError, *ERRORS) as error:
                reason = " ".join(str(error).split())
                raise StoreError(f"a chunk is damaged: {reason}; verify the store") from error

        return decode


NO_CODECS: Final = CodecChain()


@lru_cache(maxsize=64)
def _made(chain: CodecChain, itemsize: int) -> tuple[Any, ...]:
    """Return the codecs as numcodecs has them."""
    get_codec = load_numcodecs().get_codec
    return tuple(get_codec(codec.configuration(itemsize)) for codec in chain.codecs)


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
    chain = CodecChain(tuple(_codec(text, SPELLED.get(n, n), given) for n, given in pieces))
    try:
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


def _codec(text: str, name: str, given: Mapping[str, str]) -> Codec:
    if name not in CODECS:
        raise UnknownNameError(
            f"--codec {text}: no codec {name!r}; there are none, {', '.join(CODECS)}, and "
            f"{BITROUND}:keepbits=N before them"
        )
    values = dict(CODECS[name])
    for key, value in given.items():
        if key not in values:
            known = ", ".join(values)
            raise OptionError(f"--codec {text}: {name} has no {key}; its parameters are {known}")
        if isinstance(values[key], str):
            values[key] = value
        elif value in SHUFFLES and key == "shuffle":
            values[key] = SHUFFLES.index(value)
        elif value.removeprefix("-").isdecimal():
            values[key] = int(value)
        else:
            raise OptionError(f"--codec {text}: {key}={value}: expected a whole number")
    if name == SHUFFLE and values["elementsize"] < 0:
        raise OptionError(f"--codec {text}: elementsize: expected the bytes of a number")
    if name == "zstd" and values["level"] > ZSTD_MOST:  # zarr-python refuses it, numcodecs does not
        raise OptionError(f"--codec {text}: level: expected {ZSTD_MOST} or less")
    return Codec(name, tuple(values.items()))


def _plain(chunk: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of the same size that export a buffer of a kind every library knows."""
    kinds = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
    return np.ascontiguousarray(chunk).reshape(-1).view(kinds[chunk.dtype.itemsize])


def load_numcodecs() -> Any:
    """Return numcodecs; raise MissingExtraError where it is not installed."""
    try:
        import numcodecs
    except ImportError as error:
        raise MissingExtraError("--codec needs numcodecs", extra="zarr") from error
    return numcodecs
