"""The report that fits one screen: what ran, the verdict, warnings, what would help, one table.

What of each section stands on it is decided here alone; every other page has all of them. A warning
is a sentence of the style ``caution``, whichever section says it.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final, TextIO

from msgspec.structs import replace
from rich.text import Text

from iobench.report import units
from iobench.report.document import (
    Command,
    Document,
    KeyFigures,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.renderers.terminal import TerminalRenderer, page_width
from iobench.report.wrapping import shortened, whole_sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.report.document import Block, Style

MOST_LINES: Final = 40
MOST_JUDGED: Final = 6
AMOUNTS: Final = (
    *((5, 4, 2, 8), (4, 2, 2, 8), (3, 1, 1, 8), (3, 0, 1, 6)),
    *((3, 0, 1, 4), (3, 0, 1, 2), (3, 0, 0, 1), (1, 0, 0, 1)),
)
"""Lines of a verdict, key figures, steps to try next, and warnings; the others are counted."""
ROWS: Final = (30, 20, 15, *range(12, 2, -1))
"""Rows of the table, as many as fit."""
WHOLE: Final = "All of it; with --html FILE as a page with its timeline"
STAGE_COLUMNS: Final = 5
"""What a stage costs; bytes, rates and spans are in the whole report."""
JUDGED: Final[tuple[Style, ...]] = ("strong", "good", "fair", "bad")


def one_screen(document: Document, whole: str, file: TextIO | None = None) -> str:
    """Return what is most worth knowing of a report, for a terminal; ``whole`` prints all of it."""
    renderer, width, text = TerminalRenderer(file), page_width(file), ""
    for amounts, n_rows in product(AMOUNTS, ROWS):
        text = renderer.render(_short(document, whole, width, amounts, n_rows=n_rows))
        if _height(text, width) <= MOST_LINES:
            break
    return text


def _height(text: str, width: int) -> int:
    """Return the lines of a screen that text takes, where a long command goes on in the next."""
    lengths = (Text.from_ansi(line).cell_len for line in text.splitlines())
    return sum(max(1, -(-length // width)) for length in lengths)


def _short(
    document: Document,
    whole: str,
    width: int,
    amounts: tuple[int, int, int, int],
    *,
    n_rows: int,
) -> Document:
    n_lines, n_figures, n_steps, n_warnings = amounts
    sections = {section.key: section for section in document.sections}
    title = "Verdict"
    if document.parts and "compared" not in sections:  # a job's rank that waits longest
        first = document.parts[0]
        sections = {section.key: section for section in first.sections} | sections
        title = f"{title}: {first.title}"
    blocks = {name: section.blocks for name, section in sections.items()}
    verdict: tuple[Block, ...] = (
        *_judged(blocks, width, n_lines),
        *sentences(_warnings(document, width, n_warnings), "caution"),
        *(
            KeyFigures(each.figures[:n_figures])
            for each in blocks.get("verdict", ())
            if isinstance(each, KeyFigures)
        ),
    )
    result = (
        Section("verdict", title, verdict),
        _steps(sections["next"], width, n_steps) if "next" in sections else None,
        _table(blocks, n_rows),
        Section("whole", "", (Command(whole, WHOLE),)),
    )
    return Document(shortened(document.title, 2 * width), tuple(filter(None, result)))


def _judged(blocks: Mapping[str, Sequence[Block]], width: int, n_lines: int) -> Iterator[Sentence]:
    """Yield what is concluded: of a job's ranks, and of each run compared."""
    first = blocks.get("job", ())[:1]  # a warning stands with the others
    lead = [each for each in first if isinstance(each, Sentence) and each.style != "caution"]
    verdicts = (*blocks.get("compared", ()), *blocks.get("verdict", ()))
    judged = [*lead, *of_style(verdicts, *JUDGED)]
    n_lines = n_lines if len(judged) < 3 else 2 if len(judged) < 5 else 1
    for each in judged[:MOST_JUDGED]:
        # Words that do not fit leave some of each line empty.
        yield replace(each, text=whole_sentences(each.text, n_lines * width - 8 * (n_lines - 1)))


def _steps(section: Section, width: int, n_steps: int) -> Section:
    shown = [each for each in section.blocks if isinstance(each, Command)][:n_steps]
    short = (replace(each, reason=whole_sentences(each.reason, 2 * width - 16)) for each in shown)
    return Section("steps", section.title, tuple(short))


def of_style(blocks: Iterable[Block], *styles: Style) -> Iterator[Sentence]:
    """Yield the sentences of some styles."""
    for block in blocks:
        if isinstance(block, Sentence) and block.style in styles:
            yield block


def _warnings(document: Document, width: int, most: int) -> list[str]:
    """Return each warning of the report in a line, with whose it is where not all have it."""
    shown = [part for part in document.parts if not part.is_spare]
    whose: dict[str, list[str]] = {}
    for part in (document, *shown):
        blocks = (block for section in part.sections for block in section.blocks)
        for each in of_style(blocks, "caution"):
            name = [] if part is document else [part.title.partition(",")[0]]
            whose.setdefault(each.text, []).extend(name)
    lines = [
        whole_sentences(
            f"{', '.join(names)}: {text}" if 0 < len(names) < len(shown) else text, width
        )
        for text, names in whose.items()
    ]
    n_more = len(lines) - most + 1
    if n_more > 1:
        lines[-n_more:] = [f"{units.count(n_more)} more warnings are not shown here."]
    return lines


def _table(blocks: Mapping[str, Sequence[Block]], n_rows: int) -> Section | None:
    """Return the one table: of the runs compared, else of the stages that were waited for most."""
    compared = "compared" in blocks
    known = blocks.get("compared" if compared else "stages", ())
    table = next((each for each in known if isinstance(each, Table)), None)
    if table is None:
        return None
    n = None if compared else STAGE_COLUMNS
    rows, shown = [row[:n] for row in table.rows], table.columns[:n]
    if (n_left := len(rows) - n_rows + 1) > 1:
        rows[n_rows - 1 :] = [(f"{units.count(n_left)} more", *[""] * len(shown[1:]))]
    return Section("table", "", (Table(table.title, shown, tuple(rows), table.total[:n]),))
