"""What stands around the figures of a run: its configuration, its machine, its energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.report import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.report.html.figures import PageFigures
    from iobench.report.run_report import RunReport

__all__ = ["configuration", "energy_facts", "machine_facts"]


def energy_facts(figures: PageFigures, path: str) -> tuple[tuple[str, Any], ...]:
    """Return what is known of energy: every number of the document, with its name in words."""
    found = figures.value(f"{path}.energy")
    return tuple(_flat(found, f"{path}.energy", figures)) if found else ()


def _flat(value: Any, path: str, figures: PageFigures) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            if "." not in str(key):
                yield from _flat(each, f"{path}.{key}", figures)
    elif isinstance(value, str):
        yield _spoken(path), figures(path, "text")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _spoken(path), figures(path, "duration" if path.endswith(("_s", "_ns")) else "number")


def _spoken(path: str) -> str:
    """Return the keys below ``energy`` as words, with the unit that the last one ends with."""
    words = " ".join(path.split(".")[3:]).replace("_", " ")
    for ending, unit in ((" j", " (J)"), (" w", " (W)"), (" s", ""), (" ns", "")):
        if words.endswith(ending):
            return words.removesuffix(ending) + unit
    return words


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
