"""What a report says, as values: a document of sections, a section of sentences, tables and bars.

A figure is no text here: it is a `Quantity` (a `Duration`, `Bytes`, `Share`, ...) that holds the
exact value. A renderer makes text of it, through `iobench.report.units`, so that the terminal,
Markdown, the page and a notebook say the same of the same figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

NOT_APPLICABLE: Final = "-"
"""The cell of a figure that does not exist here; one that exists and is not known holds None."""

Style = Literal["", "strong", "caution", "good", "fair", "bad"]
"""How a sentence is meant; the last three are the colours of a verdict."""
Sign = Literal["", "passed", "failed", "undecided"]
"""What became of something that could fail: a sign before the words that say it."""


class Quantity(msgspec.Struct, frozen=True):
    """A figure; its class says what it is a figure of.

    Parameters
    ----------
    value : float or None
        None is unknown.
    words : str
        What stands around the figure, itself at ``{}``: e.g. ``"about {}"``, ``"{} (not all)"``.
    """

    value: float | None
    words: str = "{}"


class Duration(Quantity, frozen=True):
    """A time in nanoseconds; in a column with a unit group in the unit of its heading."""


class Seconds(Quantity, frozen=True):
    """A time in seconds, said with five decimals, as publications print it."""


class Bytes(Quantity, frozen=True):
    """An amount of bytes."""


class ByteRate(Quantity, frozen=True):
    """Bytes in a second."""


class SampleRate(Quantity, frozen=True):
    """Samples in a second."""


class Share(Quantity, frozen=True):
    """A part of one, said in per cent."""


class SignedShare(Quantity, frozen=True):
    """How far something is off, as a part of one, said in per cent with its sign."""


class Count(Quantity, frozen=True):
    """A whole number of things."""


class Ratio(Quantity, frozen=True):
    """One quantity over another of the same unit."""


class Number(Quantity, frozen=True):
    """A number without a unit, in three significant digits."""


class Epochs(Quantity, frozen=True):
    """A number of epochs, never more exact than its parts."""


class Joules(Quantity, frozen=True):
    """An energy in joules."""


class WattHours(Quantity, frozen=True):
    """An energy in joules, said in watt-hours, as electricity is billed."""


Cell = Quantity | str


class Sentence(msgspec.Struct, frozen=True):
    """A line of prose, with its figures as text in it."""

    text: str
    style: Style = ""
    sign: Sign = ""


class BarPart(msgspec.Struct, frozen=True):
    """A piece of a bar: how it is drawn (``"exposed"``, ``"hidden"``...), and its length."""

    kind: str
    length: float
    what: str = ""


class Bar(msgspec.Struct, frozen=True):
    """One bar: its pieces one after the other, and what it is of.

    ``swatch`` is a kind of stage, which has a colour of its own; empty for none.
    """

    parts: tuple[BarPart, ...]
    name: str = ""
    swatch: str = ""


class Bars(msgspec.Struct, frozen=True):
    """Bars on one scale, on which the longest fills the width; only pages that draw show them.

    Whatever they say is in a table or a sentence as well.
    """

    title: str
    bars: tuple[Bar, ...]


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Parameters
    ----------
    unit_group : str
        The `Duration` cells of all columns of one group are said in one unit, which stands in
        their headings; those of a column without a group each in its own.
    unit : str
        That unit, where it is known beforehand: ``"ms"``. Else that of the group's largest.
    is_spare : bool
        Whether a narrow page leaves it out where the table does not fit.
    """

    name: str
    unit_group: str = ""
    unit: str = ""
    is_spare: bool = False


class Table(msgspec.Struct, frozen=True):
    """A table; its first column names the row.

    Parameters
    ----------
    title : str
        Empty where the section says it.
    columns : tuple of Column
        Of a list of properties all names are empty: then there is no heading.
    total : tuple of Cell
        The sum of the rows, empty where there is none.
    note : str
        A sentence below: what is left out, or what a figure is of.
    bars : tuple of Bar
        One for each row, on one scale; empty where there is nothing to draw.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total: tuple[Cell, ...] = ()
    note: str = ""
    bars: tuple[Bar, ...] = ()


class KeyFigure(msgspec.Struct, frozen=True):
    """A figure that is said first: its name, itself, and the rest of the sentence."""

    name: str
    figure: Cell
    rest: str = ""


class KeyFigures(msgspec.Struct, frozen=True):
    """The figures that are said first: tiles of a page, lines of a terminal."""

    figures: tuple[KeyFigure, ...]


class HeatMap(msgspec.Struct, frozen=True):
    """A colour for each row and time.

    Parameters
    ----------
    rows : tuple of str
        Their names.
    shares : tuple of tuple of float
        Of shape (rows, columns), each from 0 (nothing) to 1 (all of it).
    column_ns : int
        How long a column is.
    """

    title: str
    rows: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    column_ns: int


class Lines(msgspec.Struct, frozen=True):
    """Lines that stand as they are, spaces included."""

    lines: tuple[str, ...]


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
    """A picture that only some pages can draw, by name; others leave it out.

    ``data`` makes what it is drawn from, which may be much: called only by who draws it.
    """

    name: str
    data: Callable[[], Any]


Block = Sentence | Table | Bars | KeyFigures | HeatMap | Lines | Command | Drawing


class Section(msgspec.Struct, frozen=True):
    """A part of a document.

    Parameters
    ----------
    key : str
        What links and tests call it, one of each in a document: ``"stages"``.
    is_folded : bool
        Whether a page that can fold shows only the title at first: the long parts.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    is_folded: bool = False

    @property
    def is_only_drawn(self) -> bool:
        """Whether there is nothing for pages that do not draw."""
        return all(isinstance(block, Drawing | Bars) for block in self.blocks)


class Document(msgspec.Struct, frozen=True):
    """All that a report says.

    Parameters
    ----------
    sections : tuple of Section
        What to try next comes after what was found; a terminal prints it at the end.
    parts : tuple of Document
        What is said of each of several runs, in their order; after the sections.
    key : str
        What links and tests call it, of one of several: ``"run-0"``.
    is_spare : bool
        Whether only pages that show one part at a time show it: most ranks of a job.
    figures : callable, optional
        Makes the figures for machines, as ``--json`` writes them, for pages that carry them.
    sign : str
        What became of it, where it could fail.
    """

    title: str
    sections: tuple[Section, ...]
    parts: tuple[Document, ...] = ()
    key: str = ""
    is_spare: bool = False
    figures: Callable[[], Mapping[str, Any]] | None = None
    sign: Sign = ""


class Renderer(Protocol):
    """Makes text of a document; named by the entry point group ``iobench.renderers``."""

    def render(self, document: Document) -> str:
        """Return the whole document in the renderer's own format."""


def sentences(texts: Iterable[str], style: Style = "") -> tuple[Sentence, ...]:
    """Return a sentence for each text."""
    return tuple(Sentence(text, style) for text in texts)


def properties(rows: Iterable[tuple[Cell, ...]], title: str = "") -> Table:
    """Return a table without headings: each row a name and what there is to say of it.

    A row without a name goes on with what is said of the one above.
    """
    cells = tuple(rows)
    return Table(title, (Column(""),) * max(map(len, cells), default=2), cells)
