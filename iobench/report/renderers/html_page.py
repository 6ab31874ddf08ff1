"""A document as one page of HTML that opens offline, with a timeline where a run has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.errors import ProfileError
from iobench.masking import printable
from iobench.report.document import Drawing, Quantity
from iobench.report.renderers.json_text import to_plain
from iobench.report.renderers.quantities import longest, said, spelled
from iobench.report.webpage import shell
from iobench.report.webpage.shell import SafeText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.document import Bar, Block, Cell, Document, Table

WIDTH: Final = 1000
"""Of a bar, in its own units; the page stretches it."""
LEAST: Final = 1.0
"""What is there at all is drawn at least this wide."""
TIMELINE: Final = "timeline"


class HtmlRenderer:
    """A page that asks nothing of the network, and lets nothing run but its own scripts."""

    def __init__(self) -> None:
        environment = shell.make_environment()
        environment.filters |= {
            "bar": _drawn_bar,
            "kind": lambda block: type(block).__name__,
            "legend": _legend,
            "number": _number,
            "rows": _rows,
            "said": _figure,
            "spelled": spelled,
        }
        self._template = environment.get_template("page.html.j2")

    def render(self, document: Document) -> str:
        """Return the whole page; of several runs each has a tab."""
        if document.figures is None:
            raise ProfileError("no run to report: expected at least one profile with spans")
        parts = document.parts or (document,)
        timelines = (
            (_number(part), each.data())
            for part in parts
            for each in _drawings(part)
            if each.name == TIMELINE
        )
        payloads = {number: payload for number, payload in timelines if payload is not None}
        drawn = any(_drawings(each) for each in (document, *document.parts))
        styles, scripts = shell.styles(drawn=drawn), shell.scripts(drawn=drawn)
        return self._template.render(
            policy=shell.policy(styles, scripts),
            styles=styles,
            scripts=scripts,
            document=document,
            lead=document.sections if document.parts else (),
            parts=parts,
            figures=to_plain(document.figures()),
            payloads=payloads,
        )


def _number(part: Document) -> str:
    """Return the place of a run in the figures for machines: drawings are looked up by it."""
    return part.key.rpartition("-")[2]


def _drawings(part: Document) -> list[Drawing]:
    blocks = (block for section in part.sections for block in section.blocks)
    return [block for block in blocks if isinstance(block, Drawing)]


def _figure(cell: Cell, text: str | None = None) -> SafeText:
    """Return a cell as the page shows it: a figure carries its exact value."""
    shown = printable(said(cell) if text is None else text)
    if not isinstance(cell, Quantity):
        return SafeText.filled("{}", shown)
    value = "" if cell.value is None else f"{cell.value!r}"
    return SafeText.filled('<data class="figure {}" value="{}">{}</data>', cell.unit, value, shown)


def _rows(table: Table, *, total: bool = False) -> list[list[SafeText]]:
    text = spelled(table)
    cells, texts = (table.rows, text.rows)
    if total:
        cells, texts = ((table.total,), (text.total,)) if table.total else ((), ())
    return [list(map(_figure, *row)) for row in zip(cells, texts, strict=True)]


def _drawn_bar(bar: Bar, bars: Sequence[Bar]) -> list[tuple[str, float, float, str]]:
    """Return style, place, width and meaning of each piece, all bars being on one scale."""
    whole, drawn, x = longest(bars), [], 0.0
    for part in bar.parts:
        if part.length > 0:
            width = min(max(LEAST, WIDTH * part.length / whole), WIDTH)
            drawn.append((part.kind, round(x, 2), round(width, 2), part.what))
            x += width
    return drawn


def _legend(block: Block) -> list[tuple[str, str]]:
    """Return the colours of bars, and what they mean where they mean the same in all."""
    meanings: dict[str, set[str]] = {}
    for bar in getattr(block, "bars", ()):
        for part in bar.parts:
            meanings.setdefault(part.kind, set()).add(part.what)
    return [
        (kind, what.pop()) for kind, what in meanings.items() if len(what) == 1 and what != {""}
    ]
