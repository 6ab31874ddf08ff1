"""A page of GitHub's Markdown, to be pasted into an issue."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Final, TextIO

from rich.cells import cell_len

from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from iobench.report.tables import TextTable

__all__ = ["MarkdownPage", "escaped"]

# What means something within a line: not an underscore inside a word, nor a sign before a figure.
SIGNS: Final = re.compile(r"[\\`*\[\]~$]|<(?=[A-Za-z/!?])|&(?=[#\w])|(?<![^\W_])_++|_++(?![^\W_])")
# What means something at the start of a line: headings, lists, quotes, rules, definitions.
OPENINGS: Final = re.compile(r"^(?=[-+=#:>])|^(\d{1,9})(?=[.)](?:\s|$))")
# GitHub looks for these in what is shown, behind any escape: only what is in between keeps a name
# from calling somebody, linking to an issue or an address, or turning into a picture.
CALLS: Final = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bgh)(?=-\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=:)(?=[\w+-]+:)",
    re.IGNORECASE,
)
NOTHING: Final = "<!-- -->"
FENCE: Final = 3


class MarkdownPage:
    """A file of Markdown as GitHub reads it: every name in it is text, whatever it holds.

    Parameters
    ----------
    file : text file, optional
        By default stdout.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stdout if file is None else file
        self._unfolding = ""

    def title(self, text: str) -> None:
        """Write what the whole page is about."""
        self._put(f"## {escaped(text)}")

    def heading(self, text: str) -> None:
        """Write what all that follows is about."""
        self._put(f"## {escaped(text)}")

    def section(self, text: str) -> None:
        """Write what the next lines and tables are about."""
        if text != self._unfolding:
            self._put(f"### {escaped(text)}")

    def text(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Write a paragraph."""
        told = escaped(text)
        if told:
            self._put(f"**{told}**" if "bold" in style else told)

    def raw(self, texts: Sequence[str]) -> None:
        """Write lines as they are, spaces included."""
        self._fenced([plain(text) for text in texts])

    def gap(self) -> None:
        """Write nothing: what is put here is apart already."""

    def list(self, texts: Sequence[str]) -> None:
        """Write lines that belong together as a list."""
        if texts:
            self._put("\n".join(f"- {escaped(text)}" for text in texts))

    def command(self, text: str) -> None:
        """Write a line to copy."""
        self._fenced([plain(text)], "sh")

    def table(self, table: TextTable) -> None:
        """Write a table with its title above; figures stand at the right."""
        if table.title not in ("", self._unfolding):
            self._put(f"#### {escaped(table.title)}")
        rows = [[_cell(cell) for cell in row] for row in table.rows]
        if table.total:
            rows.append([f"**{_cell(cell)}**" if cell.strip() else "" for cell in table.total])
        headings = [_cell(" ".join(heading.split())) for heading in table.columns]
        widths = [
            max(FENCE + 1, *(cell_len(row[place]) for row in [headings, *rows]))
            for place in range(len(headings))
        ]
        rule = ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]]
        self._put("\n".join(_row(row, widths) for row in [headings, rule, *rows]))

    @contextmanager
    def folded(self, summary: str) -> Iterator[None]:
        """Write what is inside so that it unfolds."""
        self._put(f"<details>\n<summary>{_in_html(summary)}</summary>")
        self._unfolding = summary
        yield
        self._unfolding = ""
        self._put("</details>")

    def _fenced(self, lines: Sequence[str], language: str = "") -> None:
        runs = [len(run) for line in lines for run in re.findall("`+", line)]
        fence = "`" * max(FENCE, *(1 + run for run in runs), 0)
        self._put("\n".join([fence + language, *lines, fence]))

    def _put(self, text: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        self._file.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n\n")


def escaped(text: str) -> str:
    """Return a line of Markdown that is shown as ``text``, and does nothing else.

    The escapes are those of CommonMark; a bar is ``&#124;``, for tables. An empty comment stands
    where GitHub would else find a user, an issue or an address.
    """
    told = _told(text)
    return OPENINGS.sub(lambda found: f"{found[1] or ''}\\", told)


def _told(text: str) -> str:
    told = CALLS.sub("\0", plain(text).strip())
    told = SIGNS.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), told)
    return told.replace("|", "&#124;").replace("\0", NOTHING)


def _in_html(text: str) -> str:
    """Return text that stands in tags, where Markdown has no escapes."""
    return escape(CALLS.sub("\0", plain(text)), quote=False).replace("\0", NOTHING)


def _cell(text: str) -> str:
    """Return a cell; spaces before a name show what it belongs to."""
    inner = text.lstrip(" ")
    return "&nbsp;" * (len(text) - len(inner)) * bool(inner) + _told(inner)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        (cell, " " * (width - cell_len(cell))) for cell, width in zip(cells, widths, strict=True)
    )
    return (
        " | ".join(["| " + first[0] + first[1], *(space + cell for cell, space in others)]) + " |"
    )
