"""The report that fits one screen: what ran, the verdict, warnings, what would help, one table.

What of each section stands on it is decided here alone; every other page has all of them. A warning
is a sentence of the style ``caution``, whichever section says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from msgspec.structs import replace
from rich.text import Text

from iobench.report import units
from iobench.report.document import (
    NOT_APPLICABLE,
    Chart,
    Command,
    Document,
    KeyFigures,
    Quantity,
    Section,
    Sentence,
    Table,
    sentences,
)
from iobench.report.renderers.terminal import TerminalRenderer, page_width
from iobench.report.wrapping import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iobench.report.document import Block, Cell, Style

MOST_LINES: Final = 40
MOST_WARNINGS: Final = 8
MOST_JUDGED: Final = 6
AMOUNTS: Final = ((5, 4, 2), (4, 2, 2), (3, 1, 1), (2, 0, 1))
"""Lines of a verdict, key figures, and steps to try next: fewer where there are many warnings."""
LEAST_ROWS: Final = 3
WHOLE: Final = "All of it; with --html FILE as a page with its timeline"
STAGE_COLUMNS: Final = 5
"""What a stage costs; bytes, rates and spans are in the whole report."""
JUDGED: Final[tuple[Style, ...]] = ("strong", "good", "fair", "bad")


def one_screen(document: Document, whole: str, file: TextIO | None = None) -> str:
    """Return what is most worth knowing of a report, for a terminal.

    Parameters
    ----------
    document : Document
        From `iobench.report.report_document`.
    whole : str
        The command that prints all of it.
    file : text file, optional
        As for `TerminalRenderer`.
    """
    renderer, width = TerminalRenderer(file), page_width(file)
    text, left = "", 0
    for amounts in AMOUNTS:
        text = renderer.render(_short(document, whole, width, amounts, n_rows=LEAST_ROWS))
        left = MOST_LINES - _height(text, width)
        if left >= 0:
            break
    for n_more in range(left, 0, -1):
        longer = renderer.render(
            _short(document, whole, width, amounts, n_rows=LEAST_ROWS + n_more)
        )
        if _height(longer, width) <= MOST_LINES:
            return longer
    return text


def _height(text: str, width: int) -> int:
    """Return the lines of a screen that text takes, where a long command goes on in the next."""
    lengths = (Text.from_ansi(line).cell_len for line in text.splitlines())
    return sum(max(1, -(-length // width)) for length in lengths)


def _short(
    document: Document, whole: str, width: int, amounts: tuple[int, int, int], *, n_rows: int
) -> Document:
    n_lines, n_figures, n_steps = amounts
    sections = {section.key: section for section in document.sections}
    title = "Verdict"
    if document.parts and "compared" not in sections:  # a job's rank that waits longest
        first = document.parts[0]
        sections = {section.key: section for section in first.sections} | sections
        title = f"{title}: {first.title}"
    blocks = {name: section.blocks for name, section in sections.items()}
    verdict: tuple[Block, ...] = (
        *_judged(blocks, width, n_lines),
        *sentences(_warnings(document, width), "caution"),
        *_key_figures(blocks, n_figures),
    )
    result = (
        Section("verdict", title, verdict),
        _steps(sections["next"], width, n_steps) if "next" in sections else None,
        _table(blocks, n_rows),
        Section("whole", "", (Command(whole, WHOLE),)),
    )
    return Document(shortened(document.title, 2 * width), tuple(filter(None, result)))


def _judged(blocks: Mapping[str, Sequence[Block]], width: int, n_lines: int) -> Iterator[Sentence]:
    """Yield what is concluded: of a job's time, of its ranks, and of each run compared."""
    for block in blocks.get("job_time", ()):
        if isinstance(block, Chart):
            yield Sentence(_parts(block, width))
    lead = [each for each in blocks.get("job", ())[:1] if isinstance(each, Sentence)]
    verdicts = (*blocks.get("compared", ()), *blocks.get("verdict", ()))
    judged = [*lead, *_of_style(verdicts, *JUDGED)]
    n_lines = n_lines if len(judged) < 3 else 2 if len(judged) < 5 else 1
    for each in judged[:MOST_JUDGED]:
        # Words that do not fit leave some of each line empty.
        yield replace(each, text=shortened(each.text, n_lines * width - 8 * (n_lines - 1)))


def _key_figures(blocks: Mapping[str, Sequence[Block]], most: int) -> Iterator[KeyFigures]:
    for block in blocks.get("verdict", ()):
        if isinstance(block, KeyFigures):
            yield KeyFigures(block.figures[:most])


def _steps(section: Section, width: int, n_steps: int) -> Section:
    steps = [each for each in section.blocks if isinstance(each, Command)]
    shown = steps[:n_steps]
    if not any(each.command for each in shown):  # of a script: what says how to write them
        shown += [each for each in steps[n_steps:] if each.command][:1]
    short = (replace(each, reason=shortened(each.reason, 2 * width - 16)) for each in shown)
    return Section("steps", section.title, tuple(short))


def _of_style(blocks: Iterable[Block], *styles: Style) -> Iterator[Sentence]:
    for block in blocks:
        if isinstance(block, Sentence) and block.style in styles:
            yield block


def _parts(chart: Chart, width: int) -> str:
    """Return a bar in words: its largest pieces, as parts of the whole."""
    pieces = sorted(chart.bars[0].parts, key=lambda piece: -piece.length)
    total = sum(piece.length for piece in pieces)
    shares = (f"{piece.what} {units.fraction(piece.length / total)}" for piece in pieces if total)
    return shortened(f"{chart.title}: {', '.join(shares)}.", 2 * width - 8)


def _warnings(document: Document, width: int) -> list[str]:
    """Return each warning of the report in a line, with whose it is where not all have it."""
    shown = [part for part in document.parts if not part.is_spare]
    whose: dict[str, list[str]] = {}
    for part in (document, *shown):
        for section in part.sections:
            for each in _of_style(section.blocks, "caution"):
                names = whose.setdefault(each.text, [])
                if part is not document:
                    names.append(part.title.partition(",")[0])
    lines = [
        shortened(f"{', '.join(names)}: {text}" if 0 < len(names) < len(shown) else text, width)
        for text, names in whose.items()
    ]
    if len(lines) > MOST_WARNINGS:
        more = len(lines) - MOST_WARNINGS + 1
        lines[MOST_WARNINGS - 1 :] = [f"{units.count(more)} more warnings are not shown here."]
    return lines


def _table(blocks: Mapping[str, Sequence[Block]], n_rows: int) -> Section | None:
    """Return the one table: of the runs compared, else of the stages that were waited for most."""
    compared = "compared" in blocks
    known = blocks.get("compared" if compared else "stages", ())
    table = next((each for each in known if isinstance(each, Table)), None)
    if table is None:
        return None
    n_columns = len(table.columns) if compared else STAGE_COLUMNS
    at = [n for n, column in enumerate(table.columns[:n_columns]) if not column.is_spare]
    rows = [tuple(row[n] for n in at) for row in table.rows]
    # Not what has a figure in columns alone that are not shown.
    rows = [row for row in rows if compared or any(isinstance(cell, Quantity) for cell in row)]
    if len(rows) > n_rows:
        shown, left = rows[: max(0, n_rows - 1)], rows[max(0, n_rows - 1) :]
        sums = ("",) * len(at[1:]) if compared else tuple(map(_sum, zip(*left, strict=True)))[1:]
        rows = [*shown, (f"{units.count(len(left))} more", *sums)]
    total = tuple(table.total[n] for n in at) if table.total else ()
    short = Table(table.title, tuple(table.columns[n] for n in at), tuple(rows), total)
    return Section("table", "", (short,))


def _sum(cells: Sequence[Cell]) -> Cell:
    """Return a column's figures as one; unknown where one of them is."""
    figures = [each for each in cells if isinstance(each, Quantity)]
    if not figures:
        return NOT_APPLICABLE
    known = [each.value for each in figures if each.value is not None]
    return Quantity(sum(known) if len(known) == len(figures) else None, figures[0].unit)
