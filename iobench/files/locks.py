"""One writer of a folder: a lock file with a heartbeat, in a bucket an object.

A lock whose holder ended on this host is taken over at once, that of another host after `STALE_S`
without a heartbeat. No flock: network file systems do not keep it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import StorageError, StoreClaimedError
from iobench.files import objects
from iobench.files.atomic import is_local, storage_errors
from iobench.recording.clocks import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK_NAME: Final = "iobench.lock"
JOURNAL_NAME: Final = "iobench.journal"
"""The folder of an unfinished store; locks of its parts are in it."""
STALE_S = 60.0
BEAT_S = 5.0
POLL_S = 0.2
EMPTY_S = 3.0
"""A lock file that nobody wrote into for so long is of a process that was killed as it made it."""


class FolderLock:
    """A lock that this process holds; see `locked`."""

    def __init__(self, path: Path, held: Any) -> None:
        self._path, self._held = path, held

    def check(self) -> None:
        """Check that the lock still is ours; call it before what cannot be undone."""
        if not self._held.is_held():
            raise StoreClaimedError(
                f"{self._path.parent}: this process was silent for more than {STALE_S:.0f} s and "
                f"{lock_holder(self._path) or 'another one'} took over; run the command again"
            )


@contextmanager
def locked(
    folder: Path,
    *,
    name: str = LOCK_NAME,
    wait_s: float | None = None,
    notice: Callable[[str], None] | None = None,
) -> Iterator[FolderLock]:
    """Hold a folder for writing, waiting for whoever holds it now."""
    path = folder / name
    held: Any = _LockFile(path) if is_local(path) else _LockObject(path)
    budget = Budget(wait_s)
    while not held.acquire():
        holder = lock_holder(path) or "another process"
        if budget.spent:
            raise StoreClaimedError(
                f"{folder} is being written by {holder}; wait for it, or choose another folder"
            )
        if notice is not None:
            notice(f"waiting for {holder}, which is writing {folder}")
            notice = None
        threading.Event().wait(POLL_S * (1 + secrets.randbelow(100) / 100))
    try:
        yield FolderLock(path, held)
    finally:
        held.release()


def lock_holder(path: Path) -> str:
    """Return who holds a lock, in words; "" if nobody does."""
    values = _read_lock(path)
    host, pid = values.get("host", ""), values.get("pid", "")
    if not pid.isdecimal() or (host == socket.gethostname() and not _is_running(pid)):
        return ""
    return f"process {pid} on {host}"


def _read_lock(path: Path) -> dict[str, str]:
    try:
        lines = path.read_bytes().decode(errors="replace").splitlines()
    except (OSError, StorageError):
        return {}
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _is_running(pid: str) -> bool:
    import psutil

    return psutil.pid_exists(int(pid))


def was_locked(folder: Path) -> bool:
    """Return whether a lock of a folder is there, whoever holds it or left it behind."""
    return any(folder.glob(f"{LOCK_NAME}*"))


def find_writer(folder: Path) -> str:
    """Return who writes a folder, as a whole or a part of it, in words; "" if nobody does."""
    parts = sorted((folder / JOURNAL_NAME).glob("*.lock"))
    return next(filter(None, map(lock_holder, [folder / LOCK_NAME, *parts])), "")


class _LockFile:
    """A lock by filelock, held while its heartbeat goes on."""

    def __init__(self, path: Path) -> None:
        from filelock import SoftFileLease

        self._path, self._is_lost = path, False
        self._empty, self._patience = (0, 0), Budget(None)
        self._lease = SoftFileLease(
            str(path),
            lease_duration=STALE_S,
            heartbeat_interval=BEAT_S,
            on_compromise=self._lose,
            thread_local=False,
        )

    def _lose(self, _: object) -> None:
        self._is_lost = True

    def acquire(self) -> bool:
        from filelock import Timeout

        with storage_errors(self._path):
            try:
                self._lease.acquire(timeout=0)
            except Timeout:
                self._remove_empty()
                return False
            # Of processes that were taking the lock over as they were killed.
            for left in self._path.parent.glob(f"{self._path.name}.break.*"):
                pid = left.name.removeprefix(f"{self._path.name}.break.").partition(".")[0]
                if pid.isdecimal() and not _is_running(pid):
                    left.unlink(missing_ok=True)
        return True

    def _remove_empty(self) -> None:
        """Remove a file that stays empty, which filelock takes for one of its first versions."""
        with suppress(FileNotFoundError):
            state = self._path.stat()
            if state.st_size or self._empty != (state.st_ino, state.st_mtime_ns):
                self._empty = state.st_ino, state.st_mtime_ns
                self._patience = Budget(EMPTY_S)
            elif self._patience.spent:  # who made it meanwhile finds out with its next heartbeat
                self._path.unlink()

    def is_held(self) -> bool:
        return not self._is_lost and self._lease.is_lock_held_by_us

    def release(self) -> None:
        self._lease.release()


class _LockObject:
    """An object that is put where none is, and renewed as long as its version is ours."""

    def __init__(self, path: Any) -> None:
        self._url, self._token = path, secrets.token_hex(8)
        self._state: objects.ObjectStat | None = None  # the version that is ours
        self._etag = ""  # of another one's, and how long it may stay as it is
        self._patience = Budget(STALE_S)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="iobench-lock", daemon=True)

    def _content(self) -> bytes:
        """Return other bytes each time: an ETag is that of the bytes."""
        values = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}
        values["beat"] = secrets.token_hex(8)
        return "".join(f"{name}={value}\n" for name, value in values.items()).encode()

    def acquire(self) -> bool:
        self._state = objects.create(self._url, self._content())
        if self._state is None:
            (result,) = objects.states_of([self._url])
            if result is None:
                return False
            if result.etag != self._etag:
                self._etag, self._patience = result.etag, Budget(STALE_S)
            if lock_holder(self._url) and not self._patience.spent:
                return False
            self._state = objects.update(self._url, self._content(), result)
        if self._state is not None:
            self._thread.start()
        return self._state is not None

    def is_held(self) -> bool:
        return self._state is not None and _read_lock(self._url).get("token") == self._token

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        if self.is_held():
            self._url.unlink(missing_ok=True)

    def _beat(self) -> None:
        while self._state is not None and not self._ended.wait(BEAT_S):
            with suppress(OSError):  # unreachable: check() will say so
                self._state = objects.update(self._url, self._content(), self._state)
