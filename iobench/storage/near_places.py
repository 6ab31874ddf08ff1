"""Where files could be staged on this machine, and which mounts others share: for ``run.json``."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.files.memory import available_memory_nbytes
from iobench.files.urls import is_url
from iobench.storage.file_systems import file_system_of, known_by, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["near_places"]


def near_places(
    files: Iterable[Path] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return what ``run.json`` says of storage near and far: `NearPlaces` of its reader.

    ``$SLURM_TMPDIR``, ``$TMPDIR`` or the system's own folder, and ``/dev/shm``, where they are this
    machine's alone and can be written; mounts that are none of its disks, nor its memory.
    """
    places, seen = [], set()
    for text in (environ.get("SLURM_TMPDIR"), tempfile.gettempdir(), "/dev/shm"):
        path = Path(text or "/").absolute()
        on = file_system_of(path)
        if not text or on.reach not in ("local", "memory") or on.mount in seen:
            continue
        with suppress(OSError):
            status = os.statvfs(path)
            free = status.f_bavail * status.f_frsize
            if on.reach == "memory":
                free = min(free, available_memory_nbytes())
            if os.access(path, os.W_OK | os.X_OK):
                seen.add(on.mount)
                places.append(
                    {
                        "path": str(path),
                        "mount": str(on.mount),
                        "file_system": on.name,
                        "in_memory": on.reach == "memory",
                        "free_nbytes": free,
                    }
                )
    shared = {}
    for mount in read_mounts():
        # Of a FUSE mount nobody knows where its data is, but for that it is no disk of ours.
        on = known_by(-1, mount)
        if on.reach == "network" or mount.kind.partition(".")[0] == "fuse":
            shared[str(mount.point)] = mount.kind
    named = [*files]
    folder = None
    if named and not any(map(is_url, named)):
        folder = os.path.commonpath([str(file.resolve()) for file in named])
    found = {"places": places, "shared": shared, "folder": folder}
    return {"near": {**found, "memory_nbytes": available_memory_nbytes()}}
