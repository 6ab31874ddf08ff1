"""How busy CPUs, memory, disks, network and GPUs were in a run's waits, and in its other time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.host_time import training_process, wait_and_other_ns
from iobench.findings.contract import Finding
from iobench.json_keys import HIDDEN, key
from iobench.recording.machine_head import PAGE_NBYTES
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    ByteRate,
    Column,
    Section,
    Share,
    Table,
    sentences,
)
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
WORTH_SAYING: Final = 0.01
"""Of a disk or link that was busy for less, and moved less than a MiB a second, nothing is said."""
SEPARATE: Final = 0.5
"""From this on waits are of other steps between readings than the rest, by and large."""
COLUMNS: Final = tuple(
    map(Column, ("", "busy in waits", "busy else", "moved in waits", "saturated"))
)


class ResourceUse(msgspec.Struct, frozen=True):
    """How busy something was while the training loop waited and in the rest of its passes.

    Parameters
    ----------
    wait_fraction, other_fraction : float or None
        Of the time; null where there was none, or it is unknown. Of memory, how long some task was
        held up by want of it (PSI).
    saturated : bool
        Whether ``wait_fraction`` is 0.9 or more; of memory, 0.1, or a MiB a second was read back
        from swap in the waits.
    wait_bytes_per_s, limit_bytes_per_s : float or None
        What went through it while the loop waited, and what can at most; null is unknown.
    """

    name: str
    wait_fraction: float | None
    other_fraction: float | None
    saturated: bool
    wait_bytes_per_s: float | None = None
    limit_bytes_per_s: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether a disk or a link did next to nothing."""
        shares = (self.wait_fraction or 0.0, self.other_fraction or 0.0)
        return max(shares) < WORTH_SAYING and (self.wait_bytes_per_s or 0.0) < 1 << 20


class MachineUse(msgspec.Struct, frozen=True):
    """One machine, while one training process ran on it.

    Parameters
    ----------
    rank : int
        Whose waits are meant: of several training processes of the machine, the one that waited
        longest.
    resources : tuple of ResourceUse
        CPUs (``cpus``, or ``quota``: of what the cgroup allows), ``memory``, GPUs, disks, and links
        in the way that carried more.
    memory_nbytes, memory_peak_nbytes : int or None
        Of the machine, or what the cgroup allows; and the most that was taken at a reading, page
        cache left out.
    separability : float
        How much of a step between two readings is waits where the loop waits, less that where it
        does not: 1 where each step is of one alone, 0 where all are alike.
    """

    host: str
    rank: int
    resources: tuple[ResourceUse, ...]
    memory_nbytes: int | None
    memory_peak_nbytes: int | None
    process_peak_nbytes: int | None
    separability: float
    wait_ns: int
    step_ns: int
    JSON_KEYS: ClassVar = {"wait_ns": HIDDEN, "step_ns": HIDDEN}

    @property
    def n_saturated(self) -> int:
        """How many resources were."""
        return sum(each.saturated for each in self.resources)


class MachineFigures(msgspec.Struct, frozen=True):
    """What the machines of a run were doing during it, by name, and damaged files of readings."""

    machines: tuple[MachineUse, ...]
    damaged: tuple[str, ...] = ()
    JSON_KEYS: ClassVar = {"damaged": key("damaged_files")}


def machine_load(run: RankRun) -> MachineFigures | None:
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
    during = _During(run, samples.time_ns)
    if not during.total_ns:
        return None
    head, energy = samples.head, of_process(run.energy, process)
    cpus = [during.use(name, each) for name, each in samples.cpu_limits().items()]
    gpus = [
        _During(run, each.time_ns).use(each.title, each.busy[1:])
        for each in (() if energy is None else energy.gpus)
        if len(each.time_ns) > 1 and (np.diff(each.time_ns) > 0).all()
    ]
    used = "memory.used_nbytes" if head.memory_limit_nbytes is None else "cgroup.used_nbytes"
    peaks = [each.peak_nbytes or 0 for each in run.all_processes if each.rank == run.rank]
    return MachineUse(
        host=samples.host,
        rank=run.rank,
        resources=(
            max(cpus, key=lambda each: each.wait_fraction or each.other_fraction or 0.0),
            *_memory_use(samples, during),
            *gpus,
            *(_disk_use(samples, name, during) for name in samples.names("disk")),
            *(_link_use(samples, name, during) for name in samples.names("net")),
        ),
        memory_nbytes=head.memory_limit_nbytes or head.memory_nbytes,
        memory_peak_nbytes=during.peak(samples.values.get(used)),
        process_peak_nbytes=max(peaks, default=0) or None,
        separability=during.separability,
        wait_ns=int(during.wait_ns.sum()),
        step_ns=int(np.median(samples.step_ns)),
    )


def machines_together(ranks: Sequence[MachineFigures]) -> MachineFigures:
    """Return what each machine of a job did while its slowest training process waited."""
    slowest: dict[str, MachineUse] = {}
    for each in (machine for rank in ranks for machine in rank.machines):
        known = slowest.get(each.host)
        if known is None or each.wait_ns > known.wait_ns:
            slowest[each.host] = each
    damaged = tuple(dict.fromkeys(name for rank in ranks for name in rank.damaged))
    return MachineFigures(tuple(slowest[host] for host in sorted(slowest)), damaged)


class _During:
    """How much of each step between two readings was waits, and how much other time of the run."""

    def __init__(self, run: RankRun, time_ns: NDArray[np.int64]) -> None:
        self.wait_ns, self.other_ns = wait_and_other_ns(run, time_ns)
        self.total_ns = int((self.wait_ns + self.other_ns).sum())
        # A step may have time of no pass in it.
        share = self.wait_ns / np.maximum(np.diff(time_ns), 1)
        in_waits, elsewhere = (_mean(share, each) or 0.0 for each in (self.wait_ns, self.other_ns))
        self.separability = in_waits - elsewhere

    def use(self, name: str, busy: Floats, **more: float | None) -> ResourceUse:
        wait, other = _mean(busy, self.wait_ns), _mean(busy, self.other_ns)
        return ResourceUse(name, wait, other, wait is not None and wait >= FULL, **more)

    def peak(self, values: Floats | None) -> int | None:
        """Return the largest of the readings around the run's time."""
        if values is None:
            return None
        inside = np.flatnonzero(self.wait_ns + self.other_ns)
        around = values[inside[0] : inside[-1] + 2]
        return None if np.isnan(around).all() else int(np.nanmax(around))


def _mean(values: Floats, weights: NDArray[np.int64]) -> float | None:
    known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _memory_use(samples: MachineSamples, during: _During) -> Iterator[ResourceUse]:
    held, swapped = map(samples.per_second, ("pressure.memory_us", "swap.in_pages"))
    if held is None and swapped is None:
        return
    unknown = np.full(len(samples.step_ns), np.nan)
    use = during.use("memory", unknown if held is None else held / 1e6)
    rate = None if swapped is None else _mean(swapped * PAGE_NBYTES, during.wait_ns)
    is_short = (use.wait_fraction or 0.0) >= SHORT_OF_MEMORY or (rate or 0.0) >= SWAPPING
    yield ResourceUse(use.name, use.wait_fraction, use.other_fraction, is_short, rate)


def _disk_use(samples: MachineSamples, name: str, during: _During) -> ResourceUse:
    busy, *moves = (
        samples.per_second(f"disk:{name}.{each}") for each in ("busy_ms", "read", "written")
    )
    moved = sum((each for each in moves if each is not None), np.zeros(len(samples.step_ns)))
    busy = np.full(len(moved), np.nan) if busy is None else np.minimum(busy / 1e3, 1.0)
    return during.use(f"disk {name}", busy, wait_bytes_per_s=_mean(moved, during.wait_ns))


def _link_use(samples: MachineSamples, name: str, during: _During) -> ResourceUse:
    moves = [samples.per_second(f"net:{name}.{each}") for each in ("received", "sent")]
    most = max(
        (each for each in moves if each is not None),
        key=lambda each: _mean(each, during.wait_ns) or 0.0,
    )
    limit = samples.head.links.get(name)
    busy = np.minimum(most / limit, 1.0) if limit else np.full(len(most), np.nan)
    rate = _mean(most, during.wait_ns)
    name = f"network {name}"
    return during.use(name, busy, wait_bytes_per_s=rate, limit_bytes_per_s=limit)


def machine_section(load: MachineFigures) -> Section:
    """Return what each machine did; of many, those first where something was saturated."""
    machines = sorted(load.machines, key=lambda each: -each.n_saturated)[:MOST_MACHINES]
    return Section(
        "machine",
        "The machine during the run",
        (
            *(_table(each, alone=len(load.machines) == 1) for each in machines),
            *sentences([*_texts(load, machines)]),
        ),
    )


def _table(machine: MachineUse, *, alone: bool) -> Table:
    rows = tuple(
        (
            each.name,
            Share(each.wait_fraction),
            Share(each.other_fraction),
            ByteRate(each.wait_bytes_per_s) if each.wait_bytes_per_s else NOT_APPLICABLE,
            "yes" if each.saturated else "",
        )
        for each in machine.resources
        if not (each.is_idle and each.name.startswith(("disk", "network")))
    )
    note = (
        f"Memory: at most {units.nbytes(machine.memory_peak_nbytes)} of "
        f"{units.nbytes(machine.memory_nbytes)} used; by one process of this run at most "
        f"{units.nbytes(machine.process_peak_nbytes)}. Idle disks and links are left out."
    )
    # Reports are shown to others: only several machines have to be told apart.
    title = "" if alone else f"{machine.host}, while rank {machine.rank} waited"
    return Table(title, COLUMNS, rows, note=note)


def _texts(load: MachineFigures, shown: Sequence[MachineUse]) -> Iterator[str]:
    if len(load.machines) > len(shown):
        yield f"{units.count(len(load.machines) - len(shown))} more machines are in the JSON."
    if any(each.n_saturated for each in shown):
        yield (
            "Saturated means busy for at least 90 % of the time that the loop waited, or short of "
            "memory. It coincides with the wait, but need not be its cause; a disk that serves "
            "many requests at once may still deliver more."
        )
    mixed = [each for each in shown if each.separability < SEPARATE and each.wait_ns]
    if mixed:
        yield (
            "Waits and other time alternate faster than the machine was sampled (every "
            f"{units.duration(mixed[0].step_ns)}), so figures for one include some of the other."
        )
    if shown:
        yield "These figures include everything that ran on the machine, other jobs too."
    if load.damaged:
        files = ", ".join(load.damaged)
        yield f"Damaged files, whose content is missing here: {files}."


FINDING: Final = Finding(  # in JSON `machine` is what the run was made on
    "machine_load", 250, machine_load, machine_section, together=machines_together
)
"""What the machine did, as the entry point names it."""
