"""The messages of a GRIB file: where each begins and ends, and its headers without its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.files.ranges import SourceBytes

SHORTEST_NBYTES = 8 + 28 + 12 + 4
"""Of headers: in edition 1 with the least that section 1 has, and of section 4."""
HEAD_NBYTES = 1024
"""Read at the start of each message: holds all its headers unless it has a long grid or bitmap."""

# Sections whose content decoding needs but describing does not, by packing: GRIB1 section 4 flags
# 0 (grid points, simple packing); GRIB2 templates 5.0 simple, 5.40 JPEG 2000, 5.41 PNG, 5.42 CCSDS.
_HEADERS_SUFFICE = {0, 40, 41, 42}
GRIB: Final = b"GRIB"


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


class DatedHeaders(NamedTuple):
    """The reference date of a message, and all else its headers say of what it is."""

    date: int  # yyyymmdd
    time: int  # hhmm
    others: bytes  # without the date, and the numbers that values are packed with


def dated_headers(message: GribMessage) -> DatedHeaders | None:
    """Return the date and the other headers of a message; None where they cannot be told apart."""
    if len(message.headers) == message.length or len(message.headers) < SHORTEST_NBYTES:
        return None  # with the data, or damaged
    headers = bytearray(message.headers)
    if message.edition == 1:
        # Section 1, octets 13 to 17 and 25; section 4, octets 5 to 10: E and R.
        years, month, day, hour, minute = headers[20:25]
        year = (headers[32] - 1) * 100 + years
        hidden = [(20, 25), (32, 33), (len(headers) - 12, len(headers) - 6)]
    else:
        # Section 1, octets 13 to 19; section 5, octets 12 to 17: R and E.
        year = int.from_bytes(headers[28:30], "big")
        month, day, hour, minute, second = headers[30:35]
        packing = _section(headers, 5)
        if second or not packing:
            return None
        hidden = [(28, 35), (packing + 11, packing + 17)]
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and minute <= 59):
        return None
    for start, stop in hidden:
        headers[start:stop] = bytes(stop - start)
    date = year * 10000 + month * 100 + day
    return DatedHeaders(date, hour * 100 + minute, bytes(headers))


def _section(headers: bytes | bytearray, number: int) -> int:
    """Return where a section of a message of edition 2 begins; 0 where it is not there."""
    start = 16
    while (section := headers[start + 4]) != 7:
        if section == number:
            return start
        start += max(5, int.from_bytes(headers[start : start + 4], "big"))
    return 0


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

    def number(self, start: int, nbytes: int) -> int:
        """Return the big-endian unsigned integer at ``start``."""
        return int.from_bytes(self[start : start + nbytes], "big")


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
        message = _message(opened, path, offset, head, size)
        yield message
        end = offset + message.length
        following = opened.read_at(end - 4, HEAD_NBYTES + 4)
        if following[:4] != b"7777":
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


def _message(opened: SourceBytes, path: Path, offset: int, head: bytes, size: int) -> GribMessage:
    if len(head) < 16:
        raise damaged(path, offset, f"the file ends {len(head)} bytes after its start")
    edition = head[7]
    if edition not in (1, 2):
        raise damaged(path, offset, f"its edition is {edition}, expected 1 or 2")
    length = int.from_bytes(head[4:7] if edition == 1 else head[8:16], "big")
    if edition == 1 and length & 0x800000:
        length = _long_grib1_length(opened, path, offset, head, length, size)
    if offset + length > size:
        raise FileFormatError(
            f"{path}: the GRIB message at offset {offset} is cut short: its header says {length} "
            f"bytes, {size - offset} are left in the file; fetch the file again"
        )
    if length < 20:
        raise damaged(path, offset, f"its header says {length} bytes")
    window = _Window(opened, path, offset, head, length)
    headers, grid = (_grib1_headers if edition == 1 else _grib2_headers)(window)
    return GribMessage(offset, length, edition, headers, grid)


def _grib1_sections(window: _Window) -> tuple[int, int, int]:
    """Return the offsets of a GRIB1 message's sections 2, 3 and 4 (2 and 3 may be empty)."""
    flags = window.number(15, 1)
    grid = bitmap = 8 + window.number(8, 3)
    if flags & 0x80:
        bitmap = grid + window.number(grid, 3)
    data = bitmap
    if flags & 0x40:
        data = bitmap + window.number(bitmap, 3)
    return grid, bitmap, data


def _long_grib1_length(
    opened: SourceBytes, path: Path, offset: int, head: bytes, stated: int, size: int
) -> int:
    """Return the length of a GRIB1 message over 8 MiB (ECMWF's convention)."""
    # The highest bit of the stated length says that it counts units of 120 bytes; the length field
    # of section 4 then holds what the last unit has too much.
    units = (stated & 0x7FFFFF) * 120
    window = _Window(opened, path, offset, head, min(units, size - offset))
    surplus = window.number(_grib1_sections(window)[2], 3)
    return units - surplus + 4 if surplus < 120 else stated


def _grib1_headers(window: _Window) -> tuple[bytes, bytes]:
    grid, bitmap, data = _grib1_sections(window)
    # Octet 4 of section 4: bits 1 to 4 say how it is packed.
    if window.number(data + 3, 1) >> 4:
        return window[0 : window.length], window[grid:bitmap]
    body = window[8:data] + (12).to_bytes(3, "big") + window[data + 3 : data + 12]
    length = (8 + len(body) + 4).to_bytes(3, "big")
    return b"GRIB" + length + b"\1" + body + b"7777", window[grid:bitmap]


def _grib2_headers(window: _Window) -> tuple[bytes, bytes]:
    grid, packing, start = b"", -1, 16
    while (section := window.number(start + 4, 1)) != 7:
        length = window.number(start, 4)
        if length < 5 or not 1 <= section <= 6:
            raise damaged(window.path, window.offset, f"a section {section} of {length} bytes")
        if section == 3:
            grid = window[start : start + length]
        if section == 5:
            packing = window.number(start + 9, 2)
        start += length
    end = start + window.number(start, 4) + 4
    if end != window.length and window[end - 4 : end] != b"7777":
        raise FileFormatError(
            f"{window.path}: the GRIB message at offset {window.offset} holds several fields, "
            f"which is not supported; split them with `grib_copy {window.path.name} SPLIT.grib`"
        )
    if packing not in _HEADERS_SUFFICE:
        return window[0 : window.length], grid
    body = window[16:start] + (5).to_bytes(4, "big") + b"\7"
    length_field = (16 + len(body) + 4).to_bytes(8, "big")
    return window[0:8] + length_field + body + b"7777", grid
