"""A recorded run through the simulator, round by round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
from iobench.analysis.replay.simulator import (
    CPU,
    PAUSE,
    STORAGE,
    Batches,
    Dispatch,
    Resources,
    Use,
    shared,
    straight,
)
from iobench.errors import ProfileError
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS, copies_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Integers = NDArray[np.int64]
READING: Final = frozenset(kind.spelled for kind in READING_KINDS | MIXED_KINDS)
"""Kinds of stages whose waiting may be for storage."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
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


class Replayed(msgspec.Struct, frozen=True):
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


@dataclass(slots=True)
class RunTimes:
    """When everything was in a simulated run, in ns; arrays of one row per batch.

    Parameters
    ----------
    asked, delivered, until : ndarray
        When the loop asked for each batch, held it, and asked again, from its round's start.
    making : ndarray
        How long its worker was at each; only where a machine was shared.
    wall, closing : float
        Of all rounds; of it, waits that brought no batch.
    """

    asked: NDArray[Any]
    delivered: NDArray[Any]
    until: NDArray[Any]
    making: NDArray[np.float64]
    wall: float = 0
    closing: float = 0

    def replayed(self, run: RecordedRun) -> Replayed:
        """Return the figures of the run these are of, in whole ns."""
        waits = np.rint(self.delivered - self.asked).astype(np.int64)
        share = np.rint(self.until - self.asked).astype(np.int64)
        return Replayed(
            wall_ns=round(self.wall),
            wait_ns=int(waits.sum()) + round(self.closing),
            steady_wall_ns=int(share[run.steady].sum()),
            steady_wait_ns=int(waits[run.steady].sum()),
            waits_ns=waits,
            judged_ns=run.judged_ns(share),
        )


def can_replay(run: RecordedRun) -> bool:
    """Tell whether the rule of a run's loader is known, and what it did."""
    return run.rule is not LoaderRule.OPAQUE


def simulated(run: RecordedRun, machine: Machine | None = None) -> RunTimes:
    """Return when everything is, if a run's times are what each batch takes alone.

    Parameters
    ----------
    machine : Machine, optional
        What workers and the loop share; by default nothing is short.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    """
    if not can_replay(run):
        raise ProfileError(f"{run.name}: it cannot be replayed: {run.reason or run.rule.value}")
    how, n = _dispatch(run), len(run)
    if how.is_linked and machine is None:
        machine = Machine()  # the link alone is short
    dtype = np.int64 if machine is None else np.float64
    found = RunTimes(np.zeros(n, dtype), np.zeros(n, dtype), np.zeros(n, dtype), np.zeros(n))
    opening, lead = (_or_zeros(each, run.startup_ns) for each in (run.opening_ns, run.lead_ns))
    found.closing = int(opening.sum() + run.shutdown_ns.sum())
    found.wall = int(run.shutdown_ns.sum())
    firsts, starts = (opening + lead).tolist(), run.startup_ns.tolist()
    resources = None if machine is None else _resources(machine)
    for number, rows, asked, batches in _rounds(run, how, machine):
        first, start = firsts[number], starts[number] if how.ahead or how.stream else 0
        if not len(rows):
            found.wall += first
            continue
        if resources is None:
            times = straight(how, batches, start_ns=start, first_ns=first)
        else:
            times = shared(how, batches, resources, start_ns=start, first_ns=first)
            found.making[asked] = times.making
        delivered = np.array(times.taken, dtype=dtype)
        until = delivered + run.compute_ns[rows] if resources is None else np.array(times.until)
        found.delivered[rows], found.until[rows] = delivered, until
        found.asked[rows] = np.append(first, until[:-1])
        found.wall += until[-1]
    return found


def on_cpu_ns(run: RecordedRun) -> Integers:
    """Return what of each batch and stage was computing: where unknown, all of it.

    But for copies to a device, which it makes by itself while the thread sleeps.
    """
    told = (run.cpu_ns >= 0) & (run.cpu_ns < run.work_ns)
    copies = np.array([copies_batches(stage) for stage in run.stages], dtype=bool)
    untold = np.where(copies & (run.cpu_ns < 0), 0, run.work_ns)
    return np.where(told, run.cpu_ns, untold)


def reads_storage(run: RecordedRun) -> NDArray[np.bool_]:
    """Return of each stage whether its waiting may be for storage."""
    return np.array([name.partition(":")[0] in READING for name in run.stages], dtype=bool)


def _or_zeros(values: Integers | None, like: Integers) -> Integers:
    return np.zeros_like(like) if values is None else values


def _dispatch(run: RecordedRun) -> Dispatch:
    workers, prefetch, shape = max(run.workers, 1), max(run.prefetch, 1), run.stream
    if run.rule is LoaderRule.POOL:
        ahead = workers * prefetch
        return Dispatch(workers, ahead, in_order=run.in_order, is_linked=run.is_linked)
    if run.rule is LoaderRule.THREADS:
        return Dispatch(workers, prefetch, is_queue=True)
    if run.rule is LoaderRule.SERIAL:
        return Dispatch(1, 0)
    if shape is None:
        raise ProfileError(f"{run.name}: a stream without its shape, expected one")
    return Dispatch(1, shape.ahead[-1] if shape.batches_apart else 0, stream=shape)


def _resources(machine: Machine) -> Resources:
    nbytes_per_s = machine.read_nbytes_per_s
    return Resources(
        cpus=math.inf if machine.cores is None else machine.cores,
        storage=math.inf if nbytes_per_s is None else nbytes_per_s / 1e9,
        loop_cpus=machine.loop_cpu_fraction,
    )


def _rounds(
    run: RecordedRun, how: Dispatch, machine: Machine | None
) -> Iterator[tuple[int, Integers, Integers, Batches]]:
    """Yield each round: its rows by delivery and by dispatch, and what its batches take."""
    order = np.argsort(run.round, kind="stable")
    edges = np.searchsorted(run.round[order], np.arange(len(run.startup_ns) + 1)).tolist()
    beside = _or_zeros(run.beside_ns, run.work_ns)
    each = beside.sum(axis=1)
    service = run.work_ns.sum(axis=1) - each + run.gap_ns
    zero, submit, transit = np.zeros(len(run), dtype=np.int64), run.submit_ns, run.transit_ns
    group = np.zeros(0, dtype=np.int64)
    if run.rule is LoaderRule.SERIAL:
        submit = transit = zero
    elif run.stream is not None and run.rule is LoaderRule.STREAM:
        group, n_groups = np.array(run.stream.group), len(run.stream.threads)
        items = np.stack(
            [run.work_ns[:, group == number].sum(axis=1) for number in range(n_groups)], axis=1
        )
        service = items[:, -1] if run.stream.batches_apart else zero
        submit, each = zero, zero
    uses = None if machine is None else _uses(run, beside, machine)
    if machine is not None:
        submit = np.maximum(submit, 0)  # nobody begins a batch in the past
    for number in range(len(run.startup_ns)):
        rows = order[edges[number] : edges[number + 1]]
        asked = rows if run.batch is None else rows[np.argsort(run.batch[rows], kind="stable")]
        yield (
            number,
            rows,
            asked,
            Batches(
                service=service[asked].tolist() if uses is None else [uses[0][at] for at in asked],
                beside=each[asked].tolist() if uses is None else [uses[1][at] for at in asked],
                submit=submit[asked].tolist(),
                transit=transit[asked].tolist(),
                pickup=run.pickup_ns[rows].tolist(),
                compute=run.compute_ns[rows].tolist(),
                worker=_workers(run, asked, how.workers),
                items=items[asked].T.tolist() if len(group) else (),
            ),
        )


def _workers(run: RecordedRun, asked: Integers, n_workers: int) -> list[int]:
    """Return who makes each batch, by the order of dispatch: who did, or in turn."""
    in_turn = np.arange(len(asked)) % n_workers
    if run.maker is not None and run.rule is LoaderRule.POOL:
        known = run.maker[asked]
        in_turn = np.where((known >= 0) & (known < run.workers), known, in_turn)
    workers: list[int] = in_turn.tolist()
    return workers


def _uses(
    run: RecordedRun, beside: Integers, machine: Machine
) -> tuple[list[list[Use]], list[list[Use]]]:
    """Return what each batch's worker does, and what another thread after that.

    Of each stage it waits, then computes; it waits for storage at the rate of the batch's reads,
    at most at what storage gives: the rest was in a cache.
    """
    beside = np.minimum(beside, run.work_ns)
    computed, reads = on_cpu_ns(run), reads_storage(run)
    share = beside / np.maximum(run.work_ns, 1)
    computed_beside = np.rint(computed * share).astype(np.int64)
    in_reads = np.maximum(((run.work_ns - computed) * reads).sum(axis=1), 1)
    rate = np.maximum(run.read_nbytes, 0) / in_reads
    if machine.read_nbytes_per_s is not None:
        rate = np.minimum(rate, machine.read_nbytes_per_s / 1e9)
    rates, from_storage = rate.tolist(), reads.tolist()

    def uses_of(waited: Integers, computed: Integers, gaps: Sequence[int]) -> list[list[Use]]:
        made = []
        for waits, computes, gap, at in zip(
            waited.tolist(), computed.tolist(), gaps, rates, strict=True
        ):
            uses = []
            for wait, compute, is_read in zip(waits, computes, from_storage, strict=True):
                if wait:
                    uses.append(Use(STORAGE, wait, at) if is_read and at else Use(PAUSE, wait))
                if compute:
                    uses.append(Use(CPU, compute))
            if gap:
                uses.append(Use(CPU, gap))
            made.append(uses)
        return made

    own = computed - computed_beside
    return (
        uses_of(run.work_ns - beside - own, own, run.gap_ns.tolist()),
        uses_of(beside - computed_beside, computed_beside, [0] * len(run)),
    )
