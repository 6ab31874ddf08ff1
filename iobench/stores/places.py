"""Where iobench puts what it makes (stores, stand-ins, indexes, copies).

Every item is a folder with a mark in it that iobench wrote when the folder was new.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from iobench.errors import StorageError
from iobench.files.atomic import (
    OTHER_FOLDER,
    TEMPORARY_SUFFIX,
    free_nbytes,
    storage_errors,
    write_atomically,
)
from iobench.json_files import read_json
from iobench.stores.manifest import checked_json

if TYPE_CHECKING:
    from collections.abc import Iterator

ItemKind = Literal["store", "probe", "stand-in", "index", "staged"]
MARK_NAME: Final = ".iobench-item.json"
ENVIRONMENT_NAME: Final = "IOBENCH_STORE_DIR"
TEMPORARY: Final = ("SCRATCH", "TMPDIR")
"""Variables that name folders for files of some days."""
SUBFOLDERS: Final = ("stores", "stand-ins", "indexes")
"""Of a place, with a folder for each item in them."""


class Place(msgspec.Struct, frozen=True):
    """A folder for what iobench makes."""

    path: Path  # exists and is writable
    notice: str = ""  # what the user should know before it fills: that it is in their home


def choose_place(*, store_dir: Path | None = None) -> Place:
    """Return where to put what is made; never beside somebody's data, unless that is asked for.

    In this order: ``store_dir``, ``$IOBENCH_STORE_DIR`` (these two or an error), ``$SCRATCH``,
    ``$TMPDIR``, the user's cache; the first that is writable.
    """
    tried: list[str] = []
    for path, why in _candidates(store_dir):
        is_named = why in ("--store-dir", f"${ENVIRONMENT_NAME}")
        if not (reason := _why_unusable(path)):
            _check_links(path)
            is_in_home = path.resolve().is_relative_to(_home().resolve())
            notice = f"writing to {path}, in your home directory; --store-dir chooses another place"
            return Place(path, notice if is_in_home and not is_named else "")
        tried.append(f"{path} ({why}): {reason}")
        if is_named:
            break
    raise StorageError(
        f"no folder for what iobench makes: {'; '.join(tried)}; name a writable one by "
        f"--store-dir, or for all commands by ${ENVIRONMENT_NAME}"
    )


def _candidates(store_dir: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the folders in which things may be put, and where they come from."""
    named = [(store_dir, "--store-dir"), (os.getenv(ENVIRONMENT_NAME), f"${ENVIRONMENT_NAME}")]
    named += [(Path(os.environ[n], "iobench"), f"${n}") for n in TEMPORARY if os.getenv(n)]
    for path, why in [*named, (user_folder(), "the user's cache")]:
        if path:  # from the root, as it is pasted: links stay, unless ``..`` follows one
            yield Path(path).resolve() if ".." in Path(path).parts else Path(path).absolute(), why


def user_folder() -> Path:
    """Return iobench's own folder in the user's cache, which need not exist yet."""
    return Path(os.getenv("XDG_CACHE_HOME") or _home() / ".cache", "iobench").absolute()


def _home() -> Path:
    with suppress(RuntimeError):
        return Path.home()
    # A container's user may be a number that the system knows nothing of.
    return Path(tempfile.gettempdir(), f"iobench-{os.geteuid()}")


def _why_unusable(path: Path) -> str:
    """Return why nothing can be put there, ``""`` if it can; makes the folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(path, os.W_OK | os.X_OK) else "not writable"


def _check_links(place: Path) -> None:
    """Refuse to follow another user's symbolic link out of a folder that several write to."""
    tops = [place / name for name in SUBFOLDERS]
    folders = [top for top in tops if top.is_dir() and not top.is_symlink()]
    inner = [path for folder in folders for path in folder.iterdir()]
    for path in filter(Path.is_symlink, [*tops, *inner]):
        if (owner := path.lstat().st_uid) not in (0, os.geteuid()):
            raise StorageError(
                f"{path}: is a symbolic link of user {owner}, which is not followed; remove it, or "
                "choose another folder with --store-dir"
            )


def check_room(path: Path, nbytes: int) -> None:
    """Refuse to begin what there is no room for; a quota counts where the file system counts it."""
    free = free_nbytes(path)
    if free is not None and free < nbytes:
        raise StorageError(
            f"{path}: {nbytes} bytes are needed, {free} are free; free some space or {OTHER_FOLDER}"
        )


def make_item(path: Path, *, kind: ItemKind, title: str) -> Path:
    """Make the folder ``path`` and mark it as ours; return it. Repeating it is harmless."""
    mark = path / MARK_NAME
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in path.iterdir())
        others = [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]
        if mark.exists():  # looked for last: another process may have marked it meanwhile
            return path
        if others:
            raise StorageError(
                f"{path} holds {others[0]}, which iobench did not make; choose an empty folder"
            )
    try:
        write_atomically(mark, checked_json({"kind": kind, "title": title}), resumable=True)
    except FileNotFoundError:
        if not mark.exists():  # else another process marked it first, and tidied up
            raise
    return path


def mark_of(path: Path) -> tuple[str, str]:
    """Return kind and title of what iobench made there; ``"unknown"`` without a sound mark."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        values = read_json(path / MARK_NAME)
        return str(values["kind"]), str(values["title"])
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


def list_places() -> list[Path]:
    """Return the existing folders in which `choose_place` may have put something."""
    return [path for path, _ in _candidates(None) if path.is_dir()]
