"""Folders of files that take long to make: made once, and told from what they were made of."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import make_index_folder
from iobench.errors import IobenchError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ABOUT = "about.json"


def kept_folder(
    place: Path,
    name: str,
    about: Mapping[str, Any],
    write: Callable[[Path], None],
    what: str,
) -> tuple[Path, bool]:
    """Return a folder, and whether it had to be made.

    It is written under a temporary name and renamed; another process's is as good.
    """
    folder = place / name
    if _holds(folder, about):
        return folder, False
    try:
        make_index_folder(place)
    except StorageError as error:
        raise StorageError(f"{what} cannot be kept: {error}; give --store-dir") from error
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=".iobench-unfinished-", dir=place))
        try:
            write(unfinished)
            for path in unfinished.iterdir():
                with path.open("rb+") as stream:
                    os.fsync(stream.fileno())  # else it is written while batches are timed
            sizes = _sizes(unfinished)
            (unfinished / ABOUT).write_text(json.dumps({**about, "nbytes": sizes}))
            unfinished.chmod(0o755)
            if not _holds(folder, about):
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except IobenchError:
        raise
    except (OSError, RuntimeError) as error:  # netCDF4 raises RuntimeError where a disk is full
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"{what} cannot be kept in {place} ({reason}); make it writable, make room there "
            "or give --store-dir"
        ) from error
    return folder, True


def _holds(folder: Path, about: Mapping[str, Any]) -> bool:
    try:
        kept = json.loads((folder / ABOUT).read_text())
        return bool(kept == {**about, "nbytes": _sizes(folder)})
    except (OSError, ValueError):
        return False


def _sizes(folder: Path) -> list[int]:
    """Return the size of each file, by their names' order."""
    return [path.stat().st_size for path in sorted(folder.iterdir()) if path.name != ABOUT]
