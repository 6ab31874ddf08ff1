"""A document as GitHub's Markdown, to be pasted into an issue: every name in it is text."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final

from iobench.masking import printable
from iobench.report.document import Command, KeyFigures, Sentence, Table
from iobench.report.renderers.quantities import key_sentence, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.report.document import Block, Document, Section

# What means something within a line: not an underscore inside a word, nor a sign before a figure.
SIGNS: Final = re.compile(r"[\\`*\[\]~$]|<(?=[A-Za-z/!?])|&(?=[#\w])|(?<![^\W_])_++|_++(?![^\W_])")
# What means something at the start of a line: headings, lists, quotes, rules, definitions.
OPENINGS: Final = re.compile(r"^(?=[-+=#:>])|^(\d{1,9})(?=[.)](?:\s|$))")
# GitHub looks for these in what is shown, behind any escape: only what is in between keeps a name
# from calling somebody, linking to an issue or an address, or turning into a picture.
CALLS: Final = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=\bgh)(?=-\d)|(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=:)(?=[\w+-]+:)",
    re.IGNORECASE,
)
NOTHING: Final = "<!-- -->"


class MarkdownRenderer:
    """Markdown as GitHub reads it, in which long parts unfold."""

    def render(self, document: Document) -> str:
        """Return the whole document; the parts on single runs stand below all else."""
        return "".join(f"{text}\n\n" for text in _document(document) if text)


def _document(document: Document) -> Iterator[str]:
    if document.title:
        yield f"## {escaped(document.title)}"
    for section in document.sections:
        yield from _section(section)
    for part in document.parts:
        if not part.is_spare:
            yield from _document(part)


def _section(section: Section) -> Iterator[str]:
    if section.is_only_drawn:
        return
    if section.is_folded:
        yield f"<details>\n<summary>{_in_html(section.title)}</summary>"
    elif section.title:
        yield f"### {escaped(section.title)}"
    for kind, group in groupby(section.blocks, type):
        blocks = list(group)
        if kind is Sentence:
            yield from _sentences([each for each in blocks if isinstance(each, Sentence)])
        else:
            for block in blocks:
                yield from _block(block)
    if section.is_folded:
        yield "</details>"


def _sentences(sentences: Sequence[Sentence]) -> Iterator[str]:
    """Yield what is meant strongly as paragraphs, and plain sentences together as a list."""
    for is_plain, group in groupby(sentences, lambda each: not each.style):
        texts = [text for each in group if (text := escaped(each.text))]
        if is_plain:
            yield "\n".join(f"- {text}" for text in texts) if len(texts) > 1 else "".join(texts)
        else:
            yield from (f"**{text}**" for text in texts)


def _block(block: Block) -> Iterator[str]:
    match block:
        case KeyFigures():
            yield from _sentences([Sentence(key_sentence(each)) for each in block.figures])
        case Table():
            yield from _table(block)
        case Command():
            if block.reason:
                yield escaped(block.sentence)
            if block.command:
                yield _fenced(block.command)


def _table(table: Table) -> Iterator[str]:
    """Yield a table with its title above; figures stand at the right."""
    if table.title:
        yield f"#### {escaped(table.title)}"
    text = spelled(table)
    rows = [[_cell(cell) for cell in row] for row in text.rows]
    if text.total:
        rows.append([known and f"**{known}**" for known in map(_cell, text.total)])
    headings = [_cell(heading) for heading in text.headings]
    rule = ["---:" if at and right else "---" for at, right in enumerate(text.is_figure)]
    yield "\n".join(f"| {' | '.join(row)} |" for row in [headings, rule, *rows])
    if table.note:
        yield escaped(table.note)


def _fenced(command: str) -> str:
    """Return a command in a fence longer than any run of backticks in it."""
    shown = printable(command)
    fence = "`" * max(3, *(1 + len(run) for run in re.findall("`+", shown)), 0)
    return f"{fence}sh\n{shown}\n{fence}"


def escaped(text: str) -> str:
    """Return a line of Markdown that is shown as ``text``, and does nothing else."""
    return OPENINGS.sub(lambda match: f"{match[1] or ''}\\", _in_line(text))


def _in_line(text: str) -> str:
    known = CALLS.sub("\0", printable(text).strip())
    known = SIGNS.sub(lambda match: "".join(f"\\{sign}" for sign in match[0]), known)
    return known.replace("|", "&#124;").replace("\0", NOTHING)


def _in_html(text: str) -> str:
    """Return text that stands in tags, where Markdown has no escapes."""
    return escape(CALLS.sub("\0", printable(text)), quote=False).replace("\0", NOTHING)


def _cell(text: str) -> str:
    """Return a cell; spaces before a name show what it belongs to."""
    inner = text.lstrip(" ")
    return "&nbsp;" * (len(text) - len(inner)) * bool(inner) + _in_line(inner)
