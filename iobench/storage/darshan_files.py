"""What the name and the bytes of a Darshan log tell before the library reads it.

The library trusts what it reads: of logs cut short somewhere, one in eight made it crash, and of
those with one to four bits changed, one in three. A log's parts carry the checksums of zlib, so
most damage is found here, with a line that says what is wrong. The process's id stands in the name
and nowhere else.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from iobench.errors import FileFormatError

LOG_MAGIC: Final = 6567223
"""``DARSHAN_MAGIC_NR`` of ``include/darshan-log-format.h``, after a version of eight bytes."""
_FORMATS: Final = {"3.00", "3.10", "3.20", "3.21", "3.41"}
_ZLIB, _BZIP2, _PLAIN = range(3)
_CHUNK: Final = 1 << 20


def check_log(path: Path) -> None:
    """Check that a file is a Darshan log, and that nothing is missing or was changed.

    Raises
    ------
    FileFormatError
        If it is empty, no Darshan log, of a format that PyDarshan 3.5 does not read, cut short or
        damaged; the message does not name the file.
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(17)
        if not head:
            raise FileFormatError("is empty: its process was killed, or the disk is full")
        # Of either byte order.
        if len(head) < 16 or LOG_MAGIC not in struct.unpack("<q", head[8:16]) + struct.unpack(
            ">q", head[8:16]
        ):
            raise FileFormatError("is not a Darshan log")
        version = head[:8].rstrip(b"\0").decode("ascii", "replace")
        if version not in _FORMATS:
            raise FileFormatError(
                f"is a Darshan log of format {version!r}; known are {', '.join(sorted(_FORMATS))}"
            )
        order = "<" if struct.unpack("<q", head[8:16])[0] == LOG_MAGIC else ">"
        parts = _parts(file, order, 64 if version == "3.41" else 16, size)
        if head[16:17] == bytes([_ZLIB]):
            for part in parts:
                _check_streams(file, *part)


def _parts(file: BinaryIO, order: str, n_modules: int, size: int) -> list[tuple[int, int]]:
    """Return offset and length of the parts of a log: the job, the names, and its modules."""
    start = 24 if n_modules == 16 else 32  # the flags before are of 4 bytes, or of 8 since 3.41
    n_header = start + 16 * (n_modules + 1) + 4 * n_modules
    if size < n_header:
        raise FileFormatError(f"is cut short: {size} B of a header of {n_header} B")
    file.seek(start)
    numbers = struct.unpack(f"{order}{2 * (n_modules + 1)}Q", file.read(16 * (n_modules + 1)))
    parts = [(at, length) for at, length in zip(numbers[::2], numbers[1::2], strict=True) if length]
    if numbers[0] <= n_header or any(at < n_header for at, _ in parts):
        raise FileFormatError("is damaged: its parts overlap its header")
    if size < (end := max((at + length for at, length in parts), default=numbers[0])):
        raise FileFormatError(
            f"is cut short: {size} B of {end} B; its process was killed, or the disk is full"
        )
    return [(n_header, numbers[0] - n_header), *parts]


def _check_streams(file: BinaryIO, at: int, length: int) -> None:
    """Check the zlib streams that fill a part, one after the other: one for each rank or so."""
    file.seek(at)
    stream, waiting, left, ended = zlib.decompressobj(), b"", length, True
    while waiting or left:
        if not waiting:
            waiting = file.read(min(left, _CHUNK))
            left -= len(waiting)
        try:
            stream.decompress(waiting, _CHUNK)
        except zlib.error as error:
            raise FileFormatError(f"is damaged in bytes {at} to {at + length}: {error}") from None
        ended = stream.eof
        waiting = stream.unused_data if ended else stream.unconsumed_tail
        if ended:
            stream = zlib.decompressobj()
    if not ended:
        raise FileFormatError(f"is damaged in bytes {at} to {at + length}: a stream does not end")


# USER_EXE_id<job>-<pid>_<month>-<day>-<second of the day>-<hash>[_<seconds>].darshan; user and
# program may hold any of these marks themselves, so the last match counts.
_OF_PROCESS: Final = re.compile(r".*_id-?\d+-(\d+)_\d+-\d+-\d+-\d+(?:_\d+)?\.darshan")


def is_log_name(name: str) -> bool:
    """Return whether a file is called like a Darshan log, finished or not, gzipped or not."""
    return name.removesuffix(".gz").endswith((".darshan", ".darshan_partial"))


def is_unfinished(name: str) -> bool:
    """Return whether Darshan is writing a log of this name, or died while it did."""
    return name.removesuffix(".gz").endswith(".darshan_partial")


def pid_of_log(name: str) -> int:
    """Return the process of a finished log by its name, compressed by gzip or not; -1 if unknown.

    The runtime composes it in ``darshan-runtime/lib/darshan-core.c``; ``DARSHAN_LOGFILE`` and users
    give others. In logs of MPI jobs it is the process of rank 0.
    """
    found = _OF_PROCESS.fullmatch(name.removesuffix(".gz"))
    return int(found[1]) if found else -1
