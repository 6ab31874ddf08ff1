"""Indexes of source files, kept in the store directory by the files' paths, sizes and times.

Nothing is written beside the data. What earlier versions kept there is still used.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench.datasets.catalogue import index_folders
from iobench.datasets.catalogue_files import make_index_folder
from iobench.files.urls import URL
from iobench.stores.atomic import write_atomically

__all__ = ["load_sidecar", "save_sidecar", "sidecar_paths"]

Columns = Mapping[str, NDArray[Any]]
_DESCRIPTION = "_description"


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
