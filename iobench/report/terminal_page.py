"""A page drawn with rich: plain, coloured, in ASCII, and through a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from iobench.analysis.diagnosis import Verdict
from iobench.report.wrapping import plain, wrapped

if TYPE_CHECKING:
    from iobench.report.tables import TextTable

__all__ = ["TerminalPage", "page_width"]

INDENT: Final = 2
NARROWEST: Final = 80
WIDEST: Final = 110
"""Between these the report follows the terminal: tables need the one, sentences the other."""
NAME: Final = 24
"""Characters that names of rows get before columns have to stand below; longer ones are folded."""
COLOURS: Final = {
    Verdict.HIDDEN: "bold green",
    Verdict.PARTLY_HIDDEN: "bold yellow",
    Verdict.IO_BOUND: "bold red",
}
# A line under the headings and one above the total; the other rows are only spaced.
RULED: Final = Box(
    "    \n    \n -- \n    \n -- \n    \n    \n    \n",
    ascii=True,
)


def page_width(file: TextIO | None = None) -> int:
    """Return how many characters a line of a report has on a file, by default stdout."""
    return min(max(Console(file=file).width, NARROWEST), WIDEST)


class TerminalPage:
    """A console whose lines are never broken inside a figure or a command.

    Parameters
    ----------
    file : text file, optional
        By default stdout. Coloured if it is a terminal, or ``FORCE_COLOR`` is set, and
        ``NO_COLOR`` is not.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        width = page_width(file)
        self._console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)

    def title(self, text: str) -> None:
        """Print what the whole page is about."""
        self.text(text, "bold")

    def heading(self, text: str) -> None:
        """Print what all that follows is about."""
        self.text(f"== {text} ==", "bold")

    def section(self, text: str) -> None:
        """Print what the next lines and tables are about."""
        self.text(text, "bold")

    def text(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Print a sentence, wrapped between its words and never inside a quantity."""
        for line in wrapped(text, self._console.width, indent=indent):
            self._console.print(self._safe(line, style), soft_wrap=True)

    def raw(self, texts: Sequence[str]) -> None:
        """Print lines as they are, spaces included, then a gap."""
        for text in texts:
            self._console.print(self._safe(" " * INDENT + text), soft_wrap=True)
        self.gap()

    def gap(self) -> None:
        """Leave a line empty."""
        self._console.print()

    def list(self, texts: Sequence[str]) -> None:
        """Print lines that belong together, then a gap; nothing at all for none."""
        for text in texts:
            self.text(text, indent=INDENT)
        if texts:
            self.gap()

    def command(self, text: str) -> None:
        """Print a line to copy, however long."""
        self._console.print(self._safe(f"    {text}", "cyan"), soft_wrap=True)

    def table(self, table: TextTable) -> None:
        """Draw a table, with its columns closer together where it would not fit otherwise.

        What does not fit even so stands below, beside the names of the rows again.
        """
        self.text(table.title, "bold")
        gap = 1 if self._fits(table, gap=1) else 0
        for part in [table] if gap else self._parts(table):
            drawn = self._drawn(part, gap=gap)
            self._console.print(Padding(drawn, (0, 0, 0, INDENT), expand=False))
            self.gap()

    @contextmanager
    def folded(self, summary: str) -> Iterator[None]:
        """Print all, as a terminal does."""
        yield

    def _fits(self, table: TextTable, *, gap: int, least: int | None = None) -> bool:
        first, *others = self._widths(table)
        named = first if least is None else min(first, least)
        return INDENT + named + sum(width + 1 + gap for width in others) <= self._console.width

    def _widths(self, table: TextTable) -> tuple[int, ...]:
        rows = [*table.rows, *([table.total] if table.total else [])]
        return tuple(
            max(
                *(cell_len(line) for line in heading.split("\n")),
                *(self._safe(row[place]).cell_len for row in rows),
                0,
            )
            for place, heading in enumerate(table.columns)
        )

    def _parts(self, table: TextTable) -> Iterator[TextTable]:
        """Yield tables of as many columns as fit beside names of `NAME` characters or fewer."""
        start = 1
        while start < len(table.columns):
            end = len(table.columns)
            while end > start + 1 and not self._fits(
                _columns(table, start, end), gap=0, least=NAME
            ):
                end -= 1
            yield _columns(table, start, end)
            start = end

    def _drawn(self, table: TextTable, *, gap: int) -> Table:
        columns = [
            Column(self._heading(heading), justify="right", no_wrap=True)
            for heading in table.columns[1:]
        ]
        first = Column(self._heading(table.columns[0]), overflow="fold")
        drawn = Table(
            first, *columns, box=RULED, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False
        )
        for row in table.rows:
            drawn.add_row(*map(self._safe, row))
        if table.total:
            drawn.add_section()
            drawn.add_row(*map(self._safe, table.total))
        return drawn

    def _heading(self, text: str) -> Text:
        """Return a column's heading; a line break of ours splits it."""
        return Text("\n").join(self._safe(line, "dim") for line in text.split("\n"))

    def _safe(self, text: str, style: str = "") -> Text:
        """Return text that the file's encoding can hold; names may hold anything."""
        encoding = self._console.encoding
        return Text(plain(text).encode(encoding, "backslashreplace").decode(encoding), style)


def _columns(table: TextTable, start: int, end: int) -> TextTable:
    """Return the names of the rows with some of their columns."""

    def cut(row: Sequence[str]) -> tuple[str, ...]:
        return (*row[:1], *row[start:end])

    rows = tuple(map(cut, table.rows))
    return replace(table, columns=cut(table.columns), rows=rows, total=cut(table.total))
