"""What a script said of itself by `iobench.metric`, by epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.findings.contract import Finding
from iobench.recording.facts import EpochMetric
from iobench.report.document import Column, Quantity, Section, Table

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

COLUMNS: Final = tuple(map(Column, ("", "first epoch", "last epoch", "epochs")))


class ScriptMetrics(msgspec.Struct, frozen=True):
    """All figures of a script by name, epoch by epoch."""

    epochs: Mapping[str, tuple[EpochMetric, ...]]


def script_metrics(run: RankRun) -> ScriptMetrics | None:
    """Return the figures of a training process; None where it named none."""
    return _by_epoch(each for facts in run.own_facts for each in facts.metrics)


def metrics_of_ranks(ranks: Sequence[ScriptMetrics]) -> ScriptMetrics | None:
    """Return the figures of a job: means over the values of all its training processes."""
    return _by_epoch(each for rank in ranks for of in rank.epochs.values() for each in of)


def _by_epoch(metrics: Iterable[EpochMetric]) -> ScriptMetrics | None:
    names: dict[str, dict[int, list[EpochMetric]]] = {}
    for each in metrics:
        names.setdefault(each.name, {}).setdefault(each.epoch, []).append(each)
    result = {
        name: tuple(_joined(epochs[number]) for number in sorted(epochs))
        for name, epochs in names.items()
    }
    return ScriptMetrics(result) if result else None


def _joined(of: Sequence[EpochMetric]) -> EpochMetric:
    counts, known = [each.n_values for each in of], [e.mean for e in of if e.mean is not None]
    mean = fmean(known, counts) if len(known) == len(of) else None
    return EpochMetric(of[0].name, of[0].epoch, mean, sum(counts))


def metrics_section(metrics: ScriptMetrics) -> Section:
    """Return a table of the figures; None is the mean of values that are not all finite."""
    rows = []
    for name, of in metrics.epochs.items():
        first, last = Quantity(of[0].mean, "number"), Quantity(of[-1].mean, "number")
        rows.append((name, first, last, Quantity(len(of), "count")))
    return Section("metrics", "Figures of the script", (Table("", COLUMNS, tuple(rows)),))


FINDING: Final = Finding(
    "metrics", 95, ScriptMetrics, script_metrics, metrics_section, metrics_of_ranks
)
