"""Where on this node copies go, where nobody says: chosen, with the reason."""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from iobench.errors import StorageError
from iobench.files.atomic import storage_errors
from iobench.files.memory import available_memory_nbytes
from iobench.storage.file_systems import file_system_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LocalPlace", "choose_local_disk", "why_not_local"]

MEMORY_SHARE = 0.5
"""Of the free memory, a copy in memory takes no more: the rest is the training's."""


class LocalPlace(NamedTuple):
    """A folder of this user's on a disk of this node, and why that one."""

    path: Path
    why: str


def choose_local_disk(
    source: str, nbytes: int, environ: Mapping[str, str] = os.environ
) -> LocalPlace:
    """Return where to put a copy of so many bytes; the folder is made, for this user alone.

    ``$SLURM_TMPDIR``, ``$TMPDIR``, the system's folder for temporary files, then ``/dev/shm``: the
    first that is on no network and has the room.

    Raises
    ------
    StorageError
        If none is; the message says why not.
    """
    tried = []
    for folder, name in _candidates(environ):
        mine = folder / f"iobench-staged-{os.getuid()}" / sha256(source.encode()).hexdigest()[:12]
        # What another process has begun takes no more room: all of a node choose the same.
        why_not, told = why_not_local(folder, 0 if mine.is_dir() else nbytes)
        if why_not:
            tried.append(f"{name} ({folder}): {why_not}")
            continue
        with storage_errors(mine):
            mine.parent.mkdir(mode=0o700, exist_ok=True)
            if mine.parent.is_symlink() or mine.parent.stat().st_uid != os.getuid():
                tried.append(f"{name} ({folder}): {mine.parent.name} in it is another user's")
                continue
            mine.mkdir(exist_ok=True)
        return LocalPlace(mine, "; ".join([f"{name} is {told}", *tried]))
    raise StorageError(f"no disk of this node takes a copy of {source}: {'; '.join(tried)}")


def why_not_local(folder: Path, nbytes: int) -> tuple[str, str]:
    """Return why a folder is no place of this node for so many bytes, or ``""``; and what it is."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return "no folder that can be written", ""
    on = file_system_of(folder)
    told = {"memory": f"{on.name}, in memory", "local": f"{on.name}, on this node"}
    if on.reach == "network" or on.name.startswith("fuse"):
        return f"{on.name} is no disk of this node", ""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if on.reach == "memory" and nbytes > MEMORY_SHARE * available_memory_nbytes():
        return f"{nbytes} bytes are more than half of the memory that is free", ""
    if nbytes > free:
        return f"{nbytes} bytes do not fit the {free} that are free", ""
    return "", told.get(on.reach, f"{on.name}, of which it is not known what lies below")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        if environ.get(name):
            yield Path(environ[name]).absolute(), f"${name}"
    yield Path(tempfile.gettempdir()), "the folder for temporary files"
    yield Path("/dev/shm"), "/dev/shm"
