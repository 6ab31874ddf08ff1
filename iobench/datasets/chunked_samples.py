"""Samples of users' own files and Zarr stores: one index along a dimension, file by file."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace

from iobench.chunks.assembler import read_boxes
from iobench.chunks.boxes import index_box, indexes_box
from iobench.chunks.chunk_pieces import pieces_of
from iobench.chunks.chunk_reading import read_box, read_stored_box
from iobench.chunks.chunked_fields import ChunkedFields
from iobench.chunks.grib.field_cubes import GribFiles
from iobench.chunks.grid_pieces import grid_pieces_of
from iobench.chunks.grouped import SampleGroups
from iobench.chunks.netcdf.description import describe_netcdf
from iobench.chunks.netcdf.file import NetcdfFile, read_through_library
from iobench.chunks.packing import unpack
from iobench.chunks.zarr_arrays.array_metadata import ZarrStore
from iobench.chunks.zarr_arrays.chunks import check_held
from iobench.chunks.zarr_arrays.store import inspect_zarr, metadata_fingerprint
from iobench.chunks.zarr_arrays.through_library import check_through_zarr, read_through_zarr
from iobench.coordinates import Meteorology
from iobench.datasets.cf_coordinates import SamplePlaces, netcdf_meteorology, zarr_meteorology
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_agreement import (
    Agreement,
    agreement,
    coordinates_of,
    digest,
    kept_once,
    mixed_units,
)
from iobench.datasets.file_variables import (
    Selection,
    check_dimensions,
    check_not_in_groups,
    check_same_schema,
    check_sample_dims,
    choose_variables,
    numbers_of,
    sample_variable,
    with_file_dim,
)
from iobench.datasets.inspected_netcdf import inspect_files, whole_variable, whole_variables
from iobench.datasets.merged_files import (
    holder,
    merged_files,
    variables_of_files,
    with_one_dtype,
)
from iobench.datasets.plain_loop import open_plainly
from iobench.datasets.positions import are_missing, exact_times
from iobench.datasets.rows import FileCoordinates, SampleRows
from iobench.files.urls import URL, range_file
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.pieces import PiecedVariable
    from iobench.datasets.contract import Arrays, Locator, Raw
    from iobench.datasets.file_agreement import Order

Container = NetcdfFile | ZarrStore | GribFiles
TEXTS: Final = "not numeric"
"""Why arrays of texts are left out of Zarr stores."""


def coordinate_values(file: Container, dim: str) -> NDArray[Any]:
    """Return the coordinate along ``dim``, or the indices where it has none."""
    if isinstance(file, GribFiles):
        return file.along[dim].values
    variable = _coordinate(file, dim)
    if variable is None:
        return np.arange(file.dims[dim])
    return _whole(file, dim).reshape(-1)


def _whole(file: Any, name: str) -> NDArray[Any]:
    return _whole_array(file, name) if isinstance(file, ZarrStore) else whole_variable(file, name)


def _scalars(file: Container) -> dict[str, float]:
    """Return the coordinates that a file has one number of."""
    return {
        name: float(_whole(file, name))
        for name, each in file.variables.items()
        if not each.dims and not isinstance(file, GribFiles)
    }


def _file_coordinates(
    files: Sequence[Container], dim: str, stored: Sequence[NDArray[Any]]
) -> FileCoordinates:
    return FileCoordinates(
        stored,
        [_attribute(file, dim, "units") for file in files],
        [_attribute(file, dim, "calendar") for file in files],
    )


def _whole_array(file: ZarrStore, name: str) -> NDArray[Any]:
    """Return the numbers, dates or texts of an array that tells where or when samples are."""
    if file.skipped.get(name) == TEXTS:
        with open_plainly(str(file.path)) as opened:
            return np.asarray(opened.variables[name].values.astype(str))
    variable = numbers_of(file)[name]
    if variable.only_library:
        return _through_library(file, variable)
    # Without the fill value: zarr's default of 0 is a time like any other.
    values = read_stored_box(index_box(range_file(file.path), variable))
    if values.dtype.kind == "m":
        return values / np.timedelta64(1, "s")
    if variable.packing.scale is not None or variable.packing.offset is not None:
        return unpack(values, replace(variable.packing, fill_values=()))
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _coordinate(file: Container, dim: str) -> ChunkedVariable | None:
    found = numbers_of(file).get(dim)
    is_one = found is not None and not found.dims and file.dims.get(dim) == 1
    return found if found is not None and (is_one or found.dims == (dim,)) else None


def _attribute(file: Container, dim: str, name: str) -> str | None:
    """Return an attribute of the coordinate, "" where it lacks it, None without a coordinate."""
    if isinstance(file, GribFiles):
        return file.along[dim].units if name == "units" else ""
    variable = _coordinate(file, dim)
    return None if variable is None else variable.attributes.get(name, "")


def _through_library(
    file: Container,
    variable: ChunkedVariable,
    dims: Sequence[str] = (),
    indexes: Sequence[int] = (),
) -> NDArray[Any]:
    """Return one index of a variable along each of some dimensions, as far as it has them."""
    places = {dim: n for dim, n in zip(dims, indexes, strict=True) if dim in variable.dims}
    dim, index = next(iter(places.items()), (None, -1))
    if isinstance(file, NetcdfFile):
        found = read_through_library(file, variable, dim=dim, index=index)
    else:
        found = read_through_zarr(variable, axis=variable.axis(dim), index=index)
    if len(places) < 2:
        return found
    left = [each for each in variable.dims if each != dim]
    return np.asarray(found[tuple(places.get(each, slice(None)) for each in left)])


class ChunkedSamples(ChunkedFields):
    """Reads and decodes samples of files of one container, dtypes as xarray decodes them.

    Samples are counted file after file. Files are put in the order of their coordinate along the
    sample dimension where that orders them (no overlap; times, or one unit): they are then one row
    of samples. Else, as with forecasts that all have the same lead times, they stay in the order
    given and each is a row of its own. Along several dimensions see `SampleGrid`.
    """

    kind = ""
    _named_by_times = False
    notes: tuple[str, ...] = ()
    """What users are to know of the files, a line each."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.fused: tuple[str, ...] = ()
        self._dims: tuple[str, ...] = ()
        self._axes: dict[str, tuple[int, ...]] = {}
        self._names: tuple[str, ...] = ()
        self._files: tuple[Container, ...] = ()
        self._agreement = Agreement({}, frozenset(), ())

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[Container]:
        """Return what the files hold; the sample dimension is looked for in the first one first."""
        raise NotImplementedError

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; files whose schemas differ are an error."""
        inspected = self._inspect(files, locator)
        first = inspected[0]
        dims = self._dims = check_sample_dims(self.selection.sample_dim, dict(first.dims), files)
        inspected = self._joined(inspected, locator.cache_dir)
        first = inspected[0]
        self._names, skipped = choose_variables(first, self.selection, dims)
        check_same_schema(inspected, self._names, dims)
        self.notes = (*self.notes, *mixed_units(inspected, self._names))
        self._axes = {
            name: tuple(first.variables[name].axis(dim) for dim in dims) for name in self._names
        }
        for file in inspected:
            self._check(file)
        chosen = [file.variables[name] for file in inspected for name in self._names]
        for variable in chosen:
            if variable.only_library:
                self.fused = ("read", "decode")
                self._check_through_library(variable)
        self._find_chunks(self.sample_dim, chosen)
        coordinates = {dim: self._coordinates(inspected, dim, locator.cache_dir) for dim in dims}
        along = [_file_coordinates(inspected, dim, coordinates[dim]) for dim in dims]
        made = [first.variables[name] for name in self._names]
        spec = [sample_variable(each, self.selection, dims) for each in made]
        facts: dict[str, Any] = {"sample_dim": self.sample_dim, "skipped": skipped}
        indexes = None
        if len(dims) == 1 and along[0].is_time:
            indexes = self._distinct(inspected, along[0].values)
            numbers = [number for number, each in enumerate(indexes) if len(each)]
            inspected = [inspected[number] for number in numbers]
            indexes = [indexes[number] for number in numbers]
            own = coordinates[dims[0]] = [coordinates[dims[0]][number] for number in numbers]
            chosen_own = [part[each] for part, each in zip(own, indexes, strict=True)]
            along = [_file_coordinates(inspected, dims[0], chosen_own)]
        rows = SampleRows(dims, along, indexes)
        self._files = tuple(inspected[number] for number in rows.order)
        found: dict[str, Any] = {"axes": rows.axes}
        if len(dims) == 1:
            (axis,) = rows.axes
            found = {
                "positions": axis.positions, "position_units": axis.units, "rows": axis.rows
            }  # fmt: skip
        places = rows.where.rows.T
        meteorology = self._meteorology(
            SamplePlaces(dims, places[0], dict(zip(dims, places[1:], strict=True))),
            {dim: [parts[number] for number in rows.order] for dim, parts in coordinates.items()},
            locator.cache_dir,
        )
        names = self._sample_names(rows, along)
        if self.notes:
            facts["notes"] = list(self.notes)
        return SampleIndex(
            spec=SampleSpec(tuple(spec)),
            where=rows.where,
            coordinate=names,
            provenance=facts,
            meteorology=meteorology,
            **found,
        )

    def _joined(self, files: Sequence[Container], cache_dir: Path) -> Sequence[Container]:
        """Return the files, those as one that hold other variables of the same samples."""
        names = variables_of_files(files, self.selection, self._dims)
        notes = []
        if self.selection.variables and any(names):
            notes = [
                f"{file.path.name} has none of the variables that are asked for: left out"
                for file, own in zip(files, names, strict=True)
                if not own
            ]
            files = [file for file, own in zip(files, names, strict=True) if own]
            names = [own for own in names if own]
        files, wider = with_one_dtype(files, names)
        notes += wider
        groups: dict[tuple[str, ...], list[Container]] = {}
        for file, own in zip(files, names, strict=True):
            check_dimensions(file, files[0], self._dims)
            groups.setdefault(own, []).append(file)

        coordinates: dict[str, tuple[str, ...]] = {}
        for own, group in groups.items():
            check_same_schema(group, own, self._dims)
            if len(files) > 1:
                texts = self._texts(group[0])
                coordinates = coordinates_of(group[0], own, self._dims, texts) | coordinates
        self._agreement = agreement(
            files,
            coordinates,
            lambda some, each: self._digests(some, each, cache_dir),
            _whole,
            are_places=all(file.dims[dim] == 1 for file in files for dim in self._dims),
        )

        def places(some: Sequence[Container]) -> list[bytes]:
            found = [b""] * len(some)
            for dim in self._dims:
                own = _file_coordinates(some, dim, self._coordinates(some, dim, cache_dir))
                values = exact_times(own.values) if own.is_time else own.values
                for number, each in enumerate(values):
                    found[number] += each.tobytes() + b"|"
            return found

        self.notes = (*self.notes, *notes, *self._agreement.notes)
        return merged_files(files, names, self._dims, places)

    def _distinct(
        self, files: Sequence[Container], times: Sequence[NDArray[Any]]
    ) -> list[NDArray[np.int64]]:
        """Return the indexes of each file whose samples no file before has."""
        flags, note = kept_once(files, exact_times(times), self._sample, _scalars, self._dims[0])
        self.notes = (*self.notes, *[note] * bool(note))
        ends = np.cumsum([len(part) for part in times])[:-1]
        return [np.flatnonzero(part) for part in np.split(flags, ends)]

    def _sample(self, file: Container, index: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample, read by itself."""
        (dim,) = self._dims
        found = {}
        for name in self._names:
            each, held = file.variables[name], holder(file, name)
            if each.only_library:
                found[name] = _through_library(held, each, self._dims, [index])
            else:
                box = index_box(range_file(held.path), each, each.axis(dim), index)
                found[name] = read_box(box)
        return self._in_order(file, found)

    def _in_order(self, file: Container, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample in the order of the first file's coordinates."""
        if not self.orders:
            return dict(arrays)
        found = {}
        for name, values in arrays.items():
            dims = [dim for dim in file.variables[name].dims if dim not in self._dims]
            found[name] = self._agreement.in_order(file, name, values, dims)
        return found

    def _sample_names(self, rows: SampleRows, along: Sequence[FileCoordinates]) -> list[str]:
        """Return names of samples: along one dimension by their file, along several by all."""
        if len(self._dims) == 1:
            (own,) = along
            values = own.values if self._named_by_times else own.stored
            return [
                name
                for file, number in zip(self._files, rows.order, strict=True)
                for name in _names_along(file, self._dims[0], values[number])
            ]
        names = rows.names
        if rows.is_doubled:
            if any(each.is_time for each in along):
                self.notes = (
                    *self.notes,
                    f"files have samples of the same {' and '.join(self._dims)}: all are kept, so "
                    "leave files out where that is not meant",
                )
            paths = [file.path.name for file in self._files]
            names = [f"{paths[at[0]]} {name}" for at, name in zip(rows.where, names, strict=True)]
        return names

    def _texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        """Return the dimensions of the texts that a file has."""
        return {}

    def _digests(
        self, files: Sequence[Any], names: Sequence[str], cache_dir: Path
    ) -> Mapping[str, Sequence[NDArray[Any] | None]]:
        """Return by name a digest of a coordinate of each file; None where it lacks it."""
        raise NotImplementedError

    def _meteorology(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]], cache_dir: Path
    ) -> Meteorology:
        """Return coordinates, those along samples as ``known`` of each file, and attributes."""
        return Meteorology(self._dims)

    def _coordinates(
        self, files: Sequence[Container], dim: str, cache_dir: Path
    ) -> list[NDArray[Any]]:
        """Return the coordinate of each file along a sample dimension."""
        return [coordinate_values(file, dim) for file in files]

    def _check(self, file: Container) -> None:
        """Check what a file claims of the chosen variables."""

    def _check_through_library(self, variable: ChunkedVariable) -> None:
        """Check that the library can read what only it knows."""

    def read(self, where: tuple[int, ...]) -> Any:
        """Return the sample's bytes; the arrays themselves where the library must read them."""
        number, *indexes = where
        file = self._files[number]
        variables = [file.variables[name] for name in self._names]
        if self.fused:
            found = [
                _through_library(holder(file, each.name), each, self._dims, indexes)
                for each in variables
            ]
            return self._in_order(file, dict(zip(self._names, found, strict=True)))
        paths = self._range_files(file)
        axes = self._axes
        if len(indexes) == 1:
            (index,) = indexes
            boxes = [
                index_box(path, each, axes[each.name][0], index)
                for path, each in zip(paths, variables, strict=True)
            ]
        else:
            boxes = [
                indexes_box(path, each, axes[each.name], indexes)
                for path, each in zip(paths, variables, strict=True)
            ]
        return read_boxes(self._chunks, boxes, where)

    def _range_files(self, file: Container) -> list[str]:
        """Return the file that each variable of a sample is in."""
        if not getattr(file, "others", {}):
            return [range_file(file.path)] * len(self._names)
        return [range_file(holder(file, name).path) for name in self._names]

    def decode(
        self, raw: Raw, where: tuple[int, ...], out: Mapping[str, NDArray[Any]] | None = None
    ) -> Arrays:
        """Return the arrays of the sample's bytes, made in ``out`` where they can be."""
        file = self._files[where[0]]
        variables, is_aligned = file.variables, bool(self._agreement.orders)
        rows: list[NDArray[Any] | None] = [None] * len(self._names)
        if out is not None and not is_aligned:
            rows = [out[name] for name in self._names]
        found = {
            name: unpack(stored, variables[name].packing, row)
            for name, stored, row in zip(self._names, raw.arrays(rows), rows, strict=True)
        }
        return self._in_order(file, found) if is_aligned else found

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order that samples count them by."""
        return tuple(file.path for file in self._files)

    @property
    def other_paths(self) -> dict[tuple[int, str], Path]:
        """The file of each variable that is in another than `paths` says, by number and name."""
        return {
            (number, name): holder(file, name).path
            for number, file in enumerate(self._files)
            if getattr(file, "others", {})
            for name in self._names
        }

    @property
    def orders(self) -> Mapping[Path, Order]:
        """Of files that lie otherwise than the first, the index there of each index."""
        return self._agreement.orders

    @property
    def sample_dim(self) -> str:
        """The sample dimension, or several with commas; known once `samples` has run."""
        return ",".join(self._dims)

    @property
    def is_grouped(self) -> bool:
        """Whether samples can be made in groups."""
        return not self.fused and not self.orders

    @cached_property
    def grouped(self) -> SampleGroups:
        """The same samples, made in groups; not where only the library knows the storage."""
        lengths = [[file.dims[dim] for dim in self._dims] for file in self._files]
        several = lengths.__getitem__ if len(self._dims) > 1 else None
        return SampleGroups(self._pieced, len(self._files), several)

    def _pieced(self, number: int) -> list[PiecedVariable]:
        file = self._files[number]
        held = list(
            zip(self._range_files(file), map(file.variables.__getitem__, self._names), strict=True)
        )
        if len(self._dims) == 1:
            return [pieces_of(path, each, self._dims[0]) for path, each in held]
        lengths = [file.dims[dim] for dim in self._dims]
        return [grid_pieces_of(path, each, self._dims, lengths) for path, each in held]


class NetcdfSamples(ChunkedSamples):
    """Samples of NetCDF files."""

    kind = "NetCDF"

    def _texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        if not any(why.startswith("not numeric") for why in file.skipped.values()):
            return {}
        described = describe_netcdf(file.path, file.group).variables
        return {name: each.dims for name, each in described.items() if each.texts is not None}

    def _digests(
        self, files: Sequence[Any], names: Sequence[str], cache_dir: Path
    ) -> Mapping[str, Sequence[NDArray[Any] | None]]:
        return whole_variables(files, names, cache_dir=cache_dir, digest=digest)

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[Container]:
        # The first by itself: what it lacks is said before thousands are looked into.
        parts = []
        for some in (files[:1], files[1:]):
            found = inspect_files(
                some,
                cache_dir=locator.cache_dir,
                progress=locator.progress,
                group=self.selection.group,
            )
            parts += [with_file_dim(file, self.selection.sample_dim) for file in found]
            check_not_in_groups(parts[0])
            check_sample_dims(self.selection.sample_dim, dict(parts[0].dims), files)
        return parts

    def _coordinates(
        self, files: Sequence[Container], dim: str, cache_dir: Path
    ) -> list[NDArray[Any]]:
        some = [each for each in files if isinstance(each, NetcdfFile) and _coordinate(each, dim)]
        held = [holder(each, dim) for each in some]
        known = whole_variables(held, [dim], cache_dir=cache_dir)[dim]
        kept = {file.path: values for file, values in zip(some, known, strict=True)}
        found = (kept.get(file.path) for file in files)
        return [
            coordinate_values(file, dim) if values is None else values.reshape(-1)
            for file, values in zip(files, found, strict=True)
        ]

    def _meteorology(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]], cache_dir: Path
    ) -> Meteorology:
        files = [file for file in self._files if isinstance(file, NetcdfFile)]
        chosen = {name: name for name in self._names}
        return netcdf_meteorology(
            files, chosen, places, cache_dir=cache_dir, known=known, agreed=self._agreement
        )


class ZarrSamples(ChunkedSamples):
    """Samples of Zarr stores."""

    kind = "Zarr"
    _named_by_times = True

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[Container]:
        inspected = []
        for number, path in enumerate(files):
            inspected.append(with_file_dim(inspect_zarr(path), self.selection.sample_dim))
            check_not_in_groups(inspected[0])
            locator.progress(number + 1, len(files))
        return inspected

    def _texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        names = [name for name, why in file.skipped.items() if why == TEXTS]
        if not names or isinstance(file.path, URL):
            return {}
        with open_plainly(str(file.path)) as opened:
            return {name: opened.variables[name].dims for name in names}

    def _digests(
        self, files: Sequence[Any], names: Sequence[str], cache_dir: Path
    ) -> Mapping[str, Sequence[NDArray[Any] | None]]:
        return {
            name: [
                digest(_whole_array(file, name))
                if name in numbers_of(file) or file.skipped.get(name) == TEXTS
                else None
                for file in files
            ]
            for name in names
        }

    def _check(self, file: Container) -> None:
        for name in self._names:
            check_held(file.path, file.variables[name])

    def _check_through_library(self, variable: ChunkedVariable) -> None:
        check_through_zarr(variable)

    def _meteorology(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]], cache_dir: Path
    ) -> Meteorology:
        stores = [file for file in self._files if isinstance(file, ZarrStore)]
        chosen = {name: name for name in self._names}
        return zarr_meteorology(
            stores, _whole_array, chosen, places, known=known, agreed=self._agreement
        )

    def facts(self, path: Path) -> dict[str, Any]:
        """Return name, size of the numbers and a fingerprint of the metadata of a store."""
        store = inspect_zarr(path)
        nbytes = sum(
            int(np.prod(each.shape, dtype=np.int64)) * np.dtype(each.packing.stored).itemsize
            for each in store.variables.values()
        )
        return {
            "name": path.name,
            "zarr_format": store.zarr_format,
            "nbytes": nbytes,
            "fingerprint": metadata_fingerprint(store),
        }


def _names_along(file: Container, dim: str, values: NDArray[Any]) -> Sequence[str]:
    if isinstance(file, GribFiles):
        return file.along[dim].names
    start = f"{file.path.name} {dim}="
    if (missing := are_missing(values)).any():
        values = np.where(missing, "unknown", values.astype(str))
    if values.dtype.kind in "iuf":  # a hundred thousand: Python's own numbers are spelled faster
        return [f"{start}{value:g}" for value in values.tolist()]
    return [f"{start}{_spelled(value)}" for value in values]


def _spelled(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto")) if value == value else "unknown"
    return f"{value:g}" if isinstance(value, np.number | int | float) else str(value)
