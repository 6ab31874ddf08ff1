"""A recorded run with something done otherwise, on its machine or another one.

What was measured while CPUs or storage were short is stretched: part of each duration is waiting
for a turn. A prediction for other workers has to start from what each would have taken alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
from iobench.analysis.replay.simulated_run import (
    Machine,
    Replayed,
    can_replay,
    on_cpu_ns,
    reads_storage,
    simulated,
)
from iobench.recording.kinds import LOOP_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.storage.probe_figures import DEVICE, SERVER, STORAGE, read_limits

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
HALVINGS: Final = 10
AGREES_FRACTION: Final = 0.002
"""Durations this near to the measured ones need no search."""


def replay(
    run: RecordedRun, change: Change | None = None, machine: Machine | None = None
) -> Replayed:
    """Return what a run would have taken with something done otherwise.

    Parameters
    ----------
    change : Change, optional
        By default nothing: the run as it was, for the error of the replay.
    machine : Machine, optional
        What workers share. Without it, each works as fast as it did, however many there are; so
        do the threads of a stream with it, since they stay as many.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    OptionError
        If the change cannot be made to this run.
    """
    if machine is not None and run.rule is not LoaderRule.STREAM and can_replay(run):
        return demands_of(run, machine).replay(change or Change())
    run = run if change is None else changed(run, change)
    return simulated(run).replayed(run)


def replay_error(run: RecordedRun) -> float:
    """Return by how much the replay of the unmodified run misses its measured wall time.

    Returns
    -------
    float
        Replayed over measured, less 1; NaN where nothing was measured.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    """
    replayed = replay(run)
    return replayed.wall_ns / run.wall_ns - 1 if run.wall_ns else float("nan")


def slowdown_at_rate(run: RecordedRun, nbytes_per_s: float) -> float | None:
    """Return how much longer batches take if all workers together read at this rate at most.

    Of the batches that are judged; at least as long as their bytes take. 1 where the loop hides
    it; None where the run, or at such a rate, cannot be replayed.
    """
    known = len(run) and (run.read_nbytes >= 0).all()
    if not can_replay(run) or run.rule is LoaderRule.STREAM or not known:
        return None
    slower = changed(run, Change(read_nbytes_per_s=nbytes_per_s))
    # What was added waits for storage, also where nobody knows what of a read computes.
    cpu_ns = np.where(run.cpu_ns < 0, run.work_ns, run.cpu_ns)
    more = slower.work_ns.shape[1] - cpu_ns.shape[1]
    cpu_ns = np.hstack((cpu_ns, np.zeros((len(run), more), dtype=np.int64)))
    slower = replace(slower, cpu_ns=cpu_ns)
    before = int(simulated(run).replayed(run).judged_ns.sum())
    machine = Machine(read_nbytes_per_s=nbytes_per_s)
    after = int(simulated(slower, machine).replayed(slower).judged_ns.sum())
    weight = 1.0 if run.weight is None else run.weight[run.judged]
    least = float((run.read_nbytes[run.judged] * weight).sum()) / nbytes_per_s * 1e9
    return max(after, least, before) / before if before else None


class Demands(msgspec.Struct, frozen=True):
    """A run as it would be if nobody were in anybody's way.

    Parameters
    ----------
    run : RecordedRun
        Its durations are demands.
    machine : Machine
        With the part of a CPU that the loop's own demand takes.
    cpu_stretch, read_stretch : float
        How much longer computing and reading took in the measured run; 1 where nothing was short.
    """

    run: RecordedRun
    machine: Machine
    cpu_stretch: float
    read_stretch: float

    def replay(self, change: Change, machine: Machine | None = None) -> Replayed:
        """Return what comes of the run with a change, on its machine or another one.

        A stream, whose stages have threads of their own, is replayed as if nothing were short.

        Raises
        ------
        OptionError
            If the change cannot be made to this run.
        """
        if self.run.rule is LoaderRule.STREAM:
            return replay(self.run, change)
        run = changed(self.run, change)
        return simulated(run, machine or self.machine).replayed(run)


def machine_of(profile: RunData, *, read_nbytes_per_s: float | None = None) -> Machine:
    """Return the machine a run had, as far as its ``run.json`` and its spans tell.

    Its cores are those it was allowed. Storage is bounded by what a probe of the run, else
    ``iobench limits``, found of the one mount the files lie on; else nothing is known of it.

    Parameters
    ----------
    read_nbytes_per_s : float, optional
        What storage gives, where that is known better.
    """
    cpus = profile.run_facts.machine.get("cpus")
    if read_nbytes_per_s is None:
        read_nbytes_per_s = _probed_rate(profile)
    return Machine(
        cores=float(cpus) if isinstance(cpus, int) and cpus > 0 else None,
        read_nbytes_per_s=read_nbytes_per_s,
        loop_cpu_fraction=_loop_cpu_fraction(profile),
    )


def _probed_rate(profile: RunData) -> float | None:
    workers = profile.run_facts.workers or profile.run_facts.threads or 1
    for limits in read_limits(profile.run_facts.storage_limits):
        found = limits.fastest(workers, DEVICE, SERVER, STORAGE)
        return None if found is None else found.bytes_per_s
    return None


def _loop_cpu_fraction(profile: RunData) -> float:
    """Return how much of a CPU the loop's steps took: by their spans, else by what runs them.

    ``iobench profile`` sleeps. A script whose steps tell no CPU time sleeps while a device works,
    and else computes by itself.
    """
    if not profile.is_script:
        return 0.0
    spans = profile.spans
    steps = spans[is_one_of(spans["kind"], LOOP_KINDS - {Kind.OTHER})]
    told = steps[(steps["cpu_ns"] >= 0) & (steps["flags"] == 0)]
    length = int((told["end_ns"].astype(np.int64) - told["start_ns"].astype(np.int64)).sum())
    if length > 0:
        return min(int(told["cpu_ns"].sum()) / length, 1.0)
    return 0.0 if ((spans["flags"] & Flag.DEVICE) != 0).any() else 1.0


def demands_of(run: RecordedRun, machine: Machine) -> Demands:
    """Return what a run's batches demand, if it ran on this machine.

    Of a stage the CPU time is its demand. What it was off the CPU may be queueing: in proportion
    to its CPU time, as much as makes the contended run take as long over its batches as measured.
    What is not explained by that, and was read, is put down to storage the same way.
    """
    if not len(run) or run.rule in (LoaderRule.SERIAL, LoaderRule.STREAM):
        return Demands(run, machine, 1.0, 1.0)
    beside = 0 if run.beside_ns is None else int(run.beside_ns.sum())
    measured = float(run.work_ns.sum() + run.gap_ns.sum() - beside)

    def excess(cpu_stretch: float, read_stretch: float, on: Machine) -> float:
        alone, without = _unstretched(run, on, cpu_stretch, read_stretch)
        making = simulated(alone, without).making
        return float(making.sum()) - measured

    of_cpus = replace(machine, read_nbytes_per_s=None)
    slack = AGREES_FRACTION * measured
    cpu_stretch = _smallest(
        lambda stretch: excess(stretch, 1.0, of_cpus) <= slack, _most_stretched(run, machine)
    )
    read_stretch = 1.0
    if machine.read_nbytes_per_s is not None:
        # Storage explains what sharing it adds, and not what CPUs have left unexplained.
        left = max(slack, excess(cpu_stretch, 1.0, of_cpus))
        read_stretch = _smallest(
            lambda stretch: excess(cpu_stretch, stretch, machine) <= left, run.workers
        )
    alone, without = _unstretched(run, machine, cpu_stretch, read_stretch)
    return Demands(alone, without, cpu_stretch, read_stretch)


def _most_stretched(run: RecordedRun, machine: Machine) -> float:
    """Return how much longer computing can have taken: by all who may have been in its way.

    Where CPU times are known, they leave no more for queueing than what they leave.
    """
    if machine.cores is None:
        return 1.0
    most = (run.workers + max(machine.loop_cpu_fraction, 1.0)) / machine.cores
    computed = int(on_cpu_ns(run).sum())
    if computed and (run.cpu_ns >= 0).all():
        most = min(most, int(run.work_ns.sum()) / computed)
    return max(most, 1.0)


def _smallest(enough: Callable[[float], bool], limit: float) -> float:
    """Return the smallest stretch from 1 to a limit that is enough, else the limit."""
    if limit <= 1 or enough(1.0):
        return 1.0
    low, high = 1.0, limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _unstretched(
    run: RecordedRun, machine: Machine, cpu_stretch: float, read_stretch: float
) -> tuple[RecordedRun, Machine]:
    """Return the run with what was queueing taken out, and the machine with the loop's part."""
    computed = on_cpu_ns(run)
    waited = run.work_ns - computed
    queued = np.minimum(waited, np.rint((cpu_stretch - 1) * computed).astype(np.int64))
    waited = waited - queued
    reads = reads_storage(run) & (run.read_nbytes > 0)[:, None]
    waited = np.where(reads, _shrunk(waited, read_stretch), waited)
    # Of what nobody knows to be waiting all was computing, and queueing for it.
    computed = np.where(run.cpu_ns >= 0, computed, _shrunk(computed, cpu_stretch))
    fraction = machine.loop_cpu_fraction
    compute = run.compute_ns
    if 0 < fraction < 1:
        on_cpu = fraction * compute
        compute = compute - np.minimum(compute - on_cpu, (cpu_stretch - 1) * on_cpu)
        total = float(compute.sum())
        fraction = min(float(on_cpu.sum()) / total, 1.0) if total > 0 else fraction
        compute = np.rint(compute).astype(np.int64)
    work = computed + waited
    beside = run.beside_ns
    if beside is not None:
        beside = np.rint(beside * (work / np.maximum(run.work_ns, 1))).astype(np.int64)
    alone = replace(
        run,
        work_ns=work,
        beside_ns=beside,
        cpu_ns=np.where(run.cpu_ns >= 0, computed, -1),
        gap_ns=_shrunk(run.gap_ns, cpu_stretch),
        pickup_ns=_shrunk(run.pickup_ns, cpu_stretch),
        compute_ns=compute,
    )
    return alone, replace(machine, loop_cpu_fraction=fraction)


def _shrunk(durations: Integers, stretch: float) -> Integers:
    return durations if stretch == 1.0 else np.rint(durations / stretch).astype(np.int64)
