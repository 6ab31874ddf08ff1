"""Runs of several frameworks in the form of MAELSTROM D2.3, its own figures beside them.

Tables 4 and 5 there: min, mean, median, max and standard deviation of an epoch, a batch, its
forward and backward pass, and of the I/O that the training loop saw, in seconds.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis.epochs import step_times
from iobench.profiles.reading import RankProfiles
from iobench.report import units
from iobench.report.facts import PUBLISHED_FIGURES, RunFacts
from iobench.report.tables import NOT_APPLICABLE, TextTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from iobench.profiles.contents import Profile
    from iobench.report.page import Page

__all__ = ["print_published", "published_table", "step_times"]

KEYS: Final = ("epoch", "batch", "forward", "backward", "I/O")
UNIT_NS: Final = 1e9


def published_table(profiles: Sequence[Profile]) -> TextTable | None:
    """Return the table of several frameworks' runs of one dataset; None of other runs.

    Its rows are by key, the runs in their order and then what was published of it.
    """
    if isinstance(profiles, RankProfiles):
        return None  # of one run: its configuration need not be read with the spans of each rank
    if len({str(profile.config.get("framework")) for profile in profiles}) < 2:
        return None
    measured = [(_name(profile), step_times(profile)) for profile in profiles]
    tables = _tables(profiles)
    rows = []
    for key in KEYS:
        rows += [(f"{key}, {name}", *_figures(times[key])) for name, times in measured]
        for source, table in tables.items():
            figures = table.get(key)
            if isinstance(figures, list | tuple) and len(figures) == len(PUBLISHED_FIGURES):
                rows.append((f"{key}, {source}", *(f"{value:.5f}" for value in figures), ""))
    if not any(len(times["batch"]) for _, times in measured):
        return None
    return TextTable(
        title="As in MAELSTROM D2.3, in seconds",
        columns=("", *PUBLISHED_FIGURES, "number"),
        rows=tuple(rows),
    )


def _name(profile: Profile) -> str:
    facts = RunFacts.from_config(profile.config)
    return facts.label or str(profile.config.get("framework"))


def _tables(profiles: Sequence[Profile]) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for profile in profiles:
        published = profile.config.get("published")
        tables = published.get("tables") if isinstance(published, dict) else None
        for source, table in (tables if isinstance(tables, dict) else {}).items():
            if isinstance(table, dict):
                found.setdefault(str(source), table)
    return found


def _figures(times_ns: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the figures of D2.3 in seconds, and of how many."""
    seconds = [value / UNIT_NS for value in times_ns.tolist()]
    if not seconds:
        return (*(NOT_APPLICABLE for _ in PUBLISHED_FIGURES), "0")
    values = (min(seconds), statistics.mean(seconds), statistics.median(seconds), max(seconds))
    deviation = f"{statistics.stdev(seconds):.5f}" if len(seconds) > 1 else NOT_APPLICABLE
    return (*(f"{value:.5f}" for value in values), deviation, str(len(seconds)))


def print_published(profiles: Sequence[Profile], page: Page) -> None:
    """Write `published_table` where there is one, with what its figures are of."""
    table = published_table(profiles)
    if table is None:
        return
    page.gap()
    page.table(table)
    notes = [
        "A batch lasts from being asked for to the next being asked for; an epoch is the sum of "
        "its batches, where all of them were measured. Forward and backward pass are emulated."
    ]
    generated = [each.config for each in profiles if RunFacts.from_config(each.config).stand_in]
    n_samples = {n for each in generated if isinstance(n := each.get("n_samples"), int)}
    if n_samples and any("epoch" in each for each in _tables(profiles).values()):
        of = " and ".join(units.count(number) for number in sorted(n_samples))
        notes.append(f"An epoch here is of {of} samples; the published ones are of all there are.")
    if any(RunFacts.from_config(profile.config).tiny for profile in profiles):
        notes.append("The published rows are of samples of the real size, on one A100.")
    page.list(notes)
