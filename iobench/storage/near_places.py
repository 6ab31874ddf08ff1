"""Where files could be staged on this machine, and which mounts others share: for ``run.json``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.files.memory import available_memory_nbytes
from iobench.files.urls import is_url
from iobench.storage.file_systems import file_system_of, file_system_on, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iobench.storage.file_systems import FileSystem


def _free_nbytes(path: Path, on: FileSystem) -> int | None:
    """Return the bytes free in a folder, of memory no more than is free; None of a closed one."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    if not os.access(path, os.W_OK | os.X_OK):
        return None
    free = status.f_bavail * status.f_frsize
    return min(free, available_memory_nbytes()) if on.reach == "memory" else free


def near_places(
    files: Iterable[Path] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return what ``run.json`` says of storage near and far: `NearPlaces` of its reader.

    Folders for temporary files that are this machine's alone and can be written; mounts that are
    none of its disks, nor its memory.
    """
    places, mounts = [], set()
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    folders = filter(None, (environ.get("SLURM_TMPDIR"), temporary, "/dev/shm"))
    for path in (Path(each).absolute() for each in folders):
        on = file_system_of(path)
        if on.reach not in ("local", "memory") or on.name.startswith("fuse") or on.mount in mounts:
            continue
        free_nbytes = _free_nbytes(path, on)
        if free_nbytes is None:
            continue
        mounts.add(on.mount)
        places.append(
            {
                "path": str(path),
                "mount": str(on.mount),
                "file_system": on.name,
                "in_memory": on.reach == "memory",
                "free_nbytes": free_nbytes,
            }
        )
    shared = {}
    for mount in read_mounts():
        # Of a FUSE mount nobody knows where its data is, but for that it is no disk of ours.
        on = file_system_on(mount)
        if on.reach == "network" or mount.kind.partition(".")[0] == "fuse":
            shared[str(mount.point)] = mount.kind
    named = [*files]
    folder = None
    if named and not any(map(is_url, named)):
        folder = os.path.commonpath([str(file.resolve()) for file in named])
    result = {"places": places, "shared": shared, "folder": folder}
    return {"near": {**result, "memory_nbytes": available_memory_nbytes()}}
