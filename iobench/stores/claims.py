"""Who is writing a store: a claim file per holder, created exclusively, kept fresh by a heartbeat.

A claim is ``iobench.claim``, holding host and process id; taking over a stale one creates
``iobench.claim.1`` (then ``.2``) exclusively, so that two who find the same stale claim cannot
both win. Whoever has created a file looks around once more and withdraws if another live claim
is there. No flock: network file systems do not keep it. The heartbeat is the file's modification
time, compared with that of a file just written beside it, so that clocks of hosts need not agree.
"""

from __future__ import annotations

import os
import secrets
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from iobench.errors import StorageError, StoreClaimedError
from iobench.stores.atomic import is_local, storage_errors
from iobench.stores.budget import Budget
from iobench.stores.claim_files import (
    CLAIM_NAME,
    ClaimFile,
    create_claim_file,
    find_claim_files,
    is_exclusive,
    read_claim_file,
    renew_claim_file,
    time_ns_at,
)
from iobench.stores.folders import list_folders
from iobench.stores.holders import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.stores.contract import Notice

__all__ = [
    "CLAIM_NAME",
    "JOURNAL_NAME",
    "STALE_S",
    "Claim",
    "Holder",
    "claim",
    "find_holder",
    "find_writer",
    "remove_claims_of_the_dead",
    "try_claim",
]

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
        """Check that the claim still is ours; call it before what cannot be undone.

        Raises
        ------
        StoreClaimedError
            If another process took it over, because this one was suspended for longer than
            `STALE_S`.
        """
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
    path: Path, *, wait_s: float | None = None, notice: Notice | None = None
) -> Iterator[Claim]:
    """Hold the folder ``path`` for writing, waiting for whoever holds it now.

    Parameters
    ----------
    path : Path
        An existing folder.
    wait_s : float, optional
        How long to wait; by default for as long as the holder lives. 0 does not wait.
    notice : callable, optional
        Called once with a line naming the holder when there is someone to wait for.

    Yields
    ------
    Claim
        Held until the block ends.

    Raises
    ------
    StoreClaimedError
        If the claim is not free after ``wait_s``; the message names host and process.
    StorageError
        If the folder cannot be written.
    """
    budget = Budget(wait_s)
    told = False
    while (held := try_claim(path)) is None:
        holder = find_holder(path)
        if holder is not None and budget.spent:
            raise StoreClaimedError(
                f"{path} is being written by {holder}; wait for it, or choose another folder "
                "(--store-dir, or OUT)"
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
    """Return a claim on the folder ``path``, or None where another process holds it.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    StorageError
        If the folder cannot be written.
    """
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
