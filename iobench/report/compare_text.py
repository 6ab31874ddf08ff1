"""A comparison in words and tables, on any page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.step_sums import BUSY, EXPOSED
from iobench.report import compare_sentences, units
from iobench.report.samples_sentence import samples_lines
from iobench.report.sentences import kept_words
from iobench.report.tables import NOT_APPLICABLE, PARTS, TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.compare_figures import ComparedFigure, PairComparison
    from iobench.report.compared_runs import ComparedRun, Comparison
    from iobench.report.measured_runs import MeasuredRun
    from iobench.report.page import Page

__all__ = ["names", "print_comparison", "print_figures", "print_names"]

NAMES: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
N_STAGES: Final = 12


def print_comparison(found: Comparison, page: Page) -> None:
    """Write runs side by side, what was different about them, and whether samples are the same.

    Parameters
    ----------
    found : Comparison
    page : Page
        What is written on.
    """
    print_names(found, page)
    print_figures(found, page)


def print_names(found: Comparison, page: Page) -> None:
    """Write what the runs are called, and what was waved aside."""
    for name, run in zip(names(found), found.runs, strict=True):
        kept = "; ".join(filter(None, map(_kept, run.members)))
        page.text(f"{name}: {run.name}{kept and f': {kept}'}", "bold")
    for why in found.waved:
        page.text(f"Compared all the same: {why}.", "bold yellow")
    page.gap()


def _kept(member: MeasuredRun) -> str:
    """Return which batches of a run too long to be kept whole are compared; else nothing."""
    n_batches = sum(part.n_batches for part in member.parts("whole"))
    return kept_words(n_batches, member.n_folded)


def print_figures(found: Comparison, page: Page) -> None:
    """Write all but the names."""
    for name, pair in zip(names(found)[1:], found.pairs, strict=True):
        for table in _pair_tables(found, pair, name):
            page.table(table)
        for line in compare_sentences.pair_lines(found, pair, NAMES[0], name):
            page.text(line, "yellow" if line.startswith(compare_sentences.CAUTIONS) else "")
        page.gap()
    page.table(_whole_table(found))
    page.list(difference_lines(found) + compare_sentences.run_lines(found, names(found)))
    for name, samples in zip(names(found)[1:], found.samples, strict=False):
        for line in samples_lines(samples, NAMES[0], name):
            page.text(line, "bold" if line.startswith("Samples") else "")


def names(found: Comparison) -> list[str]:
    """Return what the runs are called."""
    return [*NAMES[: len(found.runs)]]


def _pair_tables(found: Comparison, pair: PairComparison, name: str) -> list[TextTable]:
    """Return the figures of a run beside those of the first: the loop's, then stage by stage."""
    window = PARTS[found.window]
    loop = [figure for figure in pair.figures if not figure.stage]
    tables = [_table(f"{name} against {NAMES[0]} ({window})", "", loop, name)]
    for prefix in (BUSY, EXPOSED):
        figures = [figure for figure in pair.figures if figure.key.startswith(prefix)]
        figures = [figure for figure in figures if any(figure.values)][:N_STAGES]
        if figures:
            what = figures[0].name.removeprefix(f"{figures[0].stage}, ")
            tables.append(_table(f"Stages, {what}", "stage", figures, name))
    return tables


def _table(title: str, heading: str, figures: Sequence[ComparedFigure], name: str) -> TextTable:
    return TextTable(
        title=title,
        columns=(heading, NAMES[0], name, f"{name}/{NAMES[0]}", "95 % interval", "differs"),
        rows=tuple(
            (
                figure.stage or figure.name,
                *(_figure_value(figure, value) for value in figure.values),
                *_ratio(figure, name),
            )
            for figure in figures
        ),
    )


def _figure_value(figure: ComparedFigure, value: float | None) -> str:
    """Return one of a figure's values in its unit."""
    return {
        "ns": units.duration,
        "per_s": units.sample_rate,
        "bytes_per_s": units.byte_rate,
        "fraction": units.fraction,
    }[figure.unit](value)


def _ratio(figure: ComparedFigure, name: str) -> tuple[str, str, str]:
    interval = figure.interval
    if figure.withheld:
        return NOT_APPLICABLE, NOT_APPLICABLE, "withheld"
    if interval.value is None:
        there = [bool(value) for value in figure.values]
        only = f"only {NAMES[0] if there[0] else name}" if sum(there) == 1 else NOT_APPLICABLE
        return NOT_APPLICABLE, NOT_APPLICABLE, only
    ratio = units.ratio(interval.value)
    if interval.low is None or interval.high is None:
        return ratio, NOT_APPLICABLE, NOT_APPLICABLE
    between = f"{units.ratio(interval.low)} to {units.ratio(interval.high)}"
    word = "more" if interval.value > 1 else "less"
    return ratio, between, word if interval.differs else "no"


def _whole_table(found: Comparison) -> TextTable:
    """Return what there is of whole runs, without a judgement; sums of what was folded, too."""
    runs = found.runs
    rows = (
        ("exposed share", *(units.fraction(_wait_fraction(run)) for run in runs)),
        ("accelerator util., MLPerf", *(units.fraction(_utilisation(run)) for run in runs)),
        ("wall time", *(units.duration(_wall_ns(run)) for run in runs)),
        ("batches", *(units.count(_n_batches(run)) for run in runs)),
    )
    return TextTable(title="Whole runs", columns=("", *names(found)), rows=rows)


def _wait_fraction(run: ComparedRun) -> float | None:
    exposures = [each for member in run.members for each in member.exposures]
    wall_ns = sum(each.all_wall_ns for each in exposures)
    return sum(each.all_wait_ns for each in exposures) / wall_ns if wall_ns else None


def _wall_ns(run: ComparedRun) -> int:
    """Return the longest of the ranks' walls, of several runs all of them."""
    return sum(max(each.all_wall_ns for each in member.exposures) for member in run.members)


def _n_batches(run: ComparedRun) -> int:
    kept = sum(part.n_batches for member in run.members for part in member.parts("whole"))
    return kept + sum(member.n_folded for member in run.members)


def _utilisation(run: ComparedRun) -> float | None:
    """Return the mean of the runs; None where one has none."""
    found = [member.utilisation for member in run.members]
    known = [each.fraction for each in found if each is not None and each.n_counted]
    told = [fraction for fraction in known if fraction is not None]
    return sum(told) / len(told) if len(told) == len(found) else None


def difference_lines(found: Comparison) -> list[str]:
    """Return what was not the same, and may explain what differs."""
    told = [
        f"{name} {' | '.join(_told(name, value) for value in values)}"
        for name, values in found.differences.items()
    ]
    if not told:
        return ["Configuration and machine: the same, as far as the runs tell."]
    return [f"Not the same ({' | '.join(names(found))}): {'; '.join(told)}."]


def _told(name: str, value: Any) -> str:
    if isinstance(value, list) and name not in ("window", "windows"):
        return f"[{', '.join(_told(name, each) for each in value)}]"
    if value is None:
        return units.UNKNOWN
    if name == "step_ns":
        return units.duration(value)
    is_size = name in ("memory_nbytes", "sample_nbytes") and isinstance(value, int)
    return units.nbytes(value) if is_size else str(value)
