"""Staging: a store, a folder or a file copied once to a disk near the CPUs, and compared."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from iobench.cpus import available_cpus
from iobench.errors import FileFormatError, MissingFileError, StorageError, StoreError
from iobench.files.atomic import (
    FULL,
    TEMPORARY_SUFFIX,
    is_local,
    storage_errors,
    write_atomically,
)
from iobench.files.crc32c import crc32c, crc32c_of_file
from iobench.files.locks import LOCK_NAME, find_writer, locked
from iobench.files.memory import available_memory_nbytes
from iobench.files.ranges import open_source_file
from iobench.files.urls import URL, as_path, range_file, remove_tree
from iobench.json_files import read_json
from iobench.recording.clocks import now_ns
from iobench.recording.stages import stage as recorded_stage
from iobench.storage.file_systems import file_system_of
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import MANIFEST_NAME, checked_json
from iobench.stores.places import MARK_NAME, check_room, make_item, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LEAST_THREADS: Final = 4
MOST_THREADS: Final = 16
"""They mostly wait for the storage: more than CPUs, and no burden to it."""
PIECE_NBYTES: Final = 8 << 20
"""Of one read: what parallel file systems hand out at a time, or several servers together."""
STAGED_NAME: Final = "stage.json"
"""What a copy says of itself, beside its files."""
OURS: Final = (MARK_NAME, LOCK_NAME)


class StagedFile(msgspec.Struct, frozen=True):
    """One file of a copy."""

    name: str  # its path in the copy
    nbytes: int
    version: str = ""  # of what it is copied from, where no checksum is known: when it was written
    crc32c: int | None = None  # None until it was read


class StagedCopy(msgspec.Struct, frozen=True):
    """A copy, as the ``stage.json`` beside its files has it."""

    source: str  # what was copied, without secrets
    files: tuple[StagedFile, ...]
    copied_nbytes: int = 0  # by the last call that copied something
    seconds: float = 0.0  # that it took
    path: Path = Path()  # where it is; not in the file
    was_there: bool = False  # whether nothing had to be copied; not in the file

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def is_store(self) -> bool:
        """Whether it is a finished store."""
        return any(file.name == MANIFEST_NAME for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return what it is, JSON-ready, but for its files."""
        rate = self.copied_nbytes / self.seconds if self.copied_nbytes and self.seconds else None
        return {
            "source": self.source,
            "kind": "store" if self.is_store else "files",
            "nbytes": self.nbytes,
            "copied_nbytes": self.copied_nbytes,
            "seconds": self.seconds,
            "bytes_per_s": rate,
        }


def staged_copy(path: Path | str) -> StagedCopy | None:
    """Return what the copy in a folder says of itself; None where there is none that is sound."""
    folder = Path(path)
    with suppress(OSError, ValueError, TypeError, msgspec.ValidationError):
        copy = msgspec.convert(read_json(folder / STAGED_NAME), StagedCopy)
        names = [PurePosixPath(file.name) for file in copy.files]
        if not any(name.is_absolute() or ".." in name.parts for name in names):
            return replace(copy, path=folder)
    return None


def _write_copy(copy: StagedCopy) -> None:
    values = msgspec.structs.asdict(copy)
    del values["path"], values["was_there"]
    write_atomically(copy.path / STAGED_NAME, checked_json(msgspec.to_builtins(values)))


def stage(
    source: Path | str,
    to: Path | str,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> StagedCopy:
    """Copy a store, a folder or a file into a folder below ``to``; return the copy.

    One process copies, others that want the same wait for it. What is there already is read and
    compared, and copied again where it is not as it was staged, or as the source is now: the same
    call goes on where one was killed.
    """
    with recorded_stage("stage_in") as span:
        span.nbytes = 0
        place, path = as_path(to), as_path(source)
        path = path.resolve() if is_local(path) and ".." in path.parts else path.absolute()
        if isinstance(place, URL):
            raise StorageError(f"{place}: is an address; stage to a folder of this machine")
        files = _list_files(path)
        folder = place.absolute() / path.name
        if not isinstance(path, URL) and folder.resolve().is_relative_to(path.resolve()):
            raise StorageError(f"{folder} lies in what is to be staged; stage to another folder")
        was_there = folder.exists()
        make_item(folder, kind="staged", title=str(path))
        if mark_of(folder) != ("staged", str(path)):
            raise StorageError(
                f"{folder} holds a copy of {mark_of(folder)[1]}; stage to another folder (--to) or "
                "remove that one first"
            )
        threads = threads or min(MOST_THREADS, max(LEAST_THREADS, available_cpus()))
        try:
            with locked(folder, notice=notice) as lock:
                staging = _Staging(path, folder, files, threads, progress)
                copy = staging.run(notice or (lambda text: None))
                lock.check()
        except StorageError as error:
            if not was_there and error.errno in (*FULL, None) and not find_writer(folder):
                remove_tree(folder)  # what is left would only fill the disk
            raise
        span.nbytes = 0 if copy.was_there else copy.copied_nbytes
    return copy


def _list_files(source: Path) -> list[StagedFile]:
    """Return the files of a source, the manifest of a store last."""
    if (source / MANIFEST_NAME).is_file():
        store = open_store(source)
        files = [StagedFile(f.name, f.nbytes, crc32c=f.crc32c) for f in store.manifest.files]
        return [*files, _file(source / MANIFEST_NAME, MANIFEST_NAME)]
    if mark_of(source)[0] in ("store", "probe"):
        raise StoreError(
            f"{source} is not a finished store: it has no {MANIFEST_NAME}; run its conversion "
            "again to finish it"
        )
    if source.is_file():
        return [_file(source, source.name)]
    files, is_copy = [], mark_of(source)[0] == "staged"
    for path in sorted(source.rglob("*")) if source.is_dir() else ():
        name = path.relative_to(source).as_posix()
        if name == STAGED_NAME and not is_copy:
            raise StorageError(f"{path}: a file of a copy's own has that name; rename this one")
        if path.is_file() and name != STAGED_NAME and not path.name.startswith(OURS):
            files.append(_file(path, name))
        elif path.is_symlink():
            raise MissingFileError(
                f"{path}: is a link to no file, and links to folders are not followed; name what "
                "is meant instead, or remove it"
            )
    if not files:
        raise MissingFileError(f"{source}: no store, folder with files or file to stage")
    return files


def _file(path: Path, name: str) -> StagedFile:
    status = path.stat()
    version = path.version() if isinstance(path, URL) else str(status.st_mtime_ns)
    return StagedFile(name, status.st_size, version)


class _Staging:
    """One call that copies what is missing; the lock of the folder is held."""

    def __init__(
        self,
        source: Path,
        folder: Path,
        files: Sequence[StagedFile],
        threads: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._source, self._folder, self._files = source, folder, files
        self._threads, self._progress = threads, progress
        self._lock = threading.Lock()
        self._n_done = 0
        self._total = sum(file.nbytes for file in files)

    def run(self, say: Callable[[str], None]) -> StagedCopy:
        begun_ns, before = now_ns(), staged_copy(self._folder)
        known = {_id(file): file.crc32c for file in before.files} if before else {}
        expected = [
            replace(file, crc32c=known.get(_id(file)) if file.crc32c is None else file.crc32c)
            for file in self._files
        ]
        is_sound = self._each(self._is_sound, expected)
        missing = [file for file, sound in zip(self._files, is_sound, strict=True) if not sound]
        if before is not None and not missing:
            return replace(before, files=tuple(expected), was_there=True)
        if before is not None:
            say(
                f"{self._folder}: {missing[0].name} and {len(missing) - 1} more of "
                f"{len(self._files)} files are not as {self._source} has them: they are copied"
            )
        self._check_room(missing)
        # A store is none until its manifest is there again.
        last = [file for file in self._files if file.name == MANIFEST_NAME]
        first = [file for file in missing if file not in last]
        self._remove_old([*(before.files if before else ()), *last], expected)
        copy = StagedCopy(str(self._source), tuple(self._files), path=self._folder)
        _write_copy(copy)
        checksums = dict(zip(self._files, (file.crc32c for file in expected), strict=True))
        for files in (first, last):
            checksums |= dict(zip(files, self._each(self._copy, files), strict=True))
        copy = replace(
            copy,
            files=tuple(replace(file, crc32c=checksums[file]) for file in self._files),
            copied_nbytes=sum(file.nbytes for file in (*first, *last)),
            seconds=(now_ns() - begun_ns) / 1e9,
        )
        _write_copy(copy)
        return copy

    def _each(self, work: Callable[[StagedFile], Any], files: Sequence[StagedFile]) -> list[Any]:
        self._is_over = False
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="iobench-stage")
        try:
            return list(pool.map(work, files))
        finally:
            self._is_over = True  # of one that failed the others end, too
            pool.shutdown(cancel_futures=True)

    def _is_sound(self, file: StagedFile) -> bool:
        path = self._folder / file.name
        try:
            if file.crc32c is None or path.stat().st_size != file.nbytes:
                return False
            is_sound = crc32c_of_file(path) == file.crc32c
        except (OSError, StorageError):  # it is not there, or a disk fails
            return False
        if is_sound:
            self._move(file.nbytes)
        return is_sound

    def _check_room(self, missing: Sequence[StagedFile]) -> None:
        """Compare what is to be copied with what is free, before a byte is."""
        nbytes = sum(file.nbytes for file in missing)
        check_room(self._folder, nbytes)
        on = file_system_of(self._folder)
        if on.reach == "memory" and nbytes > (free := available_memory_nbytes()):
            raise StorageError(
                f"{self._folder}: {nbytes} bytes are needed, {free} are free on this {on.name}; "
                "stage to another disk"
            )

    def _remove_old(self, old: Sequence[StagedFile], expected: Sequence[StagedFile]) -> None:
        names = {file.name for file in expected} - {MANIFEST_NAME}
        with storage_errors(self._folder):
            for file in old:
                if file.name not in names:
                    (self._folder / file.name).unlink(missing_ok=True)
                    for folder in PurePosixPath(file.name).parents[:-1]:
                        with suppress(OSError):  # others are in it
                            (self._folder / folder).rmdir()
            for path in [*self._folder.rglob(f".*{TEMPORARY_SUFFIX}")]:
                path.unlink()

    def _copy(self, file: StagedFile) -> int:
        """Copy a file, which appears when it is whole; return its checksum."""
        path = self._folder / file.name
        origin = self._source if self._source.is_file() else self._source / file.name
        name = sha256(os.fsencode(file.name)).hexdigest()  # names may be as long as can be
        temporary = self._folder / f".{name}{TEMPORARY_SUFFIX}"
        opened = open_source_file(range_file(origin))
        value = at = 0
        buffer = memoryview(bytearray(min(file.nbytes, PIECE_NBYTES)))
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                while at < file.nbytes and not self._is_over:
                    piece = buffer[: file.nbytes - at]
                    opened.fill(piece, at)
                    value = crc32c(piece, value)
                    stream.write(piece)
                    self._move(len(piece))
                    at += len(piece)
            opened.check()
            if file.version not in ("", str(opened.version)) or file.crc32c not in (None, value):
                temporary.unlink()
                raise FileFormatError(
                    f"{origin}: is not as it was when staging began, or as its store's manifest "
                    "says (CRC-32C); stage again, or run 'iobench verify' on the source"
                )
            temporary.replace(path)
        return value

    def _move(self, nbytes: int) -> None:
        with self._lock:
            self._n_done += nbytes
            if self._progress is not None:
                self._progress(min(self._n_done, self._total), self._total)


def _id(file: StagedFile) -> tuple[str, int, str]:
    return file.name, file.nbytes, file.version
