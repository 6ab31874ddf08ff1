"""Opening finished stores of any format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.files.urls import URL, as_path
from iobench.registry import find_format
from iobench.stores.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.stores.contract import Store

__all__ = ["open_store"]


def open_store(path: Path | str) -> Store:
    """Return the finished store at ``path``, whatever its format.

    Parameters
    ----------
    path : Path or str
        Its folder, or the address of its objects (``s3://bucket/prefix``), whose extents are then
        read by requests for ranges.

    Raises
    ------
    StoreError
        If it is unfinished, damaged, of a later version, or a file has not the size it should.
    UnknownNameError
        If no installed format has the name its manifest says.
    """
    path = as_path(path).absolute()
    if isinstance(path, URL):
        path = path.with_listing()
    manifest = read_manifest(path)
    fmt = find_format(manifest.format)
    if manifest.format_version != fmt.version:
        raise StoreError(
            f"{path}: layout version {manifest.format_version} of {manifest.format}, this iobench "
            f"reads {fmt.version}; convert again"
        )
    return fmt.open(path, manifest)
