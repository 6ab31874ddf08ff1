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
from iobench.report.units import UNKNOWN, moment, nbytes
from iobench.sizes import parse_quantity
from iobench.stores.places import list_items, list_places, remove_item

if TYPE_CHECKING:
    from iobench.report.document import Cell
    from iobench.stores.places import Item

AGES_NS: Final = {"h": 3600e9, "d": 24 * 3600e9, "w": 168 * 3600e9}


def cache(
    *, store_dir: Path | None, older_than: str | None, remove: Sequence[str], json: bool
) -> None:
    """List what iobench made with its owner and last use, or remove it."""
    items = list_items(list_places(store_dir=store_dir))
    if older_than is not None:
        age = "an age such as 30d, 12h or 8w"
        before_ns = SYSTEM_CLOCK.wall_ns() - parse_quantity(
            "--older-than", older_than, AGES_NS, age
        )
        items = [item for item in items if (item.used_ns or item.changed_ns) < before_ns]
    going = _named(remove, items)
    for item in going:
        remove_item(item)
    items = [item for item in items if item not in going]
    title = f"removed {_amount(going)}; left: {_amount(items)}" if going else _amount(items)
    table = properties([row for item in items for row in _rows(item)])
    figures = {"items": to_builtins(items, enc_hook=str)}
    print_answer(title, *[table] * bool(items), figures=figures, json=json)


def _named(remove: Sequence[str], items: Sequence[Item]) -> list[Item]:
    """Return what is to be removed: by path, or all of the user's own."""
    by_path = {str(item.path): item for item in items}
    going: dict[str, Item] = {}
    for path in remove:
        if path == "all":
            going |= {path: item for path, item in by_path.items() if item.is_mine}
            continue
        item = by_path.get(path) or by_path.get(str(Path(path).resolve()))
        if item is None:
            raise MissingFileError(
                f"{path}: expected the path of an item that 'iobench cache' lists for these options"
            )
        going[str(item.path)] = item
    return [*going.values()]


def _amount(items: Sequence[Item]) -> str:
    things = "1 item" if len(items) == 1 else f"{len(items)} items"
    return f"{things}, {nbytes(sum(item.nbytes for item in items))}"


def _rows(item: Item) -> tuple[tuple[Cell, ...], ...]:
    owner = "yours" if item.is_mine else f"of {item.owner}"
    used = UNKNOWN if item.used_ns is None else moment(item.used_ns)
    what = f"{item.kind}, {item.title}; {owner}, last used {used}"
    return (Quantity(item.nbytes, "B"), what), ("", str(item.path))
