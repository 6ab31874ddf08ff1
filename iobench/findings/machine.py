"""How busy CPUs, memory, disks, network and GPUs were in a run's waits, and in its other time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.processes import training_process, wait_and_other_ns
from iobench.findings.contract import Finding
from iobench.report import units
from iobench.report.document import NOT_APPLICABLE, Column, Quantity, Section, Table, sentences
from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.run import RankRun
    from iobench.runs.machine_samples import MachineSamples

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
FULL: Final = 0.9
"""Busy for so much of the time that the loop waited: saturated."""
SHORT_OF_MEMORY: Final = 0.1
"""Tasks held up by lack of memory for so much of the waits: short of it."""
MOST_MACHINES: Final = 4
IDLE: Final = 0.01
"""What was busy for less, and moved less than a MiB a second, is left out, but for CPUs."""
COLUMNS: Final = tuple(map(Column, ("busy", "waiting", "else", "moved", "saturated")))
NOTE: Final = (
    "Other jobs are included; short waits mix with computing. Saturated: busy for 90 % of the "
    "waits, or short of memory; it need not be the cause of the wait."
)


class ResourceUse(msgspec.Struct, frozen=True):
    """How busy something was while the training loop waited and in the rest of its passes.

    Fractions are of the time, of memory how long some task was held up by lack of it (PSI); None
    where there was no such time, or it is unknown. ``saturated`` is 0.9 or more of the waits, of
    memory 0.1.
    """

    name: str
    wait_fraction: float | None
    other_fraction: float | None
    saturated: bool
    wait_bytes_per_s: float | None = None


class MachineUse(msgspec.Struct, frozen=True):
    """One machine, while a training process waited for ``wait_ns``: of several the longest."""

    host: str
    wait_ns: int
    resources: tuple[ResourceUse, ...]


class MachineFigures(msgspec.Struct, frozen=True):
    """What the machines of a run did during it, by name, and damaged files of readings."""

    machines: tuple[MachineUse, ...]
    damaged_files: tuple[str, ...] = ()


def machine_load(run: RankRun) -> MachineFigures | None:
    """Return what a training process's machine did; None where it was not sampled."""
    use, damaged = _use_of(run), run.damaged_machines
    if use is None and not damaged:
        return None
    return MachineFigures(() if use is None else (use,), damaged)


def machines_together(ranks: Sequence[MachineFigures]) -> MachineFigures:
    """Return what each machine of a job did while its slowest training process waited."""
    slowest: dict[str, MachineUse] = {}
    for each in (machine for rank in ranks for machine in rank.machines):
        known = slowest.get(each.host)
        if known is None or each.wait_ns > known.wait_ns:
            slowest[each.host] = each
    damaged = tuple(dict.fromkeys(name for rank in ranks for name in rank.damaged_files))
    return MachineFigures(tuple(slowest[host] for host in sorted(slowest)), damaged)


def _use_of(run: RankRun) -> MachineUse | None:
    process = training_process(run)
    samples = of_process(run.machines, process)
    if samples is None or process is None or len(samples.time_ns) < 2 or not samples.head.cpus:
        return None
    wait_ns, other_ns = wait_and_other_ns(run, samples.time_ns)
    if not (wait_ns + other_ns).any():
        return None
    resources = tuple(_use(*each, wait_ns, other_ns) for each in _series(samples))
    return MachineUse(samples.head.host, int(wait_ns.sum()), resources)


def _use(
    name: str, busy: Floats | None, moved: Floats | None, wait_ns: Integers, other_ns: Integers
) -> ResourceUse:
    wait, other, rate = _mean(busy, wait_ns), _mean(busy, other_ns), _mean(moved, wait_ns)
    saturated = (wait or 0.0) >= (SHORT_OF_MEMORY if name == "memory" else FULL)
    return ResourceUse(name, wait, other, saturated, rate)


def _mean(values: Floats | None, weights: Integers) -> float | None:
    if values is None:
        return None
    known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _series(samples: MachineSamples) -> Iterator[tuple[str, Floats | None, Floats | None]]:
    """Yield what there is on a machine: how busy it was, and what it moved per second."""
    if limits := samples.cpu_limits():
        yield *max(limits.items(), key=lambda each: np.nanmean(each[1])), None
    if (held := samples.per_second("pressure.memory_us")) is not None:
        yield "memory", held / 1e6, None
    for name in samples.names("disk"):
        busy, *moves = (
            samples.per_second(f"disk:{name}.{each}") for each in ("busy_ms", "read", "written")
        )
        moved = sum((each for each in moves if each is not None), np.zeros(len(samples.step_ns)))
        yield f"disk {name}", None if busy is None else np.minimum(busy / 1e3, 1.0), moved
    for name in samples.names("net"):
        moves = [samples.per_second(f"net:{name}.{each}") for each in ("received", "sent")]
        most = max((each for each in moves if each is not None), key=np.nansum)
        limit = samples.head.links.get(name)
        yield f"network {name}", np.minimum(most / limit, 1.0) if limit else None, most
    for name in samples.names("gpu"):
        yield samples.head.sources[int(name)].title, samples.gpu_busy(name), None


def machine_section(load: MachineFigures) -> Section:
    """Return what each machine did; of many, those first where something was saturated."""
    machines = sorted(load.machines, key=lambda one: -sum(each.saturated for each in one.resources))
    tables = (_table(each, alone=len(machines) == 1) for each in machines[:MOST_MACHINES])
    title = "The machine during the run"
    return Section("machine", title, (*tables, *sentences(_texts(load))))


def _table(machine: MachineUse, *, alone: bool) -> Table:
    rows = tuple(
        (
            each.name,
            Quantity(each.wait_fraction, "share"),
            Quantity(each.other_fraction, "share"),
            Quantity(each.wait_bytes_per_s, "B/s") if each.wait_bytes_per_s else NOT_APPLICABLE,
            "yes" if each.saturated else "",
        )
        for each in machine.resources
        if each.name in ("cpus", "quota")
        or max(each.wait_fraction or 0.0, each.other_fraction or 0.0) >= IDLE
        or (each.wait_bytes_per_s or 0.0) >= 1 << 20
    )
    # Reports are shown to others: only several machines need names.
    return Table("" if alone else f"{machine.host}, slowest rank", COLUMNS, rows, note=NOTE)


def _texts(load: MachineFigures) -> Iterator[str]:
    if len(load.machines) > MOST_MACHINES:
        yield f"{units.count(len(load.machines) - MOST_MACHINES)} more machines are in the JSON."
    if load.damaged_files:
        yield f"Damaged files, whose content is missing here: {', '.join(load.damaged_files)}."


FINDING: Final = Finding(
    "machine_load", 250, MachineFigures, machine_load, machine_section, together=machines_together
)
