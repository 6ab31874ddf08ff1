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
    columns,
    quantities,
)
from iobench.report.loading_sections import WAIT_UNIT, statistic, verdict_of
from iobench.report.setting import setting_sentences, stand_in_sentences
from iobench.runs.run_facts import PUBLISHED_FIGURES, Five

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from iobench.analysis.exposure_figures import PartExposure
    from iobench.analysis.run import Run
    from iobench.report.document import Cell
    from iobench.report.run_report import RunReport
    from iobench.runs.run_facts import StoreFacts

KEYS: Final = ("epoch", "batch", "forward", "backward", "I/O")
UNIT_NS: Final = 1e9
NOTES: Final = (
    "A batch lasts from one request to the next. An epoch is the sum of its batches, where all of "
    "them were measured. Forward and backward passes are emulated. What was published is for all "
    "samples, of the real size, on one A100."
)


def comparison_section(reports: Sequence[RunReport]) -> Section:
    """Return the verdicts, and one row for each run."""
    return Section(
        "compared",
        "Compared",
        (
            *stand_in_sentences(reports),
            *setting_sentences(reports),
            *(verdict_of(each.diagnosis, _label(each)) for each in reports),
            _comparison_table(reports),
            *_store_tables(reports),
        ),
    )


def _label(report: RunReport) -> str:
    return report.facts.label or units.UNKNOWN


def _comparison_table(reports: Sequence[RunReport]) -> Table:
    """Return one row per run; in steady state if all of them have one."""
    steady = all(report.exposure.steady is not None for report in reports)
    exposures = [report.exposure for report in reports]
    windows = [each.judged if steady else each.whole for each in exposures]
    shares = [window.wait_fraction or 0.0 for window in windows]
    return Table(
        "Steady state, except 'whole run' and the bytes read" if steady else "Whole run",
        (
            *columns("as", "samples/s"),
            *columns("wait, mean", "wait, median", unit_group="wait", unit=WAIT_UNIT),
            *columns("exposed, whole run", "exposed, steady", "accelerator utilisation", "loaded"),
            *(Column("bytes read per byte delivered"), Column("cold reads", is_spare=True)),
        ),
        tuple(
            (
                _label(report),
                Quantity(window.samples_per_s, "samples/s"),
                *quantities("ns", *_waits(window)),
                Quantity(report.exposure.whole.wait_fraction, "share"),
                Quantity(window.wait_fraction, "share") if steady else NOT_APPLICABLE,
                Quantity(window.accelerator_utilisation, "share"),
                Quantity(window.bytes_per_s, "B/s"),
                Quantity(report.exposure.whole.read_per_byte, "ratio"),
                Quantity(report.exposure.whole.cold_fraction, "share"),
            )
            for report, window in zip(reports, windows, strict=True)
        ),
        bars=tuple(
            Bar((BarPart("compute", 1 - each, "computing"), BarPart("exposed", each, "waiting")))
            for each in shares
        ),
    )


def _waits(part: PartExposure) -> Iterator[float | None]:
    return (statistic(part.wait, name) for name in ("mean_ns", "median_ns"))


def _store_tables(reports: Sequence[RunReport]) -> Iterator[Table]:
    """Yield what ways of storing the same samples cost, where several were measured."""
    stores = [(_label(each), each.facts.store) for each in reports if each.facts.store is not None]
    if len(stores) > 1:
        rows = tuple((label, *_store_cells(store)) for label, store in stores)
        yield Table("Stores", columns("as", "stored per sample", "store", "largest error"), rows)


def _store_cells(store: StoreFacts) -> tuple[Cell, ...]:
    each = store.nbytes / store.n_samples if store.nbytes and store.n_samples else None
    errors = ((name, of.get("max_absolute_error")) for name, of in store.lossy.items())
    return (
        Quantity(each, "B"),
        Quantity(store.nbytes, "B", "{} (a probe)" if store.probe else "{}"),
        ", ".join(f"{name} {units.number(error)}" for name, error in errors) or "none",
    )


def published_section(runs: Sequence[Run]) -> Section | None:
    """Return several frameworks' runs of one dataset in the form of D2.3; None of other runs.

    Its rows are by key, the runs in their order and then what was published of it.
    """
    if len({str(run.about.framework) for run in runs}) < 2:
        return None
    measured = [
        (run.about.label or str(run.about.framework), step_times(run.of_rank())) for run in runs
    ]
    if not any(len(times["batch"]) for _, times in measured):
        return None
    tables: dict[str, Mapping[str, Five]] = {}
    for run in runs:
        tables |= {s: t for s, t in run.about.published.tables.items() if s not in tables}
    rows: list[tuple[Cell, ...]] = []
    for key in KEYS:
        rows += [(f"{key}, {name}", *_figures(times[key])) for name, times in measured]
        for source, table in tables.items():
            if key in table:
                rows.append((f"{key}, {source}", *quantities("s", *table[key]), ""))
    named = columns("", *PUBLISHED_FIGURES, "number")
    return Section(
        "published",
        "As in MAELSTROM D2.3, in seconds",
        (Table("", named, tuple(rows)), Sentence(NOTES)),
    )


def _figures(times_ns: NDArray[np.int64]) -> tuple[Cell, ...]:
    """Return the figures of D2.3 in seconds, and of how many."""
    seconds = [value / UNIT_NS for value in times_ns.tolist()]
    if not seconds:
        return (*(NOT_APPLICABLE for _ in PUBLISHED_FIGURES), Quantity(0, "count"))
    values = (min(seconds), statistics.mean(seconds), statistics.median(seconds), max(seconds))
    deviation = Quantity(statistics.stdev(seconds), "s") if len(seconds) > 1 else NOT_APPLICABLE
    return (*quantities("s", *values), deviation, Quantity(len(seconds), "count"))
