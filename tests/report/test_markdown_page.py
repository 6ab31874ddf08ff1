"""Reports as Markdown: what GitHub's parser shows is what was written, and nothing is injected."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iobench.report.document import (
    Column,
    Command,
    Document,
    KeyFigure,
    KeyFigures,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.renderers.markdown import MarkdownRenderer
from iobench.report.wrapping import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.report.document import Block
    from iobench.report.run_report import RunReport

    Make = Callable[..., RunReport]

markdown_it = pytest.importorskip("markdown_it", reason="a parser of CommonMark reads the pages")

OURS = {
    "h2", "h3", "h4", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details",
    "summary", "ul", "li", "pre", "code",
}  # fmt: skip
HOSTILE = (
    "a|b", "a\\|b\\", "\\", "`code` ``x", "<script>alert(1)</script>", "</details>", "<!-- -->",
    "--> <b>", "@torvalds", "me@example.org", "owner/repo#123 GH-7 #8",
    "https://example.org/?a=b&copy;", "www.example.org", "**bold** _it_ __init__ a_b_c ~~no~~",
    "[x](javascript:alert(1)) ![y](z) [z]: q", "&lt;b&gt; &#60; &amp;", ":smile: a:b:c",
    "# heading", "- item", "1. item", "> quote", "| --- |", "line\nbreak\r\n\ttab",
    "\x1b[31mred\x07", "\u202egnp.exe", "$x$ and $$y$$", "---", "```", "Größe 数据 \U0001f600",
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=3).map(" ".join),
    st.text(max_size=12),
    st.text(alphabet="|\\`*_[]<>~$&#@:-=+.1a \n", max_size=10),
)


class Shown(HTMLParser):
    """Collects tags, cells of tables and the text outside of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.in_cell = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in {"th", "td"}:
            self.rows[-1].append("")
            self.in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in {"th", "td"}:
            self.in_cell = False

    def handle_data(self, data: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += data
        self.texts.append(data)


def shown(text: str) -> Shown:
    """Return a text as GitHub's parser shows it."""
    parser = markdown_it.MarkdownIt("commonmark", {"html": True})
    return Shown(parser.enable(["table", "strikethrough"]).render(text))


def page_of(*blocks: Block, title: str = "", is_folded: bool = False) -> str:
    section = Section("a", title, blocks, is_folded=is_folded)
    return MarkdownRenderer().render(Document(f"T {title}", (section,)))


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=3), NAMES)
@example([("a\\|b", "\\"), ("- x", "`|`")], "<b>")
@example([("a", "b")], "\r")
def test_a_parser_finds_exactly_the_cells(rows: list[tuple[str, str]], name: str) -> None:
    columns = (Column("stage"), Column("busy s"))
    table = Table(name, columns, tuple(rows), total=("all", name), note=name)
    found = shown(page_of(table))
    expected = [["stage", "busy s"], *rows, ["all", name]]
    # Spaces at the ends of a cell are the table's.
    assert [[each.strip() for each in row] for row in found.rows] == [
        [plain(each).strip() for each in row] for row in expected
    ]
    assert set(found.tags) <= OURS


@given(NAMES)
def test_every_kind_of_line_shows_its_text_and_nothing_else(name: str) -> None:
    blocks = (
        Sentence(name),
        Sentence(f"x {name}"),
        Sentence(name, "strong"),
        KeyFigures((KeyFigure("k", name),)),
        Command(name),
        Command(f"```` {name}"),
    )
    found = shown(page_of(*blocks, title=name, is_folded=True))
    assert set(found.tags) <= OURS
    assert {*found.attributes} <= {("class", "language-sh")}
    text = "".join(found.texts)
    assert text.count(plain(name).strip()) >= (7 if plain(name).strip() else 0)


def test_nobody_is_called_and_nothing_linked() -> None:
    text = page_of(*sentences(HOSTILE))
    # GitHub looks into what is left of a text once comments are cut at, not joined.
    pieces = list(map(unescape, re.split(r"<!-- -->|\n", text)))
    for pattern in (r"@\w", r"#\d", r"(?i)\bgh-\d", r"https?://", r"(?i)\bwww\.", r":[\w+-]+:"):
        assert [piece for piece in pieces if re.search(pattern, piece)] == []
