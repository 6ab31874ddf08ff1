"""Where iobench puts what it makes (stores, stand-ins, indexes), and finding it all again.

Every item is a folder with a mark in it that iobench wrote when the folder was new; nothing
without that mark is ever listed or removed.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from iobench.errors import StorageError, StoreClaimedError
from iobench.files.atomic import (
    OTHER_FOLDER,
    TEMPORARY_SUFFIX,
    is_closed,
    is_local,
    storage_errors,
    write_atomically,
)
from iobench.files.claims import CLAIM_NAME, find_writer
from iobench.files.scratch import free_files, free_nbytes
from iobench.json_files import read_json
from iobench.stores.manifest import checked_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ItemKind = Literal["store", "probe", "stand-in", "index", "staged"]
MARK_NAME = ".iobench-item.json"
STAGED_NAME = "stage.json"
"""What a staged copy says of itself, beside its files."""
PLACES_NAME = "places"
ENVIRONMENT_NAME = "IOBENCH_STORE_DIR"
MAX_DEPTH = 3
SUBFOLDERS = ("stores", "stand-ins", "indexes")
"""Of a place, with a folder for each item in them."""
FILES_OF_A_SHARD = 2
"""At the least, while a store is written: its data, and what the journal says of it."""


class Place(msgspec.Struct, frozen=True):
    """A folder for what iobench makes."""

    path: Path  # the folder; exists and is writable
    why: str  # how it was chosen, in words
    # what the user should be told before it fills, else ``""``: that it is in their home directory
    notice: str = ""


class Item(msgspec.Struct, frozen=True):
    """Something iobench made: a folder with its mark."""

    path: Path
    kind: str
    title: str
    nbytes: int  # what its files hold
    owner: str = ""  # whose mark it is; ``""`` where the system does not tell
    is_mine: bool = True  # whether that is who asks
    changed_ns: int = 0  # when the last of its files was written, since the epoch
    # when the last of its files was read or written, to a day (``relatime``); None where the file
    # system keeps no such times
    used_ns: int | None = None


def choose_place(
    *,
    store_dir: Path | None = None,
    nbytes: int = 0,
    environ: Mapping[str, str] | None = None,
) -> Place:
    """Return where to put ``nbytes``; never beside somebody's data, unless that is asked for.

    In this order: ``store_dir``, ``$IOBENCH_STORE_DIR`` (these two or an error), ``$SCRATCH``,
    ``$TMPDIR``, the user's cache; the first that is writable and has room.
    """
    environ = os.environ if environ is None else environ
    tried: list[str] = []
    for path, why, asked in _candidates(store_dir, environ):
        reason = _unusable(path, nbytes)
        if not reason:
            _check_links(path)
            remember_place(path, environ)
            return Place(path, why, _home_notice(path, environ, asked=asked))
        tried.append(f"{path} ({why}): {reason}")
        if asked:
            break
    raise StorageError(
        f"no folder for what iobench makes: {'; '.join(tried)}; name a writable one by "
        f"--store-dir, or for all commands by ${ENVIRONMENT_NAME}"
    )


def check_room(path: Path, nbytes: int, n_shards: int) -> None:
    """Refuse to begin what there is no room for, of bytes or of files.

    A quota is seen where the file system counts it in; else writing tells of it.
    """
    free, files, n_files = free_nbytes(path), free_files(path), FILES_OF_A_SHARD * n_shards
    if free is not None and free < nbytes:
        reason = f"{nbytes} bytes are needed, {free} are free; free some space"
    elif files is not None and files < n_files:
        reason = f"{n_files} files or more are needed, {files} can be made; take larger shards"
    else:
        return
    raise StorageError(f"{path}: {reason} or {OTHER_FOLDER}")


def make_item(path: Path, *, kind: ItemKind, title: str) -> Path:
    """Make the folder ``path`` and mark it as ours; return it. Repeating it is harmless."""
    mark = path / MARK_NAME
    with storage_errors(path):
        if is_local(path) and is_closed(path):
            raise PermissionError(errno.EACCES, "not writable", str(path))
        path.mkdir(parents=True, exist_ok=True)
        if mark.exists() and not _is_damaged(mark):
            return path
        others = [
            entry.name for entry in path.iterdir() if not entry.name.endswith(TEMPORARY_SUFFIX)
        ]
        if others and not mark.exists():  # another process may have marked it meanwhile
            raise StorageError(
                f"{path} holds {sorted(others)[0]}, which iobench did not make; "
                "choose an empty folder"
            )
    try:
        write_atomically(mark, checked_json({"kind": kind, "title": title}))
    except FileNotFoundError:
        if not mark.exists():  # else another process marked it first, and tidied up
            raise
    return path


def list_places(
    *,
    store_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Path]:
    """Return the existing folders in which iobench may have put something.

    Those it would choose now, and those it chose before.
    """
    environ = os.environ if environ is None else environ
    found = dict.fromkeys(path for path, _, _ in _candidates(store_dir, environ))
    with suppress(OSError):
        lines = (user_folder(environ) / PLACES_NAME).read_text().splitlines()
        found |= dict.fromkeys(Path(line) for line in lines if Path(line).is_absolute())
    return [path for path in found if path.is_dir()]


def list_items(places: Sequence[Path]) -> list[Item]:
    """Return everything iobench made in these folders, by path."""
    found = {path.resolve(): path for place in places for path in _marked(place, MAX_DEPTH)}
    return [_item(path) for path in sorted(found.values())]


def remove_item(item: Item) -> None:
    """Remove what iobench made; of a staged copy only what that lists."""
    mark = item.path / MARK_NAME
    if item.path.is_symlink() or not mark.is_file():
        raise StorageError(f"{item.path} was not made by iobench; remove it yourself")
    owner, is_mine = _owner(mark)
    if not is_mine and os.geteuid():  # root may where it names one
        raise StorageError(f"{item.path} is of the user {owner}; ask them to remove it")
    holder = find_writer(item.path)
    if holder is not None:
        raise StoreClaimedError(f"{item.path} is being written by {holder}; end that first")
    with storage_errors(item.path), suppress(FileNotFoundError):
        # The mark goes last: what is left after an interruption is still known as ours.
        if item.kind == "staged":
            _remove_listed(item.path)
        for entry in item.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != mark:
                entry.unlink()
        mark.unlink()
        item.path.rmdir()


def _remove_listed(folder: Path) -> None:
    """Remove what the ``stage.json`` of a copy lists and what staging writes beside it."""
    staged = folder / STAGED_NAME
    listed: set[str] = set()
    with suppress(OSError, ValueError, KeyError, TypeError):
        listed = {str(file["name"]) for file in read_json(staged)["files"]}
    left = []
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before that
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # not empty
                path.rmdir()
        elif name in listed or name.startswith(CLAIM_NAME) or name.endswith(TEMPORARY_SUFFIX):
            path.unlink()
        elif name not in (MARK_NAME, STAGED_NAME):
            left.append(name)
    if left and staged.exists() and not listed:
        raise StorageError(
            f"{staged} is damaged: what was staged is not known; stage once more, or remove the "
            "folder yourself"
        )
    staged.unlink(missing_ok=True)
    if left:
        raise StorageError(
            f"{folder}: what was staged is removed; {left[-1]} is left, which iobench did not stage"
        )


def _candidates(
    store_dir: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[Path, str, bool]]:
    """Yield (folder, why, whether the user asked for it)."""
    if store_dir is not None:
        yield _place(store_dir), "--store-dir", True
    if environ.get(ENVIRONMENT_NAME):
        yield _place(environ[ENVIRONMENT_NAME]), f"${ENVIRONMENT_NAME}", True
    for name in ("SCRATCH", "TMPDIR"):
        if environ.get(name):
            yield _place(environ[name]) / "iobench", f"${name}", False
    yield user_folder(environ), "the user's cache", False


def _place(path: str | Path) -> Path:
    """Return it from the root, as it is shown and pasted: links stay, unless ``..`` follows one."""
    path = Path(path)
    return path.resolve() if ".." in path.parts else path.absolute()


def user_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return iobench's own folder in the user's cache, which need not exist yet."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or Path(_home(environ), ".cache")
    return Path(base, "iobench").absolute()


def _home(environ: Mapping[str, str]) -> Path:
    with suppress(RuntimeError):
        return Path(environ.get("HOME") or Path.home())
    # A container's user may be a number that the system knows nothing of.
    return Path(tempfile.gettempdir(), f"iobench-{os.geteuid()}")


def _unusable(path: Path, nbytes: int) -> str:
    """Return why nothing can be put there, ``""`` if it can; makes the folder."""
    try:
        if is_closed(path):
            return "not writable"
        path.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path).free
    except OSError as error:
        return error.strerror or str(error)
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    return "" if free >= nbytes else f"only {free} bytes free"


def _check_links(place: Path) -> None:
    """Refuse to follow another user's symbolic link out of a folder that several write to."""
    tops = [place / name for name in SUBFOLDERS]
    for path in (each for top in tops for each in (top, *_entries(top))):
        owner = 0  # who may do anything anyway
        with suppress(OSError):
            owner = path.lstat().st_uid if path.is_symlink() else owner
        if owner not in (0, os.geteuid()):
            raise StorageError(
                f"{path}: is a symbolic link of user {owner}, which is not followed; remove it, or "
                "choose another folder with --store-dir"
            )


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        if not folder.is_symlink():
            return list(folder.iterdir())
    return []


def _home_notice(path: Path, environ: Mapping[str, str], *, asked: bool) -> str:
    home = _home(environ)
    if asked or not path.resolve().is_relative_to(home.resolve()):
        return ""
    return f"writing to {path}, in your home directory; --store-dir chooses another place"


def remember_place(path: Path, environ: Mapping[str, str] | None = None) -> None:
    """Note the place for `list_places`; without a cache directory it is not remembered."""
    path = path.absolute()
    environ = os.environ if environ is None else environ
    file = user_folder(environ) / PLACES_NAME
    with suppress(OSError):
        if file.exists() and str(path) in file.read_text().splitlines():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            stream.write(f"{path}\n")


def _marked(folder: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError):
        if (folder / MARK_NAME).is_file():
            yield folder
        elif depth:
            for entry in folder.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    yield from _marked(entry, depth - 1)


def mark_of(path: Path) -> tuple[str, str]:
    """Return kind and title of what iobench made there; ``"unknown"`` without a sound mark.

    A copy with a damaged mark is known by its ``stage.json``.
    """
    mark = path / MARK_NAME
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = read_json(mark)
        return str(told["kind"]), str(told["title"])
    with suppress(OSError):
        if _is_damaged(mark) and (path / STAGED_NAME).is_file():
            return "staged", path.name
    return "unknown", path.name


def note_conversion(path: Path, seconds: float) -> None:
    """Note in the mark of a probe what making it took: manifests carry no time."""
    kind, title = mark_of(path)
    document = {"kind": kind, "title": title, "convert_s": round(seconds, 6)}
    write_atomically(path / MARK_NAME, checked_json(document))


def conversion_s(path: Path) -> float | None:
    """Return what making a probe took, in seconds; None where that was not one run."""
    with suppress(OSError, ValueError, KeyError, TypeError, StorageError):
        return float(read_json(path / MARK_NAME)["convert_s"])
    return None


def _is_damaged(mark: Path) -> bool:
    """Tell whether a mark was read and says nothing."""
    try:
        told = read_json(mark)
        return not {"kind", "title"} <= told.keys()
    except (ValueError, AttributeError):
        return True


def _item(path: Path) -> Item:
    kind, title = mark_of(path)
    nbytes = changed_ns = read_ns = 0
    for file in path.rglob("*"):
        with suppress(OSError):
            status = file.lstat()
            if not file.is_dir():
                nbytes += status.st_size
                changed_ns = max(changed_ns, status.st_mtime_ns)
                if file.name != MARK_NAME:  # which lists like this one read
                    read_ns = max(read_ns, status.st_atime_ns)
    keeps_reads = False
    with suppress(OSError):
        keeps_reads = not os.statvfs(path).f_flag & os.ST_NOATIME
    used_ns = max(read_ns, changed_ns) if keeps_reads else None
    owner, is_mine = "", True
    with suppress(OSError):
        owner, is_mine = _owner(path / MARK_NAME)
    return Item(path, kind, title, nbytes, owner, is_mine, changed_ns, used_ns)


def _owner(path: Path) -> tuple[str, bool]:
    """Return whose a file is, and whether that is who asks."""
    uid = path.stat().st_uid
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:  # a user of another machine, or of none any more
        name = str(uid)
    return name, uid == os.geteuid()
