"""Which file system a path lies on, by the list of mounts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

Reach = Literal["local", "network", "memory", "unknown"]
REACHES: Final[dict[Reach, frozenset[str]]] = {
    "memory": frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}),
    "network": frozenset(
        {"nfs", "nfs4", "smbfs", "cifs", "smb2", "smb3", "ceph", "afs", "9p", "pvfs2", "orangefs"}
        | {"lustre", "gpfs", "mmfs", "beegfs", "panfs", "wekafs", "virtiofs", "vboxsf", "dvs"}
        | {"daos", "glusterfs", "coda", "acfs", "gfs2", "ocfs2"}
    ),
    "local": frozenset(
        {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "reiserfs", "jfs"}
        | {"vfat", "msdos", "exfat", "ntfs3", "ntfs", "iso9660", "squashfs", "erofs", "fuseblk"}
    ),
}
"""Others may lie on anything: layers of others, what a user's process serves."""

# Kept by the kernel for file systems on a block device; a network or memory one may count nothing.
COUNTING: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})
# Data read lies in a cache of their own, which the kernel's page cache knows nothing of.
OWN_CACHE: Final = frozenset({"zfs", "gpfs", "beegfs", "panfs", "wekafs", "pvfs2", "orangefs"})


class FileSystem(msgspec.Struct, frozen=True):
    """What a path lies on; a mount."""

    name: str = "unknown"  # as the list of mounts has it: "ext4", "nfs4", "fuse.sshfs"
    mount: str = ""  # its point; "" where there is none
    reach: Reach = "unknown"  # where its data is, seen from this machine
    # Whether read_bytes of /proc/self/io is known to count what storage delivered.
    counts_device_reads: bool = False
    in_page_cache: bool = True  # what is read goes through the kernel's, which can be queried

    @property
    def is_shared(self) -> bool:
        """Whether it is no disk of this machine, nor its memory; of FUSE nobody knows."""
        return self.reach == "network" or self.name.partition(".")[0] == "fuse"


def file_system_at(point: str, kind: str) -> FileSystem:
    """Return what the type of a mount means."""
    family = kind.partition(".")[0]
    return FileSystem(
        name=kind,
        mount=point,
        reach=next((reach for reach, families in REACHES.items() if family in families), "unknown"),
        counts_device_reads=family in COUNTING,
        in_page_cache=family not in OWN_CACHE,
    )


def read_mounts() -> list[FileSystem]:
    """Return what is mounted; the nearest to a path is the first that it is relative to."""
    import psutil

    try:
        partitions = psutil.disk_partitions(all=True)
    except OSError:
        return []
    # What was mounted later hides what is mounted at the same place.
    mounts = [file_system_at(each.mountpoint, each.fstype) for each in reversed(partitions)]
    return sorted(mounts, key=lambda each: len(Path(each.mount).parts), reverse=True)


def on_mount(path: Path, mounts: Iterable[FileSystem]) -> FileSystem:
    """Return what a path lies on; one that is not there yet lies where its folder does."""
    path = path.resolve()
    return next((each for each in mounts if path.is_relative_to(each.mount)), FileSystem())
