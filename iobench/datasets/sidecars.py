"""Indexes of source files, kept in the store directory by the files' paths, sizes and times.

Nothing is written beside the data. What earlier versions kept there is still used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.files.urls import URL
from iobench.stores.atomic import write_atomically
from iobench.stores.places import kept_beside, make_item

if TYPE_CHECKING:
    from iobench.datasets.source_bytes import SourceBytes

__all__ = ["index_folders", "load_sidecar", "make_index_folder", "save_sidecar", "sidecar_paths"]

Columns = Mapping[str, NDArray[Any]]
_DESCRIPTION = "_description"


def index_folders(data_dir: Path, cache_dir: Path) -> tuple[Path, Path]:
    """Return where what was learnt about files in ``data_dir`` may be; the first is written."""
    return cache_dir, kept_beside(data_dir) / "indexes"


def make_index_folder(folder: Path) -> None:
    """Make the first of the `index_folders` and mark it, so that ``iobench cache`` lists it.

    Raises
    ------
    StorageError
        If it cannot be made or written.
    """
    make_item(folder, kind="index", title="indexes of source files")


def sidecar_paths(source: Path, cache_dir: Path) -> tuple[Path, ...]:
    """Return where the index of ``source`` may be: in ``cache_dir``, and beside it from before."""
    digest = hashlib.blake2b(os.fsencode(str(source.resolve())), digest_size=16).hexdigest()
    kept = cache_dir / f"{digest}.npz"
    if isinstance(source, URL):
        return (kept,)
    _, beside = index_folders(source.parent, cache_dir)
    return kept, beside / f"{source.name}.npz"


def load_sidecar(
    source: Path, cache_dir: Path, *, description: str
) -> dict[str, NDArray[Any]] | None:
    """Return the columns saved for ``source`` if their description is still ``description``.

    A sidecar that is missing, damaged or out of date gives None: the index is built again.
    """
    for path in sidecar_paths(source, cache_dir):
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as saved:
                columns = {name: saved[name] for name in saved.files}
            if str(columns.pop(_DESCRIPTION)[()]) == description:
                return columns
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            continue
    return None


def save_sidecar(
    source: Path, cache_dir: Path, columns: Columns, *, description: str
) -> Path | None:
    """Save the columns in ``cache_dir``; return where, None for nowhere.

    Where that takes nothing the index serves this run only: a read-only file system is no reason
    to refuse to read.
    """
    buffer = io.BytesIO()
    named: dict[str, Any] = {_DESCRIPTION: np.array(description), **columns}
    np.savez_compressed(buffer, **named)
    path, *_ = sidecar_paths(source, cache_dir)
    try:
        make_index_folder(path.parent)
        write_atomically(path, buffer.getvalue())
    except OSError:  # a StorageError, or the folder was removed meanwhile
        return None
    return path


def describe(opened: SourceBytes, *, reader: str) -> str:
    """Return what must not have changed for an index to hold: size, mtime or ETag, reader."""
    return json.dumps([opened.nbytes, opened.version, reader])
