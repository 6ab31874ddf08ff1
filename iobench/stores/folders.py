"""Folders of a store and what was left in them, on this machine or as objects elsewhere."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from iobench.files.objects import objects_at
from iobench.files.urls import URL
from iobench.stores.atomic import TEMPORARY_SUFFIX, is_local, storage_errors
from iobench.stores.rooms import clear_room as clear_remote_room
from iobench.stores.rooms import open_room as open_remote_room
from iobench.stores.rooms import remove_below

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "clear_room",
    "drop_uploads",
    "free_nbytes",
    "list_folders",
    "open_room",
    "remove_leftovers",
    "remove_tree",
]


def free_nbytes(folder: Path) -> int | None:
    """Return the bytes free where a folder is; None where nobody tells, as of object stores."""
    if not is_local(folder):
        return None
    with storage_errors(folder):
        return shutil.disk_usage(folder).free


def list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none where it is not there."""
    if isinstance(folder, URL):
        deeper = {name.partition("/")[0] for name in folder.below() if "/" in name}
        return [folder / name for name in sorted(deeper)]
    with storage_errors(folder):
        try:
            with os.scandir(folder) as entries:
                return [folder / entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, as far as that can be done."""
    if isinstance(folder, URL):
        remove_below(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def open_room(room: Path, store: Path) -> None:
    """Make a new folder for files that will be moved into a store."""
    if isinstance(room, URL):
        assert isinstance(store, URL)
        open_remote_room(room, store)
        return
    with storage_errors(room, resumable=True):
        room.mkdir()


def clear_room(room: Path, store: Path) -> None:
    """Remove a folder of files that were not moved into a store, and what was sent of them."""
    if isinstance(room, URL):
        assert isinstance(store, URL)
        clear_remote_room(room, store)
    else:
        shutil.rmtree(room, ignore_errors=True)


def drop_uploads(store: Path) -> None:
    """Drop what was begun to be uploaded to a store that is finished; there are none on disk."""
    if isinstance(store, URL):
        objects, path = objects_at(store)
        objects.drop_uploads(f"{path}/")


def remove_leftovers(store: Path) -> None:
    """Remove what was begun of files of a store and not finished; nobody else is writing it."""
    if isinstance(store, URL):
        drop_uploads(store)
        objects, path = objects_at(store)
        left = [name for name in store.below() if name.endswith(TEMPORARY_SUFFIX)]
        objects.remove([f"{path}/{name}" for name in left if "/" not in name])
        return
    for folder in (store, *list_folders(store)):  # Zarr has a folder for each array
        for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)
