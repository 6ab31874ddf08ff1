"""A table of strings, and the name of a part of a run."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.report.document import NOT_APPLICABLE
from iobench.report.sentences import PARTS

__all__ = ["NOT_APPLICABLE", "PARTS", "TextTable"]

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings; the first column names the row, the others are figures.

    Parameters
    ----------
    title : str
    columns : tuple of str
        Headings; a line break splits one over two lines.
    rows : tuple of tuple of str
    total : tuple of str
        The sum of the rows, empty where there is none.
    bars : tuple of (float, float)
        For each row what was hidden and what exposed of it, as shares of the longest row; empty
        where there is nothing to draw. Only pages that can draw show them.
    """

    title: str
    columns: Row
    rows: tuple[Row, ...]
    total: Row = ()
    bars: tuple[tuple[float, float], ...] = ()
