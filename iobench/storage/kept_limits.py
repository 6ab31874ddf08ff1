"""What probes of storage found, kept for each mount, so that reports can name the limit.

One small JSON file for each mount of each host, in the user's cache. Reports never look here: a run
takes the limits of its files into its own ``run.json`` when it is made.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import StorageError
from iobench.files.urls import is_url
from iobench.json_files import read_json
from iobench.recording.this_process import host_name
from iobench.storage.file_systems import file_system_of, mount_of, read_mounts
from iobench.storage.limit_figures import StorageLimits, read_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "all_kept_limits",
    "keep_limits",
    "kept_limits",
    "limits_folder",
    "limits_for",
    "limits_of_files",
    "limits_of_host",
]

MOST_KEPT: Final = 16
"""Probes kept of one mount; the oldest go."""


def limits_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return where they are kept, which need not exist: in `iobench.stores.user_folder`."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(base, "iobench", "limits").absolute()


def limits_for(path: Path, *, folder: Path | None = None) -> StorageLimits | None:
    """Return the kept limits of the mount a path lies on; None where it was never probed.

    Of several, the last that was measured in a folder above the path, else below, else elsewhere.
    """
    mount = file_system_of(path).mount
    if mount is None:
        return None
    kept = kept_limits(mount, folder=folder)
    path = path.absolute()

    def nearness(limits: StorageLimits) -> tuple[int, int]:
        probed = Path(limits.path)
        near = 2 if path.is_relative_to(probed) else int(probed.is_relative_to(path))
        return near, limits.wall_ns

    return max(kept, key=nearness, default=None)


def kept_limits(mount: Path, *, folder: Path | None = None) -> list[StorageLimits]:
    """Return what this host's probes of a mount found; what cannot be read is not there."""
    return _read(_file(str(mount), folder))


def all_kept_limits(folder: Path | None = None) -> list[StorageLimits]:
    """Return what all probes of this host found, of mounts that may be gone."""
    folder = limits_folder() if folder is None else folder
    try:
        files = sorted(folder.glob("*.json"))
    except OSError:
        return []
    host = host_name()
    return [limits for file in files for limits in _read(file) if limits.host == host]


def keep_limits(limits: StorageLimits, *, folder: Path | None = None) -> Path:
    """Keep what a probe found in place of an earlier one of the same path and requests.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    file = _file(limits.mount, folder)
    others = [each for each in _read(file) if _same(each) != _same(limits)]
    kept = sorted([*others, limits], key=lambda each: each.wall_ns)[-MOST_KEPT:]
    text = json.dumps({"limits": [each.to_dict() for each in kept]}, indent=1)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text)
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StorageError(f"{file.parent}: cannot be written: {error.strerror}") from error
    return file


def _same(limits: StorageLimits) -> tuple[Any, ...]:
    orders = tuple(sorted({each.order for each in limits.reads}))
    return limits.path, limits.request_nbytes, limits.threads, orders


def _file(mount: str, folder: Path | None) -> Path:
    name = hashlib.sha256(f"{host_name()}\0{mount}".encode()).hexdigest()[:16]
    return (limits_folder() if folder is None else folder) / f"{name}.json"


def _read(file: Path) -> list[StorageLimits]:
    try:
        told = read_json(file)
    except (OSError, ValueError):
        return []
    return read_limits(told.get("limits") if isinstance(told, dict) else None)


def limits_of_files(files: Iterable[Path], *, folder: Path | None = None) -> dict[str, Any]:
    """Return, for ``run.json``, the kept limits of the mounts that a run's files lie on."""
    files = list(files)
    if any(map(is_url, files)):
        return {"storage_limits": []}
    folders = {(file if file.is_dir() else file.parent).resolve() for file in files}
    mounts = read_mounts()
    if len({mount_of(each, mounts) for each in folders}) != 1:  # each's bytes are not counted
        return {"storage_limits": []}
    limits = limits_for(Path(os.path.commonpath(folders)), folder=folder)
    return {"storage_limits": [] if limits is None else [limits.to_dict()]}


def limits_of_host(*, folder: Path | None = None) -> dict[str, Any]:
    """Return, for the ``run.json`` of a script whose files are not known yet, all kept limits.

    The last probe of each mount, and the mount points, by which files are told to lie on one.
    """
    last: dict[str, StorageLimits] = {}
    for limits in sorted(all_kept_limits(folder), key=lambda each: each.wall_ns):
        last[limits.mount] = limits
    if not last:
        return {"storage_limits": []}
    return {
        "storage_limits": [limits.to_dict() for limits in last.values()],
        "mounts": sorted({str(mount.point) for mount in read_mounts()}),
    }
