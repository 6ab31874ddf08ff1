"""GRIB messages: where each lies in a file, its headers without its data, its values.

Grid points packed as integers of 8, 16 or 32 bits, the commonest packing, are unpacked by numpy:
ecCodes, which does all others, takes five times as long. Only messages that leave no question are
unpacked here: whole, one field with a value at each point, no bitmap.
WMO Manual on Codes, FM 92: GRIB1; GRIB2 with templates 5.0 and 7.0.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import FileFormatError, import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

    from iobench.files.ranges import SourceBytes

    Content = bytes | bytearray | memoryview

GRIB: Final = b"GRIB"
END: Final = b"7777"
SHORTEST_NBYTES: Final = 8 + 28 + 12 + 4
"""Of headers: in edition 1 with the least that section 1 has, and of section 4."""
HEAD_NBYTES: Final = 1024
"""Read at the start of each message: holds all its headers unless it has a long grid or bitmap."""
LONG_EDITION_1: Final = 0x800000
"""Set in the length of a message of edition 1 that is longer than three bytes can say."""
HEADERS_SUFFICE: Final = (0, 40, 41, 42)
"""Packings of edition 2 whose headers alone make a message: simple, JPEG 2000, PNG, CCSDS."""
INTEGERS: Final = {8: ">u1", 16: ">u2", 32: ">u4"}
CHUNK: Final = 1 << 14
"""Values handled at once: their doubles fit a core's cache."""
GRIB1_REGULAR: Final = (0, 4)  # latitude and longitude, Gaussian
NO_BITMAP, NOT_GIVEN = 255, 0xFFFF
_MISSING = float(np.finfo(np.float32).max)


def load_eccodes() -> ModuleType:
    """Return ecCodes."""
    eccodes: ModuleType = import_extra("eccodes", "GRIB files need ecCodes", extra="grib")
    return eccodes


def _number(content: Any, start: int, nbytes: int) -> int:
    return int.from_bytes(content[start : start + nbytes], "big")


def _sections(content: Any) -> dict[int, int]:
    """Return where each section of a message begins, up to its data."""
    if content[7:8] == b"\1":
        flags, starts, start = _number(content, 15, 1), {1: 8}, 8 + _number(content, 8, 3)
        for section, flag in ((2, 0x80), (3, 0x40)):
            if flags & flag:
                starts[section] = start
                start += _number(content, start, 3)
        return {**starts, 4: start}
    starts, start, section = {}, 16, 0
    while (section := _number(content, start + 4, 1)) != 7:
        length = _number(content, start, 4)
        if length < 5 or not 1 <= section <= 6:
            raise ValueError(f"a section {section} of {length} bytes")
        starts[section] = start
        start += length
    return {**starts, 7: start}


# -- messages of a file ------------------------------------------------------------------------


class GribMessage(msgspec.Struct, frozen=True):
    """One message: bytes ``offset`` to ``offset + length`` of its file.

    ``headers`` is a valid message with the same headers but without data where the packing allows,
    else the whole message; ``grid`` are the bytes of its grid description section, if any.
    """

    offset: int
    length: int
    edition: int
    headers: bytes
    grid: bytes


class _Window:
    """The bytes of one message, read as far as they are asked for."""

    def __init__(
        self, opened: SourceBytes, path: Path, offset: int, head: bytes, length: int
    ) -> None:
        self.opened, self.path, self.offset = opened, path, offset
        self.bytes, self.length = head, length

    def __getitem__(self, where: slice) -> bytes:
        if where.stop > self.length:
            raise damaged(self.path, self.offset, "a section reaches beyond its end")
        if where.stop > len(self.bytes):
            content = bytearray(where.stop - where.start)
            self.opened.fill(memoryview(content), self.offset + where.start)
            return bytes(content)
        return self.bytes[where]


def damaged(path: Path, offset: int, reason: str) -> FileFormatError:
    """Return the error for a damaged message."""
    return FileFormatError(
        f"{path}: the GRIB message at offset {offset} is damaged: {reason}; fetch the file again"
    )


def grib_messages(opened: SourceBytes, path: Path) -> Iterator[GribMessage]:
    """Yield every message of a GRIB file, in order, reading headers only.

    Zeros between and after messages are padding (MARS fills up to multiples of 120 bytes, some
    writers to whole blocks). Any other byte that is of no message is an error, so that a damaged
    file never gives fewer messages.
    """
    size = opened.nbytes
    if size == 0:
        raise FileFormatError(f"{path}: the file is empty, expected GRIB messages")
    offset, head = 0, opened.read_at(0, HEAD_NBYTES)
    if head[:4] != GRIB:
        raise FileFormatError(
            f"{path}: is not GRIB: expected b'GRIB' at offset 0, found {head[:4]!r}"
        )
    while offset < size:
        message = _message(opened, path, offset, head)
        yield message
        end = offset + message.length
        following = opened.read_at(end - 4, HEAD_NBYTES + 4)
        if following[:4] != END:
            reason = f"its header says {message.length} bytes, but no end mark '7777' is there"
            raise damaged(path, offset, reason)
        begin, offset, head = offset, end, following[4:]
        while offset < size and head[:4] != GRIB:
            padding = len(head) - len(head.lstrip(b"\0"))
            if padding == 0:
                raise FileFormatError(
                    f"{path}: the bytes at offset {offset}, after the GRIB message at offset "
                    f"{begin}, belong to no message (found {head[:4]!r}); fetch the file again, or "
                    f"leave out what is no message: grib_copy {path.name} CLEAN.grib"
                )
            offset += padding
            head = opened.read_at(offset, HEAD_NBYTES)


def _message(opened: SourceBytes, path: Path, offset: int, head: bytes) -> GribMessage:
    left = opened.nbytes - offset
    if len(head) < 16:
        raise damaged(path, offset, f"the file ends {len(head)} bytes after its start")
    edition = head[7]
    if edition not in (1, 2):
        raise damaged(path, offset, f"its edition is {edition}, expected 1 or 2")
    length = _number(head, 4, 3) if edition == 1 else _number(head, 8, 8)
    if edition == 1 and length & LONG_EDITION_1:
        # ECMWF's convention for over 8 MiB: the length counts units of 120 bytes; that of section 4
        # is what the last unit has too much.
        units = (length ^ LONG_EDITION_1) * 120
        window = _Window(opened, path, offset, head, min(units, left))
        surplus = _number(window, _sections(window)[4], 3)
        length = units - surplus + 4 if surplus < 120 else length
    if length > left:
        raise FileFormatError(
            f"{path}: the GRIB message at offset {offset} is cut short: its header says {length} "
            f"bytes, {left} are left in the file; fetch the file again"
        )
    if length < 20:
        raise damaged(path, offset, f"its header says {length} bytes")
    window = _Window(opened, path, offset, head, length)
    try:
        starts = _sections(window)
    except ValueError as error:
        raise damaged(path, offset, str(error)) from error
    data = starts[4 if edition == 1 else 7]
    if edition == 1:
        grid = window[starts[2] : starts.get(3, data)] if 2 in starts else b""
        # Octet 4 of section 4: bits 1 to 4 say how it is packed.
        suffices = not _number(window, data + 3, 1) >> 4
        body = (12).to_bytes(3, "big") + window[data + 3 : data + 12]
        lengths = slice(4, 7)
    else:
        end = data + _number(window, data, 4) + 4
        if end != length and window[end - 4 : end] != END:
            raise FileFormatError(
                f"{path}: the GRIB message at offset {offset} holds several fields, which is not "
                f"supported; split them with `grib_copy {path.name} SPLIT.grib`"
            )
        grid = b""
        if 3 in starts:
            grid = window[starts[3] : starts[3] + _number(window, starts[3], 4)]
        suffices = 5 in starts and _number(window, starts[5] + 9, 2) in HEADERS_SUFFICE
        body = (5).to_bytes(4, "big") + b"\7"
        lengths = slice(8, 16)
    if not suffices:
        return GribMessage(offset, length, edition, window[0:length], grid)
    headers = bytearray(window[0:data] + body + END)
    headers[lengths] = len(headers).to_bytes(lengths.stop - lengths.start, "big")
    return GribMessage(offset, length, edition, bytes(headers), grid)


def dated_headers(message: GribMessage) -> tuple[int, int, bytes] | None:
    """Return the reference date of a message, yyyymmdd, its time, hhmm, and its other headers."""
    if len(message.headers) == message.length or len(message.headers) < SHORTEST_NBYTES:
        return None  # with the data, or damaged
    headers, second = bytearray(message.headers), 0
    if message.edition == 1:
        # Section 1, octets 13 to 17 and 25; section 4, octets 5 to 10 (E and R) and 12: data.
        years, month, day, hour, minute = headers[20:25]
        year = (headers[32] - 1) * 100 + years
        end = len(headers) - len(END)
        hidden = [(20, 25), (32, 33), (end - 8, end - 2), (end - 1, end)]
    else:
        # Section 1, octets 13 to 19; section 5, octets 12 to 17: R and E.
        year = _number(headers, 28, 2)
        month, day, hour, minute, second = headers[30:35]
        packing = _sections(headers)[5]
        hidden = [(28, 35), (packing + 11, packing + 17)]
    if second or not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and minute <= 59):
        return None
    for start, stop in hidden:
        headers[start:stop] = bytes(stop - start)
    return year * 10000 + month * 100 + day, hour * 100 + minute, bytes(headers)


# -- values ------------------------------------------------------------------------------------


def decode_message(
    buffer: memoryview | bytes,
    *,
    where: str = "a GRIB message",
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Decode the values of a message, on one core, without the GIL."""
    packing = simple_packing(buffer)
    decoded = np.empty(0) if packing else _through_eccodes(buffer, where)
    count = packing.count if packing else len(decoded)
    values = np.empty(count, np.float32) if out is None else out
    if values.shape != (count,):
        raise FileFormatError(
            f"{where} has {count} values, expected {values.size}: the file has changed since it "
            "was indexed"
        )
    if packing:
        packing.unpack(buffer, values)
    else:
        values[:] = decoded
    return values


def _through_eccodes(buffer: memoryview | bytes, where: str) -> NDArray[np.float64]:
    # Of a part of a message ecCodes reads on beyond its end, and crashes.
    whole = len(buffer) >= 20 and bytes(buffer[:4]) == GRIB and bytes(buffer[-4:]) == END
    if whole and buffer[7] == 1:
        stated = _number(buffer, 4, 3)
        whole = bool(stated & LONG_EDITION_1) or stated == len(buffer)
    elif whole and buffer[7] == 2:
        whole = _number(buffer, 8, 8) == len(buffer)
    if not whole:
        raise FileFormatError(
            f"{where} cannot be decoded: {len(buffer)} bytes that are no whole GRIB message; fetch "
            "the file again"
        )
    codes = load_eccodes()
    try:
        handle = codes.codes_new_from_message(buffer)
        try:
            gaps = codes.codes_get_long(handle, "bitmapPresent") or (
                codes.codes_is_defined(handle, "missingValueManagementUsed")
                and codes.codes_get_long(handle, "missingValueManagementUsed")
            )
            if gaps:
                codes.codes_set_double(handle, "missingValue", _MISSING)
            # Not asked for float32: with a decimal scale it would round twice, and takes longer.
            values: NDArray[np.float64] = codes.codes_get_values(handle, np.float64)
        finally:
            codes.codes_release(handle)
    except codes.CodesInternalError as error:
        raise FileFormatError(f"{where} cannot be decoded: ecCodes says {error}") from error
    if gaps:
        values[values == _MISSING] = np.nan
    return values


class SimplePacking(msgspec.Struct, frozen=True):
    """Where a message's integers are, and what they mean: (X * 2^E + R) * 10^-D."""

    bits: int
    count: int  # of one value; of values
    start: int  # where in the message the integers are
    reference: float  # R
    binary_scale: int
    decimal_scale: int  # E and D

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

    def unpack(self, buffer: memoryview | bytes, values: NDArray[Any]) -> None:
        """Write the values into ``values``, in the message's order: as in float64, then rounded."""
        packed = np.frombuffer(buffer, INTEGERS[self.bits], self.count, self.start)
        is_single = values.dtype == np.float32 and self.rounds_once
        kind = np.float32 if is_single else np.float64
        scale, reference = kind(2.0**self.binary_scale), kind(self.reference)
        scratch = np.empty(0 if is_single else min(CHUNK, self.count))
        for start in range(0, self.count, CHUNK):
            part, target = packed[start : start + CHUNK], values[start : start + CHUNK]
            numbers = target if is_single else scratch[: len(part)]
            np.multiply(part, scale, out=numbers)
            numbers += reference
            if self.decimal_scale:
                numbers *= _power_of_ten(-self.decimal_scale)
            if not is_single:
                target[...] = numbers


def simple_packing(buffer: memoryview | bytes) -> SimplePacking | None:
    """Return how a message is packed; None where ecCodes must look at it."""
    if bytes(buffer[:4]) != GRIB or bytes(buffer[-4:]) != END:
        return None
    try:
        return {1: _grib1, 2: _grib2}[buffer[7]](buffer, _sections(buffer))
    except (ValueError, IndexError, KeyError, struct.error):
        return None


def _grib1(buffer: memoryview | bytes, starts: dict[int, int]) -> SimplePacking | None:
    grid, data = starts[2], starts[4]
    length, flags, bits = _number(buffer, data, 3), buffer[data + 3], buffer[data + 10]
    points = _number(buffer, grid + 6, 2), _number(buffer, grid + 8, 2)
    count = points[0] * points[1]
    if (
        _number(buffer, 4, 3) != len(buffer)
        or 3 in starts
        or buffer[grid + 5] not in GRIB1_REGULAR
        or NOT_GIVEN in points
        or flags >> 4
        or bits not in INTEGERS
        or (length - 11) * 8 - (flags & 15) != count * bits
        or data + length + len(END) != len(buffer)
    ):
        return None
    return SimplePacking(
        bits=bits,
        count=count,
        start=data + 11,
        reference=_ibm_float(_number(buffer, data + 6, 4)),
        binary_scale=_signed(_number(buffer, data + 4, 2)),
        decimal_scale=_signed(_number(buffer, 8 + 26, 2)),
    )


def _grib2(buffer: memoryview | bytes, starts: dict[int, int]) -> SimplePacking | None:
    grid, packing, data = starts[3], starts[5], starts[7]
    count, bits = _number(buffer, packing + 5, 4), buffer[packing + 19]
    length = _number(buffer, data, 4)
    if (
        _number(buffer, 8, 8) != len(buffer)
        or _number(buffer, grid + 6, 4) != count
        or _number(buffer, packing + 9, 2) != 0  # another packing
        or buffer[starts[6] + 5] != NO_BITMAP
        or bits not in INTEGERS
        or length != 5 + count * bits // 8
        or data + length + len(END) != len(buffer)  # several fields
    ):
        return None
    return SimplePacking(
        bits=bits,
        count=count,
        start=data + 5,
        reference=float(struct.unpack_from(">f", buffer, packing + 11)[0]),
        binary_scale=_signed(_number(buffer, packing + 15, 2)),
        decimal_scale=_signed(_number(buffer, packing + 17, 2)),
    )


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
