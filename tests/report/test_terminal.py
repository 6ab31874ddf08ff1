"""What pages show: nothing is cut, no figure is broken, and a name does nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from iobench.report.document import Column, Document, Quantity, Section, Table
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.report.renderers.markdown import MarkdownRenderer
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.wrapping import wrapped

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

Show = Callable[..., str]

FIGURES = st.sampled_from(
    ["0", "-", "", "unknown", "1,234,567.89", "< 0.1 %", "> 99.9 %", "15.7 GB/s", "1,000,000"]
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["read", "preprocess:" + "x" * 70, "decode:数据" * 9, "a\nb\x1b[2J"]
)
RENDERERS = {
    "terminal": lambda: TerminalRenderer(StringIO()),
    "markdown": MarkdownRenderer,
    "html": HtmlRenderer,
}


def rendered(renderer: str, table: Table) -> str:
    document = Document("T", (Section("a", "", (table,)),), figures=dict)
    return RENDERERS[renderer]().render(document)


def test_unknown_is_never_zero(unknown: RunReport, show: Show) -> None:
    text = " ".join(show(unknown).split())
    assert text.count("unknown") >= 6
    assert "unknown samples/s" in text
    assert "overhead: unknown" in text


@pytest.mark.parametrize("columns", ["20", "80", "120", "300"])
def test_no_line_is_too_long_and_no_figure_is_cut(
    bound: RunReport, hidden: RunReport, show: Show, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = show(bound, hidden)
    width = min(max(int(columns), 80), 110)
    assert all(len(line) <= width for line in text.splitlines() if "iobench profile" not in line)
    assert "404 MB/s" in text
    assert not re.search(r"(\d|<|>)\n *(ms|us|s|%|[kMGT]?B)\b", text)
    assert "…" not in text


@given(st.lists(st.tuples(NAMES, *[FIGURES] * 9), min_size=1, max_size=4), st.booleans())
@example([("preprocess:" + "x" * 70, *["1,234,567.89"] * 9)], True)
def test_no_table_is_wider_than_the_page_or_loses_a_figure(
    rows: list[tuple[str, ...]], total: bool
) -> None:
    columns = (Column("stage"), *(Column(f"column {place}") for place in range(9)))
    shown = [*rows, rows[0]] if total else rows
    text = rendered("terminal", Table("t", columns, tuple(rows), rows[0] if total else ()))
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert "\u2026" not in text.replace("".join(row[0] for row in rows), "")
    for figure in {cell for row in rows for cell in row[1:] if cell}:
        assert text.count(figure) >= sum(row[1:].count(figure) for row in shown)


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("n_rows", [1, 2, 7, 20])
def test_every_row_is_shown_once_and_in_order(renderer: str, n_rows: int) -> None:
    names = [f"stage-{row:02}" for row in range(n_rows)]
    rows = tuple((name, Quantity(1_000_000 * (n + 1), "ns")) for n, name in enumerate(names))
    total = ("all-of-them", Quantity(7_000_000, "ns"))
    text = rendered(renderer, Table("", (Column("stage"), Column("busy", "time")), rows, total))
    expected = [*names, "all-of-them"]
    assert [text.count(word) for word in expected] == [1] * len(expected)
    assert sorted(expected, key=text.index) == expected


@pytest.mark.parametrize(
    ("variables", "coloured", "styled"),
    [
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True),
    ],
)
def test_colour_is_where_it_is_asked_for(
    bound: RunReport,
    show: Show,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    coloured: bool,
    styled: bool,
) -> None:
    plain = show(bound)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    text = show(bound)
    assert ("\x1b[1;31m" in text) is coloured
    assert ("\x1b[" in text) is styled
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == plain


@given(st.lists(st.sampled_from(["a", "word", "21.1 ms", "88 %", "< 0.1 %", "4 GB/s", "x" * 90])))
def test_lines_are_broken_between_words_and_never_in_a_figure(words: list[str]) -> None:
    lines = wrapped(" ".join(words), 40, indent=2)
    assert " ".join(" ".join(lines).split()) == " ".join(words)
    assert all(len(line) <= 40 or "x" * 90 in line for line in lines)
    assert not any(re.search(r"(?:^|\s)(?:\d+(?:\.\d)?|<)$", line) for line in lines)
