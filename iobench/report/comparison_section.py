"""Runs of the same samples side by side: waits, exposed shares and rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.report import units
from iobench.report.document import Quantity, Section, Table, columns
from iobench.report.loading_sections import statistic, verdict_of
from iobench.report.setting import setting_sentences, stand_in_sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.run_report import RunReport


def comparison_section(reports: Sequence[RunReport]) -> Section:
    """Return the verdicts, and one row for each run; in steady state if all of them have one."""
    names = [report.facts.label or units.UNKNOWN for report in reports]
    steady = all(report.exposure.steady is not None for report in reports)
    exposures = [report.exposure for report in reports]
    parts = [each.judged if steady else each.whole for each in exposures]
    table = Table(
        "Steady state" if steady else "Whole run",
        columns("as", "samples/s", "wait, mean", "exposed", "loaded", "bytes read per byte"),
        tuple(
            (
                name,
                Quantity(part.samples_per_s, "samples/s"),
                Quantity(statistic(part.wait, "mean_ns"), "ns"),
                Quantity(part.wait_fraction, "share"),
                Quantity(part.bytes_per_s, "B/s"),
                Quantity(each.whole.read_per_byte, "ratio"),
            )
            for name, each, part in zip(names, exposures, parts, strict=True)
        ),
    )
    verdicts = (verdict_of(each.diagnosis, name) for each, name in zip(reports, names, strict=True))
    return Section(
        "compared",
        "Compared",
        (*stand_in_sentences(reports), *setting_sentences(reports), *verdicts, table),
    )
