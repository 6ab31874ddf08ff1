"""The epochs of a run as the page shows them: what a batch took in each, and what of it waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.epochs import epochs_of_rank
from iobench.report import units
from iobench.report.tables import NOT_APPLICABLE, WAIT_UNIT
from iobench.report.webpage.page_tables import PageTable

if TYPE_CHECKING:
    from iobench.analysis.epoch_statistics import EpochFigures
    from iobench.analysis.run import RankRun

__all__ = ["epochs_table"]

MOST_EPOCHS: Final = 20


def epochs_table(measured: RankRun) -> PageTable | None:
    """Return one row for each epoch; None where there is but one, or nobody asked for batches."""
    epochs = [each for each in epochs_of_rank(measured) if each.n_batches]
    if len(epochs) < 2:
        return None
    shown = epochs[:MOST_EPOCHS]
    more = len(epochs) - len(shown)
    unit, texts = units.durations(
        [each for epoch in shown for each in _times(epoch)], unit=WAIT_UNIT
    )
    width = len(texts) // max(1, len(shown))
    return PageTable(
        "Epoch by epoch",
        (
            *("epoch", "batches", "exposed", f"batch, mean {unit}", f"wait, mean {unit}"),
            *(f"wait, {what} {unit}" for what in ("median", "max", "stdev")),
        ),
        tuple(
            (
                units.count(epoch.epoch),
                f"{units.count(epoch.n_batches)}{'' if epoch.complete else ' (not all)'}",
                units.fraction(epoch.wait_ns / epoch.wall_ns) if epoch.wall_ns else NOT_APPLICABLE,
                *texts[width * place : width * (place + 1)],
            )
            for place, epoch in enumerate(shown)
        ),
        note=f"{units.count(more)} more epochs follow; --mlflow logs them all." if more else "",
    )


def _times(epoch: EpochFigures) -> tuple[int | None, ...]:
    batch, wait = epoch.batch, epoch.wait
    found = (
        batch.mean_ns if batch else None,
        *((wait.mean_ns, wait.median_ns, wait.max_ns, wait.stdev_ns) if wait else (None,) * 4),
    )
    return tuple(None if each is None else round(each) for each in found)
