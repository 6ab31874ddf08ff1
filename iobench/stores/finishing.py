"""What makes shards a store: checksums, the container's own metadata, and last the manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iobench.stores.checksums import write_checksums
from iobench.stores.contract import DescribedFormat
from iobench.stores.manifest import write_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.stores.contract import Format
    from iobench.stores.manifest import Manifest

__all__ = ["finish_store"]


def finish_store(
    path: Path, fmt: Format, manifest: Manifest, *, checksums: Sequence[int], n_samples: int
) -> Manifest:
    """Finish the store at ``path``, whose shards are all there; return its manifest.

    Parameters
    ----------
    path : Path
        The store's folder.
    fmt : Format
        Its format.
    manifest : Manifest
        Without the files of the container's metadata, which are written here.
    checksums : sequence of int
        CRC-32C of each extent, sample-major.
    n_samples : int
        Samples of a full shard, as the writers were told.

    Raises
    ------
    StorageError
        When the file system refuses; nothing then says that the store is finished.
    """
    write_checksums(path, checksums)
    if isinstance(fmt, DescribedFormat):
        manifest = replace(manifest, metadata=fmt.describe(path, manifest, n_samples=n_samples))
    write_manifest(path, manifest)
    return manifest
