"""Writing a span file: space is reserved before it is mapped, and given out in chunks."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import weakref
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.masking import mask_urls
from iobench.recording import span_file as layout
from iobench.recording.sums import Chunk, rank_prefix, segment_path
from iobench.recording.this_process import name_in_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

# Taken before anybody puts a timer in its place: our own file is no part of the loading.
_open: Final = os.open
STEP_NBYTES: Final = 16 * layout.CHUNK_NBYTES
# What a file system without fallocate answers; glibc writes the zeros itself, others do not.
CANNOT_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})


def reserve(descriptor: int, start: int, nbytes: int) -> None:
    """Make the file own ``nbytes`` of disk from ``start``, or raise OSError.

    A sparse mapping on a full disk is SIGBUS at the first write: the training would be killed.
    """
    try:
        os.posix_fallocate(descriptor, start, nbytes)
    except OSError as error:
        if error.errno not in CANNOT_RESERVE:
            raise
    else:
        return
    os.lseek(descriptor, start, os.SEEK_SET)
    zeros = memoryview(bytes(nbytes))
    while zeros:
        zeros = zeros[os.write(descriptor, zeros) :]


def new_span_file(
    directory: Path, spool: Path | None, identity: layout.Identity, segment_nbytes: int = 0
) -> SpanWriter:
    """Make a span file in the spool, else in the directory, under a name neither has yet."""
    target = directory if spool is None else spool
    target.mkdir(parents=True, exist_ok=True)
    prefix = f"{rank_prefix(identity.rank)}{name_in_files(identity.host)}-{identity.pid}"
    number = 0
    while True:
        name = f"{prefix}-{number}.spans"
        if not (directory / name).exists():
            with contextlib.suppress(FileExistsError):
                return SpanWriter(target / name, identity, segment_nbytes)
        number += 1


class SpanWriter:
    """The span file of this process. Not thread-safe: the recorder holds its lock around calls."""

    __slots__ = (
        "_descriptor", "_header", "_maps", "_reserved", "_segment", "_step", "_strings", "chunks",
        "newest", "path", "segment_nbytes", "used",
    )  # fmt: skip

    def __init__(self, path: Path, identity: layout.Identity, segment_nbytes: int = 0) -> None:
        self.path = path
        self.segment_nbytes = segment_nbytes
        self.used = self._reserved = layout.HEADER_NBYTES
        self._step: tuple[mmap.mmap, int] | None = None
        self.chunks: list[Chunk] = []  # of spans, as they were taken; none without segments
        self.newest: dict[int, Chunk] = {}  # of each thread
        self._segment: tuple[Path, mmap.mmap, int] | None = None
        self._strings: tuple[mmap.mmap, int, int] | None = None
        # Weak: a step no thread writes to any more is unmapped, and gives its descriptor back.
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            reserve(self._descriptor, 0, layout.HEADER_NBYTES)
            self._header = mmap.mmap(
                self._descriptor, layout.HEADER_NBYTES, access=mmap.ACCESS_WRITE
            )
        except OSError:
            os.close(self._descriptor)
            path.unlink()
            raise
        packed = identity.packed()
        self._header[: len(packed)] = packed
        layout.RESERVED.pack_into(self._header, layout.RESERVED_OFFSET, self._reserved)
        # Last, as it makes the header valid.
        layout.IDENTITY_CRC.pack_into(self._header, layout.IDENTITY_CRC_OFFSET, zlib.crc32(packed))

    def chunk(
        self, content: int, lane: int = 0, sequence: int = 0, thread: tuple[int, str] = (0, "")
    ) -> tuple[mmap.mmap, int]:
        """Give out a chunk; return its mapping and the offset after its head, or raise OSError."""
        if content == layout.SPANS and self.segment_nbytes:
            path, mapping, offset, place = self._place()
            self.newest[lane] = Chunk(path, place, lane, sequence)
            self.chunks.append(self.newest[lane])
        else:
            mapping, offset = self._in_main()
        native_id, name = thread
        head = layout.CHUNK_HEAD.pack(
            layout.CHUNK_MAGIC, content, lane, sequence, native_id, layout.clipped_text(name, 36)
        )
        mapping[offset : offset + layout.RECORD_NBYTES] = head + layout.CHUNK_CRC.pack(
            zlib.crc32(head)
        )
        return mapping, offset + layout.RECORD_NBYTES

    def _in_main(self) -> tuple[mmap.mmap, int]:
        step = self._step
        if step is None or self.used == self._reserved:
            step = self._step = self._grow()
        mapping, origin = step
        offset = self.used - origin
        self.used += layout.CHUNK_NBYTES
        return mapping, offset

    def _grow(self) -> tuple[mmap.mmap, int]:
        """Reserve and map the next step; return the mapping and where it starts in the file."""
        start = self._reserved
        nbytes = min(STEP_NBYTES, self.segment_nbytes or STEP_NBYTES)
        reserve(self._descriptor, start, nbytes)
        origin = start - start % mmap.ALLOCATIONGRANULARITY
        length = start - origin + nbytes
        mapping = mmap.mmap(self._descriptor, length, access=mmap.ACCESS_WRITE, offset=origin)
        self._maps.add(mapping)
        self._reserved = start + nbytes
        layout.RESERVED.pack_into(self._header, layout.RESERVED_OFFSET, self._reserved)
        return mapping, origin

    def _place(self) -> tuple[Path, mmap.mmap, int, int]:
        """Return the file of the next chunk of spans, its mapping, and its place in both."""
        if self._segment is None:
            mapping, offset = self._in_main()
            if len(self.chunks) + 1 >= self.segment_nbytes // layout.CHUNK_NBYTES:
                self._segment = segment_path(self.path, 0), mapping, self.segment_nbytes
            return self.path, mapping, offset, self.used - layout.CHUNK_NBYTES
        path, mapping, used = self._segment
        if used == self.segment_nbytes:
            path = segment_path(self.path, int(path.stem.rpartition(".")[2]) + 1)
            mapping, used = self._new_segment(path), 0
        self._segment = path, mapping, used + layout.CHUNK_NBYTES
        return path, mapping, used, used

    def _new_segment(self, path: Path) -> mmap.mmap:
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            reserve(descriptor, 0, self.segment_nbytes)
            mapping = mmap.mmap(descriptor, self.segment_nbytes, access=mmap.ACCESS_WRITE)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._maps.add(mapping)
        return mapping

    @property
    def begins_segment(self) -> bool:
        """Whether the last chunk was the first one of a further segment."""
        return self._segment is not None and self._segment[2] == layout.CHUNK_NBYTES

    def remove(self, paths: Collection[Path]) -> None:
        """Remove segments, but the one that is written to; the first one is the file itself."""
        current = self.path if self._segment is None else self._segment[0]
        gone = {*paths} - {self.path, current}
        for path in gone:
            with contextlib.suppress(OSError):
                path.unlink()
        self.chunks = [chunk for chunk in self.chunks if chunk.path not in gone]

    def string(self, number: int, text: str) -> None:
        """Add an entry to the string table, or raise OSError."""
        encoded = layout.clipped_text(mask_urls(text), layout.STRING_LIMIT)
        nbytes = layout.string_entry_nbytes(len(encoded))
        if self._strings is None or self._strings[1] + nbytes > self._strings[2]:
            mapping, offset = self.chunk(layout.STRINGS)
            end = offset + layout.CHUNK_NBYTES - layout.RECORD_NBYTES
        else:
            mapping, offset, end = self._strings
        self._strings = (mapping, offset + nbytes, end)
        text_offset = offset + layout.STRING_HEAD.size
        mapping[text_offset : text_offset + len(encoded)] = encoded
        layout.STRING_HEAD.pack_into(mapping, offset, number, len(encoded), zlib.crc32(encoded))

    def write_lost(self, lost: int) -> None:
        """Store how many spans could not be written; survives SIGKILL."""
        layout.LOST.pack_into(self._header, layout.LOST_OFFSET, lost)

    def write_own(self, once_ns: int, own_ns: int) -> None:
        """Store what recording took this process; survives SIGKILL."""
        layout.OWN.pack_into(self._header, layout.OWN_OFFSET, once_ns, own_ns)

    def write_request(self, requested_ns: int, number: int, epoch: int) -> None:
        """Store that a wait has begun; survives SIGKILL."""
        layout.REQUEST.pack_into(self._header, layout.REQUEST_OFFSET, requested_ns, number, epoch)

    def close(self, monotonic_ns: int, wall_ns: int) -> None:
        """Unmap, cut the file to what is used, and mark it closed, or raise OSError."""
        # First: a late write into space cut off would be SIGBUS; here it is an error, and counted.
        for mapping in list(self._maps):
            mapping.close()
        self._step = self._strings = None
        self._header.close()
        try:
            # In this order a kill in between never makes the file look cut short, or closed.
            self._overwrite(layout.RESERVED_OFFSET, layout.RESERVED.pack(self.used))
            os.ftruncate(self._descriptor, self.used)
            if self._segment is not None and self._segment[2] < self.segment_nbytes:
                os.truncate(self._segment[0], self._segment[2])
            self._overwrite(layout.END_OFFSET, layout.END.pack(monotonic_ns, wall_ns, 1))
        finally:
            os.close(self._descriptor)

    def _overwrite(self, offset: int, data: bytes) -> None:
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        os.write(self._descriptor, data)

    def abandon(self) -> None:
        """Let go of a file that belongs to the parent process, without changing it."""
        os.close(self._descriptor)


# An empty file: where there may be no space for a byte, the name of a file says all.
STOPPED_NAME: Final = re.compile(
    r"(.+)-(\d{1,18})-rank(\d{1,9})-error(\d{1,6})-lost(\d{1,18})\.stopped"
)


class StoppedRecording(msgspec.Struct, frozen=True):
    """A process that could not go on recording."""

    host: str  # as names of files have it
    reason: str  # the system's, such as "No space left on device"
    pid: int
    rank: int
    lost: int  # spans, those before a process was killed not counted


def leave_mark(folders: Iterable[Path], host: str, rank: int, error: OSError) -> Path | None:
    """Leave the mark of this process in the first folder that takes it; None where none does."""
    name = f"{name_in_files(host)}-{os.getpid()}-rank{rank}-error{error.errno or 0}-lost0.stopped"
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
            return folder / name
    return None


def mark_losses(mark: Path, lost: int) -> None:
    """Say in the name of a mark how many spans were lost, as far as it can be changed."""
    name = re.sub(r"-lost\d+\.stopped$", f"-lost{lost}.stopped", mark.name)
    with contextlib.suppress(OSError):
        mark.rename(mark.with_name(name))


def read_stopped(folders: Iterable[Path]) -> tuple[StoppedRecording, ...]:
    """Return whose recording stopped, by the marks in these folders."""
    stopped = set()
    for path in (path for folder in folders for path in folder.glob("*.stopped")):
        match = STOPPED_NAME.fullmatch(path.name)
        if match is not None:
            host, pid, rank, number, lost = match.groups()
            reason = os.strerror(int(number))
            stopped.add(StoppedRecording(host, reason, int(pid), int(rank), int(lost)))
    return tuple(sorted(stopped, key=lambda each: (each.rank, each.pid, each.host)))
