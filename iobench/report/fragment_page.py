"""A page of HTML for a notebook: a fragment with its styles inline, and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Final

from iobench.analysis.diagnosis import Verdict
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from iobench.report.tables import TextTable

__all__ = ["FragmentPage"]

# Colours that can be read on white and on black; text is the notebook's own.
SIGNALS: Final = {
    Verdict.HIDDEN: "#2e9e5b",
    Verdict.PARTLY_HIDDEN: "#c98a12",
    Verdict.IO_BOUND: "#dd4b39",
}
FAINT: Final = "rgba(128,128,128,.35)"
EXPOSED: Final = "#dd4b39"
HIDDEN: Final = "#6f9fc8"
CELL: Final = "padding:1px 8px;border:0;background:none;color:inherit;white-space:nowrap;"
FIGURE: Final = f"{CELL}text-align:right;font-variant-numeric:tabular-nums;"
NAME: Final = f"{CELL}text-align:left;white-space:pre-wrap;overflow-wrap:anywhere;max-width:32em;"
BAR_PX: Final = 120


class FragmentPage:
    """HTML that is put together piece by piece; `html` is what there is so far."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._unfolding = ""

    @property
    def html(self) -> str:
        """The fragment: one ``div``."""
        style = "font-size:13px;line-height:1.45;color:inherit;overflow-x:auto"
        return f'<div class="iobench" style="{style}">{"".join(self._parts)}</div>'

    def title(self, text: str) -> None:
        """Write what the whole page is about."""
        self._put("div", text, "font-weight:600;font-size:14px")

    def heading(self, text: str) -> None:
        """Write what all that follows is about."""
        self._put("div", text, "font-weight:600;font-size:14px;margin-top:.8em")

    def section(self, text: str) -> None:
        """Write what the next lines and tables are about."""
        if text != self._unfolding:
            self._put("div", text, "font-weight:600;margin-top:.5em")

    def text(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Write a paragraph."""
        css = "margin:0"
        if "bold" in style:
            css += ";font-weight:600"
        if "yellow" in style:
            css += f";border-left:3px solid {SIGNALS[Verdict.PARTLY_HIDDEN]};padding-left:6px"
        if indent:
            css += ";margin-left:1em"
        self._put("div", text, css)

    def raw(self, texts: Sequence[str]) -> None:
        """Write lines as they are, spaces included."""
        self._lines("\n".join(plain(text) for text in texts))

    def gap(self) -> None:
        """Leave a little room."""
        self._parts.append('<div style="height:.5em"></div>')

    def list(self, texts: Sequence[str]) -> None:
        """Write lines that belong together as a list."""
        if texts:
            items = "".join(f"<li>{_shown(text)}</li>" for text in texts)
            self._parts.append(f'<ul style="margin:.2em 0 .5em 1.2em;padding:0">{items}</ul>')

    def command(self, text: str) -> None:
        """Write a line to copy."""
        self._lines(plain(text))

    def table(self, table: TextTable) -> None:
        """Draw a table, with a bar of what is hidden and exposed in each row that has one."""
        if table.title:
            self.section(table.title)
        bars = table.bars
        headings = [*table.columns, *([""] if bars else [])]
        head = "".join(
            f'<th style="{NAME if place == 0 else FIGURE}font-weight:400;opacity:.7">'
            f"{_shown(' '.join(heading.split()))}</th>"
            for place, heading in enumerate(headings)
        )
        rows = [
            _row(row) + (_bar(*bars[place]) if bars else "") for place, row in enumerate(table.rows)
        ]
        body = "".join(f'<tr style="background:none">{row}</tr>' for row in rows)
        if table.total:
            line = f"background:none;border-top:1px solid {FAINT}"
            spare = "<td></td>" if bars else ""
            body += f'<tr style="{line}">{_row(table.total)}{spare}</tr>'
        self._parts.append(
            '<table style="border-collapse:collapse;margin:.2em 0 .6em;color:inherit">'
            f'<thead><tr style="background:none;border-bottom:1px solid {FAINT}">{head}</tr>'
            f"</thead><tbody>{body}</tbody></table>"
        )

    @contextmanager
    def folded(self, summary: str) -> Iterator[None]:
        """Write what is inside so that it unfolds."""
        self._parts.append(f'<details><summary style="cursor:pointer">{_shown(summary)}</summary>')
        self._unfolding = summary
        yield
        self._unfolding = ""
        self._parts.append("</details>")

    def _put(self, tag: str, text: str, css: str) -> None:
        self._parts.append(f'<{tag} style="{css}">{_shown(text)}</{tag}>')

    def _lines(self, text: str) -> None:
        css = "margin:.2em 0 .4em 1em;padding:0;background:none;color:inherit;overflow-x:auto"
        self._parts.append(f'<pre style="{css}">{escape(text)}</pre>')


def _shown(text: str) -> str:
    return escape(plain(text))


def _row(cells: Sequence[str]) -> str:
    return "".join(
        f'<td style="{NAME if place == 0 else FIGURE}">{_shown(cell)}</td>'
        for place, cell in enumerate(cells)
    )


def _bar(hidden: float, exposed: float) -> str:
    """Return a bar: what was hidden, then what was exposed, as shares of the longest."""
    parts = "".join(
        f'<span title="{what}" style="display:inline-block;height:9px;width:{share * BAR_PX:.1f}px;'
        f'background:{colour}"></span>'
        for what, share, colour in (("hidden", hidden, HIDDEN), ("exposed", exposed, EXPOSED))
        if share > 0
    )
    return f'<td style="{CELL}text-align:left;min-width:{BAR_PX}px">{parts}</td>'
