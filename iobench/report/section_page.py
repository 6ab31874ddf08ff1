"""Sections on the pages of today, until renderers take documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from iobench.report import document, units
from iobench.report.tables import TextTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iobench.report.page import Page

__all__ = ["print_sections", "sentences_of", "tables_of"]

SAID: Final[dict[type, Callable[[Any], str]]] = {
    document.Bytes: units.nbytes,
    document.Count: units.count,
    document.Duration: units.duration,
    document.Joules: units.joules,
    document.Share: units.fraction,
    document.WattHours: units.watt_hours,
}


def print_sections(page: Page, sections: Iterable[document.Section]) -> None:
    """Write tables and sentences, without titles."""
    for section in sections:
        for table in tables_of(section):
            page.table(table)
        page.list(sentences_of(section))


def tables_of(section: document.Section) -> list[TextTable]:
    """Return its tables as text."""
    return [_text_table(each) for each in section.blocks if isinstance(each, document.Table)]


def sentences_of(section: document.Section) -> list[str]:
    """Return its sentences."""
    return [each.text for each in section.blocks if isinstance(each, document.Sentence)]


def _text_table(table: document.Table) -> TextTable:
    return TextTable(
        table.title,
        tuple(f"{each.name}\n" for each in table.columns),
        tuple(tuple(map(_said, row)) for row in table.rows),
        tuple(map(_said, table.total)),
    )


def _said(cell: document.Cell) -> str:
    return cell if isinstance(cell, str) else cell.words.format(SAID[type(cell)](cell.value))
