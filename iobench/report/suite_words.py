"""What tables call the cells of suites, and the units of their figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report.document import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.report.document import Unit

UNITS: Final[tuple[tuple[str, Unit, float], ...]] = (
    ("samples_per_s", "samples/s", 1),
    ("bytes_per_s", "B/s", 1),
    ("_s", "ns", 1e9),
    ("_j", "J", 1),
    ("_share", "share", 1),
    ("utilisation", "share", 1),
    ("_bytes", "B", 1),
    ("", "number", 1),
)
"""The unit of a figure by the end of its name, and what turns the figure into that unit."""
OWN: Final = "metric:"
"""How names of figures begin that a script gives itself, by `iobench.metric`."""
BOOLEAN: Final = ("true", "false")


def figure_cell(metric: str, value: float | None) -> Quantity:
    """Return a figure in the unit that the end of its name says."""
    unit, factor = next((unit, factor) for end, unit, factor in UNITS if metric.endswith(end))
    return Quantity(None if value is None else value * factor, unit)


def said_cell(values: Mapping[str, str]) -> str:
    """Return what people call a cell: its values, and of what is no word also the option."""
    known = (v if v[:1].isalpha() and v not in BOOLEAN else f"{k} {v}" for k, v in values.items())
    return " ".join(known)
