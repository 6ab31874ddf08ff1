"""The adaptive entropy coding of CCSDS 121.0-B, decoded by the libaec that ecCodes itself uses.

Through ecCodes every message is a handle, is copied, decoded into new memory and made doubles,
which takes 1.4 times as long.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SIGNED, THREE_BYTES, MOST_SIGNIFICANT_FIRST = 1, 2, 4
BLOCK_SIZES = (8, 16, 32, 64)
MOST_BLOCKS = 4096
"""Between reference samples, by the standard; libaec itself does not look."""
MOST_BITS = 32


class _Stream(ctypes.Structure):
    """``struct aec_stream`` of libaec.h."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_size_t),
        ("total_in", ctypes.c_size_t),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_size_t),
        ("total_out", ctypes.c_size_t),
        ("bits_per_sample", ctypes.c_uint),
        ("block_size", ctypes.c_uint),
        ("rsi", ctypes.c_uint),
        ("flags", ctypes.c_uint),
        ("state", ctypes.c_void_p),
    )


class CodedIntegers(msgspec.Struct, frozen=True):
    """How integers of at most 32 bits were coded."""

    bits: int
    block_size: int
    rsi: int
    flags: int  # as of ``struct aec_stream``; of flags, the order of bytes is what is wanted here

    @property
    def is_decoded_here(self) -> bool:
        """Whether `decode` is for them: they are as the standard has them, and libaec is there."""
        return (
            1 <= self.bits <= MOST_BITS
            and self.block_size in BLOCK_SIZES
            and 1 <= self.rsi <= MOST_BLOCKS
            and not self.flags & SIGNED
            and _buffer_decode() is not None
        )

    @property
    def itemsize(self) -> int:
        """Bytes of an integer that is decoded."""
        return 1 if self.bits <= 8 else 2 if self.bits <= 16 else 4

    def decode(self, coded: NDArray[np.uint8], count: int) -> NDArray[Any] | None:
        """Return so many integers, decoded without the GIL; None of what does not hold them all."""
        decode = _buffer_decode()
        integers = np.empty(count, np.dtype(f"u{self.itemsize}"))
        flags = self.flags & ~(THREE_BYTES | MOST_SIGNIFICANT_FIRST)
        stream = _Stream(
            next_in=coded.ctypes.data, avail_in=coded.nbytes,
            next_out=integers.ctypes.data, avail_out=integers.nbytes,
            bits_per_sample=self.bits, block_size=self.block_size, rsi=self.rsi,
            flags=flags | MOST_SIGNIFICANT_FIRST * (sys.byteorder == "big"),
        )  # fmt: skip
        if decode is None or decode(ctypes.byref(stream)) or stream.avail_out:
            return None
        return integers


@cache
def _buffer_decode() -> Callable[[Any], int] | None:
    """Return ``aec_buffer_decode``; None where ecCodes was built without, or hides it."""
    try:
        from gribapi.bindings import library_path

        decode = ctypes.CDLL(library_path).aec_buffer_decode
    except (ImportError, OSError, AttributeError):
        return None
    decode.argtypes, decode.restype = (ctypes.POINTER(_Stream),), ctypes.c_int
    return decode
