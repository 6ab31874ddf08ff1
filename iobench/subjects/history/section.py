"""The history of suites as a document: what changed and what beside, figures by period, spread."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    ChartMark,
    ChartPoint,
    Column,
    Count,
    Document,
    Ratio,
    Section,
    Sentence,
    Share,
    SmallChart,
    SmallCharts,
    Table,
    sentences,
)
from iobench.report.json_walk import to_plain
from iobench.report.renderers.quantities import said
from iobench.report.suite_words import figure_cell
from iobench.subjects.history.change_points import FEWEST, RATE, least_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.intervals import Interval
    from iobench.report.document import Block, Cell, Style
    from iobench.subjects.history.figures import (
        ChangePoint,
        History,
        HistoryFigure,
        HistoryPoint,
    )

HISTORY_VERSION: Final = 1
PERIODS: Final = 6
"""Newest ones that a table shows; the page's charts and JSON have all."""
MOST_CHARTS: Final = 240
MOST_FACTS: Final = 12
HEADINGS: Final = {
    "change": "From {} on",
    "first": "From {} on",
    "newest": "{}, the newest",
    "outlier": "{} alone",
    "drift": "Gradually up to {}",
}
STYLES: Final[dict[str, Style]] = {"better": "good", "worse": "bad", "": ""}
METHOD: Final = (
    f"Changes are judged between suites, not between repeats. Each series of {FEWEST} suites or "
    "more is explained by its mean and at most one change (a new mean from some suite on, a "
    "single outlier, or a drift), by Student's t, corrected for the number of series tried. A "
    "change smaller than the spread between suites is never reported.",
    f"All figures are judged together, so that at most {units.fraction(RATE)} of the changes named "
    "are expected to be chance (Benjamini and Hochberg).",
    "What 'also changed' is what the results record of both suites. It need not be the cause, and "
    "unrecorded changes are not listed.",
    "Values are means over the repeats of a suite, without those that its recipe drops. The "
    "intervals of ratios between suites come from the repeats alone; spreads cover all repeats.",
)


def history_document(found: History) -> Document:
    """Return what changed, the figures metric by metric, their spread, and what is in doubt."""
    first, last = found.suites[0], found.suites[-1]
    several = f"{units.count(len(found.suites))} suites" if len(found.suites) > 1 else "1 suite"
    figures = f"{units.count(len(found.figures))} figure{'s' * (len(found.figures) != 1)}"
    dates = first.started[:10] if first is last else f"{first.started[:10]} to {last.started[:10]}"
    return Document(
        f"History: {figures} of {several}, {dates}",
        (
            Section("changes", "What changed", tuple(_changes(found))),
            *_metrics(found),
            Section("spread", "Spread of the figures", tuple(_spreads(found))),
            Section("suites", "Suites", tuple(_suites(found))),
            Section("method", "How changes are judged", sentences((*METHOD, *_reach(found)))),
        ),
        key="history",
        figures=lambda: {"schema_version": HISTORY_VERSION, **to_plain(found)},
    )


def _reach(found: History) -> Iterator[str]:
    """Yield from which size on a change is named: where none is, there may be a smaller one."""
    n, n_series = max(figure.n_suites for figure in found.figures), 2 * len(found.figures)
    if n < FEWEST:
        return
    alone, together = (units.ratio(least_step(n, each)) for each in (n_series, 1))
    yield (
        f"No reported change does not mean no change. With {units.count(n)} suites, a change in a "
        f"single figure is reported from about {alone} times the spread of suites, and one shared "
        f"by all figures from {together} times. More suites or fewer figures (--metric) show "
        "smaller changes."
    )


def _named(figure: HistoryFigure) -> str:
    where = f", on {figure.machine}" if figure.machine else ""
    return f"{figure.name}{where}" if figure.name else f"{figure.metric}{where}"


def _changes(found: History) -> Iterator[Block]:
    """Yield what changed, suite by suite, the newest first: what is beside, then the figures."""
    at: dict[tuple[str, str], list[tuple[HistoryFigure, ChangePoint]]] = defaultdict(list)
    for figure in found.figures:
        for change in figure.changes:
            at[change.suite, HEADINGS[change.what]].append((figure, change))
    most = max(figure.n_suites for figure in found.figures)
    if most < FEWEST:
        yield Sentence(
            f"No change can be judged from {units.count(most)} suite{'s' * (most > 1)}: at least "
            f"{FEWEST} are needed to know how much suites differ by chance."
        )
    elif not at:
        yield Sentence("In none of these figures can a change be distinguished from chance.")
    for suite in reversed(found.suites):
        for heading in dict.fromkeys(HEADINGS.values()):
            if of := at.get((suite.name, heading)):
                yield from _changes_at(heading.format(suite.name), suite.started[:10], of)


def _changes_at(
    heading: str, date: str, of: Sequence[tuple[HistoryFigure, ChangePoint]]
) -> Iterator[Block]:
    counts = {each: sum(change.judged == each for _, change in of) for each in STYLES}
    told = [f"{units.count(n)} {name or 'changed'}" for name, n in counts.items() if n]
    yield Sentence(f"{heading} ({date}): {', '.join(told)}.", "strong")
    facts = list(dict.fromkeys(_beside(change) for _, change in of))
    for text in facts[:MOST_FACTS]:
        which = [figure for figure, change in of if _beside(change) == text]
        whose = f" ({', '.join(sorted({_named(each) for each in which})[:3])})"
        yield Sentence(f"Also changed{whose if len(facts) > 1 else ''}: {text}.")
    if any(change.other_machine for _, change in of):
        yield Sentence(
            "The machine changed as well, so effects of the code and of the machine cannot be "
            "separated.",
            "caution",
        )
    yield Table(
        "",
        tuple(map(Column, ("figure", "before", "ratio", "95 % interval", "what"))),
        tuple(_row(figure, change) for figure, change in of),
    )


def _row(figure: HistoryFigure, change: ChangePoint) -> tuple[Cell, ...]:
    before = f"{units.count(change.n_before)} suite{'s' * (change.n_before > 1)}"
    name = f"{'spread of ' * change.of_spread}{figure.metric}, {_named(figure)}"
    if change.ratio is None:
        return name, before, NOT_APPLICABLE, _difference(figure, change), _what(change)
    return name, before, Ratio(change.ratio), _between(change.low, change.high), _what(change)


def _difference(figure: HistoryFigure, change: ChangePoint) -> str:
    """Return what a figure is more or less, where a ratio says nothing."""
    sign = "more" if (change.difference or 0) > 0 else "less"
    return f"{said(figure_cell(figure.metric, abs(change.difference or 0)))} {sign}"


def _between(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return NOT_APPLICABLE
    return f"{units.ratio(low)} to {units.ratio(high)}"


def _what(change: ChangePoint) -> str:
    is_more = (change.difference or 0) > 0 if change.ratio is None else change.ratio > 1
    judged = change.judged or ("more" if is_more else "less")
    return {
        "change": judged,
        "outlier": f"this suite alone ({judged})",
        "newest": f"{judged}; a change or an outlier, which the next suite will show",
        "first": f"{judged} than the first suite alone",
        "drift": f"{judged}, gradually since {change.before}",
    }[change.what]


def _beside(change: ChangePoint) -> str:
    told = [f"{each.what} {each.before} to {each.after}" for each in change.beside]
    more = f", and {units.count(len(told) - MOST_FACTS)} more" if len(told) > MOST_FACTS else ""
    return f"{', '.join(told[:MOST_FACTS])}{more}" if told else "nothing that the results record"


def _metrics(found: History) -> Iterator[Section]:
    if found.common:
        alike = ", ".join(f"{option} {value}" for option, value in found.common.items())
        yield Section("common", "", sentences([f"All figures: {alike}."]))
    for metric, group in groupby(found.figures, key=lambda each: each.metric):
        figures = list(group)
        charts = tuple(map(_chart, figures[:MOST_CHARTS]))
        blocks: list[Block] = [SmallCharts("", charts)]
        if len(figures) > MOST_CHARTS:
            left = units.count(len(figures) - MOST_CHARTS)
            blocks.append(Sentence(f"Charts of {left} more figures are omitted."))
        yield Section(metric, metric, (*blocks, *_tables(found, figures)))


def _tables(found: History, figures: Sequence[HistoryFigure]) -> Iterator[Block]:
    """Yield a figure by period with its interval, and the newest one's ratios."""
    there = {point.period for figure in figures for point in figure.points}
    periods = [each for each in dict.fromkeys(s.period for s in found.suites) if each in there]
    shown = periods[-PERIODS:]
    left = f" The newest {PERIODS} of {len(periods)} are shown." if len(periods) > PERIODS else ""
    repeated = any(point.low is not None for figure in figures for point in figure.points)
    yield Table(
        f"By {found.by}{', with the interval of 95 % over the repeats' * repeated}",
        tuple(map(Column, ("", *shown))),
        tuple((_named(figure), *(_cell(figure, each) for each in shown)) for figure in figures),
        note=f"Of several suites in a {found.by} the newest stands for it.{left}"
        if found.by != "suite"
        else left.strip(),
    )
    if len(periods) < 2:
        return
    yield Table(
        "The newest suite against others, from their repeats alone",
        tuple(map(Column, ("", "to the one before", "interval", "to the first", "interval"))),
        tuple(
            (
                _named(figure),
                *_ratio(figure.points[-1].to_previous),
                *_ratio(figure.points[-1].to_first),
            )
            for figure in figures
        ),
    )


def _cell(figure: HistoryFigure, period: str) -> Cell:
    point = next((each for each in figure.points if each.period == period), None)
    if point is None:
        return NOT_APPLICABLE
    return f"{said(figure_cell(figure.metric, point.value))}{_interval(figure.metric, point)}"


def _interval(metric: str, point: HistoryPoint) -> str:
    if point.low is None or point.high is None:
        return ""
    low, high = (said(figure_cell(metric, each)) for each in (point.low, point.high))
    return f" ({low} to {high})"


def _ratio(found: Interval) -> tuple[Cell, Cell]:
    if found.value is None:
        return NOT_APPLICABLE, NOT_APPLICABLE
    return Ratio(found.value), _between(found.low, found.high)


def _chart(figure: HistoryFigure) -> SmallChart:
    factor = figure_cell(figure.metric, 1.0).value or 1.0
    points = tuple(
        ChartPoint(
            point.period,
            figure_cell(figure.metric, point.value),
            None if point.low is None else point.low * factor,
            None if point.high is None else point.high * factor,
            f"{_interval(figure.metric, point)}, {point.suite}",
        )
        for point in figure.points
    )
    # A change of a suite that is not shown itself stands at the next one that is.
    marks = []
    for change in figure.changes:
        at = _place(figure, change.suite)
        machine = " The machine changed as well." if change.other_machine else ""
        what = "spread: " * change.of_spread + _what(change)
        size = "" if change.ratio is None else f", ratio {units.ratio(change.ratio)}"
        style = "fair" if change.other_machine else STYLES[change.judged]
        words = f"{change.suite}: {what}{size}. Also changed: {_beside(change)}.{machine}"
        marks.append(ChartMark(at, style, words))
    return SmallChart(_named(figure), points, tuple(marks))


def _place(figure: HistoryFigure, suite: str) -> int:
    return next((at for at, each in enumerate(figure.points) if suite in each.suites), 0)


def _spreads(found: History) -> Iterator[Block]:
    yield Sentence(
        "Standard deviation divided by the mean: of the repeats within a suite, and of suites "
        "between changes. A difference smaller than the second is no change."
    )
    rows: list[tuple[Cell, ...]] = []
    known = [
        each
        for each in found.figures
        if each.suite_spread is not None or any(of.spread is not None for of in each.points)
    ]
    if not known:
        yield Sentence("Unknown: no suite has repeats, and there are too few suites.")
        return
    for figure in known:
        newest = figure.points[-1]
        between = NOT_APPLICABLE
        if newest.spread_low is not None and newest.spread_high is not None:
            ends = map(units.fraction, (newest.spread_low, newest.spread_high))
            between = " to ".join(ends)
        older = [each.spread for each in figure.points[:-1] if each.spread is not None]
        rows.append(
            (
                f"{figure.metric}, {_named(figure)}",
                Share(newest.spread),
                between,
                Share(sorted(older)[len(older) // 2]) if older else NOT_APPLICABLE,
                Share(figure.suite_spread),
                Count(figure.n_suites),
            )
        )
    headings = ("", "of repeats, newest", "95 % interval", "before, median", "of suites", "suites")
    yield Table("", tuple(map(Column, headings)), tuple(rows))


def _suites(found: History) -> Iterator[Block]:
    yield Table(
        "",
        tuple(map(Column, ("", "started", "recipe", "runs", "without figures", "host"))),
        tuple(
            (
                each.name,
                each.started[:16].replace("T", " "),
                each.recipe,
                Count(each.n_runs),
                Count(each.n_failed + each.n_not_available),
                each.facts.get("host", units.UNKNOWN),
            )
            for each in found.suites
        ),
    )
    for each in found.suites:
        yield from sentences((f"{each.name}: {told}." for told in each.doubts), "caution")
    recipes: dict[str, str] = {}
    for each in found.suites:
        told = each.facts.get("recipe", "")
        before = recipes.get(each.recipe, told)
        recipes[each.recipe] = told
        if before != told:
            yield Sentence(
                f"From {each.name} on, recipe {each.recipe} is a different one ({before} to "
                f"{told}): figures with the same options continue, others start again."
            )
    whys: dict[tuple[str, str], list[str]] = defaultdict(list)
    for figure in found.figures:
        for suite, why in figure.missing.items():
            whys[suite, why].append(_named(figure))
    for (suite, why), names in whys.items():
        told = ", ".join(dict.fromkeys(names))
        yield Sentence(f"{suite} has no figure of {told}: {why}.")
    if found.skipped:
        n = units.count(len(found.skipped))
        yield Sentence(f"Left out, {n}: {_skipped(found)}.", "caution")
    if found.other_metrics:
        yield Sentence(f"Other figures, with --metric: {', '.join(found.other_metrics)}.")


def _skipped(found: History) -> str:
    told = [f"{each.file}: {each.why}" for each in found.skipped[:MOST_FACTS]]
    more = len(found.skipped) - len(told)
    return "; ".join([*told, *([f"and {units.count(more)} more"] if more else [])])
