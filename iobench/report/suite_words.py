"""What tables call the cells of suites, and the units of their figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report.document import (
    ByteRate,
    Bytes,
    Duration,
    Joules,
    Number,
    Quantity,
    SampleRate,
    Share,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

QUANTITIES: Final[tuple[tuple[str, type[Quantity], float], ...]] = (
    ("samples_per_s", SampleRate, 1),
    ("bytes_per_s", ByteRate, 1),
    ("_s", Duration, 1e9),
    ("_j", Joules, 1),
    ("_share", Share, 1),
    ("utilisation", Share, 1),
    ("_bytes", Bytes, 1),
)
"""What a figure is, by the end of its name, and what makes the document's unit of its own."""
OWN: Final = "metric:"
"""How names of figures begin that a script gives itself, by `iobench.metric`."""
BOOLEAN: Final = ("true", "false")


def figure_cell(metric: str, value: float | None) -> Quantity:
    """Return a figure as its name says what it is of."""
    kind, factor = next(
        ((kind, factor) for end, kind, factor in QUANTITIES if metric.endswith(end)), (Number, 1.0)
    )
    return kind(None if value is None else value * factor)


def said_cell(values: Mapping[str, str]) -> str:
    """Return what people call a cell: its values, and of what is no word also the option."""
    known = (v if v[:1].isalpha() and v not in BOOLEAN else f"{k} {v}" for k, v in values.items())
    return " ".join(known)
