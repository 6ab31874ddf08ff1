"""The report of one screen: 40 lines of 80 columns, whole sentences, further warnings counted."""

from __future__ import annotations

import re
from io import StringIO
from random import Random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

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
from iobench.report.one_screen import one_screen
from iobench.report.report_document import report_document

if TYPE_CHECKING:
    from iobench.report.run_report import RunReport

MS = 1_000_000
WHOLE = "iobench report runs/a --full"
WORDS = ["a", "word,", "ends.", "21.1 ms", "part;", "name:", "88 %", "y" * 30]


def drawn_document(seed: int) -> Document:
    """Return the sections of a report, each as long as it ever may be."""
    random = Random(seed)

    def prose() -> str:
        return " ".join(random.choices(WORDS, k=random.choice([1, 9, 30, 120])))

    def warned() -> tuple[Sentence, ...]:
        n = random.choice([0, 0, 1, 2, 12])
        return sentences((f"{number} {prose()}" for number in range(n)), "caution")

    def part() -> tuple[Section, Section]:
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


def warnings_of(document: Document) -> set[str]:
    shown = (document, *(part for part in document.parts if not part.is_spare))
    blocks = [block for part in shown for section in part.sections for block in section.blocks]
    return {each.text for each in blocks if isinstance(each, Sentence) and each.style == "caution"}


def held_to_one_screen(document: Document) -> str:
    text = one_screen(document, WHOLE, StringIO())
    lines = text.splitlines()
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= 40, text
    assert all(len(line) <= 80 or line.startswith("    iobench ") for line in lines), text
    assert lines[-1] == f"    {WHOLE}"
    joined, warned = " ".join(text.split()), warnings_of(document)
    ends = {each[: each.find(". ") + 1 or len(each)] for each in warned}  # of first sentences
    uncounted = len(warned) - sum(map(int, re.findall(r"(\d+) more warnings are not", joined)))
    assert sum(each in joined for each in ends) >= uncounted
    assert "..." not in joined.removeprefix(" ".join(text.partition("\n\n")[0].split()))
    return text


@pytest.mark.parametrize("seed", range(25))
def test_whatever_a_report_says_its_short_form_fits_one_screen(seed: int) -> None:
    held_to_one_screen(drawn_document(seed))


def test_stages_that_do_not_fit_are_counted(bound: RunReport) -> None:
    rows = bound.exposure.steady.stages * 9
    parts = {
        name: replace(getattr(bound.exposure, name), stages=rows) for name in ("steady", "whole")
    }
    report = replace(bound, exposure=replace(bound.exposure, **parts))
    text = held_to_one_screen(report_document([], reports=[report]))
    table = text.splitlines()
    above, below = (place for place, line in enumerate(table) if line.strip().startswith("---"))
    shown = [line.split() for line in table[above + 1 : below]]
    n_more = int(shown[-1][0])
    assert shown[-1][1] == "more"
    n_absent = 1  # copies to device
    assert n_more == len(rows) + n_absent - len(shown) + 1 > 9
