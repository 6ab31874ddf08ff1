"""What NetCDF files hold and say, and whole variables of them: found out once, and kept."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.chunks.chunk_reading import read_box
from iobench.chunks.chunked_variable import ChunkedVariable, ChunkKeys
from iobench.chunks.netcdf.description import Description, describe_netcdf
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

NETCDF_KINDS: Final = (NetcdfFile, ChunkedVariable, Packing, ChunkKeys)
"""What a `NetcdfFile` is made of."""


def inspect_files(
    files: Sequence[Path], *, cache_dir: Path, progress: Progress = no_progress, group: str = ""
) -> list[NetcdfFile]:
    """Return what each NetCDF file holds: as kept, else found out now and kept."""
    inspection = Inspection(
        f"netcdf 7 {group}", functools.partial(_inspect, group=group), NETCDF_KINDS
    )
    return catalogued(files, inspection, cache_dir=cache_dir, progress=progress)


def _inspect(path: Path, _: Any, group: str) -> NetcdfFile:
    return inspect_netcdf(path, group)


def describe_files(files: Sequence[NetcdfFile], *, cache_dir: Path) -> Description:
    """Return what files say of themselves, the first one first."""
    inspection = Inspection(
        f"description 1 {files[0].group}",
        lambda path, _: describe_netcdf(path, files[0].group),
        (Description,),
        in_processes=False,
    )
    paths = [file.path for file in files]
    outcomes = catalogued(paths, inspection, cache_dir=cache_dir)
    return functools.reduce(
        lambda one, other: Description(
            one.attributes, {**other.variables, **one.variables}, {**other.texts, **one.texts}
        ),
        outcomes,
    )


def whole_variable(file: NetcdfFile, name: str) -> NDArray[Any]:
    """Return a whole variable of a file, decoded; texts too."""
    if name in file.skipped:
        texts = describe_netcdf(file.path, file.group).texts
        return texts[name][1] if name in texts else np.array("")
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
    if not files or not names:
        return {name: [] for name in names}
    by_path = {file.path: file for file in files}

    def read(path: Path, _: Any) -> _FileValues:
        file, values = by_path[path], {}
        for name in names:
            is_text = file.skipped.get(name, "").startswith("not numeric")
            own = whole_variable(file, name) if name in file.variables or is_text else None
            values[name] = own if own is None or digest is None else digest(own)
        return _FileValues(values)

    what = "digests 2" if digest else "values 1"
    inspection = Inspection(
        f"netcdf {what} #{files[0].group} {' '.join(names)}",
        read,
        (_FileValues,),
        in_processes=False,
    )
    outcomes = catalogued(list(by_path), inspection, cache_dir=cache_dir)
    known = dict(zip(by_path, outcomes, strict=True))
    return {name: [known[file.path].by_name[name] for file in files] for name in names}


class _FileValues(msgspec.Struct, frozen=True, eq=False):
    """What a file has of some variables; None of those that it lacks."""

    by_name: Mapping[str, NDArray[Any] | None]
