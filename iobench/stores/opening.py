"""Opening finished stores of any format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.registry import find_format
from iobench.stores.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.stores.contract import Store

__all__ = ["open_store"]


def open_store(path: Path) -> Store:
    """Return the finished store in the folder ``path``, whatever its format.

    Raises
    ------
    StoreError
        If it is unfinished, damaged, of a later version, or a file has not the size it should.
    UnknownNameError
        If no installed format has the name its manifest says.
    """
    path = path.absolute()
    manifest = read_manifest(path)
    fmt = find_format(manifest.format)
    if manifest.format_version != fmt.version:
        raise StoreError(
            f"{path}: layout version {manifest.format_version} of {manifest.format}, this iobench "
            f"reads {fmt.version}; convert again"
        )
    return fmt.open(path, manifest)
