"""A document as one page of HTML that opens offline, with a timeline where a run has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.errors import ProfileError
from iobench.frozen import frozen
from iobench.report import units
from iobench.report.document import Drawing, Quantity, Sentence
from iobench.report.renderers.quantities import said, signed, spelled
from iobench.report.webpage import shell
from iobench.report.webpage.safe_text import SafeText
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.report.document import (
        Bar,
        Block,
        Cell,
        Document,
        HeatMap,
        Section,
        SmallChart,
        Table,
    )
    from iobench.report.timeline.page_payload import TimelinePayload

CHART_WIDTH, CHART_HEIGHT, CHART_EDGE = 240, 90, 8
"""Of a small chart, in its own units, and what of it is left free around the points."""
CHART_LEAST: Final = 0.1
"""Of a figure: what its scale spans at least, so that what hardly differs does not look as if."""
WIDTH: Final = 1000
"""Of a bar, in its own units; the page stretches it."""
LEAST: Final = 1.0
"""What is there at all is drawn at least this wide."""
LEVELS: Final = 8
TIMELINE: Final = "timeline"
TONES: Final = ("good", "fair", "bad")


class HtmlRenderer:
    """A page that asks nothing of the network, and lets nothing run but its own scripts.

    Raises
    ------
    MissingExtraError
        If Jinja2 is not installed.
    """

    def __init__(self) -> None:
        environment = shell.make_environment()
        environment.filters |= {
            "bar": _drawn_bar,
            "chart": _drawn_chart,
            "heat_paths": _heat_paths,
            "kind": lambda block: type(block).__name__,
            "legend": _legend,
            "number": _number,
            "rows": _rows,
            "said": _figure,
            "signed": signed,
            "spelled": spelled,
            "tone": _tone,
        }
        self._template = environment.get_template("page.html.j2")

    def render(self, document: Document) -> str:
        """Return the whole page; of several runs each has a tab."""
        if document.figures is None:
            raise ProfileError("no run to report: expected at least one profile with spans")
        parts = document.parts or (document,)
        payloads = {_number(part): made for part in parts if (made := _timeline(part)) is not None}
        drawn = any(_drawings(each) for each in (document, *document.parts))
        styles, scripts = shell.styles(drawn=drawn), shell.scripts(drawn=drawn)
        return self._template.render(
            policy=shell.policy(styles, scripts),
            styles=styles,
            scripts=scripts,
            document=document,
            lead=document.sections if document.parts else (),
            parts=parts,
            figures=document.figures(),
            payloads=payloads,
            not_drawn={number: list(_not_drawn(made)) for number, made in payloads.items()},
        )


def _number(part: Document) -> str:
    """Return the place of a run in the figures for machines: drawings are looked up by it."""
    return part.key.rpartition("-")[2]


def _drawings(part: Document) -> list[Drawing]:
    blocks = (block for section in part.sections for block in section.blocks)
    return [block for block in blocks if isinstance(block, Drawing)]


def _timeline(part: Document) -> TimelinePayload | None:
    return next((each.data() for each in _drawings(part) if each.name == TIMELINE), None)


def _not_drawn(payload: TimelinePayload) -> Iterator[str]:
    """Yield what the page says of the spans that it does not carry."""
    meta = payload.meta
    if meta["n_shown"] < meta["n_spans"]:
        yield (
            f"Not all spans are drawn: this page holds {units.count(meta['n_shown'])} of "
            f"{units.count(meta['n_spans'])}. Waits come first, then the spans waited for longest, "
            "then a uniform sample of the rest. All other figures cover all spans."
        )
    if meta["n_names_left_out"]:
        yield f"{units.count(meta['n_names_left_out'])} file names are left out."


def _tone(section: Section) -> str:
    """Return the colour of a section: of its one verdict, none where it tells several."""
    tones = [
        block.style
        for block in section.blocks
        if isinstance(block, Sentence) and block.style in TONES
    ]
    return tones[0] if len(tones) == 1 else ""


def _figure(cell: Cell, text: str | None = None) -> SafeText:
    """Return a cell as the page shows it: a figure carries its exact value."""
    shown = plain(said(cell) if text is None else text)
    if not isinstance(cell, Quantity):
        return SafeText.filled("{}", shown)
    value = "" if cell.value is None else f"{cell.value!r}"
    name = type(cell).__name__.lower()
    return SafeText.filled('<data class="figure {}" value="{}">{}</data>', name, value, shown)


def _rows(table: Table, *, total: bool = False) -> list[list[SafeText]]:
    text = spelled(table)
    cells = ([table.total] if table.total else []) if total else table.rows
    texts = ([text.total] if table.total else []) if total else text.rows
    return [
        [_figure(cell, shown) for cell, shown in zip(*row, strict=True)]
        for row in zip(cells, texts, strict=True)
    ]


def _drawn_bar(bar: Bar, bars: Sequence[Bar]) -> list[tuple[str, float, float, str]]:
    """Return style, place, width and meaning of each piece, all bars being on one scale."""
    longest = max((sum(part.length for part in each.parts) for each in bars), default=0)
    drawn, x = [], 0.0
    for part in bar.parts:
        if part.length > 0 and longest:
            width = max(LEAST, WIDTH * part.length / longest)
            drawn.append((part.kind, round(x, 2), round(min(width, WIDTH), 2), part.what))
            x += width
    return drawn


@frozen
class _DrawnChart:
    """A small chart as SVG has it.

    Parameters
    ----------
    line, intervals : str
        Paths.
    top, bottom : str
        What the ends of its scale are.
    first, last : str
        What its outer places are called.
    """

    line: str
    intervals: str
    points: list[tuple[float, float, str, str]]
    marks: list[tuple[float, str, str]]
    top: str
    bottom: str
    first: str
    last: str


def _drawn_chart(chart: SmallChart) -> _DrawnChart:
    """Return where everything of a chart is; intervals far beyond all figures are cut off."""
    values = [point.figure.value or 0.0 for point in chart.points]
    low, high = min(values), max(values)
    least = max(abs(low), abs(high)) * CHART_LEAST or 1.0
    reach = max(high - low, least)
    ends = [end for point in chart.points for end in (point.low, point.high) if end is not None]
    low = max(min([low, *ends]), low - reach)
    high = min(max([high, *ends]), high + reach)
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2

    def y(value: float) -> float:
        inside = (min(max(value, low), high) - low) / (high - low)
        return round(CHART_HEIGHT - CHART_EDGE - inside * (CHART_HEIGHT - 2 * CHART_EDGE), 1)

    step = (CHART_WIDTH - 2 * CHART_EDGE) / max(len(values) - 1, 1)
    xs = [round(CHART_EDGE + at * step, 1) for at in range(len(values))]
    styles = {mark.at: mark.style or "mark" for mark in chart.marks}
    said_of = {mark.at: mark.words for mark in chart.marks}
    kind = type(chart.points[0].figure)
    return _DrawnChart(
        line="M" + "L".join(f"{x} {y(value)}" for x, value in zip(xs, values, strict=True)),
        intervals="".join(
            f"M{x} {y(point.low)}V{y(point.high)}"
            for x, point in zip(xs, chart.points, strict=True)
            if point.low is not None and point.high is not None
        ),
        points=[
            (x, y(value), styles.get(at, ""), ". ".join(filter(None, (
                f"{point.place}: {said(point.figure)}{point.words}", said_of.get(at, ""),
            ))))
            for at, (x, value, point) in enumerate(zip(xs, values, chart.points, strict=True))
        ],
        marks=[(xs[mark.at], mark.style or "mark", mark.words) for mark in chart.marks],
        top=said(kind(high)),
        bottom=said(kind(low)),
        first=chart.points[0].place,
        last=chart.points[-1].place,
    )  # fmt: skip


def _legend(block: Block) -> list[tuple[str, str]]:
    """Return the colours of bars, and what they mean where they mean the same in all."""
    meanings: dict[str, set[str]] = {}
    for bar in getattr(block, "bars", ()):
        for part in bar.parts:
            meanings.setdefault(part.kind, set()).add(part.what)
    return [
        (kind, what.pop()) for kind, what in meanings.items() if len(what) == 1 and what != {""}
    ]


def _heat_paths(heat: HeatMap) -> list[str]:
    """Return for each level of a heat map, from little to all, an SVG path of its cells."""
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    for y, row in enumerate(heat.shares):
        for x, share in enumerate(row):
            if share > 0:
                # Rounded up, so that blank is nothing at all.
                level = min(LEVELS, -int(-share * LEVELS // 1))
                paths[level - 1].append(f"M{x} {y}h1v1h-1z")
    return ["".join(path) for path in paths]
