"""Serves a folder at a mount point as slowly as asked: FUSE's own protocol, nothing to install.

``slow_server.py BACKING MOUNT_POINT SETTINGS`` prints "ready", or in a line why it cannot; then
each line of its input is new settings. SIGTERM and the end of its parent unmount it. The layouts
are those of the kernel's ``include/uapi/linux/fuse.h``, version 7.31.
"""
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH118, PTH208

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import random
import signal
import stat
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

THREADS = 48
MAX_WRITE, MAX_READ_PAGES = 128 << 10, 256
FOREVER_S = 3600  # all changes go through the mount, so that what the kernel keeps stays true
DIRECT_IO = 1
GETATTR_FH, INIT_EXT = 1, 1 << 30
INIT_FLAGS = 1 | 1 << 5 | 1 << 15 | 1 << 18 | 1 << 22 | INIT_EXT  # async reads, large requests
DIRECT_IO_ALLOW_MMAP = 1 << 4  # of the second word of flags
MODE, UID, GID, SIZE, ATIME, MTIME, _, ATIME_NOW, MTIME_NOW = (1 << bit for bit in range(9))
FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42  # have no answer
LIBC = ctypes.CDLL(None, use_errno=True)
DETACH = 2


@dataclass
class Slowness:
    """What requests wait for: see the fixture."""

    latency_s: float = 0.0
    nbytes_per_s: float | None = None
    jitter_s: float = 0.0
    opens_per_s: float | None = None
    quota_nbytes: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    link_free: float = 0.0
    opens_free: float = 0.0
    drawn: random.Random = field(default_factory=lambda: random.Random(0))

    def delay(self, arrived: float, *, nbytes: int = 0, opens: int = 0) -> None:
        """Return when a request that arrived then has been served."""
        with self.lock:
            done = arrived
            if nbytes and self.nbytes_per_s:
                self.link_free = max(arrived, self.link_free) + nbytes / self.nbytes_per_s
                done = self.link_free
            if opens and self.opens_per_s:
                self.opens_free = max(arrived, self.opens_free) + opens / self.opens_per_s
                done = self.opens_free
            if self.jitter_s:
                done += min(self.drawn.expovariate(1 / self.jitter_s), 10 * self.jitter_s)
        time.sleep(max(0.0, done + self.latency_s - time.monotonic()))


class Server:
    """The requests of one mount, answered from a folder."""

    def __init__(self, device: int, backing: str, slowness: Slowness) -> None:
        self.device, self.slowness = device, slowness
        self.paths = {1: backing}
        self.nodes = {backing: 1}
        self.looked_up: set[int] = set()  # paid for by the look at the name: its open is free
        self.open: dict[int, int] = {}
        self.numbers = itertools.count(2)
        self.lock = threading.Lock()
        self.answers = {
            1: self.lookup, 3: self.getattr, 4: self.setattr, 9: self.mkdir, 10: self.unlink,
            11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open_file, 15: self.read,
            16: self.write, 17: self.statfs, 18: self.release, 20: self.nothing, 25: self.nothing,
            26: self.init, 27: self.open_folder, 28: self.list, 29: self.nothing, 30: self.nothing,
            35: self.create, 38: self.nothing, 45: self.rename2,
        }  # fmt: skip

    def serve(self) -> None:
        """Answer requests until the mount is gone."""
        while True:
            try:
                request = os.read(self.device, MAX_WRITE + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return
            arrived = time.monotonic()
            _, code, unique, node, uid, gid = struct.unpack_from("<IIQQII", request)
            if code in (FORGET, INTERRUPT, BATCH_FORGET):
                continue
            answer, failed = b"", 0
            try:
                made = self.answers.get(code)
                if made is None:
                    failed = errno.ENOSYS
                else:
                    answer = made(arrived, node, request[40:], (uid, gid))
            except OSError as error:
                failed = error.errno or errno.EIO
            except KeyError:
                failed = errno.ESTALE
            head = struct.pack("<IiQ", 16 + len(answer), -failed, unique)
            with suppress(OSError):  # who asked was interrupted
                os.writev(self.device, [head, answer])

    def path(self, node: int, name: bytes = b"") -> str:
        base = self.paths[node]
        return os.path.join(base, os.fsdecode(name.rstrip(b"\0"))) if name else base

    def entry(self, path: str, owner: tuple[int, int] | None = None) -> bytes:
        """Return what the kernel is told of a name; one just made gets its owner."""
        if owner is not None:
            os.chown(path, *owner, follow_symlinks=False)
        status = os.lstat(path)
        with self.lock:
            node = self.nodes.setdefault(path, 0) or next(self.numbers)
            self.nodes[path], self.paths[node] = node, path
        return struct.pack("<QQQQII", node, 0, FOREVER_S, FOREVER_S, 0, 0) + attributes(status)

    def moved(self, old: str, new: str | None) -> None:
        with self.lock:
            if new is not None:
                self.nodes.pop(new, None)
            for path in [p for p in self.nodes if p == old or p.startswith(old + os.sep)]:
                node = self.nodes.pop(path)
                if new is None:
                    self.paths.pop(node, None)
                else:
                    self.paths[node] = new + path[len(old) :]
                    self.nodes[self.paths[node]] = node

    def init(self, _at: float, _node: int, told: bytes, _who: Any) -> bytes:
        major, _, readahead, flags = struct.unpack_from("<IIII", told)
        both = flags & INIT_FLAGS, DIRECT_IO_ALLOW_MMAP if flags & INIT_EXT else 0
        return struct.pack(
            "<IIIIHHIIHHI28x", major, 31, readahead, both[0], 64, 48, MAX_WRITE, 1,
            MAX_READ_PAGES, 0, both[1],
        )  # fmt: skip

    def nothing(self, *_: Any) -> bytes:
        return b""

    def lookup(self, at: float, node: int, name: bytes, _who: Any) -> bytes:
        try:
            answer = self.entry(self.path(node, name))
        finally:
            self.slowness.delay(at, opens=1)
        self.looked_up.add(struct.unpack_from("<Q", answer)[0])
        return answer

    def status(self, node: int) -> os.stat_result:
        with suppress(KeyError, FileNotFoundError):
            return os.lstat(self.paths[node])
        return os.fstat(self.open[node])  # removed, and open still

    def attr(self, node: int) -> bytes:
        return struct.pack("<QII", FOREVER_S, 0, 0) + attributes(self.status(node))

    def getattr(self, _at: float, node: int, _told: bytes, _who: Any) -> bytes:
        return self.attr(node)

    def setattr(self, _at: float, node: int, told: bytes, _who: Any) -> bytes:
        valid, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid = (
            struct.unpack_from("<I4xQQQQQQIIIIIII", told)
        )
        target: Any = self.paths.get(node) or self.open[node]
        if valid & SIZE:
            os.truncate(target, size)
        if valid & MODE:
            os.chmod(target, stat.S_IMODE(mode))
        if valid & (UID | GID):
            os.chown(target, uid if valid & UID else -1, gid if valid & GID else -1)
        if valid & (ATIME | MTIME):
            now, before = time.time_ns(), self.status(node)
            atime_ns += atime * 10**9
            mtime_ns += mtime * 10**9
            if not valid & ATIME or valid & ATIME_NOW:
                atime_ns = now if valid & ATIME_NOW else before.st_atime_ns
            if not valid & MTIME or valid & MTIME_NOW:
                mtime_ns = now if valid & MTIME_NOW else before.st_mtime_ns
            os.utime(target, ns=(atime_ns, mtime_ns))
        return self.attr(node)

    def mkdir(self, _at: float, node: int, told: bytes, who: tuple[int, int]) -> bytes:
        os.mkdir(path := self.path(node, told[8:]), struct.unpack_from("<I", told)[0])
        return self.entry(path, who)

    def unlink(self, _at: float, node: int, name: bytes, _who: Any) -> bytes:
        os.unlink(path := self.path(node, name))
        self.moved(path, None)
        return b""

    def rmdir(self, _at: float, node: int, name: bytes, _who: Any) -> bytes:
        os.rmdir(path := self.path(node, name))
        self.moved(path, None)
        return b""

    def rename(self, at: float, node: int, told: bytes, who: Any) -> bytes:
        return self.rename2(at, node, told[:8] + bytes(8) + told[8:], who)

    def rename2(self, _at: float, node: int, told: bytes, _who: Any) -> bytes:
        to, flags = struct.unpack_from("<QI", told)
        old, new, _ = told[16:].split(b"\0")
        source, target = self.path(node, old), self.path(to, new)
        if flags > 1:
            raise OSError(errno.EINVAL, "exchange")
        if flags and os.path.lexists(target):
            raise OSError(errno.EEXIST, target)
        os.rename(source, target)
        self.moved(source, target)
        return b""

    def link(self, _at: float, node: int, told: bytes, _who: Any) -> bytes:
        old = struct.unpack_from("<Q", told)[0]
        os.link(self.paths[old], path := self.path(node, told[8:]), follow_symlinks=False)
        return self.entry(path)

    def opened(self, node: int, fd: int) -> bytes:
        self.open[node] = fd
        return struct.pack("<QII", fd, DIRECT_IO, 0)

    def open_file(self, at: float, node: int, told: bytes, _who: Any) -> bytes:
        if node in self.looked_up:
            self.looked_up.discard(node)
        else:
            self.slowness.delay(at, opens=1)
        flags = struct.unpack_from("<I", told)[0]
        # O_DIRECT is the caller's matter: the kernel hands such reads on as they are.
        kept = flags & (os.O_ACCMODE | os.O_TRUNC)
        # Pages are written back, and read to be written, through any descriptor of the file.
        kept = kept & ~os.O_ACCMODE | os.O_RDWR if kept & os.O_ACCMODE == os.O_WRONLY else kept
        return self.opened(node, os.open(self.paths[node], kept))

    def create(self, _at: float, node: int, told: bytes, who: tuple[int, int]) -> bytes:
        flags, mode = struct.unpack_from("<II", told)
        path = self.path(node, told[16:])
        fd = os.open(path, os.O_RDWR | os.O_CREAT | flags & (os.O_EXCL | os.O_TRUNC), mode & 0o7777)
        entry = self.entry(path, who)
        return entry + self.opened(struct.unpack_from("<Q", entry)[0], fd)

    def open_folder(self, at: float, node: int, _told: bytes, _who: Any) -> bytes:
        self.slowness.delay(at, opens=1)
        return struct.pack("<QII", 0, 0, 0)

    def list(self, _at: float, node: int, told: bytes, _who: Any) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", told)
        made = b""
        for number, name in enumerate(sorted(os.listdir(self.paths[node])), start=1):
            if number <= offset:
                continue
            raw = os.fsencode(name)
            kind = stat.S_IFMT(os.lstat(os.path.join(self.paths[node], name)).st_mode) >> 12
            row = struct.pack("<QQII", number + 1, number, len(raw), kind) + raw
            row += bytes(-len(row) % 8)
            if len(made) + len(row) > size:
                break
            made += row
        return made

    def read(self, at: float, _node: int, told: bytes, _who: Any) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", told)
        data = os.pread(fd, size, offset)
        self.slowness.delay(at, nbytes=len(data))
        return data

    def write(self, _at: float, _node: int, told: bytes, _who: Any) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", told)
        quota = self.slowness.quota_nbytes
        if quota is not None and (quota := quota - size) < 0:
            raise OSError(errno.EDQUOT, "quota")
        self.slowness.quota_nbytes = quota
        return struct.pack("<II", os.pwrite(fd, memoryview(told)[40 : 40 + size], offset), 0)

    def release(self, _at: float, node: int, told: bytes, _who: Any) -> bytes:
        fd = struct.unpack_from("<Q", told)[0]
        if self.open.get(node) == fd:
            del self.open[node]
        os.close(fd)
        return b""

    def statfs(self, _at: float, _node: int, _told: bytes, _who: Any) -> bytes:
        room = os.statvfs(self.paths[1])
        return struct.pack(
            "<QQQQQIII28x", room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree,
            room.f_bsize, room.f_namemax, room.f_frsize,
        )  # fmt: skip


def attributes(status: os.stat_result) -> bytes:
    """Return ``struct fuse_attr``."""
    times = [
        divmod(ns, 10**9) for ns in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    ]
    return struct.pack(
        "<QQQQQQIIIIIIIIII", status.st_ino, status.st_size, status.st_blocks,
        *(seconds for seconds, _ in times), *(ns for _, ns in times), status.st_mode,
        status.st_nlink, status.st_uid, status.st_gid, status.st_rdev, 4096, 0,
    )  # fmt: skip


def mount(point: str) -> int:
    """Return the descriptor of a new mount."""
    options = f"max_read={MAX_READ_PAGES * 4096},default_permissions"
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    told = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,{options}"
    words = (b"slow", os.fsencode(point), b"fuse.slow")
    if LIBC.mount(*words, ctypes.c_ulong(0), told.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount: {os.strerror(number)}")
    return device


def unmount(point: str) -> None:
    """Take the mount away, also one whose server is gone; one in use goes when it is left."""
    LIBC.umount2(os.fsencode(point), DETACH)


def main(backing: str, point: str, settings: str) -> None:
    """Serve until told to stop."""
    stopping = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)  # as by all threads
    parent = os.getppid()
    LIBC.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG: a test that is killed leaves nothing
    os.umask(0)  # the kernel has applied that of who asks
    try:
        device = mount(point)
    except OSError as error:
        print(f"a FUSE file system cannot be mounted here: {error}", flush=True)
        return
    slowness = Slowness(**json.loads(settings))
    server = Server(device, backing, slowness)

    def listen() -> None:
        for line in sys.stdin:
            vars(slowness).update(json.loads(line))
            print("changed", flush=True)

    for work in [server.serve] * THREADS + [listen]:
        threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    if os.getppid() == parent:
        signal.sigwait(stopping)
    unmount(point)
    os._exit(0)  # its threads wait for a device that may never say another word


if __name__ == "__main__":
    main(*sys.argv[1:])
