"""How busy CPUs, memory, disks, network and GPUs were in a run's waits, and in its other time."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.host_time import training_process, wait_and_other_ns
from iobench.frozen import frozen
from iobench.json_keys import HIDDEN, key
from iobench.profiles.contents import TRAINING_PROCESS
from iobench.profiles.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Process
    from iobench.profiles.machine_samples import MachineSamples
    from iobench.recording.energy_file import GpuReading

Floats = NDArray[np.float64]
FULL: Final = 0.9
"""Busy for so much of the time that the loop waited: saturated."""
SHORT_OF_MEMORY: Final = 0.1
"""Tasks held up by want of memory for so much of the waits, or ..."""
SWAPPING: Final = 1 << 20
"""... so many bytes a second read back from swap."""
PAGE_NBYTES: Final = 4096


@frozen
class ResourceUse:
    """How busy something was.

    Parameters
    ----------
    name : str
        What it is.
    wait_fraction : float or None
        Of the time that the training loop waited; null where it did not wait, or it is unknown.
    other_fraction : float or None
        Of the rest of its passes.
    saturated : bool
        Whether ``wait_fraction`` is 0.9 or more; of memory, as `MachineUse` says.
    wait_bytes_per_s, limit_bytes_per_s : float or None
        What went through it while the loop waited, and what can at most; null is unknown.
    """

    name: str
    wait_fraction: float | None
    other_fraction: float | None
    saturated: bool
    wait_bytes_per_s: float | None = None
    limit_bytes_per_s: float | None = None


@frozen
class ProcessMemory:
    """The most memory that a process had at once.

    Parameters
    ----------
    name : str
        The training process, or one that loads for it.
    peak_nbytes : int or None
        Resident, pages counted that others share; null where it did not report, as one killed.
    """

    name: str
    peak_nbytes: int | None


@frozen
class MachineUse:
    """One machine, while one training process ran on it.

    Parameters
    ----------
    host : str
        Its name on the network.
    rank : int
        Whose waits are meant: of several training processes of the machine, the one that waited
        longest.
    n_cpus : int
        CPUs that may be used.
    quota_cpus : float or None
        How many of them the cgroup allows to be busy at once; null is no quota.
    cpu : ResourceUse
        Of the CPUs or the quota, the one that was nearer to its end.
    throttled_fraction : float or None
        Of the quota's periods within waits, those in which it was used up.
    memory_nbytes : int or None
        Of the machine, or what the cgroup allows.
    memory_peak_nbytes, cache_peak_nbytes : int or None
        The most that was taken at a reading, page cache left out, and of page cache.
    swapped_nbytes : int or None
        Written to and read from swap; null where there is none.
    memory : ResourceUse or None
        How long some task was held up by want of memory (PSI). Saturated where that is a tenth of
        the waits, or a MiB a second was read back from swap in them; null where both are unknown.
    disks : tuple of ResourceUse
        For how much of the time a request was in flight.
    spinning : tuple of str
        Those that serve one request at a time.
    links : tuple of ResourceUse
        Network, in the way that carried more, of what the link carries; fractions are null where
        that is unknown.
    gpus : tuple of ResourceUse
        For how much of the time something ran on them, as their driver reports it.
    processes : tuple of ProcessMemory
        Of this training process; of a job, of all of them on the machine.
    wait_ns : int
        That readings cover.
    told_apart : float
        How much of a step between two readings is waits where the loop waits, less that where it
        does not: 1 where each step is of one alone, 0 where all are alike.
    step_ns : int
        The median time between two readings.
    reading_ns : int or None
        CPU time of a reading.
    """

    host: str
    rank: int
    n_cpus: int = field(metadata=key("cpus"))
    quota_cpus: float | None
    cpu: ResourceUse
    throttled_fraction: float | None
    memory_nbytes: int | None
    memory_peak_nbytes: int | None
    cache_peak_nbytes: int | None
    swapped_nbytes: int | None
    memory: ResourceUse | None
    disks: tuple[ResourceUse, ...]
    spinning: tuple[str, ...]
    links: tuple[ResourceUse, ...] = field(metadata=key("network"))
    gpus: tuple[ResourceUse, ...]
    processes: tuple[ProcessMemory, ...]
    wait_ns: int = field(metadata=HIDDEN)
    told_apart: float
    step_ns: int
    reading_ns: int | None = field(metadata=key("reading_cpu_s"))


@frozen
class MachineFigures:
    """What the machines of a run were doing during it.

    Parameters
    ----------
    machines : tuple of MachineUse
        By name.
    damaged : tuple of str
        Files of readings that cannot be read.
    """

    machines: tuple[MachineUse, ...]
    damaged: tuple[str, ...] = field(default=(), metadata=key("damaged_files"))


def machine_of(run: RankRun) -> MachineFigures | None:
    """Return what a training process's machine did; None where it was not looked for."""
    use, damaged = _use_of(run), run.whole.damaged_machines
    if use is None and not damaged:
        return None
    return MachineFigures(() if use is None else (use,), damaged)


def _use_of(run: RankRun) -> MachineUse | None:
    who = training_process(run)
    samples = of_process(run.whole.machines, who)
    if samples is None or who is None or len(samples.time_ns) < 2 or not samples.head.cpus:
        return None
    weights = _Weights(run, samples.time_ns)
    if not weights.total:
        return None
    head, values = samples.head, samples.values
    used = "memory.used_nbytes" if head.memory_limit_nbytes is None else "cgroup.used_nbytes"
    cost = samples.cost()
    energy = of_process(run.whole.energy, who)
    swapped = [values[each] for each in ("swap.in_pages", "swap.out_pages") if each in values]
    return MachineUse(
        host=samples.host,
        rank=run.rank,
        n_cpus=len(head.cpus),
        quota_cpus=head.quota_cpus,
        cpu=max(
            (weights.use(name, each) for name, each in samples.cpu_limits().items()),
            key=lambda each: each.wait_fraction or each.other_fraction or 0.0,
        ),
        throttled_fraction=_throttled(samples, weights),
        memory_nbytes=head.memory_limit_nbytes or head.memory_nbytes,
        memory_peak_nbytes=weights.peak(values.get(used)),
        cache_peak_nbytes=weights.peak(values.get("memory.cached_nbytes")),
        swapped_nbytes=weights.swapped(swapped),
        memory=_memory(samples, weights),
        disks=tuple(_disk(samples, name, weights) for name in samples.names("disk")),
        spinning=head.spinning,
        links=tuple(_link(samples, name, weights) for name in samples.names("net")),
        gpus=tuple(_gpus(run, () if energy is None else energy.usage)),
        processes=tuple(_memory_of(each) for each in run.processes if each.rank == run.rank),
        wait_ns=int(weights.wait.sum()),
        told_apart=weights.told_apart,
        step_ns=int(np.median(samples.step_ns)),
        reading_ns=None if cost is None else cost[0] // cost[1],
    )


def machines_together(parts: Sequence[MachineFigures]) -> MachineFigures | None:
    """Return what each machine of a job did while its slowest training process waited."""
    found: dict[str, MachineUse] = {}
    processes: dict[str, tuple[ProcessMemory, ...]] = {}
    for each in (machine for part in parts for machine in part.machines):
        processes[each.host] = processes.get(each.host, ()) + each.processes
        if each.host not in found or each.wait_ns > found[each.host].wait_ns:
            found[each.host] = each
    machines = (replace(each, processes=processes[each.host]) for _, each in sorted(found.items()))
    damaged = tuple(dict.fromkeys(name for part in parts for name in part.damaged))
    return MachineFigures(tuple(machines), damaged) if found or damaged else None


class _Weights:
    """How much of each step between two readings was waits, and how much other time of the run."""

    def __init__(self, run: RankRun, time_ns: NDArray[np.int64]) -> None:
        self.wait, self.other = wait, other = wait_and_other_ns(run, time_ns)
        self.total = int((wait + other).sum())
        share = wait / np.maximum(np.diff(time_ns), 1)  # a step may have time of no pass in it
        apart = [_mean(share, each) or 0.0 for each in (wait, other)]
        self.told_apart = apart[0] - apart[1]

    def use(self, name: str, busy: Floats, **more: float | None) -> ResourceUse:
        wait, other = _mean(busy, self.wait), _mean(busy, self.other)
        return ResourceUse(name, wait, other, wait is not None and wait >= FULL, **more)

    def peak(self, values: Floats | None) -> int | None:
        """Return the largest of the readings around the run's time."""
        if values is None:
            return None
        inside = np.flatnonzero(self.wait + self.other)
        found = values[inside[0] : inside[-1] + 2]
        return None if np.isnan(found).all() else int(np.nanmax(found))

    def swapped(self, columns: Sequence[Floats]) -> int | None:
        """Return the bytes of swap in steps that have time of the run in them."""
        inside = (self.wait + self.other) > 0
        rises = [np.nansum(np.maximum(np.diff(each), 0)[inside]) for each in columns]
        return int(sum(rises)) * PAGE_NBYTES if rises else None


def _mean(values: Floats, weights: NDArray[np.int64]) -> float | None:
    known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _throttled(samples: MachineSamples, weights: _Weights) -> float | None:
    periods, held = map(samples.per_second, ("cgroup.periods", "cgroup.throttled"))
    if periods is None or held is None:
        return None
    return _mean(held / np.maximum(periods, 1e-9), weights.wait)


def _memory(samples: MachineSamples, weights: _Weights) -> ResourceUse | None:
    held, swapped = map(samples.per_second, ("pressure.memory_us", "swap.in_pages"))
    if held is None and swapped is None:
        return None
    unknown = np.full(len(samples.step_ns), np.nan)
    use = weights.use("memory", unknown if held is None else held / 1e6)
    rate = None if swapped is None else _mean(swapped * PAGE_NBYTES, weights.wait)
    short = (use.wait_fraction or 0.0) >= SHORT_OF_MEMORY or (rate or 0.0) >= SWAPPING
    return ResourceUse(use.name, use.wait_fraction, use.other_fraction, short, rate)


def _disk(samples: MachineSamples, name: str, weights: _Weights) -> ResourceUse:
    busy, *ways = (
        samples.per_second(f"disk:{name}.{each}") for each in ("busy_ms", "read", "written")
    )
    moved = sum((each for each in ways if each is not None), np.zeros(len(samples.step_ns)))
    busy = np.full(len(moved), np.nan) if busy is None else np.minimum(busy / 1e3, 1.0)
    return weights.use(name, busy, wait_bytes_per_s=_mean(moved, weights.wait))


def _link(samples: MachineSamples, name: str, weights: _Weights) -> ResourceUse:
    ways = [samples.per_second(f"net:{name}.{each}") for each in ("received", "sent")]
    moved = [each for each in ways if each is not None]
    most = max(moved, key=lambda each: _mean(each, weights.wait) or 0.0)
    limit = samples.head.links.get(name)
    busy = np.minimum(most / limit, 1.0) if limit else np.full(len(most), np.nan)
    rate = _mean(most, weights.wait)
    return weights.use(name, busy, wait_bytes_per_s=rate, limit_bytes_per_s=limit)


def _gpus(run: RankRun, usage: Iterable[GpuReading]) -> Iterable[ResourceUse]:
    by_gpu: dict[str, list[GpuReading]] = {}
    for reading in usage:
        by_gpu.setdefault(reading.source.name, []).append(reading)
    for readings in by_gpu.values():
        time_ns = np.array([each.time_ns for each in readings], dtype=np.int64)
        percent = [each.busy_percent for each in readings[1:]]
        if len(time_ns) > 1 and (np.diff(time_ns) > 0).all():
            busy = np.array([np.nan if each is None else each / 100 for each in percent])
            yield _Weights(run, time_ns).use(readings[0].source.title, busy)


def _memory_of(process: Process) -> ProcessMemory:
    name = TRAINING_PROCESS if process.role == "consumer" else process.name
    return ProcessMemory(name, process.peak_nbytes)
