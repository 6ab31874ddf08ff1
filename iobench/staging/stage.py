"""Staging: a source copied once to where its readers are, whoever else wants it there too."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.cpus import available_cpus
from iobench.errors import StorageError, StoreClaimedError
from iobench.files.atomic import FULL, TEMPORARY_SUFFIX, is_read_only, storage_errors
from iobench.files.claims import claim
from iobench.files.memory import available_memory_nbytes
from iobench.files.scratch import free_files, free_nbytes
from iobench.files.urls import URL, as_path, is_url
from iobench.recording.clocks import now_ns
from iobench.recording.job import find_job
from iobench.recording.stages import stage as recorded_stage
from iobench.staging.copying import (
    JOURNAL_NAME,
    copy_files,
    journalled,
    read_back,
    temporary_of,
)
from iobench.staging.listing import list_source
from iobench.staging.staged_copy import (
    StagedCopy,
    StagedFile,
    digest_of,
    remove_staged,
    staged_copy,
    write_copy,
)
from iobench.storage.file_systems import file_system_of
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import (
    make_item,
    mark_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.staging.copying import ListedFile
    from iobench.staging.listing import Listing

LEAST_THREADS: Final = 4
MOST_THREADS: Final = 16
"""They mostly wait for the storage: more than CPUs, and no burden to it."""
SPARE_NBYTES: Final = 16 << 20
"""For folders, ``stage.json`` and what a file system needs itself."""


def stage(
    source: Path | str | Sequence[Path | str],
    to: Path | str,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> StagedCopy:
    """Copy a store or files into a folder below ``to``; return the copy.

    One process copies, others that want the same wait for it. What is there already is read and
    compared first, unless a process of this job has just done so; what is not as it was staged, or
    as the source is now, is copied again. A call that was killed is taken up where it was.
    """
    with recorded_stage("stage_in") as span:
        span.nbytes = 0
        place = as_path(to)
        if isinstance(place, URL):
            raise StorageError(f"{place}: is an address; stage to a folder of this machine")
        listing = list_source(source)
        folder = place.absolute() / listing.name
        given = [source] if isinstance(source, str | Path) else source
        where = folder.resolve()
        if any(where.is_relative_to(Path(each).resolve()) for each in given if not is_url(each)):
            raise StorageError(f"{folder} lies in what is to be staged; stage to another folder")
        with storage_errors(folder):
            was_there = folder.exists()
        say = notice or (lambda text: None)
        staging = _Staging(listing, folder, threads, progress, say)
        try:
            if was_there and is_read_only(folder):
                copy = staging.run(writes=False)
            else:
                make_item(folder, kind="staged", title=listing.source)
                if mark_of(folder)[0] not in ("staged", "unknown"):
                    raise StorageError(
                        f"{folder} is no staged copy; stage to another folder (--to)"
                    )
                with claim(folder, notice=notice) as claimed:
                    copy = staging.run()
                    claimed.check()
        except StorageError as error:
            is_full = error.errno in FULL
            if is_full or (isinstance(error, NoRoomError) and not was_there):
                with suppress(StorageError, StoreClaimedError):
                    remove_staged(folder)
            if not is_full:
                raise
            raise StorageError(
                f"{folder}: the disk is full, though there was room when staging began; what was "
                "copied is removed; free some space, or stage to another folder (--to)"
            ) from error
        span.nbytes = 0 if copy.was_there else copy.copied_nbytes
    return copy


class NoRoomError(StorageError):
    """The place is too small, which was found out before anything was copied."""


class _Staging:
    """One go of copying what is missing; the claim is held."""

    def __init__(
        self,
        listing: Listing,
        folder: Path,
        threads: int | None,
        progress: Callable[[int, int], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self._telling = threading.Lock()
        self._listing, self._folder, self._say = listing, folder, say
        self._threads = threads or min(MOST_THREADS, max(LEAST_THREADS, available_cpus()))
        self._progress = progress

    def run(self, *, writes: bool = True) -> StagedCopy:
        """Return the copy, made whole; as it is, or refused, where nothing can be written."""
        self._n_done = self._n_copied = 0
        begun_ns = now_ns()
        listing, folder = self._listing, self._folder
        before = staged_copy(folder)
        self._check_same(before)
        sound = self._sound(before)
        missing = [file for file in listing.files if file.name not in sound]
        job = find_job().token
        is_whole = before is not None and all(file.name in sound for file in before.files)
        if before is not None and before.state == "complete" and is_whole and not missing:
            now = replace(before, files=tuple(sound[file.name] for file in before.files), job=job)
            if now != before and writes:
                write_copy(now)
            return replace(now, was_there=True)
        if not writes:
            raise StorageError(
                f"{folder} is read-only, and holds no whole copy of {listing.source} as that is "
                "now; stage to another folder"
            )
        self._check_room(missing)
        copy = StagedCopy(
            listing.source,
            listing.kind,
            "copying",
            tuple(StagedFile(file.name, file.nbytes, file.version) for file in listing.files),
            listing.nbytes,
            path=folder,
        )
        last = [file for file in listing.files if file.name == MANIFEST_NAME]
        if listing.kind == "store":  # it is none until its manifest is there again
            with storage_errors(folder):
                (folder / MANIFEST_NAME).unlink(missing_ok=True)
            missing = [file for file in missing if file not in last]
        else:
            last = []
        self._sweep(before, missing)
        write_copy(copy)
        made = self._copied(missing) + self._copied(last)
        found = sound | {file.name: file for file in made}
        files = tuple(found[file.name] for file in listing.files)
        (folder / JOURNAL_NAME).unlink(missing_ok=True)
        copy = replace(
            copy,
            state="complete",
            files=files,
            nbytes=sum(file.nbytes for file in files),
            digest=digest_of(files),
            copied_nbytes=self._n_copied,
            seconds=(now_ns() - begun_ns) / 1e9,
            job=job,
        )
        write_copy(copy)
        return copy

    def _check_same(self, before: StagedCopy | None) -> None:
        """Refuse to put something else into a folder; say if the source has changed since."""
        listing, folder = self._listing, self._folder
        if before is None:
            return
        if before.source != listing.source:
            raise StorageError(
                f"{folder} holds a copy of {before.source}; stage to another folder (--to), "
                "or remove that one first (--remove)"
            )
        wanted = {(file.name, file.nbytes, file.version) for file in listing.files}
        changed = [file.name for file in before.files if _id(file) not in wanted]
        if changed and before.state == "complete":
            self._say(
                f"{listing.source} has changed since it was staged ({changed[0]}): what is new is "
                "copied again"
            )

    def _sound(self, before: StagedCopy | None) -> dict[str, StagedFile]:
        """Return what is there already and is as it was staged, by name."""
        if before is None:
            return {}
        wanted = {_id(file): file for file in self._listing.files}
        known = journalled(self._folder, self._listing.files)
        there = []
        for file in before.files:
            if (asked := wanted.get(_id(file))) is None:
                continue
            value = file.crc32c
            if value < 0:
                value = known.get(file.name, -1) if asked.crc32c is None else asked.crc32c
            if value >= 0:
                path = self._folder / file.name
                if path.is_file():
                    there.append(replace(file, crc32c=value))
                elif before.state == "complete":
                    self._say(f"{path} has gone: it is copied again")
        is_ours = before.state == "complete" and before.job and before.job == find_job().token
        if is_ours and all(_is_untouched(self._folder, file) for file in there):
            return {file.name: file for file in there}
        found = read_back(self._folder, there, threads=self._threads, moved=self._move)
        for file, read in zip(there, found, strict=True):
            if read is None and before.state == "complete":
                self._say(
                    f"{self._folder / file.name} is not as it was staged (its size or CRC-32C "
                    "differs): it is copied again"
                )
        return {file.name: file for file in found if file is not None}

    def _check_room(self, missing: Sequence[ListedFile]) -> None:
        """Compare what is to be copied with what is free, before a byte is."""
        folder = self._folder
        begun = 0
        for file in missing:
            with suppress(OSError):
                begun += temporary_of(folder / file.name).stat().st_blocks * 512
        nbytes = max(0, sum(file.nbytes for file in missing) - begun)
        on = file_system_of(folder)
        free = free_nbytes(folder) or 0
        if on.reach == "memory":
            free = min(free, available_memory_nbytes())
        if nbytes + SPARE_NBYTES > free:
            raise NoRoomError(
                f"{folder}: {nbytes} bytes are to be copied to stage {self._listing.source}, "
                f"{free} are free on this {on.name}, of which {SPARE_NBYTES} are left; stage "
                "to another disk"
            )
        n_files, room = len(missing) + 8, free_files(folder)
        if room is not None and n_files > room:
            raise NoRoomError(
                f"{folder}: {n_files} files are to be made, this {on.name} has room for "
                f"{room} (inodes); stage to another disk"
            )

    def _sweep(self, before: StagedCopy | None, missing: Sequence[ListedFile]) -> None:
        """Remove what was made of a source as it was, and what was begun of it."""
        wanted = {file.name for file in self._listing.files}
        old = [file.name for file in before.files if file.name not in wanted] if before else []
        kept = {temporary_of(self._folder / file.name) for file in missing}
        kept.add(self._folder / JOURNAL_NAME)
        with storage_errors(self._folder):
            for name in old:
                (self._folder / name).unlink(missing_ok=True)
            for path in [*self._folder.rglob(f".*{TEMPORARY_SUFFIX}")]:
                if path not in kept:
                    path.unlink(missing_ok=True)

    def _copied(self, files: Sequence[ListedFile]) -> list[StagedFile]:
        if not files:
            return []
        made, nbytes = copy_files(
            self._folder,
            files,
            threads=self._threads,
            moved=self._move,
        )
        self._n_copied += nbytes
        return made

    def _move(self, nbytes: int) -> None:
        with self._telling:
            self._n_done += nbytes
            if self._progress is not None:
                self._progress(min(self._n_done, self._listing.nbytes), self._listing.nbytes)


def _id(file: StagedFile | ListedFile) -> tuple[str, int, str]:
    return file.name, file.nbytes, file.version


def _is_untouched(folder: Path, file: StagedFile) -> bool:
    with suppress(OSError):
        status = (folder / file.name).stat()
        return (status.st_size, str(status.st_mtime_ns)) == (file.nbytes, file.modified)
    return False
