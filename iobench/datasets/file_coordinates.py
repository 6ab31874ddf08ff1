"""Coordinates of samples of files: found in the first file, read where files may differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from iobench.chunks.netcdf.description import (
    NOT_KEPT,
    DescribedFile,
    DescribedVariable,
    describe_netcdf,
)
from iobench.coordinates import Meteorology, json_attributes
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.cf_coordinates import LeftOutError, SourceValues, cf_meteorology
from iobench.datasets.file_agreement import Agreement, is_far, same_values
from iobench.datasets.file_variables import numbers_of
from iobench.datasets.inspected_netcdf import whole_variables
from iobench.datasets.merged_files import holder
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.chunks.zarr_arrays.array_metadata import ZarrStore
    from iobench.datasets.cf_coordinates import SamplePlaces
    from iobench.datasets.setup_processes import Advance

File = TypeVar("File", "NetcdfFile", "ZarrStore")
ByFile = Mapping[str, Sequence["NDArray[Any] | None"]]
"""What each file has of variables, by name; None where it lacks one."""

MAX_COMPARED_NBYTES: Final = 1 << 20
"""Coordinates up to this size are compared in all files; larger ones in the first and last."""
NO_AGREEMENT: Final = Agreement({}, frozenset(), ())


def netcdf_meteorology(
    files: Sequence[NetcdfFile],
    chosen: Mapping[str, str],
    places: SamplePlaces,
    *,
    cache_dir: Path,
    known: Mapping[str, Sequence[NDArray[Any]]] | None = None,
    windows: Mapping[str, slice] | None = None,
    agreed: Agreement = NO_AGREEMENT,
) -> Meteorology:
    """Return what NetCDF files say of the samples made of them."""
    others = [each.path for each in files[0].others.values()]
    try:
        every, _ = catalogued(
            list(dict.fromkeys([files[0].path, *others])),
            _description(files[0].group),
            cache_dir=cache_dir,
        )
    except IobenchError as error:  # the samples can be made all the same
        return Meteorology(places.dims, left_out={"all": str(error)})

    variables = {name: one for each in reversed(every) for name, one in each.variables.items()}
    for name, one in variables.items():
        if one.texts is not None:
            texts = agreed.in_order(files[0], name, one.texts, one.dims)
            variables[name] = replace(one, texts=texts)
    described = replace(every[0], variables=variables)

    def read(some: Sequence[NetcdfFile], names: Sequence[str]) -> ByFile:
        if not others:
            return whole_variables(some, names, cache_dir=cache_dir)
        found: dict[str, Sequence[NDArray[Any] | None]] = {}
        for name in names:
            held = [holder(file, name) for file in some]
            found |= whole_variables(held, [name], cache_dir=cache_dir)
        return found

    return _meteorology(files, described, read, chosen, places, known or {}, windows or {}, agreed)


def zarr_meteorology(
    stores: Sequence[ZarrStore],
    read: Callable[[ZarrStore, str], NDArray[Any]],
    chosen: Mapping[str, str],
    places: SamplePlaces,
    *,
    known: Mapping[str, Sequence[NDArray[Any]]],
    agreed: Agreement,
) -> Meteorology:
    """Return likewise what Zarr stores say; ``read`` returns the numbers of an array."""
    first = stores[0]
    described = DescribedFile(
        {
            name: DescribedVariable(
                each.dims, each.shape, json_attributes(first.described[name], without=NOT_KEPT)
            )
            for name, each in numbers_of(first).items()
        },
        json_attributes(first.attributes),
    )

    def read_each(some: Sequence[ZarrStore], names: Sequence[str]) -> ByFile:
        return {
            name: [read(store, name) if name in numbers_of(store) else None for store in some]
            for name in names
        }

    return _meteorology(stores, described, read_each, chosen, places, known, {}, agreed)


def _meteorology(
    files: Sequence[File],
    described: DescribedFile,
    read_as_stored: Callable[[Sequence[File], Sequence[str]], ByFile],
    chosen: Mapping[str, str],
    places: SamplePlaces,
    known: Mapping[str, Sequence[NDArray[Any]]],
    windows: Mapping[str, slice],
    agreed: Agreement,
) -> Meteorology:
    def read(some: Sequence[File], names: Sequence[str]) -> ByFile:
        found = read_as_stored(some, names)
        if not agreed.orders:
            return found
        dims = {name: described.variables[name].dims for name in names}
        return {
            name: [
                own if own is None else agreed.in_order(file, name, own, dims[name])
                for file, own in zip(some, parts, strict=True)
            ]
            for name, parts in found.items()
        }

    def each(names: Sequence[str]) -> dict[str, list[NDArray[Any]] | None]:
        if is_far(files):
            return dict.fromkeys(names)
        found: dict[str, list[NDArray[Any]] | None] = {}
        for name, parts in read(files, names).items():
            there = [part for part in parts if part is not None]
            found[name] = there if len(there) == len(parts) else None
        return found

    def same(name: str) -> NDArray[Any]:
        """Return the values of a variable that all files are to agree on."""
        as_first = [file for file in files if holder(file, name).path not in agreed.orders]
        first = read((as_first or files)[:1], [name])[name][0]
        if first is None:
            raise LeftOutError(f"not read in {files[0].path.name}")
        compared = files[1:] if name not in agreed.same else []
        if first.nbytes > MAX_COMPARED_NBYTES or is_far(files):
            compared = compared[-1:]
        others = read(compared, [name])[name] if compared else []
        for file, other in zip(compared, others, strict=True):
            if other is None or not same_values(first, other):
                raise LeftOutError(f"{file.path.name} has others than {files[0].path.name}")
        return first

    def units(name: str) -> list[tuple[str, str]]:
        told = [file.variables[name].attributes for file in files if name in file.variables]
        return [(one.get("units", ""), one.get("calendar", "")) for one in told]

    own = {name: parts for name, parts in known.items() if name in described.variables}
    values = SourceValues(same, each, units, own)
    return cf_meteorology(described, chosen, places, values, windows=windows)


def _describe(path: Path, _: Advance, group: str = "") -> DescribedFile:
    return describe_netcdf(path, group)


def _description(group: str) -> Inspection[DescribedFile]:
    inspect = functools.partial(_describe, group=group)
    told = f"netcdf description 1{f' #{group}' if group else ''}"
    return Inspection(told, inspect, (DescribedFile, DescribedVariable))
