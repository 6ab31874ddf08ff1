"""Documents in every format: nothing is cut, no figure is broken, and a name does nothing."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from html import unescape
from io import StringIO
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

import iobench
from iobench.masking import printable
from iobench.report import units
from iobench.report.document import (
    Bar,
    BarPart,
    Chart,
    Column,
    Command,
    Document,
    KeyFigure,
    KeyFigures,
    Quantity,
    Section,
    Sentence,
    Table,
    columns,
    quantities,
    sentences,
)
from iobench.report.json_report import reports_to_json
from iobench.report.one_screen import one_screen
from iobench.report.renderers.markdown import MarkdownRenderer
from iobench.report.renderers.terminal import TerminalRenderer
from iobench.report.report_document import report_document
from iobench.report.wrapping import wrapped
from tests.support.page_runs import write_run

MS = 1_000_000
SIZES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
WHOLE = "iobench report runs/a --full"


# -- quantities ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "texts"),
    [
        ("duration", {
            None: "unknown", 0: "0", 7: "7 ns", 999_499: "999 us", 999_500: "1.00 ms",
            21_120_000: "21.1 ms", 999_600_000: "1.00 s", 2_400_000_000_000: "2,400 s",
        }),
        ("fraction", {
            None: "unknown", 0: "0 %", 0.0001: "< 0.1 %", 0.0049: "0.5 %", 0.0996: "10 %",
            0.88: "88 %", 0.9949: "99 %", 0.996: "99.6 %", 0.9997: "> 99.9 %", 1: "100 %",
        }),
        ("byte_rate", {None: "unknown", 0: "0 B/s", 1_236_000_000: "1.24 GB/s"}),
        ("ratio", {None: "unknown", 0: "0", 12.34: "12.3", 0.00001: "< 0.001"}),
        ("epochs", {0.004: "< 0.1", 0.4: "0.4", 2.345: "2.3", 12345.0: "12,000"}),
    ],
)  # fmt: skip
def test_a_quantity_is_said_in_three_digits(unit, texts):
    say = getattr(units, unit)
    assert {value: say(value) for value in texts} == texts


@given(st.integers(min_value=1, max_value=10**15), st.floats(min_value=0, max_value=1))
def test_a_figure_is_within_its_last_digit_and_only_all_is_100(ns, share):
    number, unit = units.duration(ns).split()
    shown = float(number.replace(",", "")) * SIZES[unit]
    assert shown > 0
    assert abs(shown - ns) <= 0.0051 * ns
    assert (units.fraction(share) == "100 %") == (share == 1)
    assert (units.fraction(share) == "0 %") == (share == 0)


@given(st.lists(st.one_of(st.none(), st.integers(min_value=0, max_value=10**14)), min_size=1))
def test_a_column_tells_zero_unknown_and_little_apart(values_ns):
    unit, texts = units.durations(values_ns)
    for value, text in zip(values_ns, texts, strict=True):
        assert (text == "unknown") == (value is None)
        assert (text == "0") == (value == 0)
        if value and not text.startswith("<"):
            assert float(text.replace(",", "")) * SIZES[unit] == pytest.approx(
                value, abs=0.0051 * SIZES[unit] + 0.5
            )


def test_unknown_is_never_zero_and_null_in_json(unknown, show):
    text = " ".join(show(unknown).split())
    assert text.count("unknown") >= 6
    assert "samples/s" not in text
    assert "overhead: unknown" in text
    (run,) = reports_to_json([unknown])["runs"]
    unknown_keys = (
        "dataset", "format", "framework", "stand_in", "batch_size", "steady", "samples_per_s",
        "overhead_fraction", "cold_fraction", "store_path",
    )  # fmt: skip
    assert {key: run[key] for key in unknown_keys} == dict.fromkeys(unknown_keys)
    assert (run["lost_spans"], run["missing_workers"]) == (7, ("worker-1",))


# -- terminals ----------------------------------------------------------------------------

FIGURES = st.sampled_from(
    ["0", "-", "", "unknown", "1,234,567.89", "< 0.1 %", "> 99.9 %", "15.7 GB/s", "1,000,000"]
)
LONG_NAMES = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["read", "preprocess:" + "x" * 70, "decode:数据" * 9, "a\nb\x1b[2J"]
)


@pytest.mark.parametrize("columns", ["20", "80", "120", "300"])
def test_no_line_is_too_long_and_no_figure_is_cut(bound, hidden, show, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = show(bound, hidden)
    width = min(max(int(columns), 80), 110)
    assert all(len(line) <= width for line in text.splitlines() if "iobench profile" not in line)
    assert "404 MB/s" in text
    assert not re.search(r"(\d|<|>)\n *(ms|us|s|%|[kMGT]?B)\b", text)
    assert "…" not in text


@pytest.mark.long
@given(st.lists(st.tuples(LONG_NAMES, *[FIGURES] * 9), min_size=1, max_size=4), st.booleans())
@example([("preprocess:" + "x" * 70, *["1,234,567.89"] * 9)], True)
def test_no_table_is_wider_than_the_page_or_loses_a_figure(rows, total):
    named = (Column("stage"), *(Column(f"column {place}") for place in range(9)))
    shown = [*rows, rows[0]] if total else rows
    table = Table("t", named, tuple(rows), rows[0] if total else ())
    text = TerminalRenderer(StringIO()).render(Document("T", (Section("a", "", (table,)),)))
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert "\u2026" not in text.replace("".join(row[0] for row in rows), "")
    for figure in {cell for row in rows for cell in row[1:] if cell}:
        assert text.count(figure) >= sum(row[1:].count(figure) for row in shown)


def test_a_column_without_text_folds_no_name():
    table = Table("t", (Column(""), Column("saved"), Column("")), (("free data", "70 %", ""),))
    text = TerminalRenderer(StringIO()).render(Document("T", (Section("a", "", (table,)),)))
    assert "free data" in text


@pytest.mark.parametrize(
    ("variables", "coloured", "styled"),
    [
        ({}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True),
    ],
)
def test_colour_is_where_it_is_asked_for(bound, show, monkeypatch, variables, coloured, styled):
    before = show(bound)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    text = show(bound)
    assert ("\x1b[1;31m" in text, "\x1b[" in text) == (coloured, styled)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == before


@given(st.lists(st.sampled_from(["a", "word", "21.1 ms", "88 %", "< 0.1 %", "4 GB/s", "x" * 90])))
def test_lines_are_broken_between_words_and_never_in_a_figure(words):
    lines = wrapped(" ".join(words), 40, indent=2)
    assert " ".join(" ".join(lines).split()) == " ".join(words)
    assert all(len(line) <= 40 or "x" * 90 in line for line in lines)
    assert not any(re.search(r"(?:^|\s)(?:\d+(?:\.\d)?|<)$", line) for line in lines)


# -- Markdown -----------------------------------------------------------------------------

OURS = {
    "h2", "h3", "h4", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details",
    "summary", "ul", "li", "pre", "code", "page",
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
    st.text(st.characters(codec="utf-8", exclude_characters="\ufffe\uffff"), max_size=12),
    st.text(alphabet="|\\`*_[]<>~$&#@:-=+.1a \n", max_size=10),
)


def shown_page(*blocks, title="", is_folded=False):
    """Return blocks as GitHub's parser shows them, and what it was given."""
    parser = pytest.importorskip("markdown_it", reason="a parser of CommonMark reads the pages")
    section = Section("a", title, blocks, is_folded=is_folded)
    text = MarkdownRenderer().render(Document(f"T {title}", (section,)))
    commonmark = parser.MarkdownIt("commonmark", {"html": True})
    html = commonmark.enable(["table", "strikethrough"]).render(text)
    page = ET.fromstring(f"<page>{html}</page>")
    assert {each.tag for each in page.iter()} <= OURS
    attributes = {pair for each in page.iter() for pair in each.items()}
    assert attributes <= {("class", "language-sh"), ("style", "text-align:right")}
    return page


@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=3), NAMES)
@example([("a\\|b", "\\"), ("- x", "`|`")], "<b>")
@example([("a", "b")], "\r")
def test_a_parser_finds_exactly_the_cells(rows, name):
    named = (Column("stage"), Column("busy s"))
    page = shown_page(Table(name, named, tuple(rows), total=("all", name), note=name))
    found = [["".join(cell.itertext()).strip() for cell in row] for row in page.iter("tr")]
    expected = [["stage", "busy s"], *rows, ["all", name]]
    # Spaces at the ends of a cell are the table's.
    assert found == [[printable(each).strip() for each in row] for row in expected]


@given(NAMES)
def test_every_kind_of_line_shows_its_text_and_nothing_else(name):
    blocks = (
        *(Sentence(name), Sentence(f"x {name}"), Sentence(name, "strong")),
        *(KeyFigures((KeyFigure("k", name),)), Command(name), Command(f"```` {name}")),
    )
    text = "".join(shown_page(*blocks, title=name, is_folded=True).itertext())
    assert text.count(printable(name).strip()) >= (7 if printable(name).strip() else 0)


def test_nobody_is_called_and_nothing_linked():
    text = MarkdownRenderer().render(Document("T", (Section("a", "", sentences(HOSTILE)),)))
    # GitHub looks into what is left of a text once comments are cut at, not joined.
    pieces = list(map(unescape, re.split(r"<!-- -->|\n", text)))
    for pattern in (r"@\w", r"#\d", r"(?i)\bgh-\d", r"https?://", r"(?i)\bwww\.", r":[\w+-]+:"):
        assert [piece for piece in pieces if re.search(pattern, piece)] == []


def test_a_notebook_shows_a_run_without_any_extra_or_why_it_cannot(tmp_path, monkeypatch):
    for library in ("jinja2", "IPython"):
        monkeypatch.setitem(sys.modules, library, None)
    run = write_run(tmp_path / "run", batches=3, dataset="<script>")
    text = iobench.show(run)._repr_markdown_()
    assert "<script>" not in text.replace("\\<", "")
    assert f"iobench report {run}" in text
    open_part, folded = text.partition("<details>")[::2]
    assert "### Verdict" in open_part
    assert "<summary>Machine and configuration</summary>" in folded
    (tmp_path / "empty").mkdir()
    assert "name the directory" in iobench.show(tmp_path / "empty")._repr_markdown_()


# -- one screen ---------------------------------------------------------------------------

WORDS = ["a", "word,", "ends.", "21.1 ms", "part;", "name:", "88 %", "y" * 30]


def drawn_document(seed):
    """Return the sections of a report, each as long as it ever may be."""
    random = Random(seed)

    def prose():
        return " ".join(random.choices(WORDS, k=random.choice([1, 9, 30, 120])))

    def warned():
        n = random.choice([0, 0, 1, 2, 12])
        return sentences((f"{number} {prose()}" for number in range(n)), "caution")

    def part():
        half = Quantity(0.5, "share")
        figures = tuple(KeyFigure("A", half, prose()) for _ in range(random.randint(0, 6)))
        verdict = (Sentence(prose(), "bad"), *warned(), KeyFigures(figures))
        named = (Column("stage"), *columns(*"abcdefg", unit_group="time"))
        rows = tuple(
            (f"stage {row}", *quantities("ns", *[row * MS] * 7))
            for row in range(random.choice([1, 30]))
        )
        table = Table("t", named, rows, total=rows[0])
        return Section("verdict", "Verdict", verdict), Section("stages", "Stages", (table,))

    steps = (
        Command(random.choice(["", f"iobench {'x' * random.randint(0, 230)}"]), prose())
        for _ in range(seed % 5)
    )
    following = Section("next", "What to try next", tuple(steps))
    pieces = tuple(BarPart("exposed", length, prose()) for length in (1, 2))
    job = Section("job_time", "", (Chart(prose(), (Bar(pieces),)), *warned()))
    many = tuple(
        Document(f"part {n}, which waits longest", part(), is_spare=n > 4)
        for n in range(random.randint(2, 8))
    )
    lead = random.choice(["single", "script", "job", "compared"])
    if lead in ("single", "script"):
        sections = (*part(), following)
        return Document(prose(), (job, *sections) if lead == "script" else sections)
    if lead == "job":
        of_job = Section("job", "", (Sentence(prose()), *warned()))
        return Document(prose(), (job, of_job, following), many)
    verdicts = sentences((prose() for _ in many), "fair")
    rows = tuple((each.title, *quantities("share", *[0.5] * 8)) for each in many)
    table = Table("t", columns("as", *"abcdefgh"), rows)
    compared = Section("compared", "", (*verdicts, *warned(), table))
    return Document(prose(), (compared, following), many)


def held_to_one_screen(document):
    """Return the 40 lines of 80 columns: whole sentences, further warnings are counted."""
    text = one_screen(document, WHOLE, StringIO())
    lines = text.splitlines()
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= 40, text
    assert all(len(line) <= 80 or line.startswith("    iobench ") for line in lines), text
    assert lines[-1] == f"    {WHOLE}"
    shown = (document, *(part for part in document.parts if not part.is_spare))
    blocks = [block for part in shown for section in part.sections for block in section.blocks]
    warned = {e.text for e in blocks if isinstance(e, Sentence) and e.style == "caution"}
    joined = " ".join(text.split())
    ends = {each[: each.find(". ") + 1 or len(each)] for each in warned}  # of first sentences
    uncounted = len(warned) - sum(map(int, re.findall(r"(\d+) more warnings are not", joined)))
    assert sum(each in joined for each in ends) >= uncounted
    assert "..." not in joined.removeprefix(" ".join(text.partition("\n\n")[0].split()))
    return text


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.long) for n in range(6, 25))]
)
def test_whatever_a_report_says_its_short_form_fits_one_screen(seed):
    held_to_one_screen(drawn_document(seed))


def test_stages_that_do_not_fit_are_counted(bound):
    rows = bound.exposure.steady.stages * 9
    parts = {
        name: replace(getattr(bound.exposure, name), stages=rows) for name in ("steady", "whole")
    }
    report = replace(bound, exposure=replace(bound.exposure, **parts))
    table = held_to_one_screen(report_document([], reports=[report])).splitlines()
    above, below = (place for place, line in enumerate(table) if line.strip().startswith("---"))
    shown = [line.split() for line in table[above + 1 : below]]
    n_more, n_absent = int(shown[-1][0]), 1  # copies to device
    assert shown[-1][1] == "more"
    assert n_more == len(rows) + n_absent - len(shown) + 1 > 9
