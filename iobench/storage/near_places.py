"""Where files could be staged on this machine, and which mounts others share: for ``run.json``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from iobench.files.memory import available_memory_nbytes
from iobench.files.urls import is_url
from iobench.storage.file_systems import file_system_of, known_by, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from iobench.storage.file_systems import FileSystem


class LocalPlace(NamedTuple):
    """A folder that may be this machine's alone.

    Attributes
    ----------
    path, named : Path, str
        The folder, and what names it.
    free_nbytes : int
        Of memory no more than is free.
    why_not : str
        Why nothing is to be staged there; ``""`` where it may be.
    """

    path: Path
    named: str
    on: FileSystem
    free_nbytes: int
    why_not: str


def local_places(environ: Mapping[str, str] = os.environ) -> Iterator[LocalPlace]:
    """Yield ``$SLURM_TMPDIR``, ``$TMPDIR`` or the system's own folder, and ``/dev/shm``."""
    named = {f"${name}": environ.get(name) for name in ("SLURM_TMPDIR", "TMPDIR")}
    if not named["$TMPDIR"]:
        named["the folder for temporary files"] = tempfile.gettempdir()
    for name, text in {**named, "/dev/shm": "/dev/shm"}.items():
        if not text:
            continue
        path, free, why_not = Path(text).absolute(), 0, ""
        on = file_system_of(path)
        if on.reach == "network" or on.name.startswith("fuse"):
            why_not = f"{on.name} is no disk of this node"
        else:
            try:
                status = os.statvfs(path)
                free = status.f_bavail * status.f_frsize
            except OSError as error:
                why_not = error.strerror or str(error)
            if on.reach == "memory":
                free = min(free, available_memory_nbytes())
            if not why_not and not os.access(path, os.W_OK | os.X_OK):
                why_not = "not writable"
        yield LocalPlace(path, name, on, free, why_not)


def near_places(
    files: Iterable[Path] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return what ``run.json`` says of storage near and far: `NearPlaces` of its reader.

    `local_places`, where they are this machine's alone and can be written; mounts that are none of
    its disks, nor its memory.
    """
    places, seen = [], set()
    for each in local_places(environ):
        on = each.on
        if each.why_not or on.reach not in ("local", "memory") or on.mount in seen:
            continue
        seen.add(on.mount)
        places.append(
            {
                "path": str(each.path),
                "mount": str(on.mount),
                "file_system": on.name,
                "in_memory": on.reach == "memory",
                "free_nbytes": each.free_nbytes,
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
