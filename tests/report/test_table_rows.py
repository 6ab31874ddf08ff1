"""What a table holds, every page shows: no row is lost between the figures and the reader."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest

from iobench.report.document import Column, Document, Quantity, Section, Table
from iobench.report.renderers.html_page import HtmlRenderer
from iobench.report.renderers.markdown import MarkdownRenderer
from iobench.report.renderers.terminal import TerminalRenderer

if TYPE_CHECKING:
    from collections.abc import Callable

RENDERERS = {
    "terminal": lambda: TerminalRenderer(StringIO()),
    "markdown": MarkdownRenderer,
    "html": HtmlRenderer,
}


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("n_rows", [1, 2, 7, 20])
def test_every_row_is_shown_once_and_in_order(name: str, n_rows: int) -> None:
    renderer: Callable[..., TerminalRenderer] = RENDERERS[name]
    columns = (Column("stage"), Column("busy", unit_group="time"))
    rows = tuple(
        (f"stage-{row:02}", Quantity(1_000_000 * (row + 1), "ns")) for row in range(n_rows)
    )
    table = Table("Stages", columns, rows, total=("all-of-them", Quantity(7_000_000, "ns")))
    text = renderer().render(Document("T", (Section("a", "A", (table,)),), figures=dict))
    wanted = [*(f"stage-{row:02}" for row in range(n_rows)), "all-of-them"]
    assert [text.count(word) for word in wanted] == [1] * len(wanted)
    assert sorted(wanted, key=text.index) == wanted
