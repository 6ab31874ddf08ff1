"""The layout of a span file: one per process, little-endian, the same on every machine.

::

    0      header, 4096 bytes: who wrote it, when, how many spans were lost, whether it was closed
    4096   chunks of 64 KiB, each with a head of 64 bytes and
             spans:    1023 records of 64 bytes, of one thread
             strings:  entries (id, length, CRC-32, UTF-8 text), each padded to 8 bytes

Where recording is bounded, further spans are in segments beside it, ``NAME.1.segment``: chunks
alone. Of spans whose segments were removed sums are kept in ``NAME.sums``.

A record's ``sequence`` counts the spans of its thread from 1 and is written last, so a record cut
off by SIGKILL has 0 there. A chunk whose head is all zeros is reserved and not yet used.
"""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Flag(IntFlag):
    """What makes a record other than one plain stretch of time."""

    SUMMED = 1  # one per batch and stage: its duration is the sum over ``pieces`` samples
    DETAIL = 2
    """A sample's span whose time a summed span already counts: timeline only, never in sums."""
    IO = 4
    """A counter: ``nbytes`` read by any means (rchar), ``cpu_ns`` those from the device; of kind
    cpu_wait, CPU time of its process since the last one, and what its thread waited for a CPU."""
    DEVICE = 8
    """Time of an accelerator, not of a thread; always with ``DETAIL``, on a lane of its own."""
    ESTIMATED = 16
    """With ``SUMMED``: its samples were not timed; the batch's time, in others' proportions."""
    DECODED = 32
    """With ``IO``, another counter: of kind decode, ``nbytes`` of whole chunks that were decoded,
    ``cpu_ns`` the bytes of chunks that samples took; of kind read, ``nbytes`` the number of chunks
    that were needed, ``cpu_ns`` of those that had to be decoded."""
    # 64 is taken: 0.1 marked collective operations so that went on beside the thread.


def io_looks(spans: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mark for each span that counts what the system says was read."""
    marks: NDArray[np.bool_] = (spans["flags"] & (Flag.IO | Flag.DECODED)) == Flag.IO
    marks &= spans["kind"] != Kind.CPU_WAIT
    return marks


def cpu_looks(spans: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mark for each span that counts how long its thread waited for a CPU."""
    marks: NDArray[np.bool_] = (spans["kind"] == Kind.CPU_WAIT) & ((spans["flags"] & Flag.IO) != 0)
    return marks


SPAN_DTYPE: Final = np.dtype(
    [
        ("start_ns", "<i8"), ("end_ns", "<i8"), ("nbytes", "<i8"), ("cpu_ns", "<i8"),
        ("sample", "<i8"), ("batch", "<i4"), ("epoch", "<i4"), ("detail", "<u4"), ("label", "<u4"),
        ("kind", "u1"), ("flags", "u1"), ("pieces", "<u2"), ("sequence", "<u4"),
    ]
)  # fmt: skip
"""One span; -1 is unknown in ``nbytes``, ``cpu_ns``, ``sample``, ``batch`` and ``epoch``."""

SPAN: Final = struct.Struct("<5q2i2I2BHI")
# The same record with its position and description packed before: half as long to write.
PREPARED_SPAN: Final = struct.Struct("<4q16s12sI")
POSITION: Final = struct.Struct("<q2i")  # sample, batch, epoch
DESCRIPTION: Final = struct.Struct("<2I2BH")  # detail, label, kind, flags, pieces
RECORD_NBYTES: Final = 64

MAGIC: Final = b"IOBSPANS"
VERSION: Final = 1
HEADER_NBYTES: Final = 4096
# magic, version, pid, ppid, rank, worker, (monotonic, wall) at start, role, host, boot id
IDENTITY: Final = struct.Struct("<8sI4x6q32s256s64s")
IDENTITY_CRC: Final = struct.Struct("<I")
IDENTITY_CRC_OFFSET: Final = 508
# What changes while the file is open: each field is stored by one aligned write.
LOST: Final = struct.Struct("<Q")
LOST_OFFSET: Final = 512
RESERVED: Final = struct.Struct("<Q")
RESERVED_OFFSET: Final = 520
END: Final = struct.Struct("<2qI")  # (monotonic, wall) at the end, closed
END_OFFSET: Final = 528
OWN: Final = struct.Struct("<2q")  # what recording took: (once, since), nanoseconds; 0 is unknown
OWN_OFFSET: Final = 560
REQUEST: Final = struct.Struct("<3q")  # the latest wait to begin: (when, pass, epoch)
REQUEST_OFFSET: Final = 576

UNUSED: Final = slice(768, 4096)
"""Of a header: sums of spans that earlier versions no longer had one by one."""

CHUNK_NBYTES: Final = 65536
CHUNK_MAGIC: Final = 0x4B4E4843
SPANS: Final = 1
STRINGS: Final = 2
# magic, content, lane, first sequence, thread id, thread name; then the CRC-32 of these
CHUNK_HEAD: Final = struct.Struct("<4Iq36s")
CHUNK_CRC: Final = struct.Struct("<I")
SPANS_PER_CHUNK: Final = CHUNK_NBYTES // RECORD_NBYTES - 1

STRING_HEAD: Final = struct.Struct("<3I")  # id, length in bytes, CRC-32 of the text
STRING_LIMIT: Final = 4096
STRING_ALIGNMENT: Final = 8


def string_entry_nbytes(text_nbytes: int) -> int:
    """Return the bytes an entry of the string table takes, with padding."""
    return -(-(STRING_HEAD.size + text_nbytes) // STRING_ALIGNMENT) * STRING_ALIGNMENT


def clipped_text(text: str, limit: int) -> bytes:
    """Return the text as UTF-8 of at most ``limit`` bytes, never cutting a character in two."""
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded[:limit].decode("utf-8", "ignore").encode("utf-8")


def plain_text(field: bytes) -> str:
    """Return the text of a field padded with zeros."""
    return field.rstrip(b"\0").decode("utf-8", "replace")


class Identity(msgspec.Struct, frozen=True):
    """Who writes a span file, and the (monotonic, wall) time at which it began."""

    pid: int
    ppid: int
    rank: int
    worker: int
    role: str
    host: str
    boot_id: str
    monotonic_ns: int
    wall_ns: int

    def packed(self) -> bytes:
        """Return the first part of the header; texts that are too long are cut."""
        return IDENTITY.pack(
            MAGIC, VERSION, self.pid, self.ppid, self.rank, self.worker, self.monotonic_ns,
            self.wall_ns, clipped_text(self.role, 32), clipped_text(self.host, 256),
            clipped_text(self.boot_id, 64),
        )  # fmt: skip

    @classmethod
    def unpacked(cls, header: bytes) -> Identity:
        """Return what :meth:`packed` wrote."""
        _, _, pid, ppid, rank, worker, now_ns, wall_ns, *texts = IDENTITY.unpack_from(header)
        role, host, boot_id = (plain_text(text) for text in texts)
        return cls(pid, ppid, rank, worker, role, host, boot_id, now_ns, wall_ns)
