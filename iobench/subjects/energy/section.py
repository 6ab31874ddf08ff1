"""What a run took in joules, as people read it: a table by counters, and what to know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import stage_title
from iobench.report import units
from iobench.report.document import Column, Joules, Section, Share, Table, WattHours, sentences
from iobench.subjects.contract import Subject
from iobench.subjects.energy.figures import EnergyFigures, energy_sum
from iobench.subjects.energy.readings import energy_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.document import Cell
    from iobench.subjects.energy.figures import KindEnergy

NAMES: Final = {"gpu": "GPUs", "cpu": "CPUs", "memory": "memory", "machine": "whole machine"}
PARTS: Final = ("gpu", "cpu", "memory")
"""What adds up; a counter of the whole machine has them all in it."""
N_STAGES: Final = 4
COVERED: Final = 0.999
"""From this share of the run on, nothing is said of the rest."""
COLUMNS: Final = tuple(
    map(Column, ("", "whole run", "", "an epoch", "a sample", "waiting", "", "of it"))
)
# MAELSTROM D2.2, table 1: six epochs of ENS-10 at batch size 2 on JUWELS Booster.
PUBLISHED_WH: Final = (135.66, 157.61)
PUBLISHED_EPOCHS: Final = 6
UJ_PER_WH: Final = 3_600_000_000


def energy_section(figures: EnergyFigures) -> Section:
    """Return the energy of a run by kind of counter, and what has to be known of it."""
    return Section("energy", "Energy", (*_table(figures), *sentences(_lines(figures))))


def _table(figures: EnergyFigures) -> tuple[Table, ...]:
    if not figures.kinds:
        return ()
    parts = [each for each in figures.kinds if each.kind in PARTS]
    rows = tuple(_row(figures, each) for each in figures.kinds)
    together = _together(figures, parts) if len(parts) > 1 else ()
    return (Table("Energy", COLUMNS, rows, together),)


def _row(figures: EnergyFigures, each: KindEnergy) -> tuple[Cell, ...]:
    name = f"{'about ' if each.estimated else ''}{NAMES.get(each.kind, each.kind)}"
    return _cells(figures, name, (each.kind,), each.total_uj, each.wait_uj)


def _together(figures: EnergyFigures, parts: Sequence[KindEnergy]) -> tuple[Cell, ...]:
    waits = [each.wait_uj for each in parts if each.wait_uj is not None]
    return _cells(
        figures,
        "together",
        tuple(each.kind for each in parts),
        sum(each.total_uj for each in parts),
        sum(waits) if len(waits) == len(parts) else None,
    )


def _cells(
    figures: EnergyFigures, name: str, kinds: Sequence[str], total_uj: int, wait_uj: int | None
) -> tuple[Cell, ...]:
    return (
        name,
        Joules(total_uj),
        WattHours(total_uj),
        Joules(figures.epoch_uj(kinds)),
        Joules(figures.sample_uj(total_uj)),
        Joules(wait_uj),
        WattHours(wait_uj),
        Share(wait_uj / total_uj if wait_uj is not None and total_uj else None),
    )


def _lines(figures: EnergyFigures) -> list[str]:
    lines = [*_untold(figures)]
    if not figures.kinds:
        return lines
    for each in figures.kinds:
        lines += _of_kind(each, figures.typical_wait_ns)
    for counted in figures.sources:
        lines += _trouble(counted.source.title, counted.n_resets, counted.n_failed)
    if figures.n_damaged:
        lines.append(f"{units.count(figures.n_damaged)} readings are damaged and left out.")
    lines += [_scope(figures), *_cost(figures)]
    if figures.is_emulated:
        lines.append(
            "The training step was emulated by waiting, so this is the energy of loading, without "
            "training."
        )
    return lines + _published(figures)


def _untold(figures: EnergyFigures) -> list[str]:
    """Return what could not be read, and why, the same on several machines once."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for each in figures.untold:
        hosts.setdefault((each.kind, each.reason), []).append(each.host)
    reasons = [
        f"{NAMES.get(kind, kind)}: {reason}{f' on {len(where)} machines' if len(where) > 1 else ''}"
        for (kind, reason), where in hosts.items()
    ]
    if not reasons:
        return []
    return [f"Energy that is not readable here: {'; '.join(reasons)}."]


def _of_kind(each: KindEnergy, typical_wait_ns: int | None) -> list[str]:
    name = NAMES.get(each.kind, each.kind)
    lines = []
    if each.estimated:
        lines.append(f"{name}: an estimate, from readings of power; the driver counts no energy.")
    if each.covered_fraction < COVERED:
        lines.append(
            f"{name}: readings cover {units.fraction(each.covered_fraction)} of the run; no figure "
            "includes the rest."
        )
    if each.wait_uj is None:
        return lines
    low, high = each.wait_bounds_uj
    between = f"between {units.joules(low)} and {units.joules(high)}"
    if typical_wait_ns is not None and typical_wait_ns < each.resolution_ns:
        lines.append(
            f"{name}, waiting: waits (median {units.duration(typical_wait_ns)}) are shorter than "
            f"the time between readings ({units.duration(each.resolution_ns)}), so each wait gets "
            f"its share of the energy between two readings. The true value lies {between}."
        )
    else:
        lines.append(f"{name}, waiting: {between}, whatever happened between two readings.")
    known = list(each.stages.items())
    stages = [f"{stage_title(stage)} {units.joules(energy)}" for stage, energy in known[:N_STAGES]]
    rest = sum(energy for _, energy in known[N_STAGES:])
    if rest:
        stages.append(f"all else {units.joules(rest)}")
    if stages:
        lines.append(
            f"{name}, by stage waited for: {', '.join(stages)}. Energy is divided by waiting time; "
            "counters do not distinguish stages."
        )
    return lines


def _trouble(title: str, n_resets: int, n_failed: int) -> list[str]:
    lines = []
    if n_resets:
        lines.append(
            f"{title}: reset {_times(n_resets)} during the run; what it had counted since the "
            "previous reading is missing."
        )
    if n_failed:
        lines.append(f"{title}: could not be read {_times(n_failed)}.")
    return lines


def _times(number: int) -> str:
    return "once" if number == 1 else f"{units.count(number)} times"


def _scope(figures: EnergyFigures) -> str:
    hosts = list(dict.fromkeys(each.host for each in figures.sources))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} machines"
    shared = ""
    if figures.n_sharing > 1:
        shared = (
            f" Its {units.count(figures.n_sharing)} training processes are given equal parts of it."
            if len(hosts) == 1
            else " Training processes of one machine are given equal parts of it."
        )
    return (
        f"Counters are for whole GPUs and processors: they include everything that ran on {where}, "
        f"other jobs too, and idle power is not subtracted.{shared}"
    )


def _cost(figures: EnergyFigures) -> list[str]:
    if figures.reading_ns is None or not figures.period_ns:
        return []
    return [
        f"Reading them every {units.duration(figures.period_ns)} took "
        f"{units.duration(figures.reading_ns)} each, "
        f"{units.fraction(figures.reading_ns / figures.period_ns)} of one CPU."
    ]


def _published(figures: EnergyFigures) -> list[str]:
    """Return the published energy of ENS-10's training, beside a training of it on real files."""
    named = "ens10" in figures.trained_on.lower().replace("-", "")
    if not (named and figures.of("gpu")):
        return []
    low, high = (units.watt_hours(value * UJ_PER_WH) for value in PUBLISHED_WH)
    least, most = (units.watt_hours(value * UJ_PER_WH / PUBLISHED_EPOCHS) for value in PUBLISHED_WH)
    return [
        f"Published for ENS-10 (MAELSTROM D2.2, table 1: {PUBLISHED_EPOCHS} epochs, batch size 2, "
        f"one A100 of JUWELS Booster): {low} to {high} of its GPU, {least} to {most} an epoch."
    ]


SUBJECT: Final = Subject(
    name="energy",
    order=500,
    figures=energy_of,
    section=energy_section,
    together=energy_sum,
)
"""Energy, as the entry point names it."""
