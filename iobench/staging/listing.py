"""What a source has to be copied: the files of a finished store, files and folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.errors import FileFormatError, MissingFileError, OptionError, StoreError
from iobench.files.claims import CLAIM_NAME
from iobench.files.urls import URL, as_path, range_file
from iobench.staging.copying import ListedFile
from iobench.stores.finished_store import CHECKSUMS_NAME, open_store
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import MARK_NAME, STAGED_NAME, mark_of

if TYPE_CHECKING:
    from iobench.stores.contract import Store

OURS: Final = (MARK_NAME, STAGED_NAME, CLAIM_NAME)


class Listing(msgspec.Struct, frozen=True):
    """All that a copy will be."""

    name: str  # of its folder
    source: str
    kind: str  # as of `StagedCopy`
    files: tuple[ListedFile, ...]  # the last makes a store a finished one

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)


def list_source(source: Path | str | Sequence[Path | str]) -> Listing:
    """Return what there is to be copied."""
    given = [source] if isinstance(source, str | Path) else list(source)
    paths = [_named(as_path(each)) for each in given]
    if not paths:
        raise OptionError("nothing to stage: name a store, files or a folder")
    told = ", ".join(str(path) for path in paths[:3]) + (", ..." if paths[3:] else "")
    first = paths[0]
    if len(paths) == 1 and (first / MANIFEST_NAME).is_file():
        return _of_store(open_store(first))
    files = []
    above = _above(paths)
    for path in paths:
        if path.is_dir():
            if (path / MANIFEST_NAME).is_file():
                raise OptionError(f"{path}: a finished store is staged by itself; name no other")
            if mark_of(path)[0] in ("store", "probe"):
                raise StoreError(
                    f"{path} is not a finished store: it has no {MANIFEST_NAME}; run its "
                    "conversion again to finish it"
                )
            files += _of_folder(path, above if len(paths) > 1 else path)
        elif path.is_file():
            files.append(_of_file(path, path.relative_to(above).as_posix()))
        else:
            raise MissingFileError(f"{path}: no such file, folder or store to stage")
    files.sort(key=lambda each: each.name)
    names = [each.name for each in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"{twice}: two sources have a file of this name; stage them apart")
    folders = {above.as_posix() for name in names for above in PurePosixPath(name).parents}
    if both := sorted(folders & {*names}):
        raise FileFormatError(f"{told}: {both[0]} is a file in it and a folder; nothing was staged")
    if not files:
        raise OptionError(f"{told}: holds no file to stage")
    name = first.name if len(paths) == 1 else above.name
    return Listing(name or "files", told, "files", tuple(files))


def _named(path: Path) -> Path:
    """Return a path whose last part is a name, as the folder of the copy has it."""
    if isinstance(path, URL):
        return path
    return path.resolve() if ".." in path.parts else path.absolute()


def _above(paths: Sequence[Path]) -> Path:
    """Return the folder that all of them are below."""
    folder = paths[0].parent
    while not all(path.parent.is_relative_to(folder) for path in paths):
        if folder == folder.parent:
            raise OptionError(f"{paths[0]} and {paths[1]} are in no folder; stage them apart")
        folder = folder.parent
    return folder


def _of_folder(folder: Path, above: Path) -> list[ListedFile]:
    found = []
    for path in folder.rglob("*"):
        if path.name.startswith(OURS):
            continue
        if path.is_file():
            found.append(_of_file(path, path.relative_to(above).as_posix()))
        elif not isinstance(path, URL) and path.is_symlink():
            raise MissingFileError(
                f"{path}: is a link to no file, and links to folders are not followed; name what "
                "is meant instead, or remove it"
            )
    return found


def _of_file(path: Path, name: str) -> ListedFile:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file") from error
    version = path.version() if isinstance(path, URL) else str(status.st_mtime_ns)
    return ListedFile(name, status.st_size, version, range_file(path), modified=version)


def _of_store(store: Store) -> Listing:
    files = [
        ListedFile(
            file.name, file.nbytes, f"{file.crc32c:08x}", range_file(store.path / file.name),
            file.crc32c,
        )
        for file in store.manifest.files
    ]  # fmt: skip
    files += [_of_file(store.path / name, name) for name in (CHECKSUMS_NAME, MANIFEST_NAME)]
    return Listing(store.path.name, str(store.path), "store", tuple(files))
