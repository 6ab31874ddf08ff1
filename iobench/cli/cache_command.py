"""``iobench cache``: what iobench has put on disk, and how to be rid of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import to_builtins

from iobench.cli.documents import print_answer
from iobench.errors import MissingFileError
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.report.document import Quantity, properties
from iobench.report.units import moment, nbytes
from iobench.sizes import parse_quantity
from iobench.stores.places import Item, list_items, list_places, remove_item

if TYPE_CHECKING:
    from iobench.report.document import Cell

AGES_NS: Final = {"h": 3600e9, "d": 24 * 3600e9, "w": 168 * 3600e9}


def cache(
    *, store_dir: Path | None, older_than: str | None, remove: Sequence[str], json: bool
) -> None:
    """List what iobench made with its owner and age, or remove it."""
    items = list_items(list_places(store_dir=store_dir))
    if older_than is not None:
        age_ns = parse_quantity(
            "--older-than", older_than, AGES_NS, "an age such as 30d, 12h or 8w"
        )
        items = [item for item in items if item.changed_ns < SYSTEM_CLOCK.wall_ns() - age_ns]
    chosen = [item for item in items if item.is_mine] if "all" in remove else []
    by_path = {str(item.path): item for item in items}
    for path in (each for each in remove if each != "all"):
        item = by_path.get(path) or by_path.get(str(Path(path).resolve()))
        if item is None:
            raise MissingFileError(
                f"{path}: expected the path of an item that 'iobench cache' lists for these options"
            )
        chosen += [item] * (item not in chosen)
    for item in chosen:
        remove_item(item)
    items = [item for item in items if item not in chosen]
    title = f"removed {_amount(chosen)}; left: {_amount(items)}" if chosen else _amount(items)
    rows: list[tuple[Cell, ...]] = []
    for item in items:
        owner = "yours" if item.is_mine else f"of {item.owner}"
        about = f"{item.kind}, {item.title}; {owner}, last written {moment(item.changed_ns)}"
        rows += [(Quantity(item.nbytes, "B"), about), ("", str(item.path))]
    figures = {"items": to_builtins(items, enc_hook=str)}
    print_answer(title, *[properties(rows)] * bool(rows), figures=figures, json=json)


def _amount(items: Sequence[Item]) -> str:
    things = "1 item" if len(items) == 1 else f"{len(items)} items"
    return f"{things}, {nbytes(sum(item.nbytes for item in items))}"
