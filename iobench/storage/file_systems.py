"""Which file system a path lies on, by ``statfs``, and what follows from it for measurements.

The magic numbers are those of Linux (``include/uapi/linux/magic.h``) and, for file systems outside
its tree, of their projects: Lustre's ``LL_SUPER_MAGIC``, ZFS's ``ZFS_SUPER_MAGIC``, BeeGFS's
``BEEGFS_MAGIC``, and those that GNU ``stat -f`` knows of GPFS, PanFS and WekaFS.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from iobench.files.urls import is_url
from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")
TIMEOUT_S: Final = 5.0
"""For a question to a file system: one whose server is gone never answers."""
MOUNTSTATS: Final = Path("/proc/self/mountstats")
Reach = Literal["local", "network", "memory", "unknown"]
MOUNTINFO: Final = Path("/proc/self/mountinfo")

# By what statfs calls f_type: all names that the list of mounts may have for it, ours first.
MAGIC: Final[dict[int, tuple[str, ...]]] = {
    0xEF53: ("ext2/3/4", "ext2", "ext3", "ext4"),
    0x58465342: ("xfs",),
    0x9123683E: ("btrfs",),
    0xF2F52010: ("f2fs",),
    0xCA451A4E: ("bcachefs",),
    0x2FC12FC1: ("zfs",),
    0x52654973: ("reiserfs",),
    0x3153464A: ("jfs",),
    0x4D44: ("vfat", "msdos"),
    0x2011BAB0: ("exfat",),
    0x7366746E: ("ntfs3", "ntfs"),
    0x9660: ("iso9660",),
    0x73717368: ("squashfs",),
    0xE0F5E1E2: ("erofs",),
    0x01021994: ("tmpfs", "devtmpfs"),
    0x858458F6: ("ramfs",),
    0x958458F6: ("hugetlbfs",),
    0x794C7630: ("overlay",),
    0x65735546: ("fuse", "fuseblk", "virtiofs"),
    0x6969: ("nfs", "nfs4"),
    0x517B: ("smbfs",),
    0xFF534D42: ("cifs",),
    0xFE534D42: ("smb2", "smb3", "cifs"),
    0x00C36400: ("ceph",),
    0x5346414F: ("afs",),
    0x6B414653: ("afs",),
    0x01021997: ("9p",),
    0x01161970: ("gfs2",),
    0x7461636F: ("ocfs2",),
    0x20030528: ("pvfs2", "orangefs"),
    0x0BD00BD0: ("lustre",),
    0x47504653: ("gpfs",),
    0x19830326: ("beegfs",),
    0xAAD7AAEA: ("panfs",),
    0x18031977: ("wekafs",),
}
MEMORY: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
NETWORK: Final = frozenset(
    {"nfs", "nfs4", "smbfs", "cifs", "smb2", "smb3", "ceph", "afs", "9p", "pvfs2", "orangefs"}
    | {"lustre", "gpfs", "beegfs", "panfs", "wekafs", "virtiofs"}
)
# What may lie on anything: what a user's process serves, layers of others, disks that are shared.
ANYWHERE: Final = frozenset({"fuse", "overlay", "gfs2", "ocfs2"})

# Kept by the kernel for file systems on a block device; a network or memory one may count nothing.
COUNTING: Final = frozenset({"ext2/3/4", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})
# Data read lies in a cache of their own, which the kernel's page cache knows nothing of.
OWN_CACHE: Final = frozenset({"zfs", "gpfs", "beegfs", "panfs", "wekafs", "pvfs2", "orangefs"})

COLD_UNKNOWN: Final = "What cold means on this file system is unknown."
COLD_LOCAL: Final = (
    "Cold means not in this machine's page cache: the device delivers, or a cache in or below it "
    "(of a controller, or of a virtual machine's host)."
)
COLD_NETWORK: Final = (
    "Cold means not in this client's page cache. The servers' caches are not affected, so a cold "
    "read may come from a server's memory."
)
COLD: Final[dict[str, str]] = {
    "squashfs": (
        "Cold means not in the page cache of this file system; the image below it may still be "
        "in the page cache, and blocks are decompressed again."
    ),
    "zfs": (
        "Cold means not in ZFS's own cache (ARC), which dropping pages does not empty: only an "
        "export or a reboot makes it cold."
    ),
    "overlay": (
        "Cold means not in this machine's page cache, whose pages belong to the layer that "
        "holds the file: the device, server or memory below it delivers."
    ),
    "lustre": (
        "Cold means not in this client's page cache, with its locks dropped. The servers' read "
        "caches are not affected; other clients share them."
    ),
    "gpfs": (
        "Cold means not in this node's pagepool, a separate cache that dropping pages does not "
        "empty. The servers' caches are not affected."
    ),
    "beegfs": (
        "Cold means not in the client's buffers, which are small by default and not a page "
        "cache. The servers' page caches are not affected."
    ),
    "fuse": (
        "Cold means not in this machine's page cache; the process that serves the file system "
        "may have its own cache."
    ),
}
COLD["erofs"] = COLD["squashfs"]
COLD_MEMORY: Final = "Nothing is cold here: the files are in memory (or swapped out)."


@frozen
class Mount:
    """One line of the list of mounts: where, of which type, and of what."""

    point: Path
    kind: str
    source: str = ""


@frozen
class FileSystem:
    """What a path lies on.

    Parameters
    ----------
    name : str
        As the list of mounts has it (``"ext4"``, ``"nfs4"``, ``"fuse.sshfs"``) where that agrees
        with ``statfs``; else what ``statfs`` tells; ``"unknown"``.
    mount : Path or None
        The mount point.
    reach : {"local", "network", "memory", "unknown"}
        Where its data is, seen from this machine.
    counts_device_reads : bool
        Whether ``read_bytes`` of ``/proc/self/io`` is known to count what storage delivered.
    in_page_cache : bool
        Whether what is read goes through the kernel's page cache, so that this can be asked.
    cold : str
        What "cold" can mean on it, in one sentence.
    doubt : str
        Where ``statfs`` and the list of mounts disagree: how; else ``""``.
    """

    name: str = "unknown"
    mount: Path | None = None
    reach: Reach = "unknown"
    counts_device_reads: bool = False
    in_page_cache: bool = True
    cold: str = COLD_UNKNOWN
    doubt: str = ""


def file_system_of(path: Path) -> FileSystem:
    """Return what a path lies on; a path that is not there yet lies where its folder does.

    Unknown on systems other than Linux, for URLs, and for file systems without a name here. Of a
    file system that does not answer it is what the list of mounts says.
    """
    if is_url(path):
        return FileSystem(reach="network", in_page_cache=False)

    def ask() -> tuple[int, Path]:
        found = next(
            (each for each in (path, *path.absolute().parents) if each.exists()), Path("/")
        )
        return statfs_magic(found), found.resolve()

    asked = _within_time(ask)
    magic, existing = asked or (-1, Path(os.path.normpath(path.absolute())))
    found = known_by(magic, mount_of(existing, read_mounts()))
    return found if asked else replace(found, doubt=f"it did not answer within {TIMEOUT_S:g} s")


def _within_time(ask: Callable[[], T]) -> T | None:
    """Return what a file system is asked for; None where it fails, or takes over five seconds.

    The thread that asked waits on where the system does not let go of it; nobody waits for it.
    """
    answers: list[T] = []

    def work() -> None:
        with suppress(OSError):
            answers.append(ask())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    return answers[0] if answers else None


@frozen
class NfsMount:
    """How an NFS server is spoken to, and how it answered so far.

    Parameters
    ----------
    version, protocol : str
        As ``"4.2"``, ``"tcp"``; ``""`` where it is not told.
    read_nbytes : int or None
        What one request reads at most (``rsize``).
    connections : int
        To the server (``nconnect``).
    n_reads : int
        Requests to read since it was mounted, by all its users on this machine.
    read_mean_ns : int or None
        What one of these took in the mean; None without any.
    """

    version: str
    protocol: str
    read_nbytes: int | None
    connections: int
    n_reads: int = 0
    read_mean_ns: int | None = None


def nfs_mount(mount: Path | None, mountstats: Path = MOUNTSTATS) -> NfsMount | None:
    """Return what ``/proc/self/mountstats`` tells of an NFS mount; None of what is none.

    Its lines are those of the kernel's ``nfs_show_stats`` and ``rpc_clnt_show_stats``: of an
    operation, numbers of calls, transmissions and time-outs, bytes sent and got, and milliseconds
    in the queue, on the way, and in all.
    """
    try:
        text = os.fsdecode(mountstats.read_bytes())
    except OSError:
        return None
    found = None
    for part in re.split(r"^device ", text, flags=re.MULTILINE):
        head = re.match(r".* mounted on (.*) with fstype nfs4? statvers", part)
        if head and mount is not None and _unescaped(head[1]) == str(mount):
            found = part  # the last one hides those before it
    if found is None:
        return None
    options = re.search(r"^\s*opts:\s*(\S+)", found, re.MULTILINE)
    told = dict(each.partition("=")[::2] for each in (options[1] if options else "").split(","))
    reads = re.search(r"^\s*READ: (\d+)(?: \d+){6} (\d+)", found, re.MULTILINE)
    n_reads, spent_ms = (int(reads[1]), int(reads[2])) if reads else (0, 0)
    rsize = told.get("rsize", "")
    return NfsMount(
        version=told.get("vers", ""),
        protocol=told.get("proto", ""),
        read_nbytes=int(rsize) if rsize.isdecimal() else None,
        connections=len(re.findall(r"^\s*xprt:", found, re.MULTILINE)) or 1,
        n_reads=n_reads,
        read_mean_ns=spent_ms * 1_000_000 // n_reads if n_reads else None,
    )


def known_by(magic: int, mount: Mount | None) -> FileSystem:
    """Return what ``f_type`` and a line of the list of mounts say together."""
    names = MAGIC.get(magic, ())
    listed = mount.kind if mount is not None else ""
    # "fuse.sshfs" is a fuse, told apart
    agree = listed in names or (bool(names) and listed.partition(".")[0] in names)
    name = listed if listed and (agree or not names) else names[0] if names else "unknown"
    doubt = ""
    if listed and names and not agree:
        doubt = f"statfs tells {names[0]}, the list of mounts {listed}"
    family = name.partition(".")[0]
    reach = _reach(family)
    cold = {"local": COLD_LOCAL, "network": COLD_NETWORK, "memory": COLD_MEMORY}
    return FileSystem(
        name=name,
        mount=None if mount is None else mount.point,
        reach=reach,
        counts_device_reads=family in COUNTING and not doubt,
        in_page_cache=family not in OWN_CACHE,
        cold=COLD.get(family, cold.get(reach, COLD_UNKNOWN)),
        doubt=doubt,
    )


def _reach(family: str) -> Reach:
    if family in MEMORY:
        return "memory"
    if family in NETWORK:
        return "network"
    known = {name for names in MAGIC.values() for name in names} - ANYWHERE
    return "local" if family in known else "unknown"


def counts_device_reads(files: Sequence[Path]) -> bool:
    """Return whether ``read_bytes`` means something for all these files.

    Network, parallel and memory file systems may not count there: unknown, not zero.
    """
    if not files or any(map(is_url, files)):
        return False
    folders = {file if file.is_dir() else file.parent for file in map(Path.resolve, files)}
    mounts = read_mounts()
    return bool(mounts) and all(
        known_by(statfs_magic(folder), mount_of(folder, mounts)).counts_device_reads
        for folder in folders
    )


def read_mounts(mountinfo: Path = MOUNTINFO) -> list[Mount]:
    """Return what is mounted; the nearest to a path is the first that it is relative to."""
    try:
        lines = os.fsdecode(mountinfo.read_bytes()).splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        left, _, right = line.partition(" - ")
        if len(left.split()) < 5 or len(right.split()) < 2:
            continue
        kind, source = right.split()[:2]
        mounts.append(Mount(Path(_unescaped(left.split()[4])), kind, _unescaped(source)))
    # What was mounted later hides what is mounted at the same place.
    mounts.reverse()
    return sorted(mounts, key=lambda mount: len(mount.point.parts), reverse=True)


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount a resolved path lies on."""
    return next((mount for mount in mounts if path.is_relative_to(mount.point)), None)


def statfs_magic(path: Path) -> int:
    """Return ``f_type`` of ``statfs``; -1 where it cannot be asked.

    The first member of ``struct statfs``: a long, of which the lower 32 bits are the number.
    """
    statfs = _statfs()
    if statfs is None:
        return -1
    buffer = ctypes.create_string_buffer(512)  # the structure has 120 bytes at most
    if statfs(os.fsencode(path), buffer):
        return -1
    member = ctypes.c_uint if platform.machine() == "s390x" else ctypes.c_long
    return int(member.from_buffer(buffer).value) & 0xFFFFFFFF


@cache
def _statfs() -> ctypes._NamedFuncPointer | None:
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (OSError, AttributeError):
        return None
    statfs.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    statfs.restype = ctypes.c_int
    return statfs


def _unescaped(text: str) -> str:
    """Return a field of the list with its spaces back, which are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
