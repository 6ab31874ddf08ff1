"""Coordinates of samples of NetCDF files: found in the first file, read where files may differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.netcdf.description import DescribedFile, DescribedVariable, describe_netcdf
from iobench.coordinates import Meteorology
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.cf_coordinates import SourceValues, cf_meteorology
from iobench.datasets.inspected_netcdf import whole_variable
from iobench.errors import IobenchError
from iobench.files.urls import URL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.datasets.cf_coordinates import SamplePlaces
    from iobench.datasets.setup_processes import Advance

__all__ = ["netcdf_meteorology"]

MAX_COMPARED_NBYTES: Final = 1 << 20
"""Coordinates up to this size are compared in all files; larger ones in the first and last."""
MAX_REMOTE_FILES: Final = 64
"""Behind URLs each coordinate is a request: of more files than this the last is compared."""


def netcdf_meteorology(
    files: Sequence[NetcdfFile],
    chosen: Mapping[str, str],
    places: SamplePlaces,
    *,
    cache_dir: Path,
    known: Mapping[str, Sequence[NDArray[Any]]] | None = None,
    windows: Mapping[str, slice] | None = None,
) -> Meteorology:
    """Return what NetCDF files say of the samples made of them.

    Parameters
    ----------
    files : sequence of NetcdfFile
        All that they hold, in the order of ``places``.
    chosen, places, windows
        As `cf_meteorology`.
    cache_dir : Path
        Where what is read is kept.
    known : mapping of str to list of ndarray, optional
        What each file has of a variable, where that was read before; as stored or decoded.
    """
    try:
        ((described,), _) = catalogued([files[0].path], _DESCRIPTION, cache_dir=cache_dir)
    except IobenchError as error:  # the samples can be made all the same
        return Meteorology(places.dims, left_out={"all": str(error)})

    def each(names: Sequence[str]) -> dict[str, list[NDArray[Any]] | None]:
        return _of_every_file(files, names, cache_dir)

    def units(name: str) -> list[tuple[str, str]]:
        told = [file.variables[name].attributes for file in files if name in file.variables]
        return [(each.get("units", ""), each.get("calendar", "")) for each in told]

    values = SourceValues(
        lambda name: _same_in_all(files, name, cache_dir),
        each,
        units,
        {name: parts for name, parts in (known or {}).items() if name in described.variables},
    )
    return cf_meteorology(described, chosen, places, values, windows=windows)


@dataclass(frozen=True, slots=True, eq=False)
class _FileValues:
    """What a file has of some variables; None of those that it lacks."""

    by_name: Mapping[str, NDArray[Any] | None]


def _of_every_file(
    files: Sequence[NetcdfFile], names: Sequence[str], cache_dir: Path
) -> dict[str, list[NDArray[Any]] | None]:
    if _is_far(files):
        return dict.fromkeys(names)
    by_path = {file.path: file for file in files}

    def read(path: Path, _: Advance) -> _FileValues:
        file = by_path[path]
        return _FileValues(
            {name: whole_variable(file, name) if name in file.variables else None for name in names}
        )

    inspection = Inspection(
        f"netcdf values 1 {' '.join(names)}", read, (_FileValues,), in_processes=False
    )
    found, _ = catalogued(list(by_path), inspection, cache_dir=cache_dir)
    by_name: dict[str, list[NDArray[Any]] | None] = {}
    for name in names:
        parts = [each.by_name[name] for each in found]
        kept = [part for part in parts if part is not None]
        by_name[name] = kept if len(kept) == len(parts) else None
    return by_name


def _same_in_all(files: Sequence[NetcdfFile], name: str, cache_dir: Path) -> NDArray[Any]:
    """Return the values of a variable that all files are to agree on.

    Raises
    ------
    FilesDifferError
        If they do not.
    """
    first = whole_variable(files[0], name)
    compared = [*files[1:]]
    if first.nbytes > MAX_COMPARED_NBYTES or _is_far(files):
        compared = compared[-1:]
    for file in compared:
        if name not in file.variables:
            raise FilesDifferError(f"not in {file.path.name}")
    if compared:
        others = (
            (_of_every_file(compared, [name], cache_dir)[name] or ())
            if not _is_far(compared)
            else ()
        )
        for file, other in zip(compared, others, strict=False):
            if not np.array_equal(first, other, equal_nan=first.dtype.kind == "f"):
                raise FilesDifferError(f"{file.path.name} has others than {files[0].path.name}")
    return first


class FilesDifferError(IobenchError):
    """Files of which samples are made lie in different places."""


def _is_far(files: Sequence[NetcdfFile]) -> bool:
    return len(files) > MAX_REMOTE_FILES and isinstance(files[0].path, URL)


def _describe(path: Path, _: Advance) -> DescribedFile:
    return describe_netcdf(path)


_DESCRIPTION: Final = Inspection(
    "netcdf description 1", _describe, (DescribedFile, DescribedVariable)
)
