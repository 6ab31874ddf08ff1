"""What one loader did in a run, batch by batch: all that its replay needs."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import Kind, copies_batches

Integers = NDArray[np.int64]

LOCKED_FRACTION: Final = 0.05
"""Of the work, from what time in locks on more workers do more of it at once no longer."""


class LoaderRule(Enum):
    """How a loader decides which worker makes which batch, and when."""

    SERIAL = "serial"
    """The training loop makes each batch when it asks for it."""
    POOL = "pool"
    """N processes, N x P batches in flight, batch i by worker i mod N (torch's DataLoader)."""
    THREADS = "threads"
    """N threads or processes take the next batch while a buffer is free."""
    OPAQUE = "opaque"
    """It cannot be replayed."""


class LoaderRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one loader did in a run; arrays have one row per batch in the order of delivery.

    ``work_ns``, ``cpu_ns`` and ``async_ns`` have a column for each of ``stages``, ``loop_ns`` one
    for each of ``loop_stages``; ``iter_ns`` and all after it one row per round.
    """

    name: str = ""  # for messages: the run, and the loader where it has several
    rule: LoaderRule
    reason: str = ""  # why it cannot be replayed
    workers: int = 0  # 0 of a serial loader, as is prefetch
    prefetch: int = 0
    batch_size: int | None = None
    restarts: bool = False  # workers are started again for each round
    iterable: bool = False  # workers share out the samples themselves
    retains: bool = False  # collections of its dataset grew in its workers, as a cache does
    shuffles: bool = False  # the order of samples is another one in each round
    is_part: bool = False  # later batches were left out
    wall_ns: int  # as measured, of all that is replayed
    wait_ns: int

    round: Integers
    number: Integers  # place in the order in which batches were requested
    worker: Integers  # -1 where it is not known: then in turn
    steady: NDArray[np.bool_]
    weight: NDArray[np.float64] | None = None  # batches it stands for, of an epoch too long
    stages: tuple[str, ...]  # of workers, as reports spell them
    work_ns: Integers  # own time of each stage, on whatever thread
    cpu_ns: Integers  # of it on a CPU, -1 where unknown
    async_ns: Integers  # of it on another thread, after the worker was done with the batch
    read_nbytes: Integers  # -1 where unknown
    gap_ns: Integers  # a worker's time between the stages of the batch
    submit_ns: Integers  # from the submission to an idle worker to its first stage
    transit_ns: Integers  # from the last stage to being ready to be picked up
    pickup_ns: Integers  # the loop's own part of the wait
    compute_ns: Integers  # from holding the batch to the next request, or to the round's end
    loop_stages: tuple[str, ...]  # of the loop as it picks batches up, a part of pickup_ns
    loop_ns: Integers

    iter_ns: Integers  # the wait for iter(loader)
    before_first_ns: Integers  # from its end to the first request for a batch
    startup_ns: Integers  # from the round's begin until workers begin
    shutdown_ns: Integers  # the wait that brought no more
    repeated: NDArray[np.bool_]  # whether it is an epoch as a long training has them

    def __len__(self) -> int:
        return len(self.round)

    @property
    def can_replay(self) -> bool:
        """Whether the rule of the loader is known, and what it did."""
        return self.rule is not LoaderRule.OPAQUE

    @property
    def is_locked(self) -> bool:
        """Whether stages wait for each other's locks, so that one is faster with another."""
        locked = [stage.partition(":")[0] == Kind.LOCK.spelled for stage in self.stages]
        return bool(self.work_ns[:, locked].sum() >= LOCKED_FRACTION * self.work_ns.sum() > 0)

    @property
    def sets_stages(self) -> bool:
        """Whether stages take what they do because of how many workers there are, and how old.

        So it is where they hold locks, share out the samples themselves, or keep what they read.
        """
        # One process alone never waits for a lock that it shares with others.
        shared = [stage.startswith(f"{Kind.LOCK.spelled}:") for stage in self.stages]
        is_shared = bool(self.workers < 2 and self.work_ns[:, shared].any())
        return self.iterable or self.retains or self.is_locked or is_shared

    @property
    def is_linked(self) -> bool:
        """Whether other threads copy to a device, over a link that all share."""
        copies = [copies_batches(stage) for stage in self.stages]
        return bool(self.async_ns[:, copies].any())

    @property
    def recurs(self) -> bool:
        """Whether it has epochs as a long training has them."""
        return bool(self.repeated.any())

    @property
    def judged(self) -> NDArray[np.bool_]:
        """The batches that show what a long training sees: `Exposure.judged`, batch by batch."""
        if self.recurs:
            recurring: NDArray[np.bool_] = self.repeated[self.round]
            return recurring
        return self.steady if self.steady.any() else np.ones(len(self), dtype=bool)

    @property
    def judged_epochs(self) -> Integers | None:
        """Of which epoch each of these is, where they are of epochs as a long training has them."""
        return self.round[self.judged] if self.recurs else None

    def judged_ns(self, spent_ns: Integers) -> Integers:
        """Return what each of these took, of what each batch took between two requests.

        In epochs that recur the first and last have what surrounds the batches of theirs.
        """
        if self.weight is not None:
            spent_ns = np.rint(spent_ns * self.weight).astype(np.int64)
        if self.recurs:
            edge = self.round[1:] != self.round[:-1]
            first, last = np.append(True, edge), np.append(edge, True)
            spent_ns = spent_ns.copy()
            spent_ns[first] += (self.iter_ns + self.before_first_ns)[self.round[first]]
            spent_ns[last] += self.shutdown_ns[self.round[last]]
        return spent_ns[self.judged]
