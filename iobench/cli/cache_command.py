"""``iobench cache``: what iobench has put on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import to_builtins

from iobench.cli.documents import print_answer
from iobench.report.document import Quantity, properties
from iobench.report.units import moment, nbytes
from iobench.stores.places import list_items, list_places

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.report.document import Cell


def cache(*, store_dir: Path | None, json: bool) -> None:
    """List what iobench made with its owner and age."""
    items = list_items(list_places(store_dir=store_dir))
    rows: list[tuple[Cell, ...]] = []
    for item in items:
        owner = "yours" if item.is_mine else f"of {item.owner}"
        about = f"{item.kind}, {item.title}; {owner}, last written {moment(item.changed_ns)}"
        rows += [(Quantity(item.nbytes, "B"), about), ("", str(item.path))]
    figures = {"items": to_builtins(items, enc_hook=str)}
    things = "1 item" if len(items) == 1 else f"{len(items)} items"
    title = f"{things}, {nbytes(sum(item.nbytes for item in items))}"
    print_answer(title, *[properties(rows)] * bool(rows), figures=figures, json=json)
