"""A comparison in words and tables, on any page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.report import compare_figures, units
from iobench.report.samples_sentence import samples_lines
from iobench.report.tables import TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.compared_runs import Comparison
    from iobench.report.page import Page

__all__ = ["print_comparison"]

NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CAUTION: Final = (
    "Runs made at different times differ by whatever else the machines did, often by more than a "
    "change gains: these figures prove none. What takes turns does: iobench profile --format a,b, "
    "or iobench check -- COMMAND --against -- COMMAND."
)
N_STAGES: Final = 12


def print_comparison(found: Comparison, page: Page) -> None:
    """Write runs side by side, what was different about them, and whether samples are the same.

    Parameters
    ----------
    found : Comparison
    page : Page
        What is written on.
    """
    for name, run in zip(names(found), found.runs, strict=True):
        page.text(f"{name}: {run.name}", "bold")
    page.gap()
    page.table(figure_table(found))
    stages = stage_table(found)
    if stages.rows:
        page.table(stages)
    page.text(CAUTION, "yellow")
    page.gap()
    page.list(difference_lines(found))
    for name, samples in zip(names(found)[1:], found.samples, strict=True):
        for line in samples_lines(samples, NAMES[0], name):
            page.text(line, "bold" if line.startswith("Samples") else "")


def names(found: Comparison) -> list[str]:
    """Return what the runs are called."""
    return [*NAMES[: len(found.runs)]]


def figure_table(found: Comparison) -> TextTable:
    """Return the figures of each run, and how they stand to those of the first."""
    steady = found.steady
    runs = found.runs
    samples = [compare_figures.samples_per_s(run, steady=steady) for run in runs]
    walls = [compare_figures.wall_ns(run, steady=False) for run in runs]
    waits = [compare_figures.wait_per_step_ns(run, steady=steady) for run in runs]
    loaded = [compare_figures.bytes_per_s(run, steady=steady) for run in runs]
    rows = [
        ("samples/s", *map(units.sample_rate, samples), *_ratios(samples)),
        ("wait of a step, mean", *map(units.duration, waits), *_ratios(waits)),
        ("loaded", *map(units.byte_rate, loaded), *_ratios(loaded)),
        ("exposed share", *_shares(found, steady=steady), *_none(found)),
        ("exposed share, whole run", *_shares(found, steady=False), *_none(found)),
        ("accelerator util., MLPerf", *_utilisations(found), *_none(found)),
        ("wall, whole run", *map(units.duration, walls), *_ratios(walls)),
        ("batches, whole run", *_batches(found), *_none(found)),
    ]
    what = "steady state, but for whole run" if steady else "whole run"
    return TextTable(
        title=f"Side by side ({what})",
        columns=("", *names(found), *[f"{name}/{NAMES[0]}" for name in names(found)[1:]]),
        rows=tuple(rows),
    )


def _ratios(values: Sequence[float | None]) -> list[str]:
    first, *others = values
    return [
        units.ratio(other / first) if first and other is not None else units.UNKNOWN
        for other in others
    ]


def _none(found: Comparison) -> list[str]:
    return [""] * (len(found.runs) - 1)


def _shares(found: Comparison, *, steady: bool) -> list[str]:
    return [units.fraction(compare_figures.wait_fraction(run, steady=steady)) for run in found.runs]


def _utilisations(found: Comparison) -> list[str]:
    return [
        units.fraction(run.utilisation.fraction)
        if run.utilisation is not None and run.utilisation.n_counted
        else units.UNKNOWN
        for run in found.runs
    ]


def _batches(found: Comparison) -> list[str]:
    return [units.count(compare_figures.n_batches(run, steady=False)) for run in found.runs]


def stage_table(found: Comparison) -> TextTable:
    """Return what share of the time was waited for each stage, by the largest."""
    fractions = [compare_figures.stage_fractions(run, steady=found.steady) for run in found.runs]
    stages = sorted(
        dict.fromkeys(stage for each in fractions for stage in each),
        key=lambda stage: (-max(each.get(stage, 0.0) for each in fractions), stage),
    )
    return TextTable(
        title="Exposed share of the time, by stage",
        columns=("stage", *names(found)),
        rows=tuple(
            (stage, *[units.fraction(each.get(stage, 0.0)) for each in fractions])
            for stage in stages[:N_STAGES]
        ),
    )


def difference_lines(found: Comparison) -> list[str]:
    """Return what was not the same, and may explain what differs."""
    told = [
        f"{name} {' | '.join(_value(name, value) for value in values)}"
        for name, values in found.differences.items()
    ]
    if not told:
        return ["Configuration and machine: the same, as far as the runs tell."]
    return [f"Not the same ({' | '.join(names(found))}): {'; '.join(told)}."]


def _value(name: str, value: Any) -> str:
    if value is None:
        return units.UNKNOWN
    if name == "step_ns":
        return units.duration(value)
    return units.nbytes(value) if name == "memory_nbytes" else str(value)
