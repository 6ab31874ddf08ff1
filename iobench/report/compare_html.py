"""A comparison as a page of HTML that needs nothing else: tables, and ratios with whiskers."""

from __future__ import annotations

from html import escape
from math import log2
from typing import TYPE_CHECKING, Final

from iobench.report import units
from iobench.report.compare_text import NAMES, names, print_comparison
from iobench.report.fragment_page import FragmentPage
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from iobench.report.compare_figures import ComparedFigure, PairComparison
    from iobench.report.compared_runs import Comparison

__all__ = ["comparison_page", "self_contained_page"]

STYLE: Final = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--faint:#6b7280;--line:#d5d9de;
--less:#2e7d4f;--more:#c0392b;--none:#6b7280}
@media (prefers-color-scheme:dark){:root{--ground:#15181c;--ink:#e6e8eb;--faint:#9aa3ad;
--line:#3a4048;--less:#5fc48a;--more:#ff8a7a;--none:#9aa3ad}}
body{margin:0 auto;padding:1.2rem;max-width:66rem;background:var(--ground);color:var(--ink);
font:14px/1.5 system-ui,sans-serif}
h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.4rem 0 .3rem}
svg{max-width:100%;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}
svg .faint{fill:var(--faint)}svg line{stroke:var(--line)}
svg .one{stroke:var(--faint);stroke-dasharray:3 3}
svg .less{stroke:var(--less);fill:var(--less)}svg .more{stroke:var(--more);fill:var(--more)}
svg .none{stroke:var(--none);fill:var(--none)}
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
N_FIGURES: Final = 40
ROW_PX, NAME_PX, PLOT_PX, TEXT_PX, PAD_PX = 22, 250, 340, 170, 12
LONGEST_NAME: Final = 38
WIDEST: Final = 6.0
"""Powers of two to either side: a longer whisker is cut off, and ends in an arrow."""


def comparison_page(found: Comparison) -> str:
    """Return the whole page; whatever runs are called, it is text on it."""
    plots = "".join(
        f"<h2>{escape(name)} against {NAMES[0]}</h2>{_plot(pair, name)}"
        for name, pair in zip(names(found)[1:], found.pairs, strict=True)
        if any(figure.interval.ratio is not None for figure in pair.figures)
    )
    page = FragmentPage()
    print_comparison(found, page)
    return self_contained_page("Runs compared", f"{plots}{page.html}")


def self_contained_page(title: str, body: str) -> str:
    """Return a page around HTML that is safe already; it loads nothing and runs nothing."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>\n"
    )


def _plot(pair: PairComparison, name: str) -> str:
    """Return one row for each figure: its ratio as a dot, its interval as a whisker."""
    figures = [each for each in pair.figures if each.interval.ratio is not None][:N_FIGURES]
    reach = min(max((_reach(each) for each in figures), default=1.0) * 1.08 + 0.02, WIDEST)
    height = ROW_PX * (len(figures) + 2)
    width = NAME_PX + PLOT_PX + TEXT_PX + 2 * PAD_PX
    one = _place(1.0, reach)
    rows = [_row(figure, reach, ROW_PX * (at + 1)) for at, figure in enumerate(figures)]
    low_text, high_text = units.ratio(2**-reach), units.ratio(2**reach)
    bottom = height - 6
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="Ratios of {escape(name)} to {NAMES[0]} with intervals at 95 %">'
        f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="4" y2="{bottom - 14}"/>'
        f"{''.join(rows)}"
        f'<text class="faint" x="{_place(2**-reach, reach):.1f}" y="{bottom}">{low_text}</text>'
        f'<text class="faint" x="{one:.1f}" y="{bottom}" text-anchor="middle">1</text>'
        f'<text class="faint" x="{_place(2**reach, reach):.1f}" y="{bottom}" text-anchor="end">'
        f"{high_text}</text></svg>"
    )


def _reach(figure: ComparedFigure) -> float:
    interval = figure.interval
    values = (interval.ratio, interval.low, interval.high)
    return max(abs(log2(value)) for value in values if value is not None)


def _place(ratio: float, reach: float) -> float:
    """Return where a ratio lies, on a logarithmic axis around 1."""
    share = max(-1.0, min(1.0, log2(ratio) / reach))
    return NAME_PX + PAD_PX + PLOT_PX * (share + 1) / 2


def _row(figure: ComparedFigure, reach: float, y: int) -> str:
    interval = figure.interval
    ratio = interval.ratio or 1.0
    kind = "none" if not interval.differs else "more" if ratio > 1 else "less"
    parts = [
        f"<title>{escape(plain(figure.name))}</title>"
        f'<text x="{NAME_PX}" y="{y + 4}" text-anchor="end">{escape(_short(figure.name))}</text>'
    ]
    text = units.ratio(ratio)
    if interval.low is not None and interval.high is not None:
        low, high = _place(interval.low, reach), _place(interval.high, reach)
        parts.append(
            f'<line class="{kind}" stroke-width="2" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" '
            f'y2="{y}"/>'
        )
        text += f" ({units.ratio(interval.low)} to {units.ratio(interval.high)})"
    x = NAME_PX + PLOT_PX + 2 * PAD_PX
    parts.append(
        f'<circle class="{kind}" cx="{_place(ratio, reach):.1f}" cy="{y}" r="4"/>'
        f'<text x="{x}" y="{y + 4}">{text}</text>'
    )
    return f"<g>{''.join(parts)}</g>"


def _short(name: str) -> str:
    name = plain(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
