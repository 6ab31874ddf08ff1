"""The cells of a document as text: the same in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.report import units
from iobench.report.document import NOT_APPLICABLE, Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iobench.report.document import Bar, Cell, KeyFigure, Table, Unit

WORDS: Final[Mapping[Unit, Callable[[Any], str]]] = {
    "ns": units.duration,
    "B": units.nbytes,
    "B/s": units.byte_rate,
    "samples/s": units.ratio,
    "share": units.fraction,
    "count": units.count,
    "ratio": units.ratio,
    "number": units.number,
    "J": units.joules,
}


def said(cell: Cell) -> str:
    """Return a cell as it stands on its own, a time in the unit that suits it."""
    if isinstance(cell, str):
        return cell
    text = units.UNKNOWN if cell.value is None else WORDS[cell.unit](cell.value)
    return cell.words.format(text)


def key_sentence(key: KeyFigure) -> str:
    """Return a figure that is said first as a sentence."""
    return f"{key.name}: {' '.join(filter(None, (said(key.figure), key.rest)))}."


def longest(bars: Sequence[Bar]) -> float:
    """Return the length of the longest bar, which fills the width."""
    return max((sum(part.length for part in bar.parts) for bar in bars), default=0)


class SpelledTable(msgspec.Struct, frozen=True):
    """A table whose cells are text; columns that hold figures stand at the right."""

    names: tuple[str, ...]
    units: tuple[str, ...]  # of the columns; empty but for times that share one
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
    for group in {each.unit_group for each in table.columns} - {""}:
        members = [at for at, each in enumerate(table.columns) if each.unit_group == group]
        times = [
            (texts[row], at, cell)
            for row, line in enumerate(lines)
            for at in members
            if isinstance(cell := line[at], Quantity) and cell.unit == "ns"
        ]
        required = max(table.columns[at].unit for at in members) or None
        unit, numbers = units.durations([cell.value for *_, cell in times], unit=required)
        for (line_texts, at, cell), number in zip(times, numbers, strict=True):
            line_texts[at] = cell.words.format(number)
        for at in members:
            shared[at] = unit
    names = tuple(column.name for column in table.columns)
    cells = [[line[at] for line in lines] for at in range(len(names))]
    rows = [tuple(line) for line in texts]
    return SpelledTable(
        names,
        tuple(shared),
        tuple(any(names) and _are_figures(each) for each in cells),
        tuple(rows[: len(table.rows)]),
        rows[-1] if table.total else (),
    )


def _are_figures(cells: Sequence[Cell]) -> bool:
    has_figure = any(isinstance(cell, Quantity) for cell in cells)
    return has_figure or all(cell in ("", NOT_APPLICABLE) for cell in cells)
