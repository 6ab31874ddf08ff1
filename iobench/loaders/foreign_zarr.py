"""Zarr stores that others wrote, versions 2 and 3, as far as their chunks are plain bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.chunks.chunk_reading import read_shard_index
from iobench.chunks.single_codec import CHECKSUM
from iobench.chunks.zarr_arrays.chunks import check_held
from iobench.chunks.zarr_arrays.store import inspect_zarr
from iobench.chunks.zarr_arrays.store import is_zarr as is_zarr
from iobench.errors import FileFormatError, SampleError, StoreError
from iobench.loaders.foreign import ForeignArray, foreign_store, refused
from iobench.samples import Variable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.chunk_manifest import ChunkManifest, StoredVariable
    from iobench.chunks.zarr_arrays.array_metadata import ZarrStore
    from iobench.loaders.foreign import ForeignStore


ABSENT: Final = np.iinfo(np.uint64).max
_Places = tuple[list[Path], "NDArray[np.int64]", "NDArray[np.int64]"]
"""Files, and for each sample number of its file and offset."""


def open_zarr(path: Path) -> ForeignStore:
    """Return a store of the arrays of a Zarr group, or of one array.

    Numbers are those stored, as zarr gives them.

    Raises
    ------
    StoreError
        If a sample of an array is not one stretch of a file, or numbers are packed.
    """
    try:
        store = inspect_zarr(path)
        arrays = [_array(path, store, variable) for variable in _samples(path, store)]
    except FileFormatError as error:
        raise StoreError(str(error)) from error
    return foreign_store(path, "zarr", arrays)


def _samples(path: Path, store: ZarrStore) -> list[StoredVariable]:
    """Return the arrays whose first dimension counts samples."""
    data = [
        variable
        for variable in store.variables.values()
        if variable.shape and variable.dims != (variable.name,)  # no coordinate
    ]
    if not data:
        raise refused(path, "it holds no array with a first dimension to count samples")
    largest = max(data, key=lambda one: np.prod(one.shape, dtype=float))
    chosen = [one for one in data if one.dims[0] == largest.dims[0]]
    if any(one.shape[0] != largest.shape[0] for one in chosen):
        raise refused(path, f"its arrays do not have as many samples along {largest.dims[0]!r}")
    return chosen


def _array(path: Path, store: ZarrStore, found: StoredVariable) -> ForeignArray:
    said = f"array {found.name!r}"
    manifest = found.storage
    if manifest is None:
        raise refused(path, f"{said} has {found.only_library}")
    if reason := _hindrance(store, found, manifest):
        raise refused(path, f"{said} {reason}")
    check_held(path, found)
    try:
        variable = Variable(found.name, found.shape[1:], found.packing.stored, found.dims[1:],
                            found.attributes.get("units", ""))  # fmt: skip
    except SampleError as error:
        raise refused(path, str(error)) from error
    places = _in_shards if manifest.keys.sharding is not None else _in_chunks
    files, file, offset = places(path, found, manifest, variable.nbytes)
    return ForeignArray(variable, tuple(files), file, offset)


def _hindrance(store: ZarrStore, found: StoredVariable, manifest: ChunkManifest) -> str:
    """Return why samples are not plain stretches of a file; empty where they are."""
    codecs, packing = manifest.codecs, found.packing
    others = [name for name in codecs.applied if name != CHECKSUM]
    if others:
        return f"is compressed ({others[-1]})"
    if codecs.axes != tuple(range(len(found.shape))):
        return "is not in C order"
    if np.dtype(codecs.dtype).byteorder == ">":
        return "is big-endian"
    if codecs.shape[1:] != found.shape[1:]:
        return f"is cut into chunks of {codecs.shape}, with several for a sample"
    if packing.scale is not None or packing.offset is not None:
        return "holds packed numbers (scale_factor, add_offset)"
    # Version 2 has to say what unwritten chunks hold, which usually is 0 and no missing value.
    is_default = store.zarr_format == 2 and set(packing.fill_values) <= {0}
    if packing.fill_values and not is_default:
        return f"marks missing values by {packing.fill_values[0]}"
    return ""


def _in_chunks(path: Path, found: StoredVariable, manifest: ChunkManifest, nbytes: int) -> _Places:
    length = manifest.codecs.shape[0]
    n_samples, n_others = found.shape[0], len(found.shape) - 1
    n_files = -(-n_samples // length)
    keys = [manifest.keys.key((number, *(0,) * n_others)) for number in range(n_files)]
    file, place = np.divmod(np.arange(n_samples, dtype=np.int64), length)
    return [Path(found.folder) / key for key in keys], file, place * nbytes


def _in_shards(path: Path, found: StoredVariable, manifest: ChunkManifest, nbytes: int) -> _Places:
    sharding, length = manifest.keys.sharding, manifest.codecs.shape[0]
    assert sharding is not None
    n_samples, n_others = found.shape[0], len(found.shape) - 1
    n_chunks = -(-n_samples // length)
    n_inner = sharding.chunks_per_shard[0]
    files, starts = [], []
    if sharding.chunks_per_shard[1:] != (1,) * n_others:
        raise refused(path, f"array {found.name!r} has shards that are larger than itself")
    expected = length * nbytes + 4 * len(manifest.codecs.applied)
    for number in range(-(-n_chunks // n_inner)):
        file = Path(found.folder) / manifest.keys.key((number, *(0,) * n_others))
        index = read_shard_index(str(path), found, str(file))
        if index is None:
            raise refused(path, f"{file.name} of array {found.name!r} was never written")
        # One chunk long along all dimensions but the first.
        entries = index.reshape(-1, 2)[: n_chunks - number * n_inner]
        if (entries[:, 0] == ABSENT).any():
            raise refused(path, f"array {found.name!r} has chunks that were never written")
        if (entries[:, 1] != expected).any() or (entries[:, 0] > np.iinfo(np.int64).max).any():
            raise StoreError(
                f"{file}: its index is damaged: chunks are not of {expected} bytes; fetch the "
                "store again"
            )
        files.append(file)
        starts.append(entries[:, 0].astype(np.int64))
    chunk, place = np.divmod(np.arange(n_samples, dtype=np.int64), length)
    return files, chunk // n_inner, np.concatenate(starts)[chunk] + place * nbytes
