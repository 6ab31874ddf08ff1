"""Reading a span file back, whole or damaged: what is whole is returned, the rest is counted."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import asdict

from iobench.errors import ProfileError
from iobench.json_files import open_regular
from iobench.masking import mask_urls
from iobench.recording import span_file as layout
from iobench.recording.kinds import Kind, is_one_of
from iobench.recording.sums import Chunk, Sums, read_sums, segment_paths
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

UNKNOWN_TEXT: Final = "unknown"
# No process works for four years, or on eight petabytes at once: such a record is damaged.
FURTHEST_NS: Final = 2**57
LATEST_NS: Final = 2**61
MOST_NBYTES: Final = 2**53


class Anchor(msgspec.Struct, frozen=True):
    """The same instant on the monotonic clock and on the wall clock, in nanoseconds."""

    monotonic_ns: int
    wall_ns: int


class Head(layout.Identity, frozen=True, kw_only=True):
    """The header of a span file."""

    lost: int  # spans the process could not write
    reserved_nbytes: int
    end: Anchor | None  # None if the process was killed or is alive
    once_ns: int | None = None  # what recording took of its time, once,
    own_ns: int | None = None  # and since
    request: tuple[int, int, int] = (0, -1, -1)  # its latest wait: (when, pass, epoch)

    @property
    def start(self) -> Anchor:
        """When it began."""
        return Anchor(self.monotonic_ns, self.wall_ns)

    @property
    def closed(self) -> bool:
        """Whether the process ended its file itself."""
        return self.end is not None


class SpanFile(Head, frozen=True, kw_only=True):
    """The spans of one process."""

    path: Path  # where it was read from
    damaged: int  # records, and texts, that cannot be read though they were written
    missing_nbytes: int  # by how much the file is shorter than it says
    spans: NDArray[Any]  # SPAN_DTYPE, by thread, in the order written: by their ends
    threads: NDArray[np.int32]  # of each span the index of its thread in thread_names
    thread_names: tuple[str, ...]
    strings: dict[int, str]  # 0 is "", a text that is gone "unknown"
    lanes: tuple[int, ...] = ()  # numbers of the threads within the file
    sums: Sums | None = None  # of spans that are not among these any more


class _Contents(msgspec.Struct):
    """What the chunks held."""

    start_ns: int  # when the file was begun
    # Per lane its chunks: first sequence, spans, how many empty records follow the last of them.
    lanes: dict[int, list[tuple[int, NDArray[Any], int]]]
    threads: dict[int, tuple[int, str]]
    strings: dict[int, str]
    damaged: int = 0


def read_span_file(path: Path, since_ns: int = 0) -> SpanFile:
    """Read a span file, also one whose process was killed or is still writing.

    With ``since_ns`` chunks of spans that ended before are left out, and not counted as damaged.
    """
    read = _read if not since_ns else _mapped
    try:
        raws = [read(path)]
    except OSError as error:
        raise _unreadable(path, error) from error
    for each in segment_paths(path):
        with contextlib.suppress(FileNotFoundError):
            raws.append(read(each))
    sums = read_sums(path)  # after the segments: these go when their spans are in the sums
    head = _head(path, raws[0][: layout.HEADER_NBYTES].tobytes())
    contents = _Contents(head.monotonic_ns, defaultdict(list), {}, {0: ""})
    for number, raw in enumerate(raws):
        for start in range(0 if number else layout.HEADER_NBYTES, len(raw), layout.CHUNK_NBYTES):
            chunk = raw[start : start + layout.CHUNK_NBYTES]
            if not (since_ns and _ended_before(chunk, since_ns)):
                _read_chunk(chunk, contents)
    spans, threads = _joined(contents, sums)
    _name_missing_strings(spans, contents)
    lanes = sorted(contents.lanes)
    return SpanFile(
        **asdict(head),
        path=path,
        damaged=0 if since_ns else contents.damaged,
        missing_nbytes=max(0, head.reserved_nbytes - len(raws[0])),
        spans=spans,
        threads=threads,
        thread_names=tuple(contents.threads[lane][1] for lane in lanes),
        strings=contents.strings,
        lanes=tuple(lanes),
        sums=sums,
    )


def _read(path: Path) -> NDArray[np.uint8]:
    return np.fromfile(path, np.uint8)


def _mapped(path: Path) -> NDArray[np.uint8]:
    return np.memmap(path, np.uint8, "r")


def _ended_before(chunk: NDArray[np.uint8], since_ns: int) -> bool:
    """Return whether a chunk is full of spans, and the last to end did so before."""
    if len(chunk) < layout.CHUNK_NBYTES:
        return False
    head = chunk[: layout.RECORD_NBYTES].tobytes()
    last = chunk[-layout.RECORD_NBYTES :].view(layout.SPAN_DTYPE)[0]
    is_full = _is_sound(head) and layout.CHUNK_HEAD.unpack_from(head)[1] == layout.SPANS
    return bool(is_full and last["sequence"] and last["end_ns"] < since_ns)


def read_head(path: Path) -> Head:
    """Read only who wrote a span file and whether it is closed; raises as ``read_span_file``."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return _head(path, file.read(layout.HEADER_NBYTES))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ProfileError:
    return ProfileError(
        f"{path}: cannot be read ({error.strerror or error}); a span file was expected"
    )


def _head(path: Path, header: bytes) -> Head:
    if len(header) < layout.HEADER_NBYTES or not header.startswith(layout.MAGIC):
        raise ProfileError(f"{path}: is no span file, or cut short; remove it, or measure again")
    version = layout.IDENTITY.unpack_from(header)[1]
    if version != layout.VERSION:
        raise ProfileError(
            f"{path}: span file version {version}, this iobench reads {layout.VERSION}; "
            "use the iobench that wrote it"
        )
    if any(header[layout.UNUSED]) or layout.Identity.unpacked(header).role == "joined":
        raise ProfileError(
            f"{path}: its oldest spans were reduced to sums by an earlier iobench; "
            "use the iobench that wrote it"
        )
    (crc,) = layout.IDENTITY_CRC.unpack_from(header, layout.IDENTITY_CRC_OFFSET)
    identity = layout.Identity.unpacked(header)
    sound = crc == zlib.crc32(header[: layout.IDENTITY.size])
    if not sound or abs(identity.monotonic_ns) > LATEST_NS:
        raise ProfileError(f"{path}: its header is damaged; remove it, or measure again")
    monotonic_ns, wall_ns, closed = layout.END.unpack_from(header, layout.END_OFFSET)
    once_ns, own_ns = layout.OWN.unpack_from(header, layout.OWN_OFFSET)
    return Head(
        **asdict(identity),
        lost=layout.LOST.unpack_from(header, layout.LOST_OFFSET)[0],
        reserved_nbytes=layout.RESERVED.unpack_from(header, layout.RESERVED_OFFSET)[0],
        end=Anchor(monotonic_ns, wall_ns) if closed == 1 else None,
        once_ns=once_ns if 0 < once_ns < FURTHEST_NS else None,
        own_ns=own_ns if 0 < own_ns < FURTHEST_NS else None,
        request=layout.REQUEST.unpack_from(header, layout.REQUEST_OFFSET),
    )


def read_index(path: Path) -> tuple[list[Chunk], dict[int, str]]:
    """Return where the spans of a process that has ended are, and its texts."""
    read_head(path)
    contents = _Contents(0, defaultdict(list), {}, {0: ""})
    chunks = []
    for each in (path, *segment_paths(path)):
        raw = np.memmap(each, np.uint8, "r")  # of spans only the heads are looked at
        first = layout.HEADER_NBYTES if each == path else 0
        for start in range(first, len(raw), layout.CHUNK_NBYTES):
            head, body = np.split(raw[start : start + layout.CHUNK_NBYTES], [layout.RECORD_NBYTES])
            if not _is_sound(head.tobytes()):
                continue
            _, content, lane, sequence, _, _ = layout.CHUNK_HEAD.unpack_from(head.tobytes())
            if content == layout.SPANS:
                chunks.append(Chunk(each, start, lane, sequence))
            else:
                _read_strings(body.tobytes(), contents)
    return chunks, contents.strings


def _is_sound(head: bytes) -> bool:
    """Return whether this is the head of a chunk, and whole."""
    if len(head) < layout.RECORD_NBYTES:
        return False
    (crc,) = layout.CHUNK_CRC.unpack_from(head, layout.CHUNK_HEAD.size)
    (magic,) = struct.unpack_from("<I", head)
    return bool(magic == layout.CHUNK_MAGIC and crc == zlib.crc32(head[: layout.CHUNK_HEAD.size]))


def _read_chunk(chunk: NDArray[np.uint8], contents: _Contents) -> None:
    head = chunk[: layout.RECORD_NBYTES].tobytes()
    body = chunk[layout.RECORD_NBYTES :]
    if not any(head):
        contents.damaged += _n_used_records(body)
        return
    _, content, lane, sequence, thread_id, name = (
        layout.CHUNK_HEAD.unpack_from(head) if _is_sound(head) else (0, 0, 0, 0, 0, b"")
    )
    if content == layout.SPANS:
        contents.threads.setdefault(lane, (thread_id, layout.plain_text(name)))
        contents.lanes[lane].append((sequence, *_sound_spans(body, sequence, contents)))
    elif content == layout.STRINGS:
        _read_strings(body.tobytes(), contents)
    else:
        contents.damaged += max(1, _n_used_records(body))


def _n_used_records(body: NDArray[np.uint8]) -> int:
    """Return how many records' worth of space is not all zeros, a cut one included."""
    whole = len(body) // layout.RECORD_NBYTES * layout.RECORD_NBYTES
    used = body[:whole].reshape(-1, layout.RECORD_NBYTES).any(axis=1)
    return int(used.sum()) + int(body[whole:].any())


def _sound_spans(
    body: NDArray[np.uint8], sequence: int, contents: _Contents
) -> tuple[NDArray[Any], int]:
    """Return the whole records, and how many empty ones follow the last of them."""
    whole = len(body) // layout.RECORD_NBYTES * layout.RECORD_NBYTES
    records = body[:whole].view(layout.SPAN_DTYPE)
    expected = np.arange(sequence, sequence + len(records), dtype=np.int64)
    sound = (
        (records["sequence"] == expected)
        & is_one_of(records["kind"], Kind)
        & (records["end_ns"] >= records["start_ns"])
        & (records["start_ns"] >= contents.start_ns - FURTHEST_NS)
        & (records["end_ns"] <= contents.start_ns + FURTHEST_NS)
    )
    for name in ("nbytes", "cpu_ns"):
        sound &= (records[name] >= -1) & (records[name] <= MOST_NBYTES)
    used = np.any(body[:whole].reshape(-1, layout.RECORD_NBYTES), axis=1)
    places = np.flatnonzero(sound)
    before_last = np.arange(len(records)) < (places[-1] if len(places) else 0)
    broken = (used | before_last) & ~sound
    contents.damaged += int(broken.sum()) + int(body[whole:].any())
    spans: NDArray[Any] = records[sound]
    return spans, len(records) - len(spans) - int(broken.sum())


def _read_strings(body: bytes, contents: _Contents) -> None:
    offset = 0
    while offset + layout.STRING_HEAD.size <= len(body):
        number, nbytes, crc = layout.STRING_HEAD.unpack_from(body, offset)
        text_offset = offset + layout.STRING_HEAD.size
        if number == 0 and nbytes == 0:
            break
        text = body[text_offset : text_offset + nbytes]
        if number and zlib.crc32(text) == crc:
            contents.strings[number] = mask_urls(text.decode("utf-8", "replace"))
        else:
            contents.damaged += 1
        offset += layout.string_entry_nbytes(nbytes)
    contents.damaged += any(body[offset:])


def _joined(contents: _Contents, sums: Sums | None) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return all spans lane by lane, with each one's thread; count the chunks that are gone."""
    pieces: list[NDArray[Any]] = [np.empty(0, layout.SPAN_DTYPE)]
    threads: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    for index, lane in enumerate(sorted(contents.lanes)):
        summed = None if sums is None else sums.lanes.get(lane)
        begin, end = (0, 0) if summed is None else (summed.begin, summed.end)
        expected, n_empty = 1, 0
        for sequence, spans, n_after in contents.lanes[lane]:
            contents.damaged += n_empty  # a thread gets a further chunk when the last one is full
            n_empty = n_after
            if sequence > expected:
                missing = sequence - expected
                missing -= max(min(end, sequence) - max(begin, expected), 0)
                contents.damaged += missing
            expected = sequence + layout.SPANS_PER_CHUNK
            if end:
                spans = spans[(spans["sequence"] < begin) | (spans["sequence"] >= end)]
            pieces.append(spans)
            threads.append(np.full(len(spans), index, np.int32))
    return np.concatenate(pieces), np.concatenate(threads)


def _name_missing_strings(spans: NDArray[Any], contents: _Contents) -> None:
    for field in ("label", "detail"):
        for number in np.unique(spans[field]).tolist():
            if number not in contents.strings:
                contents.strings[number] = UNKNOWN_TEXT
                contents.damaged += 1


def has_ended(path: Path) -> bool:
    """Return whether nobody writes to a span file any more; False where that is not certain."""
    try:
        head = read_head(path)
    except ProfileError:
        return False
    if head.end is not None:
        return True
    if head.host != host_name():
        return False
    if head.boot_id != boot_id():
        return bool(head.boot_id)
    try:
        os.kill(head.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
