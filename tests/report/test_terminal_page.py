"""Pages of 80 columns: nothing is cut, no figure broken, and colour only where it is meant."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iobench.report.document import Column, Document, Section, Table
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.report.run_report import RunReport

    Make = Callable[..., RunReport]

FIGURES = st.sampled_from(
    ["0", "-", "", "unknown", "1,234,567.89", "< 0.1 %", "> 99.9 %", "15.7 GB/s", "1,000,000"]
)
NAMES = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["read", "preprocess:" + "x" * 70, "decode:数据" * 9, "a\nb\x1b[2J"]
)


def drawn(table: Table) -> list[str]:
    document = Document("", (Section("a", "", (table,)),))
    return TerminalRenderer(StringIO()).render(document).splitlines()


@given(st.lists(st.tuples(NAMES, *[FIGURES] * 9), min_size=1, max_size=4), st.booleans())
@example([("preprocess:" + "x" * 70, *["1,234,567.89"] * 9)], True)
def test_no_table_is_wider_than_the_page_or_loses_a_figure(
    rows: list[tuple[str, ...]], total: bool
) -> None:
    columns = (Column("stage"), *(Column(f"column {place}") for place in range(9)))
    table = Table("t", columns, tuple(rows), total=rows[0] if total else ())
    lines = drawn(table)
    assert all(cell_width(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "\u2026" not in text.replace("".join(row[0] for row in rows), "")
    for figure in {cell for row in rows for cell in row[1:] if cell}:
        wanted = sum(row[1:].count(figure) for row in [*rows, *([rows[0]] if total else [])])
        assert text.count(figure) >= wanted


def cell_width(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(line)


@pytest.mark.parametrize(
    ("variables", "coloured", "styled"),
    [
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1"}, False, False),
    ],
)
def test_colour_is_where_it_is_asked_for(
    bound: RunReport,
    show: Callable[..., str],
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


def test_a_name_cannot_steer_the_terminal(make: Make, show: Callable[..., str]) -> None:
    text = show(make(dataset="\x1b]0;owned\x07\x9b2J\u202edne"))
    assert set(re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)) == set()
    assert "\\x1b]0;owned\\x07\\x9b2J\\u202edne as source" in text


@given(st.lists(st.sampled_from(["a", "word", "21.1 ms", "88 %", "< 0.1 %", "4 GB/s", "x" * 90])))
def test_lines_are_broken_between_words_and_never_in_a_figure(words: list[str]) -> None:
    lines = wrapped(" ".join(words), 40, indent=2)
    assert " ".join(" ".join(lines).split()) == " ".join(words)
    assert all(len(line) <= 40 or "x" * 90 in line for line in lines)
    assert not any(re.search(r"(?:^|\s)(?:\d+(?:\.\d)?|<)$", line) for line in lines)
