"""What reports are written on: a terminal, Markdown for an issue, or HTML for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from iobench.report.tables import TextTable

__all__ = ["Page"]


class Page(Protocol):
    """A page that is written from top to bottom; each page escapes what it is given.

    A style is a rich one: ``"bold"``, ``"yellow"`` for a caution, or both. Pages without colours
    keep what is bold.
    """

    def title(self, text: str) -> None:
        """Write what the whole page is about."""

    def heading(self, text: str) -> None:
        """Write what all that follows is about: one of several runs."""

    def section(self, text: str) -> None:
        """Write what the next lines and tables are about."""

    def text(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """Write a sentence; its figures are not broken from their units."""

    def raw(self, texts: Sequence[str]) -> None:
        """Write lines as they are, spaces included, then a gap."""

    def gap(self) -> None:
        """Leave a line empty."""

    def list(self, texts: Sequence[str]) -> None:
        """Write lines that belong together, then a gap; nothing at all for none."""

    def command(self, text: str) -> None:
        """Write a line to copy, however long."""

    def table(self, table: TextTable) -> None:
        """Draw a table with its title."""

    def folded(self, summary: str) -> AbstractContextManager[None]:
        """Let what is written inside be unfolded, where a page can: the long parts.

        The summary is shown only by pages that fold.
        """
