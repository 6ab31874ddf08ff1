"""The files of a catalogue: tables of what is kept under a key, written once, merged, bounded.

A part of a catalogue is one file that nobody changes: entries, then their table, then where that
begins and its digest. Processes write parts of their own at once, so none waits for another and
none loses what another kept; whoever writes one joins the smaller ones into it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from iobench.files.atomic import AtomicFile
from iobench.stores.places import make_item

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

DIGEST_NBYTES: Final = 16
SUFFIX: Final = ".catalogue-1"
"""How parts end; another number where their layout changes."""
MAX_NBYTES: Final = 1 << 30
"""A catalogue larger than this loses its oldest half when it is next written."""
END: Final = struct.Struct("<8sQQ16s")
MARK: Final = b"iobcat\r\n"
MAX_ENTRIES: Final = 1 << 20
SMALL_NBYTES: Final = 1 << 16
PACK_NBYTES: Final = 256
"""Less is not deflated."""
PACKED: Final = b"z"
WRITE_NBYTES: Final = 1 << 20
TRIES: Final = 3
HEAD: Final = np.dtype("<u8")
SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")
_PLACE: Final = [("offset", "<i8"), ("nbytes", "<i8"), ("crc", "<i8")]
ROW: Final = np.dtype(
    [
        ("key", f"V{DIGEST_NBYTES}"),
        ("state", f"V{DIGEST_NBYTES}"),
        ("learnt_ns", "<i8"),
        *((f"{what}_{name}", dtype) for what in ("text", "content") for name, dtype in _PLACE),
    ]
)


class Entry(msgspec.Struct, frozen=True):
    """What is kept under a key."""

    key: bytes
    state: bytes  # what it is about, and what must not have changed for it to hold: digests
    learnt_ns: int  # when it was learnt; of two, the newer is kept
    text: bytes  # stored once for all entries of a part that have the same
    content: bytes


class _DamagedPartError(Exception):
    """A part that no process can have written so."""


class _Part:
    """A part, open: its table is whole and in the order of keys, entries are checked one by one."""

    def __init__(self, path: Path, fd: int, nbytes: int, table: NDArray[Any]) -> None:
        self.path, self.fd, self.nbytes, self.table = path, fd, nbytes, table
        self.heads = _heads(table)
        self.texts: dict[int, bytes | None] = {}

    def number(self, key: bytes) -> int | None:
        """Return which entry is kept under a key."""
        head = np.frombuffer(key, HEAD, 1)
        for number in range(*(int(np.searchsorted(self.heads, head, side)[0]) for side in SIDES)):
            if self.table["key"][number].tobytes() == key:
                return number
        return None

    def entry(self, number: int, state: bytes | None = None) -> Entry | None:
        """Return an entry; None where it is damaged, or of another state than asked for."""
        key, found, learnt_ns, *places = self.table[number].item()
        if state not in (None, found):
            return None
        text_at, text_nbytes, text_crc, content_at, content_nbytes, content_crc = places
        text = self.texts.get(text_at)
        if text is None:
            text = self._checked(text_at, text_nbytes, text_crc)
            self.texts[text_at] = text
        content = self._checked(content_at, content_nbytes, content_crc)
        if text is None or content is None:
            return None
        return Entry(key, found, learnt_ns, text, content)

    def _checked(self, offset: int, nbytes: int, crc: int) -> bytes | None:
        with suppress(OSError, zlib.error):
            stored = os.pread(self.fd, nbytes, offset)
            if len(stored) == nbytes and zlib.crc32(stored) == crc:
                return zlib.decompress(stored[1:]) if stored[:1] == PACKED else stored[1:]
        return None


class Parts:
    """All parts of a catalogue, open."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = parts

    def find(self, key: bytes, state: bytes) -> Entry | None:
        """Return the entry of a key of that state; None where there is none, or it is damaged."""
        for part in self.parts:
            number = part.number(key)
            entry = None if number is None else part.entry(number, state)
            if entry is not None:
                return entry
        return None


@contextmanager
def open_parts(folder: Path) -> Iterator[Parts]:
    """Open the parts in a folder; what is missing or damaged is no part."""
    with ExitStack() as stack:
        parts: list[_Part] = []
        for _ in range(TRIES):
            names = _names(folder)
            parts, _ = _opened(folder, names, stack)
            if set(_names(folder)) <= set(names):
                break  # else another process has joined some of them into a new one meanwhile
        yield Parts(parts)


def write_part(folder: Path, entries: Iterable[Entry], *, name: str) -> None:
    """Write a part with these entries, and those of parts that are not much larger."""
    make_index_folder(folder)
    newest = {entry.key: entry for entry in entries}
    with ExitStack() as stack:
        parts, damaged = _opened(folder, _names(folder), stack)
        joined, limit = _to_join(parts, sum(len(entry.content) for entry in newest.values()))
        _write(folder / f"{name}{SUFFIX}", newest, joined, limit)
        for path in [*damaged, *(part.path for part in joined)]:
            with suppress(OSError):  # another process has joined it as well
                path.unlink()


def make_index_folder(folder: Path) -> None:
    """Make a folder for what was learnt of files, so that ``iobench cache`` lists it."""
    make_item(folder, kind="index", title="indexes of source files")


def _to_join(parts: Sequence[_Part], nbytes: int) -> tuple[list[_Part], int]:
    """Return the parts to join with so many new bytes, and how many bytes of them are kept."""
    n_entries = sum(len(part.table) for part in parts)
    if n_entries > MAX_ENTRIES or sum(part.nbytes for part in parts) + nbytes > MAX_NBYTES:
        return list(parts), MAX_NBYTES // 2
    joined = []
    for part in sorted(parts, key=lambda part: part.nbytes):
        if part.nbytes > 2 * nbytes + SMALL_NBYTES:
            break
        joined.append(part)
        nbytes += part.nbytes
    return joined, MAX_NBYTES


def _write(path: Path, newest: Mapping[bytes, Entry], joined: Sequence[_Part], limit: int) -> None:
    old: dict[bytes, tuple[int, _Part, int]] = {}
    for part in joined:
        rows = zip(part.table["learnt_ns"].tolist(), part.table["key"], strict=True)
        for number, (learnt_ns, void) in enumerate(rows):
            key = void.tobytes()
            if key not in newest and learnt_ns > old.get(key, (-1, part, 0))[0]:
                old[key] = (learnt_ns, part, number)
    by_age = sorted(old.values(), key=lambda each: -each[0])[: MAX_ENTRIES // 2]
    file = AtomicFile(path)
    try:
        writer = _Writer(file)
        for entry in newest.values():
            writer.add(entry)
        for _, part, number in by_age:
            found = part.entry(number) if writer.place < limit else None
            if found is not None:
                writer.add(found)
        writer.finish()
    except BaseException:
        file.abort()
        raise
    file.commit()


class _Writer:
    """Writes entries one behind the other, and their table at the end."""

    def __init__(self, file: AtomicFile) -> None:
        self.file = file
        self.place = 0
        self.texts: dict[bytes, tuple[int, int, int]] = {}
        self.table: list[tuple[Any, ...]] = []
        self.waiting = bytearray()

    def add(self, entry: Entry) -> None:
        """Write an entry."""
        text = self.texts.get(entry.text) or self._put(entry.text)
        self.texts[entry.text] = text
        content = self._put(entry.content)
        self.table.append((entry.key, entry.state, entry.learnt_ns, *text, *content))

    def _put(self, data: bytes) -> tuple[int, int, int]:
        packed = zlib.compress(data, 1) if len(data) > PACK_NBYTES else data
        stored = PACKED + packed if len(packed) < len(data) else b"-" + data
        place = self.place
        self.place += len(stored)
        self.waiting += stored
        if len(self.waiting) > WRITE_NBYTES:
            self._flush()
        return place, len(stored), zlib.crc32(stored)

    def _flush(self) -> None:
        self.file.write(self.waiting)
        self.waiting = bytearray()

    def finish(self) -> None:
        """Write the table."""
        rows = np.array(self.table, dtype=ROW)
        table = rows[np.argsort(_heads(rows), kind="stable")].tobytes()
        self.waiting += table + END.pack(MARK, self.place, len(rows), _digest(table))
        self._flush()


def _digest(table: bytes) -> bytes:
    return hashlib.blake2b(table, digest_size=DIGEST_NBYTES).digest()


def _heads(table: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the first eight bytes of each key, as numbers."""
    return np.frombuffer(table["key"].tobytes(), HEAD)[:: DIGEST_NBYTES // HEAD.itemsize]


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(path.name for path in folder.iterdir() if path.suffix == SUFFIX)
    return []


def _opened(folder: Path, names: Sequence[str], stack: ExitStack) -> tuple[list[_Part], list[Path]]:
    """Open parts until the stack closes; return them, and the paths of the damaged ones."""
    parts, damaged = [], []
    for name in names:
        try:
            fd = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue  # gone, or another user's
        stack.callback(os.close, fd)
        try:
            parts.append(_part(folder / name, fd))
        except _DamagedPartError:
            damaged.append(folder / name)
    return parts, damaged


def _part(path: Path, fd: int) -> _Part:
    try:
        nbytes = os.fstat(fd).st_size
        mark, place, count, digest = END.unpack(os.pread(fd, END.size, max(0, nbytes - END.size)))
        length = count * ROW.itemsize
        if mark != MARK or place + length + END.size != nbytes:
            raise _DamagedPartError
        table = os.pread(fd, length, place)
    except (OSError, struct.error) as error:
        raise _DamagedPartError from error
    if _digest(table) != digest:
        raise _DamagedPartError
    return _Part(path, fd, nbytes, np.frombuffer(table, ROW))
