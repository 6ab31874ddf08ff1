"""The tables of the page: which figures of the document stand in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.recording.kinds import Trait, kinds_that
from iobench.report import units
from iobench.report.facts import PUBLISHED_FIGURES
from iobench.report.tables import NOT_APPLICABLE, PARTS, PHASES, WAIT_UNIT, TextTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.webpage.figures import PageFigures

__all__ = [
    "PageTable",
    "compared_table",
    "loaders_table",
    "phases_table",
    "plain_table",
    "processes_tables",
    "ranks_table",
    "shown_stages",
    "stages_table",
    "waits_table",
]

MOST_RANKS: Final = 64
WITH_BYTES: Final = frozenset(kind.spelled for kind in kinds_that(Trait.CARRIES_BYTES))


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of the page; the first column names the row, the others are figures.

    Parameters
    ----------
    title : str
    columns : tuple of str
    rows : tuple of tuple
        Texts, or figures with their place in the document.
    total : tuple
        Below them, empty where there is none.
    note : str
        What is left out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: tuple[Any, ...] = ()
    note: str = ""


def plain_table(table: TextTable) -> PageTable:
    """Return a table whose figures are in no JSON."""
    columns = tuple(" ".join(column.split()) for column in table.columns)
    return PageTable(table.title, columns, table.rows, table.total)


def compared_table(figures: PageFigures, runs: Sequence[int], labels: Sequence[str]) -> PageTable:
    """Return one row for each run; in steady state if all have one."""
    steady = all(figures.value(f"runs.{run}.steady") is not None for run in runs)
    windows = [f"runs.{run}.steady" if steady else f"runs.{run}" for run in runs]
    names = ("wait_per_step.mean_s", "wait_per_step.median_s")
    paths = [f"{window}.{name}" for window in windows for name in names]
    unit, waits = figures.column(paths, unit=WAIT_UNIT)
    rows = tuple(
        (
            label,
            figures(f"{window}.samples_per_s", "sample_rate"),
            waits[2 * place],
            waits[2 * place + 1],
            figures(f"runs.{run}.wait_fraction", "fraction"),
            figures(f"{window}.wait_fraction", "fraction") if steady else NOT_APPLICABLE,
            figures(f"{window}.accelerator_utilisation", "fraction"),
            figures(f"{window}.bytes_per_s", "byte_rate"),
            figures(f"runs.{run}.read_per_byte", "ratio"),
            figures(f"runs.{run}.cold_fraction", "fraction"),
        )
        for place, (run, label, window) in enumerate(zip(runs, labels, windows, strict=True))
    )
    what = "steady state, but for “whole run” and what was read" if steady else "whole run"
    columns = (
        *("as", "samples/s", f"wait, mean {unit}", f"wait, median {unit}"),
        *("exposed, whole run", "exposed, steady", "accelerator utilisation", "loaded"),
        *("read per byte used", "cold"),
    )
    return PageTable(f"Compared ({what})", columns, rows)


def shown_stages(figures: PageFigures, window: str) -> list[int]:
    """Return the places of the stages that took any time, or have spans."""
    return [
        place
        for place, row in enumerate(figures.value(f"{window}.stages") or ())
        if row["busy_s"] or row["exposed_s"] or row["n_spans"]
    ]


def stages_table(figures: PageFigures, window: str, title: str) -> PageTable:
    """Return busy, hidden and exposed time by stage, its bytes and their rate."""
    rows = [f"{window}.stages.{place}" for place in shown_stages(figures, window)]
    times = [f"{row}.{name}" for row in rows for name in ("busy_s", "hidden_s", "exposed_s")]
    unit, texts = figures.column([*times, f"{window}.wait_ns"])
    return PageTable(
        title,
        (
            *("stage", f"busy {unit}", f"hidden {unit}", f"exposed {unit}", "of the wait"),
            *("on a CPU", "handed on", "while busy", "spans"),
        ),
        tuple(
            (
                figures(f"{row}.stage", "text"),
                *texts[3 * place : 3 * place + 3],
                figures(f"{row}.wait_fraction", "fraction"),
                _cpu(figures, row),
                *_bytes(figures, row),
                figures(f"{row}.n_spans", "count"),
            )
            for place, row in enumerate(rows)
        ),
        ("the whole wait", "", "", texts[-1], "", "", "", "", ""),
    )


def _cpu(figures: PageFigures, row: str) -> Any:
    if not figures.value(f"{row}.n_spans"):
        return NOT_APPLICABLE
    return figures(f"{row}.cpu_s", "duration")


def _bytes(figures: PageFigures, row: str) -> tuple[Any, Any]:
    """Return what a stage handed on, and how fast; nothing of stages that carry no bytes."""
    carries = str(figures.value(f"{row}.stage")).partition(":")[0] in WITH_BYTES
    if not figures.value(f"{row}.nbytes") and not carries:
        return NOT_APPLICABLE, NOT_APPLICABLE
    rate = figures(f"{row}.busy_bytes_per_s", "byte_rate")
    busy = figures.value(f"{row}.busy_s")
    return figures(f"{row}.nbytes", "nbytes"), rate if busy else NOT_APPLICABLE


def waits_table(figures: PageFigures, run: str) -> PageTable:
    """Return the wait per step of the run, of its parts, and as published."""
    named = [("whole run", f"{run}.wait_per_step", "_s")]
    named += [
        (PARTS[part], f"{run}.{part}.wait_per_step", "_s")
        for part in ("recurring", "steady")
        if figures.value(f"{run}.{part}") is not None
    ]
    n_measured = len(named)
    if figures.value(f"{run}.published") is not None:
        named.append(("published", f"{run}.published.exposed_io_s", ""))
    paths = [f"{path}.{each}{end}" for _, path, end in named for each in PUBLISHED_FIGURES]
    unit, texts = figures.column(paths, unit=WAIT_UNIT)
    width = len(PUBLISHED_FIGURES)
    return PageTable(
        f"Wait per step, {unit}",
        ("", *PUBLISHED_FIGURES, "steps"),
        tuple(
            (
                name,
                *texts[width * place : width * (place + 1)],
                figures(f"{path}.n_steps", "count") if place < n_measured else "",
            )
            for place, (name, path, _) in enumerate(named)
        ),
    )


def phases_table(figures: PageFigures, run: str) -> PageTable:
    """Return start-up, fill, steady state and end, as they add up to the whole run."""
    names = list(figures.value(f"{run}.phases") or ())
    rows = [f"{run}.phases.{name}" for name in names]
    times = [f"{row}.{each}" for row in (*rows, run) for each in ("wall_s", "wait_s")]
    unit, texts = figures.column(times)
    return PageTable(
        "Start-up and fill, apart from the steady state",
        ("", f"time {unit}", f"waiting {unit}", "exposed", "calls"),
        tuple(
            (
                PHASES.get(name, name),
                *texts[2 * place : 2 * place + 2],
                figures(f"{row}.wait_fraction", "fraction"),
                figures(f"{row}.n_deliveries", "count"),
            )
            for place, (name, row) in enumerate(zip(names, rows, strict=True))
        ),
        ("whole run", *texts[-2:], figures(f"{run}.wait_fraction", "fraction"), ""),
    )


def ranks_table(figures: PageFigures) -> PageTable:
    """Return the ranks that wait longest."""
    ranks = figures.value("job.ranks") or ()
    order = sorted(range(len(ranks)), key=lambda place: -ranks[place]["wait_s"])[:MOST_RANKS]
    rows = [f"job.ranks.{place}" for place in sorted(order)]
    names = ["wait_s", "exposed_s"]
    some = any(each["comm_s"] is not None for each in ranks)
    names += ["comm_s", "peer_input_wait_s"] if some else []
    unit, texts = figures.column([f"{row}.{name}" for row in rows for name in names])
    told = ("comm", "waiting for peers’ input") if some else ()
    more = len(ranks) - len(rows)
    return PageTable(
        "Ranks",
        (
            *("rank", "host", "batches", "exposed", "last in steps", f"wait {unit}"),
            *(f"{what} {unit}" for what in ("alone", *told)),
        ),
        tuple(
            (
                figures(f"{row}.rank", "count"),
                figures(f"{row}.host", "text"),
                figures(f"{row}.batches", "count"),
                figures(f"{row}.wait_fraction", "fraction"),
                figures(f"{row}.steps_last", "count"),
                *texts[len(names) * place : len(names) * (place + 1)],
            )
            for place, row in enumerate(rows)
        ),
        note=f"{units.count(more)} ranks that wait less are left out." if more else "",
    )


def loaders_table(figures: PageFigures, run: str) -> PageTable:
    """Return what each loader is, and what of the wait was for it."""
    rows = [f"{run}.loaders.{place}" for place in range(len(figures.value(f"{run}.loaders")))]
    unit, texts = figures.column([f"{row}.wait_ns" for row in rows])
    return PageTable(
        "Loaders",
        ("loader", "class", "workers", "threads", "batch size", "batches", f"wait {unit}"),
        tuple(
            (
                figures(f"{row}.name", "text"),
                figures(f"{row}.kind", "text"),
                *(
                    figures(f"{row}.{name}", "count")
                    for name in ("workers", "threads", "batch_size", "batches")
                ),
                texts[place],
            )
            for place, row in enumerate(rows)
        ),
    )


def processes_tables(figures: PageFigures, run: str) -> list[PageTable]:
    """Return what each process did, where nobody waited."""
    found = []
    for number, process in enumerate(figures.value(f"{run}.processes") or ()):
        rows = [
            f"{run}.processes.{number}.stages.{place}" for place in range(len(process["stages"]))
        ]
        unit, texts = figures.column([f"{row}.busy_s" for row in rows])
        found.append(
            PageTable(
                f"{process['process']} (process {process['pid']})",
                ("stage", f"busy {unit}", "handed on", "on a CPU", "spans"),
                tuple(
                    (
                        figures(f"{row}.stage", "text"),
                        texts[place],
                        figures(f"{row}.nbytes", "nbytes"),
                        figures(f"{row}.cpu_s", "duration"),
                        figures(f"{row}.n_spans", "count"),
                    )
                    for place, row in enumerate(rows)
                ),
            )
        )
    return [table for table in found if table.rows]
