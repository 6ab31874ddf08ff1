"""A finished store: what makes shards one, its checksums, and opening it whatever its format.

Written last are the checksums, the index, the container's own metadata, and then the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from iobench.errors import StoreError
from iobench.files.atomic import storage_errors, write_atomically
from iobench.files.crc32c import crc32c
from iobench.files.urls import URL, as_path
from iobench.registry import find_format, installed_versions
from iobench.stores.index_file import write_index
from iobench.stores.manifest import ShardFile, read_manifest, write_manifest

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.stores.contract import Format, Store
    from iobench.stores.manifest import Manifest

CHECKSUMS_NAME: Final = "iobench.crc32c"
"""The file of one checksum for each extent of a store: uint32 little-endian, sample-major."""


def finish_store(
    path: Path,
    fmt: Format,
    manifest: Manifest,
    *,
    checksums: Sequence[int],
    n_samples: int,
    index: SampleIndex,
    dataset: Dataset | None = None,
) -> Manifest:
    """Finish the store at ``path``, whose shards are all there; return its manifest."""
    content = np.asarray(checksums, dtype="<u4").tobytes()
    write_atomically(path / CHECKSUMS_NAME, content)
    described, index_file = write_index(path, index, manifest.samples)
    files = (ShardFile(CHECKSUMS_NAME, len(content), crc32c(content)), index_file)
    manifest = replace(manifest, index=described, metadata=files)
    if (describe := getattr(fmt, "describe", None)) is not None:
        own = describe(path, manifest, n_samples=n_samples)
        manifest = replace(manifest, metadata=(*manifest.metadata, *own))
    if dataset is not None:
        versions = installed_versions(dataset, fmt)
        manifest = replace(manifest, provenance={**manifest.provenance, "versions": versions})
    write_manifest(path, manifest)
    return manifest


def open_store(path: str | os.PathLike[str]) -> Store:
    """Return the store at ``path``, for random access and for `iobench.loader`.

    Parameters
    ----------
    path : path or str
        A store that ``iobench convert`` made, of any format, or its address (``s3://...``).

    Raises
    ------
    StoreError
        If it is unfinished or damaged, or holds no store of iobench's.
    """
    place = as_path(path).absolute()
    if isinstance(place, URL):
        place = place.with_listing()
    manifest = read_manifest(place)
    fmt = find_format(manifest.format)
    if manifest.format_version != fmt.version:
        raise StoreError(
            f"{place}: layout version {manifest.format_version} of {manifest.format}, this iobench "
            f"reads {fmt.version}; convert to a new folder"
        )
    return fmt.open(place, manifest)


def read_checksums(path: Path, n_extents: int) -> NDArray[np.uint32]:
    """Return the checksums of the ``n_extents`` extents of the store at ``path``."""
    file, expected = path / CHECKSUMS_NAME, 4 * n_extents
    try:
        with storage_errors(file):
            if (nbytes := file.stat().st_size) == expected:
                return np.frombuffer(file.read_bytes(), dtype="<u4")
    except FileNotFoundError as error:
        raise StoreError(
            f"{file} is missing; remove the store and convert it again, or stage a copy again"
        ) from error
    raise StoreError(f"{file}: {nbytes} bytes, expected {expected}; convert to a new folder")
