"""What was saturated while the loop waited: a line each for CPUs, memory, disks and network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.document import Section, sentences
from iobench.subjects.contract import Subject
from iobench.subjects.machine.figures import (
    MachineFigures,
    MachineUse,
    ResourceUse,
    machine_of,
    machines_together,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.subjects.machine.figures import ProcessMemory

MOST_MACHINES: Final = 4
MOST_DEVICES: Final = 3
WORTH_SAYING: Final = 0.01
"""Of a disk or link that was busy for less, nothing is said."""
TOLD_APART: Final = 0.5
"""From this on waits are of other steps between readings than the rest, by and large."""
SATURATED: Final = ": saturated"


def machine_section(found: MachineFigures) -> Section:
    """Return what each machine did; of many, those first where something was saturated."""
    ordered = sorted(found.machines, key=lambda each: -len(_saturated(each)))
    told: list[str] = []
    for each in ordered[:MOST_MACHINES]:
        where = f"{each.host}, while rank {each.rank} waited: " if len(ordered) > 1 else ""
        told += [f"{where}{line}" for line in _lines(each)]
    if len(ordered) > MOST_MACHINES:
        told.append(f"{units.count(len(ordered) - MOST_MACHINES)} more machines are in the JSON.")
    told += _notes(ordered)
    if found.damaged:
        files = ", ".join(found.damaged)
        told.append(f"Damaged files, whose content is missing here: {files}.")
    return Section("machine", "The machine during the run", sentences(told))


def _saturated(each: MachineUse) -> list[ResourceUse]:
    single = [each.cpu, *([each.memory] if each.memory else [])]
    uses = (*single, *each.disks, *each.links, *each.gpus)
    return [use for use in uses if use.saturated]


def _lines(each: MachineUse) -> Iterator[str]:
    yield " ".join(_cpus(each))
    yield " ".join(_memory(each))
    yield " ".join(_devices(each))


def _both(use: ResourceUse, word: str = "") -> str:
    """Return how busy something was, in the waits and else, and what went through it there."""
    word = f" {word}" if word else ""
    if use.wait_fraction is None and use.other_fraction is None:
        return units.UNKNOWN
    if use.wait_fraction is None:
        return f"{units.fraction(use.other_fraction)}{word} over the run"
    rate = "" if use.wait_bytes_per_s is None else f" ({units.byte_rate(use.wait_bytes_per_s)})"
    waited = f"{units.fraction(use.wait_fraction)}{word} while the loop waited{rate}"
    if use.other_fraction is None:
        return waited
    return f"{waited}, {units.fraction(use.other_fraction)} else"


def _cpus(each: MachineUse) -> Iterator[str]:
    if each.cpu.name == "quota" and each.quota_cpus is not None:
        of = f"of the {units.number(each.quota_cpus)} CPUs that the cgroup allows"
    else:
        one = each.n_cpus == 1
        of = "of the one CPU" if one else f"of the {units.count(each.n_cpus)} CPUs"
        of += " that this job may use"
    end = SATURATED if each.cpu.saturated else ""
    yield f"CPUs: {_both(each.cpu, 'busy')}, {of}{end}."
    if each.throttled_fraction:
        yield f"The quota was used up in {units.fraction(each.throttled_fraction)} of its periods."
    for gpu in each.gpus:
        yield f"{gpu.name}: {_both(gpu, 'busy')}{SATURATED if gpu.saturated else ''}."


def _memory(each: MachineUse) -> Iterator[str]:
    taken = "unknown" if each.memory_peak_nbytes is None else units.nbytes(each.memory_peak_nbytes)
    of = "" if each.memory_nbytes is None else f" of {units.nbytes(each.memory_nbytes)}"
    cache = ""
    if each.cache_peak_nbytes is not None:
        cache = f", and {units.nbytes(each.cache_peak_nbytes)} of page cache on the machine"
    told = [f"Memory: at most {taken}{of} used{cache}"]
    if each.swapped_nbytes is not None:
        told.append(
            f"{units.nbytes(each.swapped_nbytes)} swapped" if each.swapped_nbytes else "no swapping"
        )
    if each.memory is not None and each.memory.wait_fraction is not None:
        held = ResourceUse(
            "", each.memory.wait_fraction, each.memory.other_fraction, saturated=False
        )
        told.append(f"tasks were held up for lack of memory for {_both(held)}")
    short = ": short of memory" if each.memory is not None and each.memory.saturated else ""
    yield f"{'; '.join(told)}{short}."
    yield from _processes(each.processes)


def _processes(processes: Sequence[ProcessMemory]) -> Iterator[str]:
    """Return the most memory of each process: each by its name, of many the range."""
    known = [(each.name, each.peak_nbytes) for each in processes if each.peak_nbytes is not None]
    untold = len(processes) - len(known)
    if len(known) > MOST_DEVICES:
        peaks = sorted(nbytes for _, nbytes in known)
        most = max(known, key=lambda each: each[1])
        told = [f"{units.nbytes(peaks[0])} to {units.nbytes(peaks[-1])} ({most[0]})"]
    else:
        told = [f"{name} {units.nbytes(nbytes)}" for name, nbytes in known]
    if untold:
        told.append(
            f"unknown for {units.count(untold)} that did not record it, such as a killed one"
        )
    if told:
        yield (
            f"Its {units.count(len(processes))} processes at most, counting shared memory in each: "
            f"{', '.join(told)}."
            if len(processes) > 1
            else f"Its process at most: {', '.join(told)}."
        )


def _devices(each: MachineUse) -> Iterator[str]:
    if not each.disks and not each.links:
        yield "Disks and network: unknown."
        return
    busy = sorted(filter(_is_used, each.disks), key=_rank, reverse=True)
    for disk in busy[:MOST_DEVICES]:
        end = SATURATED if disk.saturated else ""
        yield f"Disk {disk.name}: requests in flight for {_both(disk)}{end}."
        if disk.saturated and disk.name not in each.spinning:
            yield "A disk that serves many requests at once may still deliver more then."
    if each.disks and not busy:
        yield "Disks: idle."
    if not each.disks:
        yield "Disks: unknown."
    links = sorted(filter(_is_used, each.links), key=_rank, reverse=True)
    for link in links[:MOST_DEVICES]:
        if link.limit_bytes_per_s is None:
            rate = units.byte_rate(link.wait_bytes_per_s)
            yield f"Network {link.name}: {rate} while the loop waited, of unknown speed."
        else:
            end = SATURATED if link.saturated else ""
            limit = units.byte_rate(link.limit_bytes_per_s)
            yield f"Network {link.name}: {_both(link)}, of {limit}{end}."


def _is_used(use: ResourceUse) -> bool:
    shares = (use.wait_fraction, use.other_fraction)
    if shares == (None, None):  # a link of unknown speed
        return (use.wait_bytes_per_s or 0.0) >= 1 << 20
    return max(each or 0.0 for each in shares) >= WORTH_SAYING


def _rank(use: ResourceUse) -> tuple[float, float]:
    return use.wait_fraction or 0.0, use.wait_bytes_per_s or 0.0


def _notes(machines: Sequence[MachineUse]) -> Iterator[str]:
    if any(map(_saturated, machines)):
        yield (
            "Saturated means busy for at least 90 % of the time that the loop waited. It coincides "
            "with the wait, but need not be its cause."
        )
    mixed = [each for each in machines if each.told_apart < TOLD_APART]
    if mixed and any(each.wait_ns for each in mixed):
        yield (
            "Waits and other time alternate faster than the machine was sampled (every "
            f"{units.duration(mixed[0].step_ns)}), so figures for one include some of the other."
        )
    if machines:
        yield "These figures include everything that ran on the machine, other jobs too."
    costs = [each for each in machines if each.reading_ns]
    if costs and costs[0].reading_ns:
        share = costs[0].reading_ns / costs[0].step_ns
        yield (
            f"Each sample took {units.duration(costs[0].reading_ns)} of CPU time, "
            f"{units.fraction(share)} of one CPU."
        )


SUBJECT: Final = Subject(  # in JSON `machine` is what the run was made on
    "machine_meanwhile", 250, machine_of, machine_section, together=machines_together
)
"""What the machine did, as the entry point names it."""
