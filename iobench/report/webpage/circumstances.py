"""What stands around the figures of a run: its configuration, its machine, its energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report import units
from iobench.report.energy_lines import NAMES
from iobench.report.webpage.page_tables import PageTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.run_report import RunReport
    from iobench.report.webpage.figures import PageFigures

__all__ = ["configuration", "energy_part_table", "machine_facts"]


def energy_part_table(figures: PageFigures, path: str) -> PageTable | None:
    """Return the energy of a run or of a job, by kind of counter; None where none was read."""
    kinds = figures.value(f"{path}.energy.kinds")
    if not kinds:
        return None
    return PageTable(
        "Energy",
        (
            *("", "whole run", "in watt-hours", "an epoch", "a sample"),
            *("while waiting", "of it", "of the time counted"),
        ),
        tuple(_energy_row(figures, f"{path}.energy.kinds.{kind}", kind) for kind in kinds),
    )


def _energy_row(figures: PageFigures, path: str, kind: str) -> tuple[Any, ...]:
    about = "about " if figures.value(f"{path}.estimated") else ""
    return (
        f"{about}{NAMES.get(kind, kind)}",
        figures(f"{path}.total_uj", "joules"),
        figures(f"{path}.total_uj", "watt_hours"),
        figures(f"{path}.j_per_epoch", "joules"),
        figures(f"{path}.j_per_sample", "joules"),
        figures(f"{path}.wait_uj", "joules"),
        figures(f"{path}.wait_fraction", "fraction"),
        figures(f"{path}.covered_fraction", "fraction"),
    )


def configuration(figures: PageFigures, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the configuration, as far as it is known."""
    named = {
        "Dataset": ("dataset", "text"),
        "Format": ("format", "text"),
        "Framework": ("framework", "text"),
        "Worker processes": ("workers", "count"),
        "Reader threads": ("threads", "count"),
        "Prefetch, batches": ("prefetch", "count"),
        "Batch size": ("batch_size", "count"),
        "Samples at hand": ("n_samples", "count"),
        "A sample": ("sample_nbytes", "nbytes"),
        "Emulated step": ("compute.step_s", "duration"),
        "Step from": ("compute.source", "text"),
        "Page cache": ("cache.asked", "text"),
        "Files": ("files_hint", "text"),
        "Run directory": ("run", "text"),
        "iobench": ("iobench_version", "text"),
    }
    for name, (key, how) in named.items():
        if figures.value(f"{path}.{key}") is not None:
            yield name, figures(f"{path}.{key}", how)


def machine_facts(report: RunReport) -> tuple[tuple[str, str], ...]:
    """Return what is known of the machine, in words."""
    found = []
    for key, value in report.facts.machine.items():
        if key.endswith("nbytes") and isinstance(value, int):
            text = units.nbytes(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            text = units.count(value)
        else:
            text = str(value)
        found.append((str(key).removesuffix("_nbytes").replace("_", " "), text))
    return tuple(found)
