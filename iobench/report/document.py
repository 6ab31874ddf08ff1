"""What a report says, as values: a document of sections, a section of sentences, tables and charts.

A figure is no text here: it is a `Quantity`, which holds the exact value. A renderer makes text of
it, through `iobench.report.units`, so that the terminal, Markdown, the page and a notebook say the
same of the same figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec

NOT_APPLICABLE: Final = "-"
"""The cell of a figure that does not exist here; one that exists and is not known holds None."""

Style = Literal["", "strong", "caution", "good", "fair", "bad"]
"""How a sentence is meant; the last three are the colours of a verdict."""
Unit = Literal[
    "ns", "B", "B/s", "samples/s", "share", "count", "ratio", "number", "J"
]  # fmt: skip
"""Of a quantity. A ``"share"`` is a part of one, said in per cent; a ``"ratio"`` is said in three
digits, a ``"number"`` in three significant ones."""


class Quantity(msgspec.Struct, frozen=True):
    """A figure and its unit; None is unknown. ``words`` stand around it: ``"at most {}"``."""

    value: float | None
    unit: Unit
    words: str = "{}"


Cell = Quantity | str


class Sentence(msgspec.Struct, frozen=True):
    """A line of prose, with its figures as text in it."""

    text: str
    style: Style = ""


class BarPart(msgspec.Struct, frozen=True):
    """A piece of a bar: how it is drawn (``"exposed"``, ``"hidden"``...), and its length."""

    kind: str
    length: float
    what: str = ""


class Bar(msgspec.Struct, frozen=True):
    """One bar: its pieces one after the other, and what it is of."""

    parts: tuple[BarPart, ...]
    name: str = ""
    swatch: str = ""  # a kind of stage, which has a colour of its own


class Chart(msgspec.Struct, frozen=True):
    """Bars on one scale, for pages that draw; a table or a sentence says the same."""

    title: str
    bars: tuple[Bar, ...]


class Column(msgspec.Struct, frozen=True):
    """A column of a table; the times of one ``unit_group`` are said in one unit."""

    name: str
    unit_group: str = ""
    unit: str = ""  # by default that of the largest


class Table(msgspec.Struct, frozen=True):
    """A table; its first column names the row. A list of properties has no names of columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()
    note: str = ""  # a sentence below
    bars: tuple[Bar, ...] = ()  # one for each row, on one scale


class KeyFigure(msgspec.Struct, frozen=True):
    """A figure that is said first: its name, itself, and the rest of the sentence."""

    name: str
    figure: Cell
    rest: str = ""


class KeyFigures(msgspec.Struct, frozen=True):
    """The figures that are said first: tiles of a page, lines of a terminal."""

    figures: tuple[KeyFigure, ...]


class Command(msgspec.Struct, frozen=True):
    """A command line to copy; ``reason`` is why, without the full stop."""

    command: str
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The reason as it stands before the command, or alone."""
        ending = ":" if self.command else "" if self.reason.endswith(".") else "."
        return f"{self.reason}{ending}" if self.reason else ""


class Drawing(msgspec.Struct, frozen=True):
    """A picture that only some pages draw, by name; ``data`` makes what it is drawn from."""

    name: str
    data: Callable[[], Any]


Block = Sentence | Table | Chart | KeyFigures | Command | Drawing


class Section(msgspec.Struct, frozen=True):
    """A part of a document; its ``key`` is what links call it, one of each in a document."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    is_folded: bool = False  # whether a page that can fold shows only the title at first

    @property
    def is_only_drawn(self) -> bool:
        """Whether there is nothing for pages that do not draw."""
        return all(isinstance(each, Drawing | Chart) for each in self.blocks)


class Document(msgspec.Struct, frozen=True):
    """All that a report says; ``figures`` makes the same for machines, as ``--json`` has it."""

    title: str
    sections: tuple[Section, ...]
    parts: tuple[Document, ...] = ()  # of each of several runs, in their order
    key: str = ""  # what links call it, of one of several: ``"run-0"``
    is_spare: bool = False  # whether only pages that show one part at a time show it
    figures: Callable[[], Any] | None = None


class Renderer(Protocol):
    """Makes text of a document; named by the entry point group ``iobench.renderers``."""

    def render(self, document: Document) -> str:
        """Return the whole document in the renderer's own format."""


def sentences(texts: Iterable[str], style: Style = "") -> tuple[Sentence, ...]:
    """Return a sentence for each text that is not empty."""
    return tuple(Sentence(text, style) for text in texts if text)


def quantities(unit: Unit, *values: float | None) -> tuple[Quantity, ...]:
    """Return figures of one unit."""
    return tuple(Quantity(each, unit) for each in values)


def columns(*names: str, unit_group: str = "", unit: str = "") -> tuple[Column, ...]:
    """Return columns of these names, whose times are said in one unit where they have a group."""
    return tuple(Column(each, unit_group, unit) for each in names)


def properties(rows: Iterable[tuple[Cell, ...]], title: str = "") -> Table:
    """Return a table without headings; a row without a name goes on with the one above."""
    cells = tuple(rows)
    return Table(title, columns(*[""] * max(map(len, cells), default=2)), cells)
