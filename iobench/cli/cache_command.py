"""``iobench cache``: what iobench has put on disk, and how to be rid of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.cli.documents import Json, print_answer

__all__ = ["cache"]


def cache(
    data_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Also look beside the data in this folder; repeatable."),
    ] = None,
    store_dir: Annotated[
        Path | None, typer.Option(help="Also look here. [default: $IOBENCH_STORE_DIR, ...]")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(help="Remove the item at this path, or 'all'; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """List the stand-ins, probes, stores and indexes that iobench made, or remove them."""
    from iobench.errors import MissingFileError
    from iobench.report.document import Bytes, properties
    from iobench.report.units import nbytes
    from iobench.stores.places import list_items, list_places, remove_item

    items = list_items(list_places(data_dirs=data_dir or [], store_dir=store_dir))
    if remove:
        by_path = {str(item.path): item for item in items}
        for path in by_path if "all" in remove else remove:
            item = by_path.get(path) or by_path.get(str(Path(path).resolve()))
            if item is None:
                raise MissingFileError(f"{path}: iobench made nothing there; see 'iobench cache'")
            remove_item(item)
        items = [item for item in items if item.path.exists()]
    total = nbytes(sum(item.nbytes for item in items))
    rows = [
        row
        for item in items
        for row in ((Bytes(item.nbytes), item.kind, item.title), ("", "", str(item.path)))
    ]
    print_answer(
        f"{len(items)} items, {total}" if items else "nothing: iobench has made no files",
        *([properties(rows)] if rows else []),
        figures={
            "items": [
                {
                    "path": str(each.path),
                    "kind": each.kind,
                    "title": each.title,
                    "nbytes": each.nbytes,
                }
                for each in items
            ]
        },
        json=json,
    )
