"""What stands around the figures of a run: its configuration and its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.run_report import RunReport
    from iobench.report.webpage.figures import PageFigures

__all__ = ["configuration", "machine_facts"]


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
