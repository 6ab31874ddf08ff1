"""Indexes kept in hidden files beside the data, or in a cache folder where that is read-only."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_sidecar", "save_sidecar", "sidecar_paths"]

Columns = Mapping[str, NDArray[Any]]
_DESCRIPTION = "_description"


def sidecar_paths(source: Path, cache_dir: Path) -> tuple[Path, Path]:
    """Return where the index of ``source`` may be: beside it, and in ``cache_dir``."""
    digest = hashlib.blake2b(os.fsencode(source.resolve()), digest_size=16).hexdigest()
    return (
        source.with_name(f".{source.name}.iobench-index.npz"),
        cache_dir / f"{digest}.iobench-index.npz",
    )


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
    """Save the columns beside ``source``, else in ``cache_dir``; return where, None for nowhere.

    Where neither folder takes them the index serves this run only: a read-only file system is no
    reason to refuse to read.
    """
    buffer = io.BytesIO()
    named: dict[str, Any] = {_DESCRIPTION: np.array(description), **columns}
    np.savez_compressed(buffer, **named)
    beside, cached = sidecar_paths(source, cache_dir)
    for path in (beside, cached):
        if path is cached:
            try:
                cache_dir.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
        if _replace(path, buffer.getbuffer()):
            return path
    return None


def _replace(path: Path, content: memoryview) -> bool:
    """Write ``content`` to ``path`` in one step; return whether the folder took it."""
    if not os.access(path.parent, os.W_OK):
        return False
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    return True


def describe(source: Path, stat: os.stat_result, *, reader: str) -> str:
    """Return what must not have changed for an index to hold: size, mtime, reader."""
    return json.dumps([stat.st_size, stat.st_mtime_ns, reader])
