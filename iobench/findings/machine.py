"""How busy CPUs, memory, disks, network and GPUs were in a run's waits, and in its other time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.host_time import training_process, wait_and_other_ns
from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, key
from iobench.recording.machine_head import PAGE_NBYTES
from iobench.report import units
from iobench.report.document import Section, sentences
from iobench.runs.contents import TRAINING_PROCESS
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.run import RankRun
    from iobench.runs.machine_samples import MachineSamples

Floats = NDArray[np.float64]
FULL: Final = 0.9
"""Busy for so much of the time that the loop waited: saturated."""
SHORT_OF_MEMORY: Final = 0.1
"""Tasks held up by want of memory for so much of the waits, or ..."""
SWAPPING: Final = 1 << 20
"""... so many bytes a second read back from swap."""
MOST_MACHINES: Final = 4
MOST_DEVICES: Final = 3
WORTH_SAYING: Final = 0.01
"""Of a disk or link that was busy for less, nothing is said."""
SEPARATE: Final = 0.5
"""From this on waits are of other steps between readings than the rest, by and large."""


class ResourceUse(msgspec.Struct, frozen=True):
    """How busy something was while the training loop waited and in the rest of its passes.

    Parameters
    ----------
    wait_fraction, other_fraction : float or None
        Of the time; null where there was none, or it is unknown.
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


class ProcessMemory(msgspec.Struct, frozen=True):
    """The most memory that a process had at once, shared pages counted; null where unknown."""

    name: str
    peak_nbytes: int | None


class MachineUse(msgspec.Struct, frozen=True):
    """One machine, while one training process ran on it.

    Parameters
    ----------
    rank : int
        Whose waits are meant: of several training processes of the machine, the one that waited
        longest.
    cpu : ResourceUse
        Of the CPUs or the cgroup's quota, the one that was nearer to its end.
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
    spinning : tuple of str
        Disks that serve one request at a time.
    links : tuple of ResourceUse
        Network, in the way that carried more, of what the link carries.
    separability : float
        How much of a step between two readings is waits where the loop waits, less that where it
        does not: 1 where each step is of one alone, 0 where all are alike.
    step_ns : int
        The median time between two readings.
    reading_ns : int or None
        CPU time of a reading.
    """

    host: str
    rank: int
    n_cpus: int
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
    links: tuple[ResourceUse, ...]
    gpus: tuple[ResourceUse, ...]
    processes: tuple[ProcessMemory, ...]
    wait_ns: int
    separability: float
    step_ns: int
    reading_ns: int | None
    JSON_KEYS: ClassVar = {
        "n_cpus": key("cpus"),
        "links": key("network"),
        "wait_ns": HIDDEN,
        "reading_ns": key("reading_cpu_s"),
    }


class MachineFigures(msgspec.Struct, frozen=True):
    """What the machines of a run were doing during it, by name, and damaged files of readings."""

    machines: tuple[MachineUse, ...]
    damaged: tuple[str, ...] = ()
    JSON_KEYS: ClassVar = {
        "damaged": key("damaged_files"),
    }


def machine_of(run: RankRun) -> MachineFigures | None:
    """Return what a training process's machine did; None where it was not looked for."""
    use, damaged = _use_of(run), run.damaged_machines
    if use is None and not damaged:
        return None
    return MachineFigures(() if use is None else (use,), damaged)


def _use_of(run: RankRun) -> MachineUse | None:
    process = training_process(run)
    samples = of_process(run.machines, process)
    if samples is None or process is None or len(samples.time_ns) < 2 or not samples.head.cpus:
        return None
    weights = _Weights(run, samples.time_ns)
    if not weights.total:
        return None
    head, values = samples.head, samples.values
    used = "memory.used_nbytes" if head.memory_limit_nbytes is None else "cgroup.used_nbytes"
    cost, energy = samples.cost(), of_process(run.energy, process)
    swapped = [values[each] for each in ("swap.in_pages", "swap.out_pages") if each in values]
    periods, throttled = map(samples.per_second, ("cgroup.periods", "cgroup.throttled"))
    shares = None
    if periods is not None and throttled is not None:
        shares = throttled / np.maximum(periods, 1e-9)
    return MachineUse(
        host=samples.host,
        rank=run.rank,
        n_cpus=len(head.cpus),
        quota_cpus=head.quota_cpus,
        cpu=max(
            (weights.use(name, each) for name, each in samples.cpu_limits().items()),
            key=lambda each: each.wait_fraction or each.other_fraction or 0.0,
        ),
        throttled_fraction=None if shares is None else _mean(shares, weights.wait),
        memory_nbytes=head.memory_limit_nbytes or head.memory_nbytes,
        memory_peak_nbytes=weights.peak(values.get(used)),
        cache_peak_nbytes=weights.peak(values.get("memory.cached_nbytes")),
        swapped_nbytes=weights.swapped(swapped),
        memory=_memory_use(samples, weights),
        disks=tuple(_disk_use(samples, name, weights) for name in samples.names("disk")),
        spinning=head.spinning,
        links=tuple(_link_use(samples, name, weights) for name in samples.names("net")),
        gpus=tuple(
            _Weights(run, each.time_ns).use(each.title, each.busy[1:])
            for each in (() if energy is None else energy.gpus)
            if len(each.time_ns) > 1 and (np.diff(each.time_ns) > 0).all()
        ),
        processes=tuple(
            ProcessMemory(
                TRAINING_PROCESS if each.role == "consumer" else each.name, each.peak_nbytes
            )
            for each in run.all_processes
            if each.rank == run.rank
        ),
        wait_ns=int(weights.wait.sum()),
        separability=weights.separability,
        step_ns=int(np.median(samples.step_ns)),
        reading_ns=None if cost is None else cost[0] // cost[1],
    )


def machines_together(parts: Sequence[MachineFigures]) -> MachineFigures | None:
    """Return what each machine of a job did while its slowest training process waited."""
    uses: dict[str, list[MachineUse]] = {}
    for each in (machine for part in parts for machine in part.machines):
        uses.setdefault(each.host, []).append(each)
    machines = (
        replace(
            max(of, key=lambda each: each.wait_ns),
            processes=tuple(process for each in of for process in each.processes),
        )
        for _, of in sorted(uses.items())
    )
    damaged = tuple(dict.fromkeys(name for part in parts for name in part.damaged))
    return MachineFigures(tuple(machines), damaged) if uses or damaged else None


class _Weights:
    """How much of each step between two readings was waits, and how much other time of the run."""

    def __init__(self, run: RankRun, time_ns: NDArray[np.int64]) -> None:
        self.wait, self.other = wait, other = wait_and_other_ns(run, time_ns)
        self.total = int((wait + other).sum())
        share = wait / np.maximum(np.diff(time_ns), 1)  # a step may have time of no pass in it
        in_waits, elsewhere = (_mean(share, each) or 0.0 for each in (wait, other))
        self.separability = in_waits - elsewhere

    def use(self, name: str, busy: Floats, **more: float | None) -> ResourceUse:
        wait, other = _mean(busy, self.wait), _mean(busy, self.other)
        return ResourceUse(name, wait, other, wait is not None and wait >= FULL, **more)

    def peak(self, values: Floats | None) -> int | None:
        """Return the largest of the readings around the run's time."""
        if values is None:
            return None
        inside = np.flatnonzero(self.wait + self.other)
        around = values[inside[0] : inside[-1] + 2]
        return None if np.isnan(around).all() else int(np.nanmax(around))

    def swapped(self, columns: Sequence[Floats]) -> int | None:
        """Return the bytes of swap in steps that have time of the run in them."""
        inside = (self.wait + self.other) > 0
        rises = [np.nansum(np.maximum(np.diff(each), 0)[inside]) for each in columns]
        return int(sum(rises)) * PAGE_NBYTES if rises else None


def _mean(values: Floats, weights: NDArray[np.int64]) -> float | None:
    known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _memory_use(samples: MachineSamples, weights: _Weights) -> ResourceUse | None:
    held, swapped = map(samples.per_second, ("pressure.memory_us", "swap.in_pages"))
    if held is None and swapped is None:
        return None
    unknown = np.full(len(samples.step_ns), np.nan)
    use = weights.use("memory", unknown if held is None else held / 1e6)
    rate = None if swapped is None else _mean(swapped * PAGE_NBYTES, weights.wait)
    short = (use.wait_fraction or 0.0) >= SHORT_OF_MEMORY or (rate or 0.0) >= SWAPPING
    return ResourceUse(use.name, use.wait_fraction, use.other_fraction, short, rate)


def _disk_use(samples: MachineSamples, name: str, weights: _Weights) -> ResourceUse:
    busy, *moves = (
        samples.per_second(f"disk:{name}.{each}") for each in ("busy_ms", "read", "written")
    )
    moved = sum((each for each in moves if each is not None), np.zeros(len(samples.step_ns)))
    busy = np.full(len(moved), np.nan) if busy is None else np.minimum(busy / 1e3, 1.0)
    return weights.use(name, busy, wait_bytes_per_s=_mean(moved, weights.wait))


def _link_use(samples: MachineSamples, name: str, weights: _Weights) -> ResourceUse:
    moves = [samples.per_second(f"net:{name}.{each}") for each in ("received", "sent")]
    most = max(
        (each for each in moves if each is not None),
        key=lambda each: _mean(each, weights.wait) or 0.0,
    )
    limit = samples.head.links.get(name)
    busy = np.minimum(most / limit, 1.0) if limit else np.full(len(most), np.nan)
    rate = _mean(most, weights.wait)
    return weights.use(name, busy, wait_bytes_per_s=rate, limit_bytes_per_s=limit)


def machine_section(figures: MachineFigures) -> Section:
    """Return what each machine did; of many, those first where something was saturated."""
    ordered = sorted(figures.machines, key=lambda each: -sum(use.saturated for use in _uses(each)))
    lines: list[str] = []
    for each in ordered[:MOST_MACHINES]:
        where = f"{each.host}, while rank {each.rank} waited: " if len(ordered) > 1 else ""
        parts = (_cpu_lines(each), _memory_lines(each), _device_lines(each))
        lines += [f"{where}{' '.join(part)}" for part in parts]
    if len(ordered) > MOST_MACHINES:
        lines.append(f"{units.count(len(ordered) - MOST_MACHINES)} more machines are in the JSON.")
    lines += _notes(ordered)
    if figures.damaged:
        files = ", ".join(figures.damaged)
        lines.append(f"Damaged files, whose content is missing here: {files}.")
    return Section("machine", "The machine during the run", sentences(lines))


def _uses(each: MachineUse) -> Iterator[ResourceUse]:
    yield from (each.cpu, *each.disks, *each.links, *each.gpus)
    if each.memory is not None:
        yield each.memory


def _both(use: ResourceUse, word: str = "", *, rate: bool = True) -> str:
    """Return how busy something was, in the waits and else, and what went through it there."""
    word = f" {word}" if word else ""
    if use.wait_fraction is None and use.other_fraction is None:
        return units.UNKNOWN
    if use.wait_fraction is None:
        return f"{units.fraction(use.other_fraction)}{word} over the run"
    waits = f"{units.fraction(use.wait_fraction)}{word} while the loop waited"
    if rate and use.wait_bytes_per_s is not None:
        waits += f" ({units.byte_rate(use.wait_bytes_per_s)})"
    if use.other_fraction is None:
        return waits
    return f"{waits}, {units.fraction(use.other_fraction)} else"


def _end(use: ResourceUse) -> str:
    return ": saturated." if use.saturated else "."


def _cpu_lines(each: MachineUse) -> Iterator[str]:
    if each.cpu.name == "quota" and each.quota_cpus is not None:
        of = f"of the {units.number(each.quota_cpus)} CPUs that the cgroup allows"
    else:
        of = "of the one CPU" if each.n_cpus == 1 else f"of the {units.count(each.n_cpus)} CPUs"
        of += " that this job may use"
    yield f"CPUs: {_both(each.cpu, 'busy')}, {of}{_end(each.cpu)}"
    if each.throttled_fraction:
        yield f"The quota was used up in {units.fraction(each.throttled_fraction)} of its periods."
    for gpu in each.gpus:
        yield f"{gpu.name}: {_both(gpu, 'busy')}{_end(gpu)}"


def _memory_lines(each: MachineUse) -> Iterator[str]:
    taken = "unknown" if each.memory_peak_nbytes is None else units.nbytes(each.memory_peak_nbytes)
    parts = [f"Memory: at most {taken}"]
    if each.memory_nbytes is not None:
        parts[0] += f" of {units.nbytes(each.memory_nbytes)}"
    parts[0] += " used"
    if each.cache_peak_nbytes is not None:
        parts[0] += f", and {units.nbytes(each.cache_peak_nbytes)} of page cache on the machine"
    if each.swapped_nbytes:
        parts.append(f"{units.nbytes(each.swapped_nbytes)} swapped")
    elif each.swapped_nbytes == 0:
        parts.append("no swapping")
    if each.memory is not None and each.memory.wait_fraction is not None:
        held = _both(each.memory, rate=False)
        parts.append(f"tasks were held up for lack of memory for {held}")
    short = ": short of memory" if each.memory is not None and each.memory.saturated else ""
    yield f"{'; '.join(parts)}{short}."
    if each.processes:
        yield _process_line(each.processes)


def _process_line(processes: Sequence[ProcessMemory]) -> str:
    """Return the most memory of each process: each by its name, of many the range."""
    known = [(each.name, each.peak_nbytes) for each in processes if each.peak_nbytes is not None]
    parts = [f"{name} {units.nbytes(nbytes)}" for name, nbytes in known]
    if len(known) > MOST_DEVICES:
        name, most = max(known, key=lambda each: each[1])
        least = min(nbytes for _, nbytes in known)
        parts = [f"{units.nbytes(least)} to {units.nbytes(most)} ({name})"]
    if n_unknown := len(processes) - len(known):
        parts.append(
            f"unknown for {units.count(n_unknown)} that did not record it, such as a killed one"
        )
    if len(processes) == 1:
        return f"Its process at most: {', '.join(parts)}."
    return (
        f"Its {units.count(len(processes))} processes at most, counting shared memory in each: "
        f"{', '.join(parts)}."
    )


def _device_lines(each: MachineUse) -> Iterator[str]:
    if not each.disks and not each.links:
        yield "Disks and network: unknown."
        return
    disks, links = (
        sorted(filter(_is_used, of), key=_rank, reverse=True) for of in (each.disks, each.links)
    )
    for disk in disks[:MOST_DEVICES]:
        yield f"Disk {disk.name}: requests in flight for {_both(disk)}{_end(disk)}"
        if disk.saturated and disk.name not in each.spinning:
            yield "A disk that serves many requests at once may still deliver more then."
    if not disks:
        yield "Disks: idle." if each.disks else "Disks: unknown."
    for link in links[:MOST_DEVICES]:
        if link.limit_bytes_per_s is None:
            rate = units.byte_rate(link.wait_bytes_per_s)
            yield f"Network {link.name}: {rate} while the loop waited, of unknown speed."
        else:
            limit = units.byte_rate(link.limit_bytes_per_s)
            yield f"Network {link.name}: {_both(link)}, of {limit}{_end(link)}"


def _is_used(use: ResourceUse) -> bool:
    shares = [each for each in (use.wait_fraction, use.other_fraction) if each is not None]
    if not shares:  # a link of unknown speed
        return (use.wait_bytes_per_s or 0.0) >= 1 << 20
    return max(shares) >= WORTH_SAYING


def _rank(use: ResourceUse) -> tuple[float, float]:
    return use.wait_fraction or 0.0, use.wait_bytes_per_s or 0.0


def _notes(machines: Sequence[MachineUse]) -> Iterator[str]:
    if any(use.saturated for each in machines for use in _uses(each)):
        yield (
            "Saturated means busy for at least 90 % of the time that the loop waited. It coincides "
            "with the wait, but need not be its cause."
        )
    mixed = [each for each in machines if each.separability < SEPARATE]
    if mixed and any(each.wait_ns for each in mixed):
        yield (
            "Waits and other time alternate faster than the machine was sampled (every "
            f"{units.duration(mixed[0].step_ns)}), so figures for one include some of the other."
        )
    if machines:
        yield "These figures include everything that ran on the machine, other jobs too."
    for each in machines[:1]:
        if each.reading_ns:
            share = each.reading_ns / each.step_ns
            yield (
                f"Each sample took {units.duration(each.reading_ns)} of CPU time, "
                f"{units.fraction(share)} of one CPU."
            )


FINDING: Final = Finding(  # in JSON `machine` is what the run was made on
    "machine_load", 250, machine_of, machine_section, together=machines_together
)
"""What the machine did, as the entry point names it."""
