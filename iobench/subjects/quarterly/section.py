"""The quarterly table as a document, and as plain rows for JSON and CSV."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from iobench.profiles.run_facts import PUBLISHED_FIGURES
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
from iobench.report.wrapping import plain
from iobench.subjects.quarterly.figures import KEYS, Published, Quarterly, QuarterlyRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.exposure_figures import StepStatistics
    from iobench.report.document import Cell

__all__ = ["QUARTERLY_VERSION", "quarterly_document", "quarterly_to_csv", "quarterly_to_json"]

QUARTERLY_VERSION: Final = 1
COLUMNS: Final = (
    "application", "tiny", "framework", "format", "published", "run", "made", "key",
    *(f"{name}_s" for name in PUBLISHED_FIGURES), "number", "exposed_fraction",
)  # fmt: skip
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""
NOTES: Final = (
    "A batch lasts from being asked for to the next being asked for, I/O is the part of it that "
    "was waited for, and an epoch is the sum of its batches where all of them were measured.",
    "Exposed share of the sum: mean I/O over mean batch. A median may hide what few long waits "
    "cost.",
)


def quarterly_document(found: Quarterly) -> Document:
    """Return two tables for each application, what stands in them, and what was left out."""
    sections = []
    cells = groupby(found.runs, key=lambda run: (run.application, run.tiny))
    for number, ((application, tiny), group) in enumerate(cells):
        runs = list(group)
        published = [each for each in found.published if each.application == application]
        title = application + (", tiny stand-ins" if tiny else "")
        tables = _shares(runs, published), _table(runs, published)
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
    for run in runs:
        batch, wait, epoch = (run.rows[key] for key in ("batch", "I/O", "epoch"))
        means = (_seconds(None if each is None else each.mean_ns / 1e9) for each in (batch, wait))
        numbers = (Count(0 if each is None else each.n_steps) for each in (batch, epoch))
        rows.append((_name(run), *means, Share(run.exposed_fraction), *numbers))
    at = PUBLISHED_FIGURES.index("mean")
    for told in published:
        means = (
            _seconds(told.rows[key][at] if key in told.rows else None) for key in ("batch", "I/O")
        )
        share = NOT_APPLICABLE if told.exposed_fraction is None else Share(told.exposed_fraction)
        rows.append((told.source, *means, share, "", ""))
    headings = ("", "batch mean s", "I/O mean s", "exposed", "batches", "epochs")
    return Table("Exposed share of the sum", tuple(map(Column, headings)), tuple(rows))


def _table(runs: Sequence[QuarterlyRun], published: Sequence[Published]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key in KEYS:
        for run in runs:
            row = run.rows[key]
            values = (None,) * len(PUBLISHED_FIGURES) if row is None else _values(row)
            rows.append((f"{key}, {_name(run)}", *map(_seconds, values)))
        rows += [
            (f"{key}, {each.source}", *map(_seconds, each.rows[key]))
            for each in published
            if key in each.rows
        ]
    columns = tuple(map(Column, ("", *PUBLISHED_FIGURES)))
    return Table("As in MAELSTROM D2.3, in seconds", columns, tuple(rows))


def _seconds(value: float | None) -> Cell:
    """Return seconds as D2.3 prints them."""
    return NOT_APPLICABLE if value is None else Seconds(value)


def _values(row: StepStatistics) -> tuple[float | None, ...]:
    """Return `PUBLISHED_FIGURES` in seconds; one value has no standard deviation."""
    deviation = None if row.stdev_ns is None else row.stdev_ns / 1e9
    plain = (row.min_ns, row.mean_ns, row.median_ns, row.max_ns)
    return (*(value / 1e9 for value in plain), deviation)


def _about(run: QuarterlyRun) -> str:
    facts = run.facts
    told = [f"batch size {facts.batch_size}"] if facts.batch_size is not None else []
    if run.n_ranks > 1:
        told.append(f"{units.count(run.n_ranks)} ranks")
    if facts.compute.step_ns:
        told.append(f"{units.duration(facts.compute.step_ns)} of compute emulated")
    if facts.stand_in and not facts.tiny:
        told.append("stand-ins")
    cpu, cpus = (facts.machine.get(name) for name in ("cpu_model", "cpus"))
    told += [f"{cpus} CPUs"] if isinstance(cpus, int) else []
    told += [cpu] if isinstance(cpu, str) and cpu else []
    return f"{_name(run)}: {run.run}, {_date(run.made_ns)}; {', '.join(told)}."


def _notes(published: Sequence[Published], *, tiny: bool) -> list[str]:
    if not published:
        return []
    real = "; those are of samples of the real size" if tiny else ""
    return [
        f"Rows without a number of batches are published ones, on the machines named there{real}."
    ]


def _date(made_ns: int) -> str:
    if not made_ns:
        return "of an unknown date"
    return f"{datetime.fromtimestamp(made_ns // 10**9, UTC):%Y-%m-%d %H:%M} UTC"


def quarterly_to_json(found: Quarterly) -> dict[str, Any]:
    """Return the table for ``json.dumps(allow_nan=False)``.

    ``rows``: ``[{application, tiny, framework, format, published, run, made, key, min_s, mean_s,
    median_s, max_s, stdev_s, number, exposed_fraction}]``, where ``published`` is where a row was
    published, null of a run; ``run``, ``made`` (since the epoch, in ns), ``framework``, ``format``
    and ``number`` are null of published rows; ``exposed_fraction`` is that of the cell, in each of
    its rows. ``skipped``: ``[{run, why}]``.
    """
    return {
        "schema_version": QUARTERLY_VERSION,
        "rows": _rows(found),
        "skipped": [{"run": each.run, "why": each.why} for each in found.skipped],
    }


def quarterly_to_csv(found: Quarterly) -> str:
    """Return the rows of the JSON, unknown ones empty.

    A name that a spreadsheet would take for a formula has an apostrophe before it, and one that
    would move a terminal's cursor is spelled out.
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in _rows(found):
        writer.writerow([_cell(row[name]) for name in COLUMNS])
    return written.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    told = plain(value)
    return f"'{told}" if value.startswith(FORMULA) else told


def _rows(found: Quarterly) -> list[dict[str, Any]]:
    rows: list[tuple[Any, ...]] = []
    for run in found.runs:
        about = (run.application, run.tiny, run.framework, run.format, None, run.run)
        rows += [
            (*about, run.made_ns or None, key, *_values(row), row.n_steps, run.exposed_fraction)
            for key in KEYS
            if (row := run.rows[key]) is not None
        ]
    for each in found.published:
        source = (each.application, False, None, None, each.source, None)
        rows += [
            (*source, None, key, *figures, None, each.exposed_fraction)
            for key, figures in each.rows.items()
        ]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]
