"""Runs of the same samples side by side: as iobench compares them, and as MAELSTROM D2.3 does.

Tables 4 and 5 there: min, mean, median, max and standard deviation of an epoch, a batch, its
forward and backward pass, and of the I/O that the training loop saw, in seconds.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

from iobench.analysis.epochs import step_times
from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    Column,
    Quantity,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.loading_sections import (
    WAIT_UNIT,
    setting_sentences,
    stand_in_sentences,
    told_of,
    verdict_told,
)
from iobench.report.sentences import today_sentence
from iobench.runs.run_facts import PUBLISHED_FIGURES, Five

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from iobench.analysis.run import Run
    from iobench.report.document import Block, Cell
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import StoreFacts

MOST_ERRORS: Final = 3
"""Variables whose error a row names; all are in JSON."""
KEYS: Final = ("epoch", "batch", "forward", "backward", "I/O")
UNIT_NS: Final = 1e9


def comparison_section(reports: Sequence[RunReport]) -> Section:
    """Return the verdicts, and one row for each run."""
    today = today_sentence(reports)
    known: tuple[Block, ...] = (Sentence(today, "strong"),) if today else ()
    return Section(
        "compared",
        "Compared",
        (
            *stand_in_sentences(reports),
            *setting_sentences(reports),
            *(verdict_told(each.diagnosis, each.facts.label or units.UNKNOWN) for each in reports),
            *known,
            _comparison_table(reports),
            *_store_tables(reports),
        ),
    )


def _store_tables(reports: Sequence[RunReport]) -> Iterator[Table]:
    """Yield what ways of storing the same samples cost and save, where several were measured."""
    if sum(each.facts.store is not None for each in reports) < 2:
        return
    steady = all(report.exposure.steady is not None for report in reports)
    rows: list[tuple[Cell, ...]] = []
    for report in reports:
        window = report.judged if steady else report.exposure.whole
        n_samples, all_of_run, store = window.n_samples, report.exposure.whole, report.facts.store
        read, n_read = all_of_run.read_nbytes, all_of_run.n_samples
        stored: tuple[Cell, ...] = NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE
        if store is not None:
            each = store.nbytes / store.n_samples if store.nbytes and store.n_samples else None
            of_all = "{} (a probe)" if store.probe else "{}"
            stored = (
                Quantity(each, "B"),
                Quantity(store.nbytes, "B", of_all),
                _largest_errors(store),
            )
        rows.append(
            (
                report.facts.label or units.UNKNOWN,
                Quantity(window.wall_ns / n_samples if n_samples else None, "ns"),
                Quantity(window.wait_ns / n_samples if n_samples else None, "ns"),
                Quantity(read / n_read if read is not None and n_read else None, "B"),
                *stored,
            )
        )
    columns = (
        *(
            Column("as"),
            Column("time per sample", "a sample"),
            Column("wait per sample", "a sample"),
        ),
        *(Column("read per sample"), Column("stored per sample"), Column("store")),
        Column("largest error"),
    )
    yield Table("Samples and stores", columns, tuple(rows))


def _largest_errors(store: StoreFacts) -> str:
    """Return how far stored values are off, in units of each variable."""
    known = [
        f"{name} {units.number(errors.get('max_absolute_error'))}"
        for name, errors in store.lossy.items()
    ]
    more = f" and {len(known) - MOST_ERRORS} more" if len(known) > MOST_ERRORS else ""
    return (", ".join(known[:MOST_ERRORS]) or "none") + more


def _comparison_table(reports: Sequence[RunReport]) -> Table:
    """Return one row per run; in steady state if all of them have one."""
    steady = all(report.exposure.steady is not None for report in reports)
    what = "steady state, except 'whole run' and the bytes read" if steady else "whole run"
    windows = [report.judged if steady else report.exposure.whole for report in reports]
    return Table(
        what.capitalize(),
        (
            *(Column("as"), Column("samples/s")),
            *(Column("wait, mean", "wait", WAIT_UNIT), Column("wait, median", "wait", WAIT_UNIT)),
            *(Column("exposed, whole run"), Column("exposed, steady")),
            *(Column("accelerator utilisation"), Column("loaded"), Column("read per byte used")),
            Column("cold reads", is_spare=True),
        ),
        tuple(
            (
                report.facts.label or units.UNKNOWN,
                Quantity(window.samples_per_s, "samples/s"),
                Quantity(told_of(window.wait, "mean_ns"), "ns"),
                Quantity(told_of(window.wait, "median_ns"), "ns"),
                Quantity(report.exposure.whole.wait_fraction, "share"),
                Quantity(report.exposure.steady.wait_fraction, "share")
                if report.exposure.steady
                else NOT_APPLICABLE,
                Quantity(window.accelerator_utilisation, "share"),
                Quantity(window.bytes_per_s, "B/s"),
                Quantity(report.exposure.whole.read_per_byte, "ratio"),
                Quantity(report.exposure.whole.cold_fraction, "share"),
            )
            for report, window in zip(reports, windows, strict=True)
        ),
        bars=tuple(
            Bar(
                (
                    BarPart("compute", 1 - (window.wait_fraction or 0.0), "computing"),
                    BarPart("exposed", window.wait_fraction or 0.0, "waiting"),
                )
            )
            for window in windows
        ),
    )


def published_section(runs: Sequence[Run]) -> Section | None:
    """Return several frameworks' runs of one dataset in the form of D2.3; None of other runs.

    Its rows are by key, the runs in their order and then what was published of it.
    """
    if len({str(run.about.framework) for run in runs}) < 2:
        return None
    measured = [(_name(run), step_times(run.of_rank())) for run in runs]
    if not any(len(times["batch"]) for _, times in measured):
        return None
    tables: dict[str, Mapping[str, Five]] = {}
    for run in runs:
        tables |= {s: t for s, t in run.about.published_tables.items() if s not in tables}
    rows: list[tuple[Cell, ...]] = []
    for key in KEYS:
        rows += [(f"{key}, {name}", *_figures(times[key])) for name, times in measured]
        for source, table in tables.items():
            if key in table:
                rows.append((f"{key}, {source}", *(Quantity(each, "s") for each in table[key]), ""))
    columns = (Column(""), *map(Column, PUBLISHED_FIGURES), Column("number"))
    return Section(
        "published",
        "As in MAELSTROM D2.3, in seconds",
        (Table("", columns, tuple(rows)), *sentences(_notes(runs, tables))),
    )


def _name(run: Run) -> str:
    return run.about.label or str(run.about.framework)


def _figures(times_ns: NDArray[np.int64]) -> tuple[Cell, ...]:
    """Return the figures of D2.3 in seconds, and of how many."""
    seconds = [value / UNIT_NS for value in times_ns.tolist()]
    if not seconds:
        return (*(NOT_APPLICABLE for _ in PUBLISHED_FIGURES), Quantity(0, "count"))
    values = (min(seconds), statistics.mean(seconds), statistics.median(seconds), max(seconds))
    deviation = Quantity(statistics.stdev(seconds), "s") if len(seconds) > 1 else NOT_APPLICABLE
    return (*(Quantity(each, "s") for each in values), deviation, Quantity(len(seconds), "count"))


def _notes(runs: Sequence[Run], tables: Mapping[str, Mapping[str, Five]]) -> Iterator[str]:
    yield (
        "A batch lasts from one request to the next. An epoch is the sum of its batches, where all "
        "of them were measured. Forward and backward passes are emulated."
    )
    generated = [each.about for each in runs if each.about.stand_in]
    n_samples = {each.n_samples for each in generated if each.n_samples is not None}
    if n_samples and any("epoch" in each for each in tables.values()):
        of = " and ".join(units.count(number) for number in sorted(n_samples))
        yield f"An epoch here has {of} samples; published epochs cover all samples."
    if any(run.about.tiny for run in runs):
        yield "The published rows are for samples of the real size, on one A100."
