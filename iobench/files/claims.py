"""Who is writing a store: a claim file per holder, created exclusively, kept fresh by a heartbeat.

A claim is ``iobench.claim``, holding host and process id; taking over a stale one creates
``iobench.claim.1`` (then ``.2``) exclusively, so that two who find the same stale claim cannot
both win. Whoever has created a file looks around once more and withdraws if another live claim
is there. No flock: network file systems do not keep it. The heartbeat is the file's modification
time, compared with that of a file just written beside it, so that clocks of hosts need not agree.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iobench.errors import StorageError, StoreClaimedError
from iobench.files import objects
from iobench.files.atomic import TEMPORARY_SUFFIX, is_local, storage_errors
from iobench.files.scratch import list_folders
from iobench.files.urls import URL
from iobench.json_files import parse_json
from iobench.recording.clocks import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Holder(msgspec.Struct, frozen=True):
    """Who holds a claim: host, process, when that process began, and a number of its own.

    ``job`` is the SLURM job it belongs to, if any.
    """

    host: str
    pid: int
    process_started: str
    pid_namespace: str
    token: str
    job: str = ""

    @classmethod
    def here(cls) -> Holder:
        """Return this process as a holder."""
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=_process_started(os.getpid()),
            pid_namespace=_pid_namespace(),
            token=secrets.token_hex(8),
            job=os.environ.get("SLURM_JOB_ID", ""),
        )

    def is_gone(self) -> bool:
        """Whether the process certainly ended; False where it cannot be seen from here."""
        if (self.host, self.pid_namespace) != (socket.gethostname(), _pid_namespace()):
            return False
        import psutil

        try:
            ended = psutil.Process(self.pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False
        # Another process may have got the number since.
        return ended or _process_started(self.pid) != self.process_started

    def __str__(self) -> str:
        job = f" (job {self.job})" if self.job else ""
        return f"process {self.pid} on {self.host}{job}"


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path, an identity
    except OSError:
        return ""


def _process_started(pid: int) -> str:
    """Return when a process began, in the kernel's own ticks; "" where it does not tell.

    Not psutil's create_time: that moves when the wall clock is set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


CLAIM_NAME = "iobench.claim"
MAX_CLAIM_NBYTES = 4096
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""How file systems without hard links refuse one."""


class ClaimFile(msgspec.Struct, frozen=True):
    """A claim that was found: the file, which take-over it is of, whose, and its last heartbeat.

    ``holder`` is None while it is being written.
    """

    file: Path
    generation: int
    holder: Holder | None
    beat_ns: int


def time_ns_at(path: Path) -> int:
    """Return what time the folder's file system has: that of a file just written there.

    Of objects it is their server's.
    """
    if not is_local(path):
        return objects.server_time_ns(_url(path))
    probe = path / f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
    with storage_errors(probe):
        descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)


def create_claim_file(file: Path, holder: Holder) -> bool:
    """Create a claim file unless it is there; whole at once, where the file system has links.

    A file that is created first and filled then is nobody's, for as long as `STALE_S`, if its
    writer is killed in between.
    """
    data = json.dumps(msgspec.structs.asdict(holder)).encode()
    if not is_local(file):
        return objects.create(_url(file), data) is not None
    temporary = file.with_name(f".{holder.token}{TEMPORARY_SUFFIX}")
    with storage_errors(file):
        try:
            _write_new(temporary, data)
            os.link(temporary, file)
        except FileExistsError:
            return False
        except FileNotFoundError:
            if not file.parent.exists():
                raise
            return False  # swept away by who held the folder until now
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                _write_new(file, data)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
    return True


def _write_new(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, data)
    except OSError:
        file.unlink(missing_ok=True)  # a full disk: nobody has claimed anything
        raise
    finally:
        os.close(descriptor)


def find_claim_files(path: Path) -> list[ClaimFile]:
    """Return the claims on a folder, by generation."""
    if is_local(path):
        with storage_errors(path):
            try:  # not glob: folders of shards go while we look
                names = os.listdir(path)  # noqa: PTH208
            except FileNotFoundError:
                names = []
        names = [name for name in names if name.startswith(CLAIM_NAME)]
    else:
        names = [name for name in objects.list_folder(_url(path)) if name.startswith(CLAIM_NAME)]
    found = [one for name in names if (one := read_claim_file(path / name)) is not None]
    return sorted(found, key=lambda one: one.generation)


def read_claim_file(file: Path) -> ClaimFile | None:
    """Return what a claim says; None if it is none, or is gone."""
    generation = file.name.removeprefix(CLAIM_NAME).removeprefix(".")
    if generation and not generation.isdecimal():
        return None
    try:
        text, beat_ns = _read_with_time(file)
    except FileNotFoundError:
        return None
    try:
        holder = Holder(**parse_json(text))
    except (ValueError, TypeError):
        holder = None  # just created, or its writer was killed between two system calls
    return ClaimFile(file, int(generation or 0), holder, beat_ns)


def renew_claim_file(file: Path) -> None:
    """Give a claim the time it is now; raise FileNotFoundError if it is gone."""
    if is_local(file):
        os.utime(file)
        return
    looked_up = _url(file).looked_up()
    if objects.update(looked_up, looked_up.read_bytes(), looked_up.stat()) is None:
        raise FileNotFoundError(errno.ENOENT, "taken over", str(file))


def is_exclusive(path: Path) -> bool:
    """Whether a claim on the folder cannot be given to two processes at once."""
    if is_local(path):
        return True
    return objects.keeps_conditions(_url(path))


def _read_with_time(file: Path) -> tuple[bytes, int]:
    if not is_local(file):
        looked_up = _url(file).looked_up()
        return looked_up.read_bytes()[:MAX_CLAIM_NBYTES], looked_up.stat().st_mtime_ns
    with storage_errors(file), file.open("rb") as stream:
        beat_ns = os.fstat(stream.fileno()).st_mtime_ns
        return stream.read(MAX_CLAIM_NBYTES), beat_ns


def _url(place: Path) -> URL:
    assert isinstance(place, URL)
    return place


JOURNAL_NAME = "iobench.journal"
"""The folder of an unfinished store; each folder in it is claimed apart, for one shard."""
STALE_S = 60.0
"""After this long without a heartbeat a claim is anybody's."""
BEAT_S = 5.0
POLL_S = 0.2


class Claim:
    """A claim this process holds; see `claim`."""

    def __init__(self, file: Path, holder: Holder) -> None:
        self.file = file
        self.holder = holder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="iobench-claim", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that the claim still is ours; call it before what cannot be undone."""
        found = read_claim_file(self.file)
        if found is None or found.holder != self.holder or self._is_overtaken(found):
            other = find_holder(self.file.parent)
            raise StoreClaimedError(
                f"{self.file.parent}: this process was silent for more than {STALE_S:.0f} s and "
                f"{other or 'another one'} took over; run the command again"
            )

    def release(self) -> None:
        """Give the claim back; does nothing in a forked child."""
        if os.getpid() != self.holder.pid:
            return
        self._ended.set()
        self._thread.join()
        found = read_claim_file(self.file)
        if found is not None and found.holder == self.holder:
            self.file.unlink(missing_ok=True)

    def _is_overtaken(self, found: ClaimFile) -> bool:
        """Whether there is a later claim: a heartbeat may bring an object back that was removed."""
        if is_local(self.file):
            return False
        every = find_claim_files(self.file.parent)
        return any(one.generation > found.generation for one in every)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(OSError):  # taken over or unreachable: check() will say so
                renew_claim_file(self.file)


@contextmanager
def claim(
    path: Path, *, wait_s: float | None = None, notice: Callable[[str], None] | None = None
) -> Iterator[Claim]:
    """Hold the folder ``path`` for writing, waiting for whoever holds it now."""
    budget = Budget(wait_s)
    told = False
    while (held := try_claim(path)) is None:
        holder = find_holder(path)
        if holder is not None and budget.spent:
            raise StoreClaimedError(
                f"{path} is being written by {holder}; wait for it, or choose another folder"
            )
        if holder is not None and notice is not None and not told:
            notice(f"waiting for {holder}, which is writing {path}")
            told = True
        threading.Event().wait(POLL_S * (1 + secrets.randbelow(100) / 100))
    if notice is not None and not is_exclusive(path):
        notice(
            f"{path}: this store has no conditional writes (If-None-Match), so that claims are not "
            "safe; let one process alone write it"
        )
    try:
        yield held
    finally:
        held.release()


def find_holder(path: Path) -> Holder | None:
    """Return who holds the folder ``path`` and is alive, or None."""
    found = find_claim_files(path)
    if not found:
        return None
    try:
        now_ns = time_ns_at(path)
    except FileNotFoundError:
        return None  # the folder has gone, and the claim with it
    except StorageError:  # read-only: the newest of them is all there is to compare with
        now_ns = max(one.beat_ns for one in found)
    return next((one.holder for one in _live(found, now_ns) if one.holder is not None), None)


def find_writer(path: Path) -> Holder | None:
    """Return who writes the store at ``path``, as a whole or one of its shards, or None."""
    holders = map(find_holder, [path, *list_folders(path / JOURNAL_NAME)])
    return next((holder for holder in holders if holder is not None), None)


def remove_claims_of_the_dead(path: Path) -> None:
    """Remove what processes of this host that were killed left of their claims."""
    with suppress(StorageError):  # read-only: they do no harm
        for one in find_claim_files(path):
            if one.holder is not None and one.holder.is_gone():
                with storage_errors(one.file):
                    one.file.unlink(missing_ok=True)


def try_claim(path: Path) -> Claim | None:
    """Return a claim on the folder ``path``, or None where another process holds it."""
    holder = Holder.here()
    before = find_claim_files(path)
    if before and not _all_stale(path, before):
        return None
    generation = before[-1].generation + 1 if before else 0
    file = path / (f"{CLAIM_NAME}.{generation}" if generation else CLAIM_NAME)
    if not create_claim_file(file, holder):
        return None
    stale = {(found.file, found.holder) for found in before}
    others = [
        found
        for found in find_claim_files(path)
        if found.file != file and (found.file, found.holder) not in stale
    ]
    if others:
        file.unlink(missing_ok=True)
        return None
    for found in before:
        found.file.unlink(missing_ok=True)  # whoever wakes up sees that it lost the claim
    return Claim(file, holder)


def _all_stale(path: Path, found: list[ClaimFile]) -> bool:
    if all(one.holder is not None and one.holder.is_gone() for one in found):
        return True
    return not any(_live(found, time_ns_at(path)))


def _live(found: list[ClaimFile], now_ns: int) -> Iterator[ClaimFile]:
    for one in found:
        gone = one.holder is not None and one.holder.is_gone()
        if not gone and now_ns - one.beat_ns <= STALE_S * 1e9:
            yield one
