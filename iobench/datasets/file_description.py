"""What files of the user's own hold, told from their metadata: no number of them is read."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.codec_chain import codec_name
from iobench.datasets.files import file_kind
from iobench.datasets.grib.samples import GribSamples, describe_messages
from iobench.datasets.netcdf.inspected import inspect_files
from iobench.datasets.netcdf.samples import NetcdfSamples
from iobench.datasets.netcdf.storage import Chunked, Contiguous
from iobench.datasets.selection import SourceFile, SourceVariable, helper_names
from iobench.datasets.zarr_arrays.arrays import Chunking
from iobench.datasets.zarr_arrays.store import inspect_zarr

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
    if kind == GribSamples.kind:
        told = describe_messages([path], cache_dir=cache_dir)
        return {"format": kind, **told, "sample_dims": _sample_dims(told["variables"])}
    file: SourceFile
    if kind == NetcdfSamples.kind:
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


def _variable(variable: SourceVariable) -> dict[str, Any]:
    layout = getattr(variable, "storage", None) or getattr(variable, "chunking", None)
    chunk, codec = _layout(layout)
    return {
        "name": variable.name,
        "dims": list(variable.dims),
        "shape": list(variable.shape),
        "dtype": np.dtype(variable.packing.stored).name,
        "units": variable.attributes.get("units", ""),
        "chunk": chunk,
        "codec": codec,
    }


@singledispatch
def _layout(layout: object) -> tuple[list[int] | None, str]:
    """Return the shape of a chunk, and what is done to it, in words."""
    return None, "known to the format's own library alone"


@_layout.register
def _(layout: Contiguous) -> tuple[list[int] | None, str]:
    return None, "in one piece, not compressed"


@_layout.register
def _(layout: Chunked) -> tuple[list[int] | None, str]:
    return list(layout.chunk), ", ".join(map(codec_name, layout.filters)) or "not compressed"


@_layout.register
def _(layout: Chunking) -> tuple[list[int] | None, str]:
    told = ", ".join(map(codec_name, layout.codecs.applied)) or "not compressed"
    return list(layout.codecs.shape), f"{told}, in shards" if layout.sharding else told
