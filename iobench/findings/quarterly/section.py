"""The quarterly table as a document, and as plain rows for JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from iobench.findings.metrics.figures import own_title
from iobench.findings.quarterly.figures import KEYS, TimedRow, exposed_fraction
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Column,
    Count,
    Document,
    Seconds,
    Section,
    Share,
    Table,
    sentences,
)
from iobench.report.suite_words import figure_cell
from iobench.runs.run_facts import PUBLISHED_FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.findings.quarterly.figures import Published, Quarterly, QuarterlyRun
    from iobench.report.document import Cell

QUARTERLY_VERSION: Final = 1
COLUMNS: Final = (
    "application", "tiny", "framework", "format", "published", "run", "made", "key",
    *(f"{name}_s" for name in PUBLISHED_FIGURES), "number", "exposed_fraction", "figures",
)  # fmt: skip
UNTIMED: Final = TimedRow((None,) * len(PUBLISHED_FIGURES))
NOTES: Final = (
    "A batch lasts from one request to the next; I/O is the part of it that was waited for. An "
    "epoch is the sum of its batches where all of them were measured.",
    "Exposed share of the sum: mean I/O divided by mean batch. A median may hide the cost of a few "
    "long waits.",
)


def quarterly_document(found: Quarterly) -> Document:
    """Return two tables for each application, what stands in them, and what was left out."""
    sections = []
    cells = groupby(found.runs, key=lambda run: (run.application, run.tiny))
    for number, ((application, tiny), group) in enumerate(cells):
        runs = list(group)
        published = [each for each in found.published if each.application == application]
        title = application + (", tiny stand-ins" if tiny else "")
        tables = _shares(runs, published), *_own(runs), _table(runs, published)
        about = sentences([*map(_about, runs), *_notes(published, tiny=tiny)])
        sections.append(Section(f"application-{number}", title, (*tables, *about)))
    sections.append(Section("notes", "", sentences(NOTES)))
    if found.skipped:
        title = f"Not in the table: {units.count(len(found.skipped))}"
        left_out = sentences(f"{each.run}: {each.why}" for each in found.skipped)
        sections.append(Section("skipped", title, left_out))
    return Document(
        "Applications, frameworks and formats",
        tuple(sections),
        figures=lambda: quarterly_to_json(found),
    )


def _name(run: QuarterlyRun) -> str:
    return f"{run.framework} {run.format}".strip()


def _shares(runs: Sequence[QuarterlyRun], published: Sequence[Published]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name, timed in _sources(runs, published):
        batch, wait, epoch = (timed.get(key, UNTIMED) for key in ("batch", "I/O", "epoch"))
        share = exposed_fraction(timed)
        rows.append(
            (
                name,
                _seconds(batch.mean),
                _seconds(wait.mean),
                NOT_APPLICABLE if share is None else Share(share),
                *("" if n is None else Count(n) for n in _numbers(batch, epoch)),
            )
        )
    headings = ("", "batch mean s", "I/O mean s", "exposed", "batches", "epochs")
    return Table("Exposed share of the sum", tuple(map(Column, headings)), tuple(rows))


def _own(runs: Sequence[QuarterlyRun]) -> Iterator[Table]:
    """Yield scripts' own figures beside time and energy, where there are any: D2.2, table 1."""
    names = dict.fromkeys(name for run in runs for name in run.figures)
    rows = tuple(
        (
            _name(run),
            *(_seconds(run.rows.get(key, UNTIMED).mean) for key in ("epoch", "batch")),
            *(figure_cell(name, run.figures.get(name)) for name in names),
        )
        for run in runs
    )
    columns = map(Column, ("", "epoch mean s", "batch mean s", *map(own_title, names)))
    if names:
        yield Table("Time, energy and figures of the script", tuple(columns), rows)


def _numbers(batch: TimedRow, epoch: TimedRow) -> tuple[int | None, int | None]:
    """Return how many were timed; where batches were counted no epoch is none."""
    return batch.number, epoch.number or (None if batch.number is None else 0)


def _sources(
    runs: Sequence[QuarterlyRun], published: Sequence[Published]
) -> Iterator[tuple[str, Mapping[str, TimedRow]]]:
    """Yield the name and the rows of what was measured, and of what was published."""
    yield from ((_name(run), run.rows) for run in runs)
    yield from ((each.source, each.rows) for each in published)


def _table(runs: Sequence[QuarterlyRun], published: Sequence[Published]) -> Table:
    measured = {_name(run) for run in runs}
    rows = tuple(
        (f"{key}, {name}", *map(_seconds, timed.get(key, UNTIMED).figures))
        for key in KEYS
        for name, timed in _sources(runs, published)
        if key in timed or name in measured
    )
    columns = tuple(map(Column, ("", *PUBLISHED_FIGURES)))
    return Table("As in MAELSTROM D2.3, in seconds", columns, rows)


def _seconds(value: float | None) -> Cell:
    """Return seconds as D2.3 prints them."""
    return NOT_APPLICABLE if value is None else Seconds(value)


def _about(run: QuarterlyRun) -> str:
    facts, told = run.facts, []
    if facts is None:
        told.append(f"means over {units.count(run.n_repeats)} runs of a suite")
    elif facts.batch_size is not None:
        told.append(f"batch size {facts.batch_size}")
    if run.n_ranks > 1:
        told.append(f"{units.count(run.n_ranks)} ranks")
    if facts is not None and facts.compute.step_ns:
        told.append(f"{units.duration(facts.compute.step_ns)} of compute emulated")
    if facts is not None and facts.stand_in and not facts.tiny:
        told.append("stand-ins")
    cpu, cpus = run.machine.get("cpu_model"), run.machine.get("cpus", run.machine.get("cores"))
    told += [f"{cpus} CPUs"] if isinstance(cpus, int) else []
    told += [cpu] if isinstance(cpu, str) and cpu else []
    return f"{_name(run)}: {run.run}, {_date(run.made_ns)}; {', '.join(told)}."


def _notes(published: Sequence[Published], *, tiny: bool) -> list[str]:
    if not published:
        return []
    real = "; those have samples of the real size" if tiny else ""
    return [
        "Rows without a number of batches are published figures, from the machines named "
        f"there{real}."
    ]


def _date(made_ns: int) -> str:
    if not made_ns:
        return "of an unknown date"
    return f"{datetime.fromtimestamp(made_ns // 10**9, UTC):%Y-%m-%d %H:%M} UTC"


def quarterly_to_json(found: Quarterly) -> dict[str, Any]:
    """Return the table for ``json.dumps(allow_nan=False)``.

    ``rows``: ``[{application, tiny, framework, format, published, run, made, key, min_s, mean_s,
    median_s, max_s, stdev_s, number, exposed_fraction, figures}]``, where ``published`` is where a
    row was published, null of a run; ``run``, ``made`` (since the epoch, in ns), ``framework``,
    ``format`` and ``number`` are null of published rows; ``exposed_fraction`` and ``figures``
    (energy, and scripts' own in the last epoch) are those of the cell, in each of its rows.
    ``skipped``: ``[{run, why}]``.
    """
    return {
        "schema_version": QUARTERLY_VERSION,
        "rows": _rows(found),
        "skipped": [{"run": each.run, "why": each.why} for each in found.skipped],
    }


def _rows(found: Quarterly) -> list[dict[str, Any]]:
    rows: list[tuple[Any, ...]] = []
    for run in found.runs:
        about = (run.application, run.tiny, run.framework, run.format, None, run.run)
        rows += _plain((*about, run.made_ns or None), run.rows, run.figures)
    for each in found.published:
        rows += _plain(
            (each.application, False, None, None, each.source, None, None), each.rows, {}
        )
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _plain(
    about: tuple[Any, ...], rows: Mapping[str, TimedRow], own: Mapping[str, float | None]
) -> list[tuple[Any, ...]]:
    share = exposed_fraction(rows)
    return [(*about, key, *row.figures, row.number, share, {**own}) for key, row in rows.items()]
