"""The values of a GRIB message: unpacked by numpy where ecCodes does the same, else by ecCodes.

The commonest packing, grid points as integers of one size, takes ecCodes five times as long, which
copies the message first. Only messages that leave no question are unpacked here: whole, one field
with a value at each point, no bitmap, 8, 16 or 32 bits a value.
WMO Manual on Codes, FM 92: GRIB1 section 4; GRIB2 templates 5.0 and 7.0.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

LONG_EDITION_1 = 0x800000
"""Set in the length of a message of edition 1 that is longer than three bytes can say."""
_MISSING = float(np.finfo(np.float32).max)
INTEGERS = {8: ">u1", 16: ">u2", 32: ">u4"}
CHUNK = 1 << 14
"""Values handled at once: their doubles fit a core's cache."""
GRIB1_REGULAR = (0, 4)  # latitude and longitude, Gaussian
SIMPLE = 0
NO_BITMAP = 255
NOT_GIVEN = 0xFFFF
END = b"7777"


def decode_message(
    buffer: memoryview | bytes,
    dtype: type[np.float32] | type[np.float64] = np.float32,
    *,
    where: str = "a GRIB message",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Decode the values of a message, on one core, without the GIL."""
    packing = simple_packing(buffer)
    if packing is not None:
        values = np.empty(packing.count, dtype) if out is None else out
        _check_size(values, packing.count, where)
        packing.unpack(buffer, values)
        return values
    decoded = _through_eccodes(buffer, where)
    if out is None:
        return decoded.astype(dtype, copy=False)
    _check_size(out, decoded.size, where)
    out[:] = decoded
    return out


def _check_size(values: NDArray[Any], count: int, where: str) -> None:
    if values.shape != (count,):
        raise FileFormatError(
            f"{where} has {count} values, expected {values.size}: the file has changed since it "
            "was indexed"
        )


def _through_eccodes(buffer: memoryview | bytes, where: str) -> NDArray[np.float64]:
    _check_whole(buffer, where)
    codes = load_eccodes()
    try:
        handle = codes.codes_new_from_message(buffer)
        try:
            return _values(codes, handle)
        finally:
            codes.codes_release(handle)
    except codes.CodesInternalError as error:
        raise FileFormatError(f"{where} cannot be decoded: ecCodes says {error}") from error


def _check_whole(buffer: memoryview | bytes, where: str) -> None:
    """Raise FileFormatError for a part of a message: ecCodes reads on beyond its end, and crashes.

    Lengths are where WMO's GRIB editions 1 and 2 have them; of messages of edition 1 that are
    longer than theirs can say only the ends are checked.
    """
    whole = len(buffer) >= 20 and bytes(buffer[:4]) == b"GRIB" and bytes(buffer[-4:]) == b"7777"
    if whole and buffer[7] == 1:
        stated = int.from_bytes(buffer[4:7], "big")
        whole = bool(stated & LONG_EDITION_1) or stated == len(buffer)
    elif whole and buffer[7] == 2:
        whole = int.from_bytes(buffer[8:16], "big") == len(buffer)
    if not whole:
        raise FileFormatError(
            f"{where} cannot be decoded: {len(buffer)} bytes that are no whole GRIB message; fetch "
            "the file again"
        )


def _values(codes: ModuleType, handle: int) -> NDArray[np.float64]:
    gaps = codes.codes_get_long(handle, "bitmapPresent") or (
        codes.codes_is_defined(handle, "missingValueManagementUsed")
        and codes.codes_get_long(handle, "missingValueManagementUsed")
    )
    if gaps:
        codes.codes_set_double(handle, "missingValue", _MISSING)
    # Not asked for float32: with a decimal scale it would round twice, and it takes longer.
    values: NDArray[np.float64] = codes.codes_get_values(handle, np.float64)
    if gaps:
        values[values == _MISSING] = np.nan
    return values


def load_eccodes() -> ModuleType:
    """Return ecCodes."""
    try:
        import eccodes
    except ImportError as error:
        raise MissingExtraError("GRIB files need ecCodes: pip install 'iobench[grib]'") from error
    return eccodes  # type: ignore[no-any-return]


# -- simple packing ----------------------------------------------------------------------------


class SimplePacking(msgspec.Struct, frozen=True):
    """Where a message's integers are, and what they mean: (X * 2^E + R) * 10^-D."""

    edition: int
    bits: int
    count: int  # of GRIB; of one value; of values
    start: int  # where in the message the integers are
    reference: float  # R
    binary_scale: int
    decimal_scale: int  # E and D

    def unpack(self, buffer: memoryview | bytes, values: NDArray[Any]) -> None:
        """Write the values into ``values``, in the message's order: as in float64, then rounded."""
        packed = np.frombuffer(buffer, INTEGERS[self.bits], self.count, self.start)
        if values.dtype == np.float32 and self.rounds_once:
            self._unpack_singles(packed, values)
        else:
            self._unpack_doubles(packed, values)

    @property
    def rounds_once(self) -> bool:
        """Whether float32 arithmetic gives what float64 does, rounded to float32.

        X * 2^E and R are float32 exactly; where their sum fits the 53 bits of a float64, float64
        does not round it, and rounding to float32 is all that happens to it either way.
        """
        lowest, highest = self.binary_scale, self.binary_scale + self.bits
        if self.reference:
            exponent = math.frexp(self.reference)[1]
            lowest, highest = min(lowest, exponent - 24), max(highest, exponent)
        return (
            self.bits <= 24
            and self.decimal_scale == 0
            and highest + 1 - lowest <= 53
            and lowest >= -126
            and highest < 127
        )

    def _unpack_singles(self, packed: NDArray[Any], values: NDArray[np.float32]) -> None:
        scale, reference = np.float32(2.0**self.binary_scale), np.float32(self.reference)
        for start in range(0, self.count, CHUNK):
            singles = values[start : start + CHUNK]
            np.multiply(packed[start : start + CHUNK], scale, out=singles)
            singles += reference

    def _unpack_doubles(self, packed: NDArray[Any], values: NDArray[Any]) -> None:
        scale, decimal = 2.0**self.binary_scale, _power_of_ten(-self.decimal_scale)
        scratch = np.empty(min(CHUNK, self.count))
        for start in range(0, self.count, CHUNK):
            part = packed[start : start + CHUNK]
            doubles = scratch[: len(part)]
            np.multiply(part, scale, out=doubles)
            doubles += self.reference
            if self.decimal_scale:
                doubles *= decimal
            values[start : start + CHUNK] = doubles


def simple_packing(buffer: memoryview | bytes) -> SimplePacking | None:
    """Return how a message is packed; None where ecCodes must look at it.

    Damaged messages give None, too: what is wrong with them ecCodes says best.
    """
    try:
        edition = buffer[7]
        packing = {1: _grib1, 2: _grib2}[edition](buffer)
    except (IndexError, KeyError, struct.error):
        return None
    whole = bytes(buffer[:4]) == b"GRIB" and bytes(buffer[-4:]) == END
    return packing if whole else None


def _grib1(buffer: memoryview | bytes) -> SimplePacking | None:
    if _number(buffer, 4, 3) != len(buffer) or buffer[15] & 0xC0 != 0x80:
        return None
    grid = 8 + _number(buffer, 8, 3)
    data = grid + _number(buffer, grid, 3)
    length, flags, bits = _number(buffer, data, 3), buffer[data + 3], buffer[data + 10]
    points = _number(buffer, grid + 6, 2), _number(buffer, grid + 8, 2)
    count = points[0] * points[1]
    if (
        buffer[grid + 5] not in GRIB1_REGULAR
        or NOT_GIVEN in points
        or flags >> 4
        or bits not in INTEGERS
        or (length - 11) * 8 - (flags & 15) != count * bits
        or data + length + len(END) != len(buffer)
    ):
        return None
    return SimplePacking(
        edition=1,
        bits=bits,
        count=count,
        start=data + 11,
        reference=_ibm_float(_number(buffer, data + 6, 4)),
        binary_scale=_signed(_number(buffer, data + 4, 2)),
        decimal_scale=_signed(_number(buffer, 8 + 26, 2)),
    )


def _grib2(buffer: memoryview | bytes) -> SimplePacking | None:
    if _number(buffer, 8, 8) != len(buffer):
        return None
    sections, start = {}, 16
    while (number := buffer[start + 4]) != 7:
        if number in sections or not 1 <= number <= 6:
            return None  # several fields in one message
        sections[number] = start
        start += max(5, _number(buffer, start, 4))
    if not {3, 5, 6} <= set(sections):
        return None
    grid, packing, length = sections[3], sections[5], _number(buffer, start, 4)
    count, bits = _number(buffer, packing + 5, 4), buffer[packing + 19]
    if (
        _number(buffer, grid + 6, 4) != count
        or buffer[sections[6] + 5] != NO_BITMAP
        or start + length + len(END) != len(buffer)
    ):
        return None
    if (
        _number(buffer, packing + 9, 2) != SIMPLE
        or bits not in INTEGERS
        or length != 5 + count * bits // 8
    ):
        return None
    return SimplePacking(
        edition=2,
        bits=bits,
        count=count,
        start=start + 5,
        reference=float(struct.unpack_from(">f", buffer, packing + 11)[0]),
        binary_scale=_signed(_number(buffer, packing + 15, 2)),
        decimal_scale=_signed(_number(buffer, packing + 17, 2)),
    )


def _number(buffer: memoryview | bytes, start: int, nbytes: int) -> int:
    return int.from_bytes(buffer[start : start + nbytes], "big")


def _signed(number: int) -> int:
    """Return a 16-bit number whose highest bit is the sign."""
    return -(number & 0x7FFF) if number & 0x8000 else number


def _ibm_float(number: int) -> float:
    """Return an IBM System/360 single: sign, exponent of 16 by 64, fraction of 24 bits."""
    fraction: float = (number & 0xFFFFFF) * 2.0**-24
    power: float = 16.0 ** ((number >> 24 & 0x7F) - 64)
    return -fraction * power if number >> 31 else fraction * power


def _power_of_ten(exponent: int) -> float:
    """Return it by repeated multiplication or division, as ecCodes: its rounding is part of it."""
    power = 1.0
    for _ in range(abs(exponent)):
        power = power * 10.0 if exponent > 0 else power / 10.0
    return power
