"""Stores that others wrote, where each sample is one stretch of a file for each array.

Then there is nothing to gain by converting them: they are read like our own. What is laid out
otherwise is refused, with the reason and the line that converts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.errors import SampleError, StoreError
from iobench.files.atomic import storage_errors
from iobench.loaders.opened_store import OpenedStore
from iobench.samples import SampleSpec, Variable
from iobench.stores.extents import ExtentTable
from iobench.stores.fields import PlainDecoder
from iobench.stores.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

FOREIGN_VERSION: Final = 0
"""``format_version`` of what iobench did not write."""


@dataclass(frozen=True, slots=True)
class ForeignArray:
    """An array of samples that lie in files one by one.

    Parameters
    ----------
    variable : Variable
        What a sample of it is.
    files : tuple of Path
        Its files.
    file, offset : ndarray, (samples,)
        In which of them, and where, each sample begins.
    """

    variable: Variable
    files: tuple[Path, ...]
    file: NDArray[np.int64]
    offset: NDArray[np.int64]


class ForeignStore(OpenedStore):
    """A store without a manifest of its own; see `iobench.stores.Store`.

    ``manifest`` says what was found: its ``format_version`` is 0, and it lists no shards.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        table: ExtentTable,
        sizes: Mapping[Path, int],
    ) -> None:
        super().__init__(path, manifest, table=table, decode=PlainDecoder(manifest.spec))
        self._sizes = sizes

    @property
    def file_sizes(self) -> Mapping[Path, int]:
        """Bytes of each file, when the store was opened."""
        return self._sizes


def foreign_store(path: Path, fmt: str, arrays: Sequence[ForeignArray]) -> ForeignStore:
    """Return a store of arrays of as many samples each.

    Parameters
    ----------
    path : Path
        What the user named.
    fmt : str
        ``"zarr"`` or ``"numpy"``.
    arrays : sequence of ForeignArray
        At least one.

    Raises
    ------
    StoreError
        If there are no samples, or a file is missing or shorter than its samples.
    """
    n_samples = len(arrays[0].offset)
    if not n_samples:
        raise refused(path, "it holds no samples")
    files: list[Path] = []
    columns, offsets = [], []
    for array in arrays:
        columns.append(array.file + len(files))
        offsets.append(array.offset)
        files += array.files
    try:
        spec = SampleSpec(tuple(array.variable for array in arrays))
    except SampleError as error:
        raise refused(path, str(error)) from error
    empty = [variable.name for variable in spec if not variable.nbytes]
    if empty:
        raise refused(path, f"array {empty[0]!r} has no values")
    lengths = np.array([variable.nbytes for variable in spec], dtype=np.int64)
    table = ExtentTable(
        files=tuple(files),
        file=np.stack(columns, axis=1).astype(np.uint32),
        offset=np.stack(offsets, axis=1),
        length=np.broadcast_to(lengths, (n_samples, len(arrays))),
    )
    sizes = _sizes(path, table)
    manifest = Manifest(
        format=fmt,
        format_version=FOREIGN_VERSION,
        spec=spec,
        shards=(),
        samples=range(n_samples),
        dataset=path.name,
    )
    return ForeignStore(path, manifest, table=table, sizes=sizes)


def refused(path: Path, reason: str) -> StoreError:
    """Return the error for what cannot be read without a conversion."""
    return StoreError(
        f"{path}: {reason}; a store can be read directly where each sample is one uncompressed "
        f"range of a file; iobench convert {path} OUT --to zarr makes one"
    )


def _sizes(path: Path, table: ExtentTable) -> dict[Path, int]:
    """Return the sizes of all files, after checking that all samples lie in them."""
    ends = np.zeros(len(table.files), dtype=np.int64)
    np.maximum.at(ends, table.file.reshape(-1), (table.offset + table.length).reshape(-1))
    sizes = {}
    for file, end in zip(table.files, ends.tolist(), strict=True):
        try:
            with storage_errors(file):
                sizes[file] = file.stat().st_size
        except FileNotFoundError as error:
            raise refused(path, f"{file.name} was never written or is missing") from error
        if sizes[file] < end:
            raise StoreError(
                f"{file}: {sizes[file]} bytes, its metadata say that it has {end} or more; fetch "
                "the store again"
            )
    return sizes
