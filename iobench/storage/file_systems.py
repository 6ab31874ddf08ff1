"""What files lie on, here or behind URLs, and where they could be staged."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.files.memory import available_memory_nbytes
from iobench.files.urls import is_url
from iobench.recording.mounts import FileSystem, on_mount, read_mounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def file_system_of(path: Path) -> FileSystem:
    """Return what a path lies on; one that is not there yet lies where its folder does.

    Unknown of URLs, and where there is no list of mounts.
    """
    if is_url(path):
        return FileSystem(reach="network", in_page_cache=False)
    return on_mount(path, read_mounts())


def counts_device_reads(files: Sequence[Path]) -> bool:
    """Return whether ``read_bytes`` means something for all these files.

    Network, parallel and memory file systems may not count there: unknown, not zero.
    """
    if not files or any(map(is_url, files)):
        return False
    mounts = read_mounts()
    return all(on_mount(file, mounts).counts_device_reads for file in files)


def near_places(
    files: Iterable[Path] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return what ``run.json`` says of storage near and far: `NearPlaces` of its reader.

    Folders for temporary files that are this machine's alone and can be written; mounts that are
    none of its disks, nor its memory.
    """
    places, mounts = [], set()
    memory_nbytes = available_memory_nbytes()
    temporary = environ.get("TMPDIR") or tempfile.gettempdir()
    folders = filter(None, (environ.get("SLURM_TMPDIR"), temporary, "/dev/shm"))
    for path in (Path(each).absolute() for each in folders):
        on = file_system_of(path)
        if on.reach not in ("local", "memory") or on.mount in mounts:
            continue
        if not os.access(path, os.W_OK | os.X_OK):
            continue
        free_nbytes = shutil.disk_usage(path).free
        if on.reach == "memory":
            free_nbytes = min(free_nbytes, memory_nbytes)
        mounts.add(on.mount)
        places.append(
            {
                "path": str(path),
                "mount": on.mount,
                "file_system": on.name,
                "in_memory": on.reach == "memory",
                "free_nbytes": free_nbytes,
            }
        )
    shared = {each.mount: each.name for each in read_mounts() if each.is_shared}
    named = [*files]
    folder = None
    if named and not any(map(is_url, named)):
        folder = os.path.commonpath([str(file.resolve()) for file in named])
    result = {"places": places, "shared": shared, "folder": folder}
    return {"near": {**result, "memory_nbytes": memory_nbytes}}
