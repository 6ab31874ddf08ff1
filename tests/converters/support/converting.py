"""The converter called with what a store request holds, and who is told; its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.stores.plan import StoreRequest
from iobench_converters import convert as driver

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.stores.contract import Store

__all__ = ["content", "convert"]


def convert(
    *what: Any, progress: Any = None, notice: Any = None, tally: Any = None, **more: Any
) -> Store:
    """Convert a dataset, index, format and path, with the fields of `StoreRequest` by name."""
    request = StoreRequest(*what, **more)
    return driver.convert(request, progress=progress, notice=notice, tally=tally)


def content(path: Path) -> dict[str, bytes]:
    """Return the files below a folder, by name."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
