"""Span files with other names in them: times and numbers stay byte for byte, texts are rewritten.

What is damaged stays as damaged as it was, without the bytes that nobody can read: they may hold
anything.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import ProfileError
from iobench.recording import span_file as layout
from iobench.recording.folding import unpacked_fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GARBAGE: Final = b"\xff"
"""What stands for bytes that cannot be read: no record and no text is all ones."""


def texts_of_spans(data: bytes) -> Iterator[str]:
    """Yield every text that a span file holds: who wrote it, its threads, labels and details."""
    for part in _parts(data):
        yield from _texts(part)


def _parts(data: bytes) -> list[bytes]:
    """Return the span files in a file, of several the header before them first."""
    parts = [data[part] for part in layout.joined_parts(data)]
    if layout.is_joined(data[: layout.HEADER_NBYTES]):
        return [data[: layout.HEADER_NBYTES], *parts]
    return parts


def _texts(data: bytes) -> Iterator[str]:
    identity = _identity(data)
    yield from (identity.role, identity.host, identity.boot_id)
    for head, body in _chunks(data):
        content, name = _content(head)
        if content == layout.SPANS:
            yield name
        elif content == layout.STRINGS:
            yield from (text for _, text in _entries(body) if text is not None)


def rewritten_spans(
    data: bytes,
    text: Callable[[str], str],
    host: Callable[[str], str],
    boot: Callable[[str], str],
) -> bytes:
    """Return a span file whose texts are replaced, and that reads back as the same spans.

    Parameters
    ----------
    data : bytes
        A span file, also one that is damaged or still written.
    text, host, boot : callable of str to str
        What stands for labels, details and names of threads; for the host; for its boot.

    Raises
    ------
    ProfileError
        If it has no sound header, so that nobody can tell what is in it.
    """
    return b"".join(_rewritten(part, text, host, boot) for part in _parts(data))


def _rewritten(
    data: bytes,
    text: Callable[[str], str],
    host: Callable[[str], str],
    boot: Callable[[str], str],
) -> bytes:
    pieces: list[bytes] = []
    _identity(data)
    fold = unpacked_fold(data[: layout.HEADER_NBYTES])
    for number, (head, body) in enumerate(_chunks(data)):
        place = layout.HEADER_NBYTES + number * layout.CHUNK_NBYTES
        if fold is not None and fold.pending == place:  # it is in the sums, and was to be emptied
            pieces.append(bytes(len(head) + len(body)))
            continue
        content, name = _content(head)
        if content == layout.SPANS:
            pieces.append(_head_with(head, text(name)) + _span_rows(head, body))
        elif content == layout.STRINGS:
            pieces.extend(_strings(head, body, text))
        else:
            pieces.append(_blanked(head) + _blanked(body))
    more = sum(map(len, pieces)) - max(0, len(data) - layout.HEADER_NBYTES)
    return b"".join([_header(data, text, host, boot, more), *pieces])


def _identity(data: bytes) -> layout.Identity:
    header = data[: layout.HEADER_NBYTES]
    if len(header) < layout.HEADER_NBYTES or not header.startswith(layout.MAGIC):
        raise ProfileError("is no whole span file; expected its header")
    (crc,) = layout.IDENTITY_CRC.unpack_from(header, layout.IDENTITY_CRC_OFFSET)
    version = layout.IDENTITY.unpack_from(header)[1]
    if crc != zlib.crc32(header[: layout.IDENTITY.size]) or version != layout.VERSION:
        raise ProfileError(f"has no sound header of version {layout.VERSION}")
    return layout.Identity.unpacked(header)


def _header(
    data: bytes,
    text: Callable[[str], str],
    host: Callable[[str], str],
    boot: Callable[[str], str],
    more: int,
) -> bytes:
    was = _identity(data)
    role = was.role if was.role == layout.JOINED else text(was.role)
    identity = layout.Identity(
        was.pid, was.ppid, was.rank, was.worker, role, host(was.host), boot(was.boot_id),
        was.monotonic_ns, was.wall_ns,
    ).packed()  # fmt: skip
    header = bytearray(layout.HEADER_NBYTES)
    header[: len(identity)] = identity
    layout.IDENTITY_CRC.pack_into(header, layout.IDENTITY_CRC_OFFSET, zlib.crc32(identity))
    for field, offset in (
        (layout.LOST, layout.LOST_OFFSET),
        (layout.END, layout.END_OFFSET),
        (layout.PEAK, layout.PEAK_OFFSET),
        (layout.OWN, layout.OWN_OFFSET),
    ):
        header[offset : offset + field.size] = data[offset : offset + field.size]
    fold = unpacked_fold(data[: layout.HEADER_NBYTES])
    if fold is not None:
        fold.pending = 0
        packed = fold.packed()
        header[layout.FOLD_OFFSETS[0] : layout.FOLD_OFFSETS[0] + len(packed)] = packed
    (reserved,) = layout.RESERVED.unpack_from(data, layout.RESERVED_OFFSET)
    layout.RESERVED.pack_into(header, layout.RESERVED_OFFSET, reserved + more)
    return bytes(header)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    for start in range(layout.HEADER_NBYTES, len(data), layout.CHUNK_NBYTES):
        chunk = data[start : start + layout.CHUNK_NBYTES]
        yield chunk[: layout.RECORD_NBYTES], chunk[layout.RECORD_NBYTES :]


def _content(head: bytes) -> tuple[int, str]:
    """Return what a chunk holds, 0 where that cannot be told, and the name of its thread."""
    if len(head) < layout.RECORD_NBYTES:
        return 0, ""
    (crc,) = layout.CHUNK_CRC.unpack_from(head, layout.CHUNK_HEAD.size)
    magic, content, _, _, _, name = layout.CHUNK_HEAD.unpack_from(head)
    if crc != zlib.crc32(head[: layout.CHUNK_HEAD.size]) or magic != layout.CHUNK_MAGIC:
        return 0, ""
    return content, layout.plain_text(name)


def _head_with(head: bytes, name: str) -> bytes:
    magic, content, lane, sequence, thread_id, _ = layout.CHUNK_HEAD.unpack_from(head)
    told = layout.clipped_text(name, 36)
    packed = layout.CHUNK_HEAD.pack(magic, content, lane, sequence, thread_id, told)
    return (packed + layout.CHUNK_CRC.pack(zlib.crc32(packed))).ljust(layout.RECORD_NBYTES, b"\0")


def _span_rows(head: bytes, body: bytes) -> bytes:
    """Return the spans as they are; what is no span of this thread is blanked."""
    sequence = layout.CHUNK_HEAD.unpack_from(head)[3]
    n_whole = len(body) // layout.RECORD_NBYTES
    whole = n_whole * layout.RECORD_NBYTES
    rows = np.frombuffer(body, layout.SPAN_DTYPE, n_whole)
    expected = np.arange(sequence, sequence + n_whole, dtype=np.int64)
    table = np.frombuffer(body, np.uint8, whole).reshape(n_whole, layout.RECORD_NBYTES).copy()
    table[(rows["sequence"] != expected) & table.any(axis=1)] = 0xFF
    return table.tobytes() + _blanked(body[whole:])


def _blanked(data: bytes) -> bytes:
    """Return as many records in use as there were, and nothing of what was in them."""
    pieces = []
    for start in range(0, len(data), layout.RECORD_NBYTES):
        piece = data[start : start + layout.RECORD_NBYTES]
        pieces.append(GARBAGE * len(piece) if any(piece) else piece)
    return b"".join(pieces)


def _entries(body: bytes) -> Iterator[tuple[int, str | None]]:
    """Yield number and text of each entry, None for a damaged one.

    Number 0 says that nothing further can be told of the chunk.
    """
    offset = 0
    while offset + layout.STRING_HEAD.size <= len(body):
        number, nbytes, crc = layout.STRING_HEAD.unpack_from(body, offset)
        if number == 0 and nbytes == 0:
            break
        start = offset + layout.STRING_HEAD.size
        text = body[start : start + nbytes]
        if number == 0 or nbytes > layout.STRING_LIMIT or len(text) < nbytes:
            yield 0, None
            return
        yield number, text.decode("utf-8", "replace") if zlib.crc32(text) == crc else None
        offset += layout.string_entry_nbytes(nbytes)
    if any(body[offset:]):
        yield 0, None


def _strings(head: bytes, body: bytes, text: Callable[[str], str]) -> Iterator[bytes]:
    """Yield the chunk with its texts replaced, and further chunks for what has no room in it."""
    room = layout.CHUNK_NBYTES - layout.RECORD_NBYTES
    bodies = [bytearray()]
    for number, told in _entries(body):
        entry = GARBAGE * layout.STRING_HEAD.size if number == 0 else _entry(number, told, text)
        if len(bodies[-1]) + len(entry) + layout.STRING_HEAD.size > room:
            bodies.append(bytearray())
        bodies[-1] += entry
    for each in bodies:
        yield _head_with(head, "") + each.ljust(room, b"\0")


def _entry(number: int, told: str | None, text: Callable[[str], str]) -> bytes:
    encoded = b"" if told is None else layout.clipped_text(text(told), layout.STRING_LIMIT)
    crc = zlib.crc32(encoded) if told is not None else 0xFFFFFFFF
    entry = layout.STRING_HEAD.pack(number, len(encoded), crc) + encoded
    return entry.ljust(layout.string_entry_nbytes(len(encoded)), b"\0")
