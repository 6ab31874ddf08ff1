"""The cells of a document as text: the same in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    ByteRate,
    Bytes,
    Count,
    Duration,
    Epochs,
    Joules,
    Number,
    Quantity,
    Ratio,
    SampleRate,
    Seconds,
    Share,
    SignedShare,
    WattHours,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iobench.report.document import Cell, HeatMap, KeyFigure, Sign, Table

WORDS: Final[Mapping[type[Quantity], Callable[[Any], str]]] = {
    ByteRate: units.byte_rate,
    Bytes: units.nbytes,
    Count: units.count,
    Duration: units.duration,
    Epochs: units.epochs,
    Joules: units.joules,
    Number: units.number,
    Ratio: units.ratio,
    SampleRate: units.sample_rate,
    Seconds: units.printed_seconds,
    Share: units.fraction,
    SignedShare: units.signed_fraction,
    WattHours: units.watt_hours,
}
SHADES: Final = " .:-=+*#%@"
SIGNS: Final[Mapping[Sign, str]] = {"passed": "\u2705", "failed": "\u274c", "undecided": "\u2754"}


def said(cell: Cell) -> str:
    """Return a cell as it stands on its own, a time in the unit that suits it."""
    if isinstance(cell, str):
        return cell
    text = units.UNKNOWN if cell.value is None else WORDS[type(cell)](cell.value)
    return cell.words.format(text)


def signed(text: str, sign: Sign, encoding: str = "utf-8") -> str:
    """Return a text behind its sign, where there is one that the encoding has."""
    shown = SIGNS.get(sign, "")
    try:
        shown.encode(encoding)
    except UnicodeEncodeError:
        shown = ""
    return f"{shown} {text}" if shown else text


def key_sentence(key: KeyFigure) -> str:
    """Return a figure that is said first as a sentence."""
    return f"{key.name}: {' '.join(filter(None, (said(key.figure), key.rest)))}."


def shades(heat: HeatMap, row: int) -> str:
    """Return a row of a heat map from blank, nothing at all, to ``@``, all of it."""
    # Rounded up, so that blank is no wait at all.
    return "".join(SHADES[-int(-share * (len(SHADES) - 1) // 1)] for share in heat.shares[row])


class SpelledTable(msgspec.Struct, frozen=True):
    """A table whose cells are text.

    Parameters
    ----------
    names, units : tuple of str
        Of the columns; the unit is empty but for times that share one.
    is_figure : tuple of bool
        Whether a column holds figures, which stand at the right; the others hold words.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    is_figure: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...]

    @property
    def headings(self) -> tuple[str, ...]:
        """Names of columns with the unit of their times."""
        return tuple(f"{a} {b}".strip() for a, b in zip(self.names, self.units, strict=True))

    @property
    def has_headings(self) -> bool:
        """Whether any column has a name; a list of properties has none."""
        return any(self.names)


def spelled(table: Table) -> SpelledTable:
    """Return a table as text: the times of one unit group in one unit, with the same decimals."""
    lines = [*table.rows, *([table.total] if table.total else [])]
    texts = [[said(cell) for cell in line] for line in lines]
    shared = [""] * len(table.columns)
    for group in dict.fromkeys(each.unit_group for each in table.columns if each.unit_group):
        members = [at for at, each in enumerate(table.columns) if each.unit_group == group]
        places = [
            (row, at, cell)
            for row, line in enumerate(lines)
            for at in members
            if isinstance(cell := line[at], Duration)
        ]
        required = next((table.columns[at].unit for at in members if table.columns[at].unit), None)
        unit, times = units.durations([_ns(cell) for _, _, cell in places], unit=required)
        for (row, at, cell), text in zip(places, times, strict=True):
            texts[row][at] = cell.words.format(text)
        for at in members:
            shared[at] = unit
    body = [tuple(line) for line in texts]
    return SpelledTable(
        tuple(column.name for column in table.columns),
        tuple(shared),
        tuple(_holds_figures(table, [line[at] for line in lines]) for at in range(len(shared))),
        tuple(body[: len(table.rows)]),
        body[-1] if table.total else (),
    )


def _ns(cell: Quantity) -> int | None:
    return None if cell.value is None else round(cell.value)


def _holds_figures(table: Table, cells: Sequence[Cell]) -> bool:
    if not any(column.name for column in table.columns):
        return False  # a list of properties, read as words
    if any(isinstance(cell, Quantity) for cell in cells):
        return True
    return all(cell in ("", NOT_APPLICABLE) for cell in cells)
