"""Files copied by a few threads, each a large stretch from front to back, and taken up again."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.errors import FileFormatError
from iobench.files.atomic import TEMPORARY_SUFFIX, storage_errors
from iobench.files.crc32c import crc32c
from iobench.files.joined_crc import JoinedChecksum
from iobench.files.source_files import open_source_file
from iobench.json_files import open_regular, parse_json
from iobench.staging.staged_copy import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

JOURNAL_NAME: Final = f".stage.journal{TEMPORARY_SUFFIX}"
"""A line for each stretch that is there; its bytes are read before it counts."""
STRETCH_NBYTES: Final = 128 << 20
"""What one thread copies of a large file, and what is copied again at most after a kill."""
PIECE_NBYTES: Final = 8 << 20
"""Of one read: what parallel file systems hand out at a time, or several servers together."""

Key = tuple[str, str, int]
"""Name and version of a file, and where a stretch of it begins."""


class ListedFile(msgspec.Struct, frozen=True):
    """A file to be made."""

    name: str  # its path in the copy, of plain names
    nbytes: int
    version: str  # changes with the source
    source: str  # where its bytes are; an address (`iobench.files.urls.range_file`)
    crc32c: int | None = None  # what they have to be, where that is known
    # what version the source has to have, where nothing else tells that it has changed
    modified: str | None = None


@dataclass(slots=True)
class _Making:
    """A file that is being copied; its lock is held to change what is said of it."""

    wanted: ListedFile
    path: Path
    left: int
    checksums: dict[int, int] = field(default_factory=dict)

    @property
    def temporary(self) -> Path:
        return temporary_of(self.path)


def temporary_of(path: Path) -> Path:
    """Return where a file is until it is whole; its own name may be as long as names can be."""
    name = sha256(os.fsencode(path.name)).hexdigest()
    return path.with_name(f".{name}{TEMPORARY_SUFFIX}")


def stretches(nbytes: int) -> list[tuple[int, int]]:
    """Return where each stretch of a file begins, and how long it is."""
    starts = range(0, max(1, nbytes), STRETCH_NBYTES)
    return [(start, min(STRETCH_NBYTES, nbytes - start)) for start in starts]


def copy_files(
    folder: Path,
    files: Sequence[ListedFile],
    *,
    threads: int,
    moved: Callable[[int], None],
) -> tuple[list[StagedFile], int]:
    """Copy files into a folder, where they appear whole; return them, and the bytes copied.

    What an earlier call that was killed has copied counts, once its bytes are read and are as they
    were.
    """
    return _Copier(folder, files, threads, moved).run()


class _Copier:
    def __init__(
        self,
        folder: Path,
        files: Sequence[ListedFile],
        threads: int,
        moved: Callable[[int], None],
    ) -> None:
        self._folder, self._files = folder, files
        self._threads, self._moved = threads, moved
        self._lock = threading.Lock()
        self._known = _journal(folder / JOURNAL_NAME)
        self._done: dict[str, StagedFile] = {}
        self._left: deque[tuple[_Making, int, int]] = deque()
        self._is_over = False
        self._error: BaseException | None = None
        self._n_copied = 0
        for wanted in sorted(files, key=lambda each: each.source):
            parts = stretches(wanted.nbytes)
            made = _Making(wanted, folder / wanted.name, len(parts))
            self._left += [(made, start, nbytes) for start, nbytes in parts]

    def run(self) -> tuple[list[StagedFile], int]:
        with storage_errors(self._folder, resumable=True):
            self._journal = os.open(
                self._folder / JOURNAL_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
            )
        n_threads = min(self._threads, len(self._left))
        # Daemons: a script that ends while a thread of it stages does not wait for all of it.
        every = [
            threading.Thread(target=self._work, name=f"iobench-stage-{number}", daemon=True)
            for number in range(n_threads)
        ]
        try:
            for one in every:
                one.start()
            for one in every:
                one.join()
        finally:
            self._is_over = True  # a loop that was interrupted ends its threads
            for one in every:
                one.join()
            os.close(self._journal)
        if self._error is not None:
            raise self._error
        return [self._done[wanted.name] for wanted in self._files], self._n_copied

    def _work(self) -> None:
        buffer = np.empty(PIECE_NBYTES, dtype=np.uint8).data
        while not self._is_over:
            try:
                made, start, nbytes = self._left.popleft()
            except IndexError:
                return
            try:
                self._copy(made, start, nbytes, buffer)
            except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
                self._error = self._error or error
                self._is_over = True

    def _copy(self, made: _Making, start: int, nbytes: int, buffer: memoryview) -> None:
        wanted = made.wanted
        descriptor = self._opened(made)
        copied = 0
        try:
            value = self._known.get((wanted.name, wanted.version, start))
            if value is None or crc32c_of(descriptor, start, nbytes, buffer) != value:
                value, copied = 0, nbytes
                for at, piece in _pieces(wanted, start, nbytes, buffer):
                    if self._is_over:
                        return
                    value = crc32c(piece, value)
                    with storage_errors(made.path, resumable=True):
                        _write(descriptor, piece, at)
                line = json.dumps([wanted.name, wanted.version, start, value])
                with storage_errors(made.path, resumable=True):
                    os.write(self._journal, line.encode() + b"\n")
        finally:
            os.close(descriptor)
        with self._lock:
            self._moved(nbytes)
            self._n_copied += copied
            made.checksums[start] = value
            made.left -= 1
            is_last = not made.left
        if is_last:
            self._finish(made)

    def _opened(self, made: _Making) -> int:
        """Return a descriptor of what the file is until it is whole, with room for all of it."""
        with self._lock, storage_errors(made.path, resumable=True):
            made.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(made.temporary, os.O_RDWR | os.O_CREAT, 0o644)
            nbytes = made.wanted.nbytes
            try:
                if os.fstat(descriptor).st_size != nbytes:
                    os.ftruncate(descriptor, nbytes)
                if nbytes:
                    os.posix_fallocate(descriptor, 0, nbytes)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    def _finish(self, made: _Making) -> None:
        wanted = made.wanted
        value = _joined(wanted.nbytes, made.checksums)
        if wanted.crc32c is not None and value != wanted.crc32c:
            made.temporary.unlink(missing_ok=True)
            raise FileFormatError(
                f"{wanted.source}: was read with other bytes than its store's manifest says "
                "(CRC-32C); run 'iobench verify' on the source to see whether it is damaged"
            )
        with storage_errors(made.path, resumable=True):
            made.temporary.replace(made.path)
            modified = str(made.path.stat().st_mtime_ns)
        staged = StagedFile(wanted.name, wanted.nbytes, wanted.version, value, modified)
        with self._lock:
            self._done[wanted.name] = staged


def _pieces(
    wanted: ListedFile, start: int, nbytes: int, buffer: memoryview
) -> Iterator[tuple[int, memoryview]]:
    """Yield where pieces of a file are, and their bytes, in turn in one buffer."""
    source = open_source_file(wanted.source)
    if wanted.modified is not None and str(source.version) != wanted.modified:
        raise FileFormatError(f"{wanted.source}: was rewritten since staging began; stage again")
    at = start
    while at < start + nbytes:
        piece = buffer[: min(len(buffer), start + nbytes - at)]
        source.fill(piece, at)
        yield at, piece
        at += len(piece)
    if wanted.modified is not None:
        source.check()


def _write(descriptor: int, piece: memoryview, at: int) -> None:
    while piece:
        count = os.pwrite(descriptor, piece, at)
        piece, at = piece[count:], at + count


def crc32c_of(descriptor: int, start: int, nbytes: int, buffer: memoryview) -> int:
    """Return the checksum of a stretch of a file; of less where that ends."""
    value, end = 0, start + nbytes
    while start < end:
        count = os.preadv(descriptor, [buffer[: min(len(buffer), end - start)]], start)
        if not count:
            break
        value = crc32c(buffer[:count], value)
        start += count
    return value


def _joined(nbytes: int, checksums: dict[int, int]) -> int:
    """Return the checksum of a file from those of its stretches."""
    *whole, last = [checksums[start] for start, _ in stretches(nbytes)]
    if not whole:
        return last
    before = JoinedChecksum(STRETCH_NBYTES).of(np.array(whole, dtype=np.uint32))
    length = stretches(nbytes)[-1][1]
    return JoinedChecksum(length).of(np.array([before, last], dtype=np.uint32))


def _journal(file: Path) -> dict[Key, int]:
    """Return the checksums of stretches by name, version and start; of a torn line nothing."""
    found: dict[Key, int] = {}
    with suppress(FileNotFoundError), storage_errors(file):
        for line in file.read_bytes().splitlines():
            with suppress(ValueError, TypeError):
                name, version, start, value = parse_json(line)
                found[str(name), str(version), int(start)] = int(value)
    return found


def journalled(folder: Path, files: Sequence[ListedFile]) -> dict[str, int]:
    """Return the checksums, by name, of files of which a copy that was killed had every byte."""
    known = _journal(folder / JOURNAL_NAME)
    found = {}
    for file in files:
        parts = stretches(file.nbytes)
        values = {at: known.get((file.name, file.version, at)) for at, _ in parts}
        whole = {at: value for at, value in values.items() if value is not None}
        if len(whole) == len(parts):
            found[file.name] = _joined(file.nbytes, whole)
    return found


def read_back(
    folder: Path,
    files: Sequence[StagedFile],
    *,
    threads: int,
    moved: Callable[[int], None],
) -> list[StagedFile | None]:
    """Return the files of a copy whose bytes are as they were staged; None for the others."""

    def read(file: StagedFile) -> StagedFile | None:
        buffer = np.empty(PIECE_NBYTES, dtype=np.uint8).data
        path = folder / file.name
        try:
            descriptor = open_regular(path)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
            same = status.st_size == file.nbytes
            same = same and crc32c_of(descriptor, 0, file.nbytes, buffer) == file.crc32c
        except OSError:  # a disk that fails
            return None
        finally:
            os.close(descriptor)
            moved(file.nbytes)
        return replace(file, modified=str(status.st_mtime_ns)) if same else None

    with ThreadPoolExecutor(threads, thread_name_prefix="iobench-stage") as pool:
        return list(pool.map(read, files))
