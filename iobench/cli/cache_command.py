"""``iobench cache``: what iobench has put on disk, and how to be rid of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.cli.documents import print_answer
from iobench.errors import MissingFileError, OptionError
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.report.document import Quantity, properties, sentences
from iobench.report.units import moment, nbytes
from iobench.stores.places import list_items, list_places, remove_item

if TYPE_CHECKING:
    from iobench.stores.places import Item

HOURS: Final = {"h": 1, "d": 24, "w": 168}


def cache(
    *, store_dir: Path | None, older_than: str | None, remove: Sequence[str], json: bool
) -> None:
    """List what iobench made with its owner and last use, or remove it."""
    items = every = list_items(list_places(store_dir=store_dir))
    if older_than is not None:
        before_ns = SYSTEM_CLOCK.wall_ns() - _age_ns(older_than)
        items = [item for item in items if (item.used_ns or item.changed_ns) < before_ns]
    going = _named(remove, items, every)
    for item in going:
        remove_item(item)
    others = sorted({item.owner for item in items if not item.is_mine})
    items = [item for item in items if item not in going]
    notes = []
    if "all" in remove and others:
        notes.append(f"Kept, because they belong to other users: {', '.join(others)}")
    elif older_than is not None and not remove and any(item.is_mine for item in items):
        notes.append("Nothing was removed; --remove all removes those of these that are yours")
    of = "" if older_than is None else f" last used over {older_than} ago"
    left = _amount(items, of) if items else f"nothing{of or ': iobench has made no files'}"
    if going:
        left = f"removed {_amount(going)}; left: {_amount(items) if items else 'none'}"
    rows = [
        row
        for item in items
        for row in (
            (Quantity(item.nbytes, "B"), item.kind, item.title),
            ("", "", str(item.path)),
            ("", "", _used(item)),
        )
    ]
    figures = [
        {
            "path": str(each.path),
            "kind": each.kind,
            "title": each.title,
            "nbytes": each.nbytes,
            "owner": each.owner,
            "changed_wall_ns": each.changed_ns,
            "used_wall_ns": each.used_ns,
        }
        for each in items
    ]
    table = [properties(rows)] if rows else []
    print_answer(left, *table, *sentences(notes), figures={"items": figures}, json=json)


def _named(remove: Sequence[str], items: Sequence[Item], every: Sequence[Item]) -> list[Item]:
    """Return what is to be removed: by path, or all of the user's own."""
    by_path = {str(item.path): item for item in items}
    going: dict[str, Item] = {}
    for path in remove:
        if path == "all":
            going |= {path: item for path, item in by_path.items() if item.is_mine}
            continue
        item = by_path.get(path) or by_path.get(str(Path(path).resolve()))
        if item is None and Path(path).resolve() in {each.path.resolve() for each in every}:
            raise MissingFileError(f"{path}: was used more recently; leave --older-than out")
        if item is None:
            raise MissingFileError(f"{path}: iobench made nothing there; see 'iobench cache'")
        going[str(item.path)] = item
    return [*going.values()]


def _amount(items: Sequence[Item], of: str = "") -> str:
    things = "1 item" if len(items) == 1 else f"{len(items)} items"
    return f"{things}{of}, {nbytes(sum(item.nbytes for item in items))}"


def _used(item: Item) -> str:
    """Return whose an item is, and when it was last used, as far as that is kept."""
    owner = "yours" if item.is_mine else f"of {item.owner}"
    if item.used_ns is not None:
        return f"{owner}, last used {moment(item.used_ns)}"
    return f"{owner}, written {moment(item.changed_ns)}; its last use is not recorded here"


def _age_ns(text: str) -> int:
    match = re.fullmatch(r"(\d{1,6})([hdw])", text.strip().lower())
    if match is None:
        raise OptionError(f"--older-than {text}: expected an age such as 30d, 12h or 8w")
    return int(match[1]) * HOURS[match[2]] * 3_600_000_000_000
