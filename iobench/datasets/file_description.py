"""What files of the user's own hold, by their metadata: no number of them is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.chunk_codecs import codec_name
from iobench.chunks.grib.field_cubes import describe_fields
from iobench.datasets.file_variables import (
    EACH_FILE,
    check_not_in_groups,
    helper_names,
    holds_times,
)
from iobench.datasets.source_files import file_kind, index_grib, inspect_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.source_file import SourceFile

COUNTED: Final = frozenset(
    {"time", "valid_time", "date", "sample", "samples", "record", "event", "case", "example"}
)
"""Dimensions that count samples by their name, where no coordinate tells."""
GRID: Final = frozenset({"y", "x", "lat", "lon", "latitude", "longitude", "rlat", "rlon"})
"""Dimensions of one field, whatever their length."""


def describe_file(path: Path, *, cache_dir: Path, group: str = "") -> dict[str, Any]:
    """Return what a GRIB or NetCDF file, or a Zarr store, holds."""
    file = _inspected([path], cache_dir, group)
    helpers = helper_names(file)
    own = [each for name, each in file.variables.items() if name not in helpers]
    by_size = sorted(own, key=lambda each: -math.prod(each.shape))
    several = (dim for v in by_size for dim, n in zip(v.dims, v.shape, strict=True) if n > 1)
    return {
        "format": f"{file.kind} {file.zarr_format or ''}".rstrip(),
        "dims": dict(file.dims),
        "variables": [_variable(each) for each in own],
        "coordinates": [name for name in file.variables if name in helpers],
        "skipped": dict(file.skipped),
        "sample_dims": list(dict.fromkeys(several)),
    }


def _variable(variable: ChunkedVariable) -> dict[str, Any]:
    chunk: list[int] | None = None
    if "messages" in variable.attributes:
        codec = variable.attributes["messages"]
    elif variable.why_unread:
        codec = f"{variable.why_unread}, which is not read here"
    elif variable.is_contiguous:
        codec = "in one piece, not compressed"
    else:
        chunk = list(variable.chunk)
        codec = ", ".join(map(codec_name, variable.codecs)) or "not compressed"
        codec += ", in shards" * (variable.keys is not None and variable.keys.is_sharded)
    return {
        "name": variable.name,
        "dims": list(variable.dims),
        "shape": list(variable.shape),
        "dtype": np.dtype(variable.packing.stored).name,
        "units": variable.attributes.get("units", ""),
        "chunk": chunk,
        "codec": codec,
    }


def likely_sample_dim(
    files: Sequence[Path], *, cache_dir: Path, names: Sequence[str] = (), group: str = ""
) -> tuple[str, str] | None:
    """Return the dimension that most likely counts samples, and what tells so, in words.

    The one along which times lie, by CF's units ("hours since ..."); of GRIB the times of the
    forecasts, else their steps; without times the one that is named so.
    """
    file = _inspected(files, cache_dir, group)
    helpers = helper_names(file)
    variables = [each for name, each in file.variables.items() if name not in helpers]
    variables = [each for each in variables if each.name in names] or variables
    several = {dim for dim, length in file.dims.items() if length > 1 or len(files) > 1}
    if file.kind == "GRIB":
        times = [dim for dim in ("time", "step") if file.dims.get(dim, 1) > 1][:1]
        why = f"of which the messages have {file.dims[times[0]]:,}" if times else ""
    else:
        times = [dim for dim in file.dims if dim in several and holds_times(file, dim)]
        why = "whose coordinate holds times"
    times = [dim for dim in times if any(dim in each.dims for each in variables)]
    if not times:
        why = "by its name"
        held = dict.fromkeys(dim for each in variables for dim in each.dims)
        times = [dim for dim in held if dim.lower() in COUNTED and dim in several]
    if len(times) == 1:
        return times[0], why
    if not times and file.kind != "GRIB" and len(files) > 1:
        of_file = [name for name, each in file.numbers.items() if not each.dims]
        of_file = [name for name in of_file if holds_times(file, name)]
        of_file = [name for name in of_file if name.lower() in COUNTED] or of_file
        if len(of_file) == 1:
            return of_file[0], "of which each file has one time"
        if set(file.dims) <= GRID and variables:
            return EACH_FILE, "as none of their dimensions counts samples"
    return None


def _inspected(files: Sequence[Path], cache_dir: Path, group: str) -> SourceFile:
    """Return what the first of some files holds; of GRIB, all together."""
    kind = file_kind(files[0])
    if kind == "GRIB":
        return describe_fields(index_grib(files, cache_dir=cache_dir))
    (file,) = inspect_files(files[:1], cache_dir=cache_dir, group=group, kind=kind)
    check_not_in_groups(file)
    return file
