"""Which file system a path lies on, by the list of mounts, and where files could be staged."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from iobench.files.memory import available_memory_nbytes
from iobench.files.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Reach = Literal["local", "network", "memory", "unknown"]
REACHES: Final[dict[Reach, frozenset[str]]] = {
    "memory": frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}),
    "network": frozenset(
        {"nfs", "nfs4", "smbfs", "cifs", "smb2", "smb3", "ceph", "afs", "9p", "pvfs2", "orangefs"}
        | {"lustre", "gpfs", "beegfs", "panfs", "wekafs", "virtiofs"}
    ),
    "local": frozenset(
        {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "reiserfs", "jfs"}
        | {"vfat", "msdos", "exfat", "ntfs3", "ntfs", "iso9660", "squashfs", "erofs", "fuseblk"}
    ),
}
"""Others may lie on anything: layers of others, what a user's process serves, shared disks."""

# Kept by the kernel for file systems on a block device; a network or memory one may count nothing.
COUNTING: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})
# Data read lies in a cache of their own, which the kernel's page cache knows nothing of.
OWN_CACHE: Final = frozenset({"zfs", "gpfs", "beegfs", "panfs", "wekafs", "pvfs2", "orangefs"})


class Mount(msgspec.Struct, frozen=True):
    """One line of the list of mounts: where, and of which type."""

    point: Path
    kind: str


class FileSystem(msgspec.Struct, frozen=True):
    """What a path lies on."""

    name: str = "unknown"  # as the list of mounts has it: "ext4", "nfs4", "fuse.sshfs"
    mount: Path | None = None  # its point
    reach: Reach = "unknown"  # where its data is, seen from this machine
    # Whether read_bytes of /proc/self/io is known to count what storage delivered.
    counts_device_reads: bool = False
    in_page_cache: bool = True  # what is read goes through the kernel's, which can be queried


def file_system_of(path: Path) -> FileSystem:
    """Return what a path lies on; one that is not there yet lies where its folder does.

    Unknown of URLs, and where there is no list of mounts.
    """
    if is_url(path):
        return FileSystem(reach="network", in_page_cache=False)
    return file_system_on(mount_of(path.resolve(), read_mounts()))


def file_system_on(mount: Mount | None) -> FileSystem:
    """Return what the type of a mount means."""
    if mount is None:
        return FileSystem()
    family = mount.kind.partition(".")[0]
    return FileSystem(
        name=mount.kind,
        mount=mount.point,
        reach=next((reach for reach, families in REACHES.items() if family in families), "unknown"),
        counts_device_reads=family in COUNTING,
        in_page_cache=family not in OWN_CACHE,
    )


def counts_device_reads(files: Sequence[Path]) -> bool:
    """Return whether ``read_bytes`` means something for all these files.

    Network, parallel and memory file systems may not count there: unknown, not zero.
    """
    if not files or any(map(is_url, files)):
        return False
    mounts = read_mounts()
    on = {mount_of(file.resolve(), mounts) for file in files}
    return all(file_system_on(mount).counts_device_reads for mount in on)


def read_mounts() -> list[Mount]:
    """Return what is mounted; the nearest to a path is the first that it is relative to."""
    import psutil

    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return []
    # What was mounted later hides what is mounted at the same place.
    mounts = [Mount(Path(each.mountpoint), each.fstype) for each in reversed(partitions)]
    return sorted(mounts, key=lambda mount: len(mount.point.parts), reverse=True)


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount a resolved path lies on."""
    return next((mount for mount in mounts if path.is_relative_to(mount.point)), None)


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
