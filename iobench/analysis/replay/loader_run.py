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
    from iobench.analysis.replay.simulator import StreamShape

Integers = NDArray[np.int64]


class LoaderRule(Enum):
    """How a loader decides who makes which batch, and when."""

    SERIAL = "serial"
    """The training loop makes each batch when it asks for it."""
    POOL = "pool"
    """N processes, N x P batches in flight, batch i by worker i mod N (torch's DataLoader)."""
    THREADS = "threads"
    """N threads or processes take the next batch while a buffer is free."""
    STREAM = "stream"
    """One thread for each stage, with bounded queues between them."""
    OPAQUE = "opaque"
    """Nobody saw who made the batches: it cannot be replayed."""


class RecordedRun(msgspec.Struct, frozen=True):
    """What one loader did in a run, batch by batch: all that its replay needs.

    Parameters
    ----------
    name : str
        For messages: the run, and the loader where it has several.
    in_order : bool
        Whether batches are delivered in the order in which they were asked for.
    workers, prefetch : int
        As configured; 0 workers with `LoaderRule.SERIAL`.
    stages : tuple of str
        What workers do, as reports spell it; the columns of ``work_ns``.
    round : ndarray of int64, shape (n_batches,)
        In which round each was delivered; rows are in the order of delivery.
    work_ns : ndarray of int64, shape (n_batches, n_stages)
        Own time of each stage, on whatever thread did it.
    cpu_ns : ndarray of int64, shape (n_batches, n_stages)
        The part of it on a CPU; -1 where it is not known.
    read_nbytes : ndarray of int64, shape (n_batches,)
        -1 where it is not known.
    gap_ns, submit_ns, transit_ns, pickup_ns, compute_ns : ndarray of int64, shape (n_batches,)
        A worker's time between the stages of the batch; from the submission to an idle worker to
        its first stage; from the last stage to being ready to be picked up; the loop's own part
        of the wait; from holding the batch to asking for the next one, or to the round's end.
    startup_ns, shutdown_ns : ndarray of int64, shape (n_rounds,)
        From the round's first question until workers begin, and the wait that found no more.
    wall_ns, wait_ns : int
        As measured, of all that is replayed.
    steady : ndarray of bool, shape (n_batches,)
        Whether each was delivered in the steady state.
    repeated : ndarray of bool, shape (n_rounds,), optional
        Which rounds are of epochs as a long training has them, whole and after the first; by
        default none.
    restarts : bool
        Whether workers are made again for each round.
    anew : bool
        Whether the loader is, and workers with it, if it has any.
    evaluates : bool
        Whether its batches are of validations, tests or predictions.
    weight : ndarray of float64, shape (n_batches,), optional
        How many batches each stands for, where an epoch is too long to replay all of it; 1 each by
        default.
    reason : str
        Why it cannot be replayed; ``""`` where it can.
    beside_ns : ndarray of int64, shape (n_batches, n_stages), optional
        The part of ``work_ns`` that another thread did after the worker was done with the batch:
        the worker goes on meanwhile. Nothing by default.
    maker : ndarray of int64, shape (n_batches,), optional
        Which worker made each, -1 where unknown; by default in turn.
    batch : ndarray of int64, shape (n_batches,), optional
        Numbers in the order in which batches were asked for; by default that of delivery.
    opening_ns, lead_ns : ndarray of int64, shape (n_rounds,), optional
        The wait for ``iter(loader)`` itself, and from its end to the first question for a batch.
    is_part : bool
        Whether later batches of the loader were left out.
    stream : StreamShape, optional
        Of `LoaderRule.STREAM`.
    loop_stages : tuple of str
        What the loop itself does as it picks batches up: drawing indices, unpickling.
    loop_ns : ndarray of int64, shape (n_batches, n_loop_stages), optional
        The part of ``pickup_ns`` in each of them; nothing by default.
    """

    name: str
    rule: LoaderRule
    in_order: bool
    workers: int
    prefetch: int
    batch_size: int | None
    stages: tuple[str, ...]
    round: Integers
    work_ns: Integers
    cpu_ns: Integers
    read_nbytes: Integers
    gap_ns: Integers
    submit_ns: Integers
    transit_ns: Integers
    pickup_ns: Integers
    compute_ns: Integers
    startup_ns: Integers
    shutdown_ns: Integers
    wall_ns: int
    wait_ns: int
    steady: NDArray[np.bool_]
    reason: str = ""
    repeated: NDArray[np.bool_] | None = None
    restarts: bool = False
    anew: bool = False
    evaluates: bool = False
    weight: NDArray[np.float64] | None = None
    beside_ns: Integers | None = None
    maker: Integers | None = None
    batch: Integers | None = None
    opening_ns: Integers | None = None
    lead_ns: Integers | None = None
    is_part: bool = False
    stream: StreamShape | None = None
    loop_stages: tuple[str, ...] = ()
    loop_ns: Integers | None = None

    def __len__(self) -> int:
        return len(self.round)

    @property
    def is_linked(self) -> bool:
        """Whether what is done beside is copying to a device, over a link that all share."""
        return self.beside_ns is not None and any(
            copies_batches(stage) and column.any()
            for stage, column in zip(self.stages, self.beside_ns.T, strict=True)
        )

    @property
    def recurs(self) -> bool:
        """Whether it has rounds that tell what each of a long training's epochs takes."""
        return self.repeated is not None and bool(self.repeated.any())

    @property
    def window(self) -> Window:
        """What `judged` are of, as `Exposure.window` has it."""
        if self.recurs:
            return "recurring"
        return "steady" if self.steady.any() else "whole"

    @property
    def judged(self) -> NDArray[np.bool_]:
        """The batches that tell what a long training sees: `Exposure.judged`, batch by batch."""
        if self.repeated is not None and self.recurs:
            found: NDArray[np.bool_] = self.repeated[self.round]
            return found
        return self.steady if self.steady.any() else np.ones(len(self), dtype=bool)

    @property
    def judged_epochs(self) -> Integers | None:
        """Of which epoch each of these is, where they are of epochs as a long training has them."""
        return self.round[self.judged] if self.recurs else None

    def judged_ns(self, spent_ns: Integers) -> Integers:
        """Return `Replayed.judged_ns` of what each batch took between two questions."""
        judged = self.judged
        if self.weight is not None:
            spent_ns = np.rint(spent_ns * self.weight).astype(np.int64)
        if not self.recurs:
            return spent_ns[judged]
        found = spent_ns.copy()
        edge = self.round[1:] != self.round[:-1]
        first, last = np.append(True, edge), np.append(edge, True)
        for each in (self.opening_ns, self.lead_ns):
            if each is not None:
                found[first] += each[self.round[first]]
        found[last] += self.shutdown_ns[self.round[last]]
        return found[judged]
