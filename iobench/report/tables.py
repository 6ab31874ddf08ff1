"""The tables of a report as text: which figures stand in them, without any drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.recording.kinds import Trait
from iobench.report import units
from iobench.report.facts import PUBLISHED_FIGURES

if TYPE_CHECKING:
    from iobench.analysis.figures import Exposure, PartExposure, StageExposure, Window
    from iobench.report.run_report import RunReport

__all__ = [
    "TextTable",
    "comparison_table",
    "phase_table",
    "stage_table",
    "stage_tables",
    "wait_table",
    "waits_of",
]

Row = tuple[str, ...]
NOT_APPLICABLE: Final = "-"
PARTS: Final[Mapping[Window, str]] = {
    "recurring": "epochs after the first",
    "steady": "steady state",
    "whole": "whole run",
}
"""What the parts of a run are called, as `Exposure` knows them."""
WAIT_UNIT: Final = "ms"
"""Waits per step reach from microseconds to minutes; published ones are tenths of a second."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings; the first column names the row, the others are figures.

    Parameters
    ----------
    title : str
    columns : tuple of str
        Headings; a line break splits one over two lines.
    rows : tuple of tuple of str
    total : tuple of str
        The sum of the rows, empty where there is none.
    bars : tuple of (float, float)
        For each row what was hidden and what exposed of it, as shares of the longest row; empty
        where there is nothing to draw. Only pages that can draw show them.
    """

    title: str
    columns: Row
    rows: tuple[Row, ...]
    total: Row = ()
    bars: tuple[tuple[float, float], ...] = ()


def comparison_table(reports: Sequence[RunReport]) -> TextTable:
    """Return one row per format; in steady state if all of them have one."""
    steady = all(report.exposure.steady is not None for report in reports)
    windows = [report.judged if steady else report.exposure.whole for report in reports]
    statistics = [window.wait for window in windows]
    unit, waits = units.durations(
        [
            value
            for wait in statistics
            for value in ((wait.mean_ns, wait.median_ns) if wait else (None, None))
        ],
        unit=WAIT_UNIT,
    )
    rows = [
        (
            report.facts.label or units.UNKNOWN,
            units.sample_rate(window.samples_per_s),
            waits[2 * place],
            waits[2 * place + 1],
            units.fraction(report.exposure.whole.wait_fraction),
            _steady_share(report.exposure),
            units.fraction(window.accelerator_utilisation),
            units.byte_rate(window.bytes_per_s),
            units.ratio(report.exposure.whole.read_per_byte),
        )
        for place, (report, window) in enumerate(zip(reports, windows, strict=True))
    ]
    what = "steady state, but for whole and read" if steady else "whole run"
    return TextTable(
        title=f"Compared ({what})",
        columns=(
            "as",
            "samples\n/s",
            f"wait {unit}\nmean",
            f"wait {unit}\nmedian",
            "exposed\nwhole",
            "exposed\nsteady",
            "accel.\nutil.",
            "loaded",
            "read\n/used",
        ),
        rows=tuple(rows),
    )


def _steady_share(exposure: Exposure) -> str:
    return units.fraction(exposure.steady.wait_fraction) if exposure.steady else NOT_APPLICABLE


def stage_tables(exposure: Exposure) -> list[TextTable]:
    """Return the stages of each part of a run, first of the one that is judged."""
    named = (
        ("Stages over the epochs after the first", exposure.recurring),
        ("Stages in the steady state", exposure.steady),
        ("Stages over the whole run", exposure.whole),
    )
    return [stage_table(part, title) for title, part in named if part is not None]


def stage_table(window: PartExposure, title: str) -> TextTable:
    """Return busy, hidden and exposed time by stage; rows without any time are left out."""
    shown = [row for row in window.stages if row.busy_ns or row.exposed_ns or row.n_spans]
    busy_ns = sum(row.busy_ns for row in window.stages)
    times = [value for row in shown for value in (row.busy_ns, row.hidden_ns, row.exposed_ns)]
    unit, texts = units.durations([*times, busy_ns, busy_ns - window.wait_ns, window.wait_ns])
    rows = [
        (
            row.stage,
            *texts[3 * place : 3 * place + 3],
            _share(row.exposed_ns, window.wait_ns),
            _stage_nbytes(row),
            _stage_rate(row),
            units.count(row.n_spans),
        )
        for place, row in enumerate(shown)
    ]
    return TextTable(
        title=title,
        columns=(
            "stage",
            f"busy\n{unit}",
            f"hidden\n{unit}",
            f"exposed\n{unit}",
            "of the\nwait",
            "handed\non",
            "while\nbusy",
            "spans",
        ),
        rows=tuple(rows),
        total=("all", *texts[-3:], _share(window.wait_ns, window.wait_ns), "", "", ""),
        bars=_bars(shown),
    )


def _bars(shown: Sequence[StageExposure]) -> tuple[tuple[float, float], ...]:
    lengths = [(max(0, row.hidden_ns or 0), max(0, row.exposed_ns)) for row in shown]
    longest = max((hidden + exposed for hidden, exposed in lengths), default=0)
    if not longest:
        return ()
    return tuple((hidden / longest, exposed / longest) for hidden, exposed in lengths)


def _share(part_ns: int, whole_ns: int) -> str:
    return units.fraction(part_ns / whole_ns) if whole_ns else NOT_APPLICABLE


def _stage_nbytes(row: StageExposure) -> str:
    return units.nbytes(row.nbytes) if _carries_bytes(row) else NOT_APPLICABLE


def _stage_rate(row: StageExposure) -> str:
    if not _carries_bytes(row) or not row.busy_ns:
        return NOT_APPLICABLE
    return units.byte_rate(row.busy_bytes_per_s)


def _carries_bytes(row: StageExposure) -> bool:
    return (row.nbytes is not None and row.nbytes > 0) or Trait.CARRIES_BYTES in row.kind.traits


def wait_table(report: RunReport) -> TextTable:
    """Return the wait per step, beside the published one."""
    return waits_of(report.exposure, report.facts.published_s)


def waits_of(exposure: Exposure, published_s: Mapping[str, float] | None = None) -> TextTable:
    """Return the wait per step of the run and of its parts; below, a published one."""
    named = [("whole run", exposure.whole.wait)]
    for window in ("recurring", "steady"):
        part = exposure.part(window)
        if part is not None:
            named.append((PARTS[window], part.wait))
    values: list[int | None] = [
        getattr(wait, f"{figure}_ns") if wait else None
        for _, wait in named
        for figure in PUBLISHED_FIGURES
    ]
    names = [name for name, _ in named]
    if published_s is not None:
        names.append("published")
        values.extend(units.nanoseconds(published_s[figure]) for figure in PUBLISHED_FIGURES)
    unit, texts = units.durations(values, unit=WAIT_UNIT)
    width = len(PUBLISHED_FIGURES)
    return TextTable(
        title=f"Wait per step, {unit}",
        columns=("", *PUBLISHED_FIGURES, "steps"),
        rows=tuple(
            (
                name,
                *texts[width * place : width * (place + 1)],
                _n_steps(named[place][1]) if place < len(named) else "",
            )
            for place, name in enumerate(names)
        ),
    )


def _n_steps(wait: object) -> str:
    return units.count(getattr(wait, "n_steps", None))


def phase_table(exposure: Exposure) -> TextTable:
    """Return start-up, fill, steady state and end apart, as they add up to the whole run."""
    times = [value for phase in exposure.phases for value in (phase.wall_ns, phase.wait_ns)]
    unit, texts = units.durations([*times, exposure.whole.wall_ns, exposure.whole.wait_ns])
    rows = [
        (
            PHASES.get(phase.phase, phase.phase),
            texts[2 * place],
            texts[2 * place + 1],
            _share(phase.wait_ns, phase.wall_ns),
            units.count(phase.n_deliveries),
        )
        for place, phase in enumerate(exposure.phases)
    ]
    whole = exposure.whole
    return TextTable(
        title="Start-up and fill, apart from the steady state",
        columns=("", f"time\n{unit}", f"waiting\n{unit}", "exposed\n", "calls\n"),
        rows=tuple(rows),
        total=(
            "whole run",
            *texts[-2:],
            _share(whole.wait_ns, whole.wall_ns),
            units.count(sum(phase.n_deliveries for phase in exposure.phases)),
        ),
    )


PHASES = {
    "startup": "start-up: first batch",
    "fill": "fill of the pipeline",
    "steady": "steady state",
    "drain": "end: no batch left",
}
