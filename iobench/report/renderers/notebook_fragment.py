"""A document as a fragment of HTML for a notebook: its styles inline, and no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from iobench.report.document import Chart, Command, KeyFigures, Sentence, Table
from iobench.report.renderers.quantities import key_sentence, longest, shaded, signed, spelled
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.report.document import Bar, Block, Document, Section

# Colours that can be read on white and on black; text is the notebook's own.
FAINT: Final = "rgba(128,128,128,.35)"
COLOURS: Final = {"good": "#2e9e5b", "fair": "#c98a12", "bad": "#dd4b39", "caution": "#c98a12"}
BARS: Final = {"exposed": "#dd4b39", "hidden": "#6f9fc8", "compute": "#9aa7b3"}
CELL: Final = "padding:1px 8px;border:0;background:none;color:inherit;white-space:nowrap;"
FIGURE: Final = f"{CELL}text-align:right;font-variant-numeric:tabular-nums;"
NAME: Final = f"{CELL}text-align:left;white-space:pre-wrap;overflow-wrap:anywhere;max-width:32em;"
LINES: Final = "margin:.2em 0 .4em 1em;padding:0;background:none;color:inherit;overflow-x:auto"
BAR_PX: Final = 120
MOST_ROWS: Final = 20
"""Rows of a table in a notebook: scripts may have a stage for every label."""
OPEN: Final = ("job", "compared", "verdict", "stages", "waits")
"""The sections that are shown at once; the others unfold."""


class NotebookRenderer:
    """One ``div`` that looks like the notebook it stands in; only what matters most is unfolded."""

    def render(self, document: Document) -> str:
        """Return the fragment."""
        style = "font-size:13px;line-height:1.45;color:inherit;overflow-x:auto"
        return f'<div class="iobench" style="{style}">{"".join(_document(document))}</div>'


def _document(document: Document) -> Iterator[str]:
    if document.title:
        title = signed(document.title, document.sign)
        yield _div(title, "font-weight:600;font-size:14px;margin-top:.4em")
    for section in document.sections:
        yield from _section(section)
    for number, part in enumerate(document.parts):
        if number:
            yield from _folded(part.title, "".join(_document(part)))
        else:
            yield from _document(part)


def _section(section: Section) -> Iterator[str]:
    content = "".join(text for each in section.blocks for text in _block(each))
    if not content:
        return
    if section.key in OPEN:
        yield _div(section.title, "font-weight:600;margin-top:.5em") if section.title else ""
        yield content
    else:
        yield from _folded(section.title, content)


def _folded(summary: str, content: str) -> Iterator[str]:
    yield f'<details><summary style="cursor:pointer">{_shown(summary)}</summary>{content}</details>'


def _block(block: Block) -> Iterator[str]:
    match block:
        case Sentence():
            css = "margin:0"
            if block.style:
                css = "margin:.3em 0;font-weight:600"
            if block.style in COLOURS:
                css += f";border-left:4px solid {COLOURS[block.style]};padding-left:8px"
            yield _div(signed(block.text, block.sign), css)
        case KeyFigures():
            yield from (_div(key_sentence(each), "margin:0") for each in block.figures)
        case Table():
            yield from _table(block)
        case Chart() if block.column_ns:
            yield _div(block.title, "margin:0")
            yield _lines(shaded(block))
        case Command():
            if block.reason:
                yield _div(block.sentence, "margin:0")
            if block.command:
                yield _lines([block.command])


def _table(table: Table) -> Iterator[str]:
    """Yield a table of at most `MOST_ROWS`, with a bar in each row that has one."""
    text, rows, title = spelled(table), table.rows[:MOST_ROWS], table.title
    if len(rows) < len(table.rows):
        title = f"{title}, {MOST_ROWS} of {len(table.rows)}".removeprefix(", ")
    if title:
        yield _div(title, "font-weight:600;margin-top:.3em")
    styles = [
        FIGURE if is_figure and place else NAME for place, is_figure in enumerate(text.is_figure)
    ]
    yield '<table style="border-collapse:collapse;margin:.2em 0 .6em;color:inherit">'
    if text.has_headings:
        yield f'<thead><tr style="background:none;border-bottom:1px solid {FAINT}">'
        for heading, style in zip(text.headings, styles, strict=True):
            yield f'<th style="{style}font-weight:400;opacity:.7">{_shown(heading)}</th>'
        yield "<th></th></tr></thead>" if table.bars else "</tr></thead>"
    yield "<tbody>"
    for place, cells in enumerate(text.rows[: len(rows)]):
        bar = _bar(table.bars[place], table.bars) if table.bars else ""
        yield f'<tr style="background:none">{_cells(cells, styles)}{bar}</tr>'
    if text.total:
        spare = "<td></td>" if table.bars else ""
        line = f"background:none;border-top:1px solid {FAINT}"
        yield f'<tr style="{line}">{_cells(text.total, styles)}{spare}</tr>'
    yield "</tbody></table>"
    if table.note:
        yield _div(table.note, "margin:0;opacity:.7")


def _cells(texts: Sequence[str], styles: Sequence[str]) -> str:
    return "".join(
        f'<td style="{style}">{_shown(text)}</td>'
        for text, style in zip(texts, styles, strict=True)
    )


def _bar(bar: Bar, bars: Sequence[Bar]) -> str:
    whole = longest(bars) or 1
    parts = "".join(
        f'<span title="{_shown(part.what)}" style="display:inline-block;height:9px;'
        f"width:{part.length / whole * BAR_PX:.1f}px;"
        f'background:{BARS.get(part.kind, FAINT)}"></span>'
        for part in bar.parts
        if part.length > 0
    )
    return f'<td style="{CELL}text-align:left;min-width:{BAR_PX}px">{parts}</td>'


def _lines(lines: Iterator[str] | Sequence[str]) -> str:
    return f'<pre style="{LINES}">{escape(chr(10).join(map(plain, lines)))}</pre>'


def _div(text: str, css: str) -> str:
    return f'<div style="{css}">{_shown(text)}</div>'


def _shown(text: str) -> str:
    return escape(plain(text))
