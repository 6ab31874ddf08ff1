"""What one loader did in a run, batch by batch: all that its replay needs."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import copies_batches

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Window

Integers = NDArray[np.int64]


class LoaderRule(Enum):
    """How a loader decides who makes which batch, and when."""

    SERIAL = "serial"
    """The training loop makes each batch when it asks for it."""
    POOL = "pool"
    """N processes, N x P batches in flight, batch i by worker i mod N (torch's DataLoader)."""
    THREADS = "threads"
    """N threads or processes take the next batch while a buffer is free."""
    OPAQUE = "opaque"
    """It cannot be replayed."""


class LoaderRun(msgspec.Struct, frozen=True, kw_only=True):
    """What one loader did in a run, batch by batch: all that its replay needs.

    Arrays have one row per batch in the order of delivery, unless said otherwise.

    Parameters
    ----------
    name : str
        For messages: the run, and the loader where it has several.
    reason : str
        Why it cannot be replayed; ``""`` where it can.
    workers, prefetch : int
        As configured; 0 with `LoaderRule.SERIAL`.
    stages : tuple of str
        What workers do, as reports spell it; the columns of ``work_ns``, ``cpu_ns``, ``beside_ns``.
    round, number, worker : ndarray of int64
        In which round each was delivered; its place in the order in which batches were asked for;
        which worker made it, -1 where that is not known: then in turn.
    work_ns, cpu_ns, beside_ns : ndarray of int64, shape (n_batches, n_stages)
        Own time of each stage, on whatever thread did it; of it on a CPU, -1 where it is not
        known; of it on another thread, after the worker was done with the batch.
    read_nbytes : ndarray of int64
        -1 where it is not known.
    gap_ns, submit_ns, transit_ns, pickup_ns, compute_ns : ndarray of int64
        A worker's time between the stages of the batch; from the submission to an idle worker to
        its first stage; from the last stage to being ready to be picked up; the loop's own part
        of the wait; from holding the batch to asking for the next one, or to the round's end.
    loop_stages, loop_ns : tuple of str, ndarray of int64, shape (n_batches, n_loop_stages)
        What the loop itself does as it picks batches up, a part of ``pickup_ns``.
    steady : ndarray of bool
        Whether each was delivered in the steady state.
    weight : ndarray of float64, optional
        How many batches each stands for, where an epoch is too long to replay all of it.
    opening_ns, lead_ns, startup_ns, shutdown_ns : ndarray of int64, shape (n_rounds,)
        The wait for ``iter(loader)``; from its end to the first question for a batch; from the
        round's begin until workers begin; the wait that brought no more.
    repeated : ndarray of bool, shape (n_rounds,)
        Which rounds are of epochs as a long training has them, whole and after the first.
    wall_ns, wait_ns : int
        As measured, of all that is replayed.
    restarts, anew : bool
        Whether workers are made again for each round; whether the loader is.
    is_part : bool
        Whether later batches of the loader were left out.
    """

    name: str
    rule: LoaderRule
    reason: str = ""
    workers: int
    prefetch: int
    batch_size: int | None
    stages: tuple[str, ...]
    round: Integers
    number: Integers
    worker: Integers
    work_ns: Integers
    cpu_ns: Integers
    beside_ns: Integers
    read_nbytes: Integers
    gap_ns: Integers
    submit_ns: Integers
    transit_ns: Integers
    pickup_ns: Integers
    compute_ns: Integers
    loop_stages: tuple[str, ...]
    loop_ns: Integers
    steady: NDArray[np.bool_]
    weight: NDArray[np.float64] | None = None
    opening_ns: Integers
    lead_ns: Integers
    startup_ns: Integers
    shutdown_ns: Integers
    repeated: NDArray[np.bool_]
    wall_ns: int
    wait_ns: int
    restarts: bool = False
    anew: bool = False
    is_part: bool = False

    def __len__(self) -> int:
        return len(self.round)

    @property
    def can_replay(self) -> bool:
        """Whether the rule of the loader is known, and what it did."""
        return self.rule is not LoaderRule.OPAQUE

    @property
    def is_linked(self) -> bool:
        """Whether what is done beside is copying to a device, over a link that all share."""
        copies = [copies_batches(stage) for stage in self.stages]
        return bool(self.beside_ns[:, copies].any())

    @property
    def recurs(self) -> bool:
        """Whether it has rounds that tell what each of a long training's epochs takes."""
        return bool(self.repeated.any())

    @property
    def window(self) -> Window:
        """What `judged` are of, as `Exposure.window` has it."""
        if self.recurs:
            return "recurring"
        return "steady" if self.steady.any() else "whole"

    @property
    def judged(self) -> NDArray[np.bool_]:
        """The batches that tell what a long training sees: `Exposure.judged`, batch by batch."""
        if self.recurs:
            recurring: NDArray[np.bool_] = self.repeated[self.round]
            return recurring
        return self.steady if self.steady.any() else np.ones(len(self), dtype=bool)

    @property
    def judged_epochs(self) -> Integers | None:
        """Of which epoch each of these is, where they are of epochs as a long training has them."""
        return self.round[self.judged] if self.recurs else None

    def judged_ns(self, spent_ns: Integers) -> Integers:
        """Return what each of these took, of what each batch took between two questions.

        In epochs that recur the first and last have what surrounds the batches of theirs.
        """
        if self.weight is not None:
            spent_ns = np.rint(spent_ns * self.weight).astype(np.int64)
        if self.recurs:
            edge = self.round[1:] != self.round[:-1]
            first, last = np.append(True, edge), np.append(edge, True)
            spent_ns = spent_ns.copy()
            spent_ns[first] += (self.opening_ns + self.lead_ns)[self.round[first]]
            spent_ns[last] += self.shutdown_ns[self.round[last]]
        return spent_ns[self.judged]
