"""A comparison as a page of HTML that needs nothing else: tables, and ratios with whiskers."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import log2
from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.compare_text import NAMES, names, print_figures, print_names
from iobench.report.fragment_page import FragmentPage
from iobench.report.quarterly_text import print_quarterly
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.compare_figures import ComparedFigure, PairComparison
    from iobench.report.compared_runs import Comparison
    from iobench.report.quarterly import Quarterly

__all__ = ["comparison_page", "quarterly_page"]

STYLE: Final = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--faint:#6b7280;--line:#d5d9de;
--better:#2e7d4f;--worse:#c0392b;--none:#6b7280}
@media (prefers-color-scheme:dark){:root{--ground:#15181c;--ink:#e6e8eb;--faint:#9aa3ad;
--line:#3a4048;--better:#5fc48a;--worse:#ff8a7a;--none:#9aa3ad}}
body{margin:0 auto;padding:1.2rem;max-width:66rem;background:var(--ground);color:var(--ink);
font:14px/1.5 system-ui,sans-serif}
h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.4rem 0 .3rem}
.plot{overflow-x:auto}svg{max-width:100%;min-width:640px;height:auto}
td:first-child,th:first-child{overflow-wrap:break-word!important;min-width:9em}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}
svg .faint{fill:var(--faint)}svg line{stroke:var(--line)}
svg .one{stroke:var(--faint);stroke-dasharray:3 3}
svg .better{stroke:var(--better);fill:var(--better)}
svg .worse{stroke:var(--worse);fill:var(--worse)}
svg .none{stroke:var(--none);fill:var(--none)}
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
N_FIGURES: Final = 40
ROW_PX, NAME_PX, PLOT_PX, TEXT_PX, PAD_PX = 22, 250, 340, 170, 12
LONGEST_NAME: Final = 38
WIDEST: Final = 10.0
"""Powers of two to either side: a longer whisker is cut off there, its numbers stand beside it."""
NEAREST_PX: Final = 40
RATES: Final = ("per_s", "bytes_per_s")


def comparison_page(found: Comparison) -> str:
    """Return the whole page; whatever runs are called, it is text on it."""
    plots = "".join(
        f"<h2>{escape(name)} against {NAMES[0]}</h2>{_plot(pair, name)}"
        for name, pair in zip(names(found)[1:], found.pairs, strict=True)
        if any(figure.interval.value is not None for figure in pair.figures)
    )
    called, page = FragmentPage(), FragmentPage()
    print_names(found, called)
    print_figures(found, page)
    return _self_contained_page("Runs compared", f"{called.html}{plots}{page.html}")


def quarterly_page(found: Quarterly) -> str:
    """Return the quarterly table as a page."""
    page = FragmentPage()
    print_quarterly(found, page)
    return _self_contained_page("Applications, frameworks and formats", page.html)


def _self_contained_page(title: str, body: str) -> str:
    """Return a page around HTML that is safe already; it loads nothing and runs nothing."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """Powers of two from ``low`` to ``high``, of which 0 is one: ratios of 1."""

    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[ComparedFigure]) -> _Axis:
        logs = [
            min(max(log2(value), -WIDEST), WIDEST)
            for figure in figures
            for value in (figure.interval.value, figure.interval.low, figure.interval.high)
            if value is not None
        ]
        low, high = min(0.0, *logs), max(0.0, *logs)
        margin = max(0.04 * (high - low), 0.01)
        return cls(low - margin, high + margin)

    def place(self, ratio: float) -> float:
        """Return where a ratio lies; what is beyond an end lies there."""
        share = (log2(ratio) - self.low) / (self.high - self.low)
        return NAME_PX + PAD_PX + PLOT_PX * min(max(share, 0.0), 1.0)


def _plot(pair: PairComparison, name: str) -> str:
    """Return one row for each figure: its ratio as a dot, its interval as a whisker."""
    figures = [each for each in pair.figures if each.interval.value is not None][:N_FIGURES]
    axis = _Axis.of(figures)
    height = ROW_PX * (len(figures) + 2)
    width = NAME_PX + PLOT_PX + TEXT_PX + 2 * PAD_PX
    bottom, one = height - 6, axis.place(1.0)
    rows = [_row(figure, axis, ROW_PX * (at + 1)) for at, figure in enumerate(figures)]
    ticks = [(one, "1", "middle")]
    for power, anchor in ((axis.low, "start"), (axis.high, "end")):
        x = axis.place(2**power)
        if abs(x - one) > NEAREST_PX:
            ticks.append((x, units.ratio(2**power), anchor))
    labels = "".join(
        f'<text class="faint" x="{x:.1f}" y="{bottom}" text-anchor="{anchor}">{text}</text>'
        for x, text, anchor in ticks
    )
    return (
        '<div class="plot" tabindex="0" role="group" aria-label="Ratios, to be scrolled"><svg '
        f'viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="Ratios of {escape(name)} to {NAMES[0]} with intervals at 95 %">'
        f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="4" y2="{bottom - 14}"/>'
        f"{''.join(rows)}{labels}</svg></div>"
    )


def _row(figure: ComparedFigure, axis: _Axis, y: int) -> str:
    interval = figure.interval
    ratio = interval.value or 1.0
    kind = "none" if not interval.differs else _judged(figure, ratio)
    parts = [
        f"<title>{escape(plain(figure.name))}</title>"
        f'<text x="{NAME_PX}" y="{y + 4}" text-anchor="end">{escape(_short(figure.name))}</text>'
    ]
    text = units.ratio(ratio)
    if interval.low is not None and interval.high is not None:
        low, high = axis.place(interval.low), axis.place(interval.high)
        parts.append(
            f'<line class="{kind}" stroke-width="2" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" '
            f'y2="{y}"/>'
        )
        text += f" ({units.ratio(interval.low)} to {units.ratio(interval.high)})"
    x = NAME_PX + PLOT_PX + 2 * PAD_PX
    parts.append(
        f'<circle class="{kind}" cx="{axis.place(ratio):.1f}" cy="{y}" r="4"/>'
        f'<text x="{x}" y="{y + 4}">{escape(text)}</text>'
    )
    return f"<g>{''.join(parts)}</g>"


def _judged(figure: ComparedFigure, ratio: float) -> str:
    """Return whether a difference is for the better: shorter times, higher rates."""
    return "better" if (ratio > 1) == (figure.unit in RATES) else "worse"


def _short(name: str) -> str:
    name = plain(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
