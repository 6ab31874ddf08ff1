"""A recorded run with something done otherwise, on a machine whose CPUs and storage are caps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.replay.changes import Change, changed
from iobench.analysis.replay.simulator import Replayed, simulate_run
from iobench.recording.kinds import LOOP_KINDS, Kind, copies_batches, is_one_of
from iobench.recording.span_file import Flag
from iobench.storage.probe_figures import DEVICE, SERVER, STORAGE, read_limits

if TYPE_CHECKING:
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]


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

    def least_ns(self, run: LoaderRun) -> float:
        """Return what CPUs or storage need for all that the batches judged take of them."""
        judged = run.judged
        weight = np.ones(len(run)) if run.weight is None else run.weight
        weight = weight[judged]
        least = 0.0
        if self.cores is not None:
            in_loop = run.compute_ns * self.loop_cpu_fraction
            on_cpu = on_cpu_ns(run).sum(axis=1) + run.gap_ns + run.pickup_ns + in_loop
            least = float((on_cpu[judged] * weight).sum()) / self.cores
        if self.read_nbytes_per_s is not None and (run.read_nbytes >= 0).all():
            nbytes = float((run.read_nbytes[judged] * weight).sum())
            least = max(least, nbytes / self.read_nbytes_per_s * 1e9)
        return least


def replay(
    run: LoaderRun, change: Change | None = None, machine: Machine | None = None
) -> Replayed:
    """Return what a run would have taken with something done otherwise.

    Parameters
    ----------
    change : Change, optional
        By default nothing: the run as it was, for the error of the replay.
    machine : Machine, optional
        What workers share: the batches judged take no less than its CPUs and storage need for
        them. Without it, each works as fast as it did, however many there are.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    OptionError
        If the change cannot be made to this run.
    """
    run = run if change is None else changed(run, change)
    replayed = simulate_run(run)
    total = int(replayed.judged_ns.sum())
    least = 0.0 if machine is None else machine.least_ns(run)
    if not 0 < total < least:
        return replayed
    longer = np.rint(replayed.judged_ns * (least / total)).astype(np.int64)
    return replace(replayed, judged_ns=longer)


def replay_error(run: LoaderRun) -> float:
    """Return by how much the replay of the unmodified run misses its measured wall time.

    Replayed over measured, less 1; NaN where nothing was measured.

    Raises
    ------
    ProfileError
        If the run cannot be replayed.
    """
    replayed = replay(run)
    return replayed.wall_ns / run.wall_ns - 1 if run.wall_ns else float("nan")


def on_cpu_ns(run: LoaderRun) -> Integers:
    """Return what of each batch and stage was computing: where unknown, all of it.

    But for copies to a device, which it makes by itself while the thread sleeps.
    """
    known = (run.cpu_ns >= 0) & (run.cpu_ns < run.work_ns)
    copies = np.array([copies_batches(stage) for stage in run.stages], dtype=bool)
    unknown = np.where(copies & (run.cpu_ns < 0), 0, run.work_ns)
    return np.where(known, run.cpu_ns, unknown)


def machine_of(profile: RunData) -> Machine:
    """Return the machine a run had, as far as its ``run.json`` and its spans tell.

    Its cores are those it was allowed. Storage is bounded by what a probe of the run found of the
    one mount the files lie on; else nothing is known of it.
    """
    facts = profile.run_facts
    cpus, workers = facts.machine.get("cpus"), facts.workers or facts.threads or 1
    limits = next(iter(read_limits(facts.storage_limits)), None)
    fastest = None if limits is None else limits.fastest(workers, DEVICE, SERVER, STORAGE)
    return Machine(
        cores=float(cpus) if isinstance(cpus, int) and cpus > 0 else None,
        read_nbytes_per_s=None if fastest is None else fastest.bytes_per_s,
        loop_cpu_fraction=_loop_cpu_fraction(profile),
    )


def _loop_cpu_fraction(profile: RunData) -> float:
    """Return how much of a CPU the loop's steps took: by their spans, else by what runs them.

    ``iobench profile`` sleeps. A script whose steps tell no CPU time sleeps while a device works,
    and else computes by itself.
    """
    if not profile.is_script:
        return 0.0
    spans = profile.spans
    steps = spans[is_one_of(spans["kind"], LOOP_KINDS - {Kind.OTHER})]
    known = steps[(steps["cpu_ns"] >= 0) & (steps["flags"] == 0)]
    length = int((known["end_ns"].astype(np.int64) - known["start_ns"].astype(np.int64)).sum())
    if length > 0:
        return min(int(known["cpu_ns"].sum()) / length, 1.0)
    return 0.0 if ((spans["flags"] & Flag.DEVICE) != 0).any() else 1.0
