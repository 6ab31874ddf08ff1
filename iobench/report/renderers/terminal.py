"""A document in a terminal, drawn with rich: coloured or plain, in ASCII, and through a pipe."""

from __future__ import annotations

from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Final, TextIO

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as DrawnTable
from rich.text import Text

from iobench.masking import printable
from iobench.report.document import Command, KeyFigures, Sentence, Table
from iobench.report.renderers.quantities import key_sentence, spelled
from iobench.report.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.report.document import Block, Document, Section
    from iobench.report.renderers.quantities import SpelledTable

INDENT: Final = 2
NARROWEST: Final = 60
WIDEST: Final = 110
"""Between these the report follows the terminal; what is narrower breaks lines itself."""
GAP: Final = 2
"""Spaces between columns."""
NAME: Final = 24
"""Characters that names of rows get before columns have to stand below; longer ones are folded."""
LAST: Final = "next"
"""The section that is printed last: the end of the output is what stays on the screen."""
COLOURS: Final = {
    "strong": "bold",
    "caution": "bold yellow",
    "good": "bold green",
    "fair": "bold yellow",
    "bad": "bold red",
}
# A line under the headings and one above the total; the other rows are only spaced.
RULED: Final = Box(
    "    \n    \n -- \n    \n -- \n    \n    \n    \n",
    ascii=True,
)


def page_width(file: TextIO | None = None) -> int:
    """Return how many characters a line of a report has on a file, by default stdout."""
    return min(max(Console(file=file).width, NARROWEST), WIDEST)


class TerminalRenderer:
    """Lines for a file, by default stdout, never broken inside a figure or a command."""

    def __init__(self, file: TextIO | None = None) -> None:
        width = page_width(file)
        self._console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)

    def render(self, document: Document) -> str:
        """Return the whole document; sections of what to try next come last."""
        shown = [part for part in document.parts if not part.is_spare]
        with self._console.capture() as capture:
            for part in (document, *shown):
                title = part.title if part is document else f"== {part.title} =="
                self._sentence(title, "bold")
                self._gap()
                for section in part.sections:
                    if section.key != LAST:
                        self._section(section)
            for part in (document, *document.parts):
                for section in part.sections:
                    if section.key == LAST:
                        self._section(section)
        return capture.get().rstrip("\n") + "\n"

    def _section(self, section: Section) -> None:
        if section.is_only_drawn:
            return
        if section.title:
            self._sentence(section.title, "bold")
        for block, after in pairwise((*section.blocks, None)):
            if self._drew(block) and not isinstance(after, type(block)):
                self._gap()

    def _drew(self, block: Block | None) -> bool:
        """Draw what a terminal can; return whether anything was, so that a gap has to follow."""
        match block:
            case Sentence():
                self._sentence(block.text, COLOURS.get(block.style, ""))
            case KeyFigures():
                for figure in block.figures:
                    self._sentence(key_sentence(figure))
            case Table():
                self._table(block)
                return False
            case Command():
                if block.reason:
                    self._sentence(block.sentence, indent=INDENT)
                if block.command:
                    self._line(f"    {block.command}", "cyan")
            case _:
                return False
        return True

    def _gap(self) -> None:
        self._console.print()

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(self._safe(text, style), soft_wrap=True)

    def _sentence(self, text: str, style: str = "", *, indent: int = 0) -> None:
        for line in wrapped(text, self._console.width, indent=indent):
            self._line(line, style)

    def _table(self, table: Table) -> None:
        """Draw a table; columns that do not fit stand below, after the names of the rows again."""
        if table.title:
            self._sentence(table.title, "bold", indent=INDENT)
        text = spelled(table)
        if not text.has_headings:
            self._properties(text)
            return
        for columns in self._parts(text):
            self._draw(text, columns)
        if table.note:
            self._sentence(table.note, indent=INDENT)
            self._gap()

    def _properties(self, text: SpelledTable) -> None:
        """Draw names and what is said of them, in lines that break between words alone."""
        *named, last = range(len(text.names))
        widths = [_cells_width(text, at) for at in named]
        hanging = sum(widths) + 2 * len(widths)
        for row in text.rows:
            start = ""
            for at, width in zip(named, widths, strict=True):
                start += printable(row[at]) + " " * (2 + width - cell_len(printable(row[at])))
            lines = wrapped(row[last], max(self._console.width - INDENT - hanging, NAME)) or [""]
            for n, line in enumerate(lines):
                before = " " * hanging if n else start
                self._line(f"{'':{INDENT}}{before}{line}".rstrip())
        self._gap()

    def _fits(self, text: SpelledTable, columns: Sequence[int]) -> bool:
        """Whether columns fit; names of rows and last words may be folded to `NAME` characters."""
        first, *others = (_width(text, at) for at in columns)
        if others and _wraps(text, columns[-1]):
            others[-1] = min(others[-1], NAME)
        needed = INDENT + min(first, NAME) + sum(width + GAP for width in others)
        return needed <= self._console.width

    def _parts(self, text: SpelledTable) -> Iterator[tuple[int, ...]]:
        """Yield as many columns as fit after the names of rows."""
        first, *left = range(len(text.names))
        while left:
            n = len(left)
            while n > 1 and not self._fits(text, (first, *left[:n])):
                n -= 1
            yield (first, *left[:n])
            left = left[n:]

    def _draw(self, text: SpelledTable, columns: Sequence[int]) -> None:
        columns = [at for at in columns if at == columns[0] or _width(text, at)]
        headings = [_folded(text, at) for at in columns]
        height = max(map(len, headings))
        drawn = DrawnTable(box=RULED, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for at, lines in zip(columns, headings, strict=True):
            is_name = at == columns[0]
            above = [""] * (height - len(lines))
            drawn.add_column(
                Text("\n").join(self._safe(line, "dim") for line in (*above, *lines)),
                justify="left" if is_name or not text.is_figure[at] else "right",
                no_wrap=not is_name and not _wraps(text, at),
                overflow="fold",
            )
        for row in filter(None, (*text.rows, text.total)):
            if row is text.total:
                drawn.add_section()
            drawn.add_row(*(self._safe(row[at]) for at in columns))
        self._console.print(Padding(drawn, (0, 0, 0, INDENT), expand=False))
        self._gap()

    def _safe(self, text: str, style: str = "") -> Text:
        """Return text that the file's encoding can hold; names may hold anything."""
        encoding = self._console.encoding
        return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding), style)


def _wraps(text: SpelledTable, column: int) -> bool:
    """Whether a column is the last one and of words, which may stand below one another."""
    return column == len(text.names) - 1 and not text.is_figure[column]


def _width(text: SpelledTable, column: int) -> int:
    heading = (cell_len(line) for line in _folded(text, column))
    return max(*heading, _cells_width(text, column))


def _cells_width(text: SpelledTable, column: int) -> int:
    rows = [*text.rows, *([text.total] if text.total else [])]
    return max((cell_len(printable(row[column])) for row in rows), default=0)


def _folded(text: SpelledTable, column: int) -> list[str]:
    """Return a heading in about two lines, the unit below."""
    name = printable(text.names[column])
    longest = max(map(len, name.split()), default=1)
    width = max(longest, _cells_width(text, column), -(-len(name) // 2))
    lines = wrap(name, width, break_long_words=False, break_on_hyphens=False)
    unit = [text.units[column]] if text.units[column] else []
    return [*lines, *unit] or [""]
