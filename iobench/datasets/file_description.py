"""What files of the user's own hold, told from their metadata: no number of them is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.chunk_manifest import ChunkKeys, StoredVariable
from iobench.chunks.grib.field_cubes import describe_fields
from iobench.chunks.single_codec import codec_name
from iobench.chunks.zarr_arrays.store import inspect_zarr
from iobench.datasets.grib_index import index_grib
from iobench.datasets.inspected_netcdf import inspect_files
from iobench.datasets.selection import SourceFile, helper_names
from iobench.datasets.user_files import file_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["describe_file"]


def describe_file(path: Path, *, cache_dir: Path) -> dict[str, Any]:
    """Return what a GRIB or NetCDF file, or a Zarr store, holds.

    Parameters
    ----------
    path : Path
    cache_dir : Path
        Where what it holds is kept.

    Returns
    -------
    dict
        ``format``; ``dims`` by name; ``variables``, each with ``name``, ``dims``, ``shape``,
        ``dtype``, ``units``, ``chunk`` (None: in one piece, or not known) and ``codec`` in words;
        ``coordinates`` and ``skipped``; ``sample_dims``: those that ``--sample-dim`` may name, the
        outermost of the largest variable first.

    Raises
    ------
    FileFormatError
        If it is none of these, or damaged.
    MissingFileError, StorageError, MissingExtraError
        If it cannot be read, or a library is missing.
    """
    kind = file_kind(path)
    file: SourceFile
    if kind == "GRIB":
        file = describe_fields(index_grib([path], cache_dir=cache_dir))
    elif kind == "NetCDF":
        (file,) = inspect_files([path], cache_dir=cache_dir)
    else:
        store = inspect_zarr(path)
        file, kind = store, f"{kind} {store.zarr_format}"
    helpers = helper_names(file)
    variables = [_variable(each) for name, each in file.variables.items() if name not in helpers]
    return {
        "format": kind,
        "dims": dict(file.dims),
        "variables": variables,
        "coordinates": [name for name in file.variables if name in helpers],
        "skipped": dict(file.skipped),
        "sample_dims": _sample_dims(variables),
    }


def _sample_dims(variables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dimensions with several indices, those of the largest variable first."""
    by_size = sorted(variables, key=lambda each: -int(np.prod(each["shape"], dtype=float)))
    return list(
        dict.fromkeys(
            dim
            for each in by_size
            for dim, length in zip(each["dims"], each["shape"], strict=True)
            if length > 1
        )
    )


def _variable(variable: StoredVariable) -> dict[str, Any]:
    chunk, codec = _layout(variable)
    return {
        "name": variable.name,
        "dims": list(variable.dims),
        "shape": list(variable.shape),
        "dtype": np.dtype(variable.packing.stored).name,
        "units": variable.attributes.get("units", ""),
        "chunk": chunk,
        "codec": codec,
    }


def _layout(variable: StoredVariable) -> tuple[list[int] | None, str]:
    """Return the shape of a chunk, and what is done to it, in words."""
    manifest = variable.storage
    if "messages" in variable.attributes:
        return None, variable.attributes["messages"]
    if manifest is None:
        return None, f"{variable.only_library}, known to the format's own library alone"
    if manifest.is_contiguous:
        return None, "in one piece, not compressed"
    told = ", ".join(map(codec_name, manifest.codecs.applied)) or "not compressed"
    sharded = isinstance(manifest.chunks, ChunkKeys) and manifest.chunks.sharding is not None
    return list(manifest.chunk), f"{told}, in shards" if sharded else told
