"""Runs of the same samples side by side: waits, exposed shares and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Bar,
    BarPart,
    Quantity,
    Section,
    Table,
    columns,
    quantities,
)
from iobench.report.loading_sections import WAIT_UNIT, statistic, verdict_of
from iobench.report.setting import setting_sentences, stand_in_sentences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.exposure_figures import PartExposure
    from iobench.report.run_report import RunReport


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
            *columns("bytes read per byte delivered", "cold reads"),
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
