"""Darshan logs of any content, written by the layout of ``include/darshan-log-format.h`` (3.41).

Real ones are in ``tests/data/darshan``; these are for what is not among them: jobs of many ranks,
many segments, names that are no text.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

START_NS = 1_795_000_000_123_456_789
POSIX, DXT_POSIX = 1, 10
N_MODULES = 64
POSIX_COUNTERS, POSIX_TIMES = 69, 17
# Places in POSIX counters, from darshan-posix-log-format.h.
OPENS, READS, MMAPS, BYTES_READ = 0, 3, 7, 14
READ_TIME = 8

Segments = NDArray[np.void]
SEGMENT = np.dtype([("offset", "<i8"), ("length", "<i8"), ("start", "<f8"), ("end", "<f8")])


def reads_in_order(n: int, nbytes: int = 4096) -> Segments:
    """Return reads of one file, one after the other, 10 us each every 20 us."""
    segments = np.zeros(n, SEGMENT)
    segments["offset"] = np.arange(n) * nbytes
    segments["length"] = nbytes
    segments["start"] = np.arange(n) * 20e-6 + 0.001
    segments["end"] = segments["start"] + 10e-6
    return segments


@dataclass
class MadeLog:
    """What a log is to hold; files are known by number."""

    names: Sequence[bytes]
    n_ranks: int = 1
    metadata: str = "lib_ver=3.5.0\n"
    posix: list[bytes] = field(default_factory=list)
    dxt: list[bytes] = field(default_factory=list)
    partial: frozenset[int] = frozenset()
    start_ns: int = START_NS
    posix_version: int = 4
    host: bytes = b"node-7"

    def count(self, file: int, rank: int = 0, **counters: float) -> None:
        """Add POSIX counters of a file in a rank."""
        whole = np.zeros(POSIX_COUNTERS, "<i8")
        times = np.zeros(POSIX_TIMES, "<f8")
        for name, value in counters.items():
            if name == "READ_TIME":
                times[READ_TIME] = value
            else:
                whole[globals()[name]] = value
        self.posix.append(_base(file, rank) + whole.tobytes() + times.tobytes())

    def trace(self, file: int, segments: Segments, rank: int = 0, n_writes: int = 0) -> None:
        """Add segments of a file in a rank, writes first."""
        head = struct.pack("<q64sqq", 0, self.host, n_writes, len(segments) - n_writes)
        self.dxt.append(_base(file, rank) + head + segments.tobytes())

    def write(self, path: Path) -> Path:
        """Write the log."""
        start, end = divmod(self.start_ns, 10**9), divmod(self.start_ns + 5 * 10**9, 10**9)
        job = struct.pack("<7q1024s", 0, *start, *end, self.n_ranks, 42, self.metadata.encode())
        job += b"python train.py\next4\t/" + bytes(512)
        names = b"".join(
            struct.pack("<Q", _key(at)) + name + b"\0" for at, name in enumerate(self.names)
        )
        parts = {-2: job, -1: names, POSIX: b"".join(self.posix), DXT_POSIX: b"".join(self.dxt)}
        at, maps, body = 1328, [(0, 0)] * (N_MODULES + 1), b""
        for module, part in sorted(parts.items()):
            packed = zlib.compress(part) if part else b""
            if module >= -1:
                maps[module + 1] = (at, len(packed))
            at += len(packed)
            body += packed
        partial = sum(1 << module for module in self.partial)
        header = struct.pack("<8sqB7xQ", b"3.41", 6567223, 0, partial)
        header += b"".join(struct.pack("<QQ", *each) for each in maps)
        versions = [0] * N_MODULES
        versions[POSIX], versions[DXT_POSIX] = self.posix_version, 1
        path.write_bytes(header + struct.pack(f"<{N_MODULES}I", *versions) + body)
        return path


def _key(file: int) -> int:
    """Return the id of a file, too long for a float to hold."""
    return (1 << 62) + file


def _base(file: int, rank: int) -> bytes:
    return struct.pack("<Qq", _key(file), rank)
