"""What a replay is made of: what a loader did, what is done otherwise, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from iobench.analysis.figures import Window

__all__ = [
    "Change",
    "LoaderRule",
    "Machine",
    "Payoff",
    "Payoffs",
    "RecordedRun",
    "Replayed",
    "StreamShape",
]

Integers = NDArray[np.int64]

WORTH_FRACTION: Final = 0.01
"""Less than this share of the time is nothing to gain."""


class LoaderRule(Enum):
    """How a loader decides who makes which batch, and when."""

    SERIAL = "serial"
    """The training loop makes each batch when it asks for it."""
    POOL = "pool"
    """N processes, N x P batches under way, batch i by worker i mod N (torch's DataLoader)."""
    THREADS = "threads"
    """N threads or processes take the next batch while a buffer is free."""
    STREAM = "stream"
    """One thread for each stage, with bounded queues between them."""
    OPAQUE = "opaque"
    """Nobody saw who made the batches: it cannot be replayed."""


@dataclass(frozen=True, slots=True)
class StreamShape:
    """How the threads of a stream hang together.

    Parameters
    ----------
    group : tuple of int
        By stage, the group of threads that does it; groups are in the order of the stream.
    threads : tuple of int
        Of each group.
    ahead : tuple of int
        Items that each group may have ready, before it waits for room.
    items : int
        What a batch is made of, and goes through the groups one by one.
    batches_apart : bool
        Whether the last group takes the items of a batch and hands on batches; else the training
        loop takes the items.
    """

    group: tuple[int, ...]
    threads: tuple[int, ...]
    ahead: tuple[int, ...]
    items: int
    batches_apart: bool


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one loader did in a run, batch by batch: all that its replay needs.

    Parameters
    ----------
    name : str
        For messages: the run, and the loader where it has several.
    rule : LoaderRule
    in_order : bool
        Whether batches are delivered in the order in which they were asked for.
    workers, prefetch : int
        As configured; 0 workers with `LoaderRule.SERIAL`.
    batch_size : int or None
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
        Whether workers are made anew for each round.
    anew : bool
        Whether the loader is, and workers with it, if it has any.
    weight : ndarray of float64, shape (n_batches,), optional
        How many batches each stands for, where an epoch is too long to replay all of it; 1 each by
        default.
    reason : str
        Why it cannot be replayed; ``""`` where it can.
    beside_ns : ndarray of int64, shape (n_batches, n_stages), optional
        The part of ``work_ns`` that another thread did after the worker was done with the batch:
        the worker goes on meanwhile. Nothing by default.
    maker : ndarray of int64, shape (n_batches,), optional
        Which worker made each, -1 where nobody knows; by default in turn.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done otherwise; what is None or empty stays as it was.

    Parameters
    ----------
    stage_factors : mapping of str to float
        What the time of each stage is multiplied by: 0.5 is twice as fast, 0 leaves it out.
    workers, prefetch : int, optional
    keep_workers : bool
        Workers live on from one round to the next, and do at the start of a later one what they
        do all the time.
    batch_size : int, optional
        Needs a run whose own is known: work, bytes and compute grow in proportion.
    step_ns : int, optional
        Compute between two batches, instead of what was measured.
    work_of : RecordedRun, optional
        Take what the workers do, and the pick-up, from another run: another format, cold reads.
    read_nbytes_per_s : float, optional
        Reads take as long as their bytes at this rate, where that is longer.
    """

    stage_factors: Mapping[str, float] = field(default_factory=dict)
    workers: int | None = None
    prefetch: int | None = None
    keep_workers: bool = False
    batch_size: int | None = None
    step_ns: int | None = None
    work_of: RecordedRun | None = None
    read_nbytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What all workers and the training loop share.

    Parameters
    ----------
    cores : float or None
        CPUs this run may use; None for as many as it takes.
    read_nbytes_per_s : float or None
        What storage gives all workers together; None for no bound.
    loop_cpu_fraction : float
        How much of a core the training loop's compute takes: 0 for a sleep or a device's work.
    """

    cores: float | None = None
    read_nbytes_per_s: float | None = None
    loop_cpu_fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run recomputed; times in integer ns.

    Parameters
    ----------
    wall_ns, wait_ns : int
        Of all rounds.
    steady_wall_ns, steady_wait_ns : int
        Of the batches that were in the steady state of the recorded run.
    waits_ns : ndarray of int64, shape (n_batches,)
    judged_ns : ndarray of int64, shape (n_judged,)
        What each batch took that tells what a long training sees (`RecordedRun.judged`), from one
        question to the next; in epochs that recur the first and last have what surrounds the
        batches of theirs.
    """

    wall_ns: int
    wait_ns: int
    steady_wall_ns: int
    steady_wait_ns: int
    waits_ns: Integers
    judged_ns: Integers


@dataclass(frozen=True, slots=True)
class Payoff:
    """What some stages would gain if they took ``factor`` times as long.

    Parameters
    ----------
    stages : tuple of str
        Those that are faster, together.
    saved_ns : int
        Of `Payoffs.wall_ns`.
    low, high : float or None
        Share of the time that another run may save, with 95 %; None where there are too few
        batches to tell.
    """

    stages: tuple[str, ...]
    saved_ns: int
    low: float | None = None
    high: float | None = None

    @property
    def stage(self) -> str:
        """Their names, ``"read"`` or ``"read and decode"``."""
        *first, last = self.stages
        return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True, slots=True)
class Payoffs:
    """What faster stages would gain, by replay.

    Parameters
    ----------
    error_fraction : float
        Replayed wall time of the unmodified run over the measured one, less 1. It tells whether
        the loader's rule is understood, not how far the gains may miss: each has that beside it.
    factor : float
    wall_ns : int
        Replayed time of the batches that gains are of, unmodified: those of the steady state,
        where there is one.
    stages : tuple of Payoff
        Each by itself, the largest first.
    joint_ns : int
        Saved if all stages took ``factor`` times as long.
    together : Payoff or None
        The fewest stages that gain nearly all of that; None where one by itself does.
    """

    error_fraction: float
    factor: float
    wall_ns: int
    stages: tuple[Payoff, ...]
    joint_ns: int
    together: Payoff | None = None

    @property
    def withheld(self) -> bool:
        """Whether the replay misses the measured run by more than 10 %: no advice follows."""
        return abs(self.error_fraction) > 0.1

    def fraction(self, saved_ns: float) -> float:
        """Return savings as a share of the time they are of."""
        return saved_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def nothing_helps(self) -> bool:
        """Whether not even all stages together gain anything to speak of."""
        return self.fraction(self.joint_ns) < WORTH_FRACTION

    @property
    def no_single_stage_helps(self) -> bool:
        """Whether stages gain something together, and none of them does by itself."""
        best = max((each.saved_ns for each in self.stages), default=0)
        return not self.nothing_helps and self.fraction(best) < WORTH_FRACTION
