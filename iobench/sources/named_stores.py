"""Finished stores among the targets of a command, told from files, names and objects."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import StorageError, StoreError
from iobench.files.urls import URL, as_path
from iobench.registry import dataset_names
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.places import mark_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_SUFFIXES: Final = {
    ".nc", ".nc4", ".cdf", ".h5", ".hdf5", ".grib", ".grib1", ".grib2", ".grb", ".grb2",
}  # fmt: skip
"""Of single files: behind a URL nobody asks whether one of these is a folder."""


def split_stores(targets: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """Return the targets that are no stores, and those that are, each in their order."""
    stores = tuple(dict.fromkeys(target for target in targets if _is_store(target)))
    return tuple(target for target in targets if target not in stores), stores


def _is_store(target: Any) -> bool:
    """Return whether a store is there; raise StoreError of one that somebody began."""
    if not isinstance(target, str):
        return False
    path = as_path(target)
    if isinstance(path, URL):
        is_file = Path(path.name).suffix.lower() in FILE_SUFFIXES
        if is_file or path.protocol in ("http", "https") or path.is_pattern():
            return False
        with suppress(StorageError):  # not there, where nobody may list; whoever opens it says so
            return (path / MANIFEST_NAME).is_file()
        return False
    is_name = os.sep not in target and not Path(target).suffix and target in dataset_names()
    if not path.is_dir() or is_name:
        return False
    if not (path / MANIFEST_NAME).is_file() and mark_of(path)[0] in ("store", "probe"):
        raise StoreError(
            f"{path} is not a finished store: it has no {MANIFEST_NAME}; run its conversion again "
            "to finish it"
        )
    return (path / MANIFEST_NAME).is_file()
