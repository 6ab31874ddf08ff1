"""Opening finished stores of any format, and checking every byte of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import StoreError
from iobench.registry import find_format
from iobench.stores.atomic import storage_errors
from iobench.stores.checksums import crc32c, crc32c_of_file, read_checksums
from iobench.stores.extents import missing_is_damage
from iobench.stores.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.stores.contract import Store

__all__ = ["open_store", "verify_store"]


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


def verify_store(store: Store) -> int:
    """Read a whole store and compare every checksum it has; return the bytes read.

    Raises
    ------
    StoreError
        Naming file and sample of the first extent, or the file, that is not as written.
    """
    n_extents = len(store.extents(0)) if len(store) else 0
    checksums = read_checksums(store.path, len(store) * n_extents).reshape(len(store), n_extents)
    nbytes = 0
    for index in range(len(store)):
        extents = store.extents(index)
        for number, (extent, raw) in enumerate(zip(extents, store.read(extents), strict=True)):
            nbytes += extent.length
            if crc32c(raw) != checksums[index, number]:
                raise StoreError(
                    f"{extent.file}: checksum of sample {index} is wrong ({extent.length} bytes "
                    f"from byte {extent.offset}); convert the store again"
                )
    for file in store.manifest.files:
        path = store.path / file.name
        with missing_is_damage(path), storage_errors(path):
            found = crc32c_of_file(path)
        if found != file.crc32c:
            raise StoreError(f"{path}: checksum of the file is wrong; convert the store again")
    return nbytes
