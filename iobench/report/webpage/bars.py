"""Bars and the heat map of the page, as geometry: the template draws them as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.recording.kinds import Kind
from iobench.report.tables import PHASES
from iobench.report.webpage.page_tables import shown_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.webpage.figures import PageFigures

__all__ = [
    "BarRow",
    "DrawnHeat",
    "DrawnPart",
    "heat_map",
    "most_exposed",
    "phase_bars",
    "rate_bars",
    "stage_bars",
    "time_bar",
]

WIDTH: Final = 1000
"""Of a drawing, in its own units; the page stretches it."""
LEAST: Final = 1.0
"""What is there at all is drawn at least this wide."""
LEVELS: Final = 8
MOST_RANKS: Final = 256
KINDS: Final = frozenset(kind.spelled for kind in Kind)
WORTH_A_PART: Final = 0.005
MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A piece of a bar: how the style sheet calls it, where it lies, and what it is."""

    style: str
    x: float
    width: float
    what: str


@dataclass(frozen=True, slots=True)
class BarRow:
    """One bar, with its name, the sort of stage it is of, and the figures beside it."""

    name: Any
    kind: str
    parts: tuple[DrawnPart, ...]
    figures: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DrawnHeat:
    """Rank by time: how much of each bin was waited.

    Parameters
    ----------
    ranks : tuple of int
        One row each.
    rows : tuple of int
        Their places in the document's matrix.
    n_bins : int
    levels : tuple of str
        For each level of waiting, from little to all, an SVG path of its cells, 1 by 1 each.
    """

    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    n_bins: int
    levels: tuple[str, ...]


def kind_of(stage: str) -> str:
    """Return the kind of a stage, as a class of the style sheet."""
    kind = stage.partition(":")[0]
    return kind if kind in KINDS else "other"


def stage_bars(figures: PageFigures, window: str) -> tuple[BarRow, ...]:
    """Return a bar for each stage: what was waited for, then what was hidden."""
    places = shown_stages(figures, window)
    rows = [figures.value(f"{window}.stages.{place}") for place in places]
    longest = max((row["busy_s"] for row in rows), default=0.0)
    bars = []
    for place, row in zip(places, rows, strict=True):
        path = f"{window}.stages.{place}"
        parts = _parts(
            (("exposed", row["exposed_s"], "exposed"), ("hidden", row["hidden_s"], "hidden")),
            longest,
        )
        told = (figures(f"{path}.exposed_s", "duration"), figures(f"{path}.busy_s", "duration"))
        name = figures(f"{path}.stage", "text")
        bars.append(BarRow(name, kind_of(row["stage"]), parts, told))
    return tuple(bars)


def phase_bars(figures: PageFigures, run: str) -> tuple[BarRow, ...]:
    """Return a bar for each phase of the run: waiting, then the rest of its time."""
    phases = figures.value(f"{run}.phases") or {}
    longest = max((row["wall_s"] for row in phases.values()), default=0.0)
    bars = []
    for name, row in phases.items():
        path = f"{run}.phases.{name}"
        rest = row["wall_s"] - row["wait_s"]
        parts = _parts((("exposed", row["wait_s"], "waiting"), ("compute", rest, "rest")), longest)
        told = (figures(f"{path}.wait_s", "duration"), figures(f"{path}.wall_s", "duration"))
        bars.append(BarRow(PHASES.get(name, name), "", parts, told))
    return tuple(bars)


def rate_bars(figures: PageFigures, window: str) -> tuple[BarRow, ...]:
    """Return a bar for each stage that handed on bytes: how fast, while it was busy."""
    rows = [
        (f"{window}.stages.{place}", row)
        for place, row in enumerate(figures.value(f"{window}.stages"))
        if row["nbytes"] and row["busy_bytes_per_s"]
    ]
    fastest = max((row["busy_bytes_per_s"] for _, row in rows), default=0.0)
    return tuple(
        BarRow(
            figures(f"{path}.stage", "text"),
            kind_of(row["stage"]),
            _parts((("rate", row["busy_bytes_per_s"], "while busy"),), fastest),
            (
                figures(f"{path}.busy_bytes_per_s", "byte_rate"),
                figures(f"{path}.nbytes", "nbytes"),
            ),
        )
        for path, row in rows
    )


def most_exposed(figures: PageFigures, window: str) -> tuple[str, ...]:
    """Return where the stages stand that were waited for longest, up to three."""
    rows = figures.value(f"{window}.stages")
    places = [place for place, row in enumerate(rows) if row["exposed_s"]]
    places.sort(key=lambda place: -rows[place]["exposed_s"])
    return tuple(f"{window}.stages.{place}" for place in places[:MOST_NAMED])


def time_bar(figures: PageFigures, window: str) -> tuple[DrawnPart, ...]:
    """Return the wall time of a window as one bar: compute, then the wait by what it was for."""
    part = figures.value(window)
    wall = part["wall_s"]
    if not wall:
        return ()
    pieces = [("compute", part["compute_s"], "compute")]
    rest = 0.0
    for row in part["stages"]:
        if row["exposed_s"] >= WORTH_A_PART * wall:
            pieces.append(("exposed", row["exposed_s"], f"waiting for {row['stage']}"))
        else:
            rest += row["exposed_s"]
    pieces.append(("exposed", rest, "waiting for other stages"))
    return _parts(pieces, wall)


def _parts(pieces: Sequence[tuple[str, float, str]], whole: float) -> tuple[DrawnPart, ...]:
    """Return pieces one after the other, on a scale on which ``whole`` fills the drawing."""
    parts, x = [], 0.0
    for style, length, what in pieces:
        if length <= 0 or not whole:
            continue
        width = max(LEAST, WIDTH * length / whole)
        parts.append(DrawnPart(style, round(x, 2), round(min(width, WIDTH), 2), what))
        x += width
    return tuple(parts)


def heat_map(figures: PageFigures) -> DrawnHeat | None:
    """Return rank by time; of very many ranks those that wait longest."""
    matrix = figures.value("job.wait_matrix_s") or ()
    ranks = figures.value("job.ranks") or ()
    bin_s = figures.value("job.bin_s")
    if not matrix or not bin_s or len(matrix) != len(ranks):
        return None
    order = sorted(range(len(ranks)), key=lambda place: -ranks[place]["wait_s"])[:MOST_RANKS]
    rows = tuple(sorted(order, key=lambda place: ranks[place]["rank"]))
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    for y, place in enumerate(rows):
        for x, value in enumerate(matrix[place]):
            if value > 0:
                # Rounded up, so that blank is no wait at all.
                level = min(LEVELS, -int(-value * LEVELS // bin_s))
                paths[level - 1].append(f"M{x} {y}h1v1h-1z")
    return DrawnHeat(
        tuple(ranks[place]["rank"] for place in rows),
        rows,
        max(map(len, matrix)),
        tuple("".join(path) for path in paths),
    )
