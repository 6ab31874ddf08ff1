"""What NetCDF files hold, and the whole of variables: found out once, and kept."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.chunks.chunk_reading import read_box
from iobench.chunks.chunked_variable import ChunkedVariable, ChunkKeys
from iobench.chunks.netcdf.description import describe_netcdf
from iobench.chunks.netcdf.file import (
    NetcdfFile,
    inspect_netcdf,
    read_through_library,
    where_slab,
)
from iobench.chunks.packing import Packing, unpack
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.contract import no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.datasets.contract import Progress
    from iobench.datasets.setup_processes import Advance

NETCDF_KINDS: Final = (NetcdfFile, ChunkedVariable, Packing, ChunkKeys)
"""What a `NetcdfFile` is made of."""


def inspect_files(
    files: Sequence[Path], *, cache_dir: Path, progress: Progress = no_progress, group: str = ""
) -> list[NetcdfFile]:
    """Return what each NetCDF file holds: as kept, else found out now and kept."""
    inspection = _INSPECTION
    if group:
        inspect = functools.partial(_inspect, group=group)
        inspection = Inspection(f"{_INSPECTION.name} {group}", inspect, NETCDF_KINDS)
    return catalogued(files, inspection, cache_dir=cache_dir, progress=progress).found


def whole_variable(file: NetcdfFile, name: str) -> NDArray[Any]:
    """Return a whole variable of a file, decoded; texts too."""
    if name in file.skipped:
        texts = describe_netcdf(file.path, file.group).variables[name].texts
        return np.array("") if texts is None else texts
    variable = file.variables[name]
    if variable.values is not None:
        stored = variable.values.astype(variable.packing.stored)
        return unpack(stored, variable.packing)
    if variable.only_library:
        return read_through_library(file, variable)
    return read_box(where_slab(file, variable, dim=None, index=-1))


def whole_variables(
    files: Sequence[NetcdfFile],
    names: Sequence[str],
    *,
    cache_dir: Path,
    digest: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> dict[str, list[NDArray[Any] | None]]:
    """Return what each file has of variables, by name: as kept, else read now and kept.

    None where a file lacks one. ``cache_dir`` is where they are kept; ``digest`` returns what is
    kept instead of the values.
    """
    by_path = {file.path: file for file in files}

    def value_of(file: NetcdfFile, name: str) -> NDArray[Any]:
        values = whole_variable(file, name)
        return values if digest is None else digest(values)

    def has(file: NetcdfFile, name: str) -> bool:
        return name in file.variables or file.skipped.get(name, "").startswith("not numeric")

    def read(path: Path, _: Advance) -> _FileValues:
        file = by_path[path]
        return _FileValues(
            {name: value_of(file, name) if has(file, name) else None for name in names}
        )

    what = "digests 2" if digest else "values 1"
    inspection = Inspection(
        f"netcdf {what} {_group_in_name(files)}{' '.join(names)}",
        read,
        (_FileValues,),
        in_processes=False,
    )
    outcomes, _ = catalogued(list(by_path), inspection, cache_dir=cache_dir)
    known = dict(zip(by_path, outcomes, strict=True))
    return {name: [known[file.path].by_name[name] for file in files] for name in names}


class _FileValues(msgspec.Struct, frozen=True, eq=False):
    """What a file has of some variables; None of those that it lacks."""

    by_name: Mapping[str, NDArray[Any] | None]


def _group_in_name(files: Sequence[NetcdfFile]) -> str:
    """Return the group of files, which is one, as names of inspections have it."""
    return f"#{files[0].group} " if files and files[0].group else ""


def _inspect(path: Path, advance: Advance, group: str = "") -> NetcdfFile:
    return inspect_netcdf(path, group)


_INSPECTION: Final = Inspection("netcdf 7", _inspect, NETCDF_KINDS)
