"""Samples of users' own files and Zarr stores: one index along a dimension, file by file."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.chunks.assembler import read_boxes
from iobench.chunks.boxes import index_box, indexes_box
from iobench.chunks.chunk_reading import read_box, read_stored_box
from iobench.chunks.chunked_fields import ChunkedFields
from iobench.chunks.grib.field_cubes import GribFiles
from iobench.chunks.netcdf.description import describe_netcdf
from iobench.chunks.netcdf.file import NetcdfFile, read_through_library
from iobench.chunks.packing import unpack
from iobench.chunks.sampled_variable import SampledVariable, chunks_of_sample
from iobench.chunks.zarr_arrays.store import (
    ZarrStore,
    check_held,
    inspect_zarr,
    metadata_fingerprint,
)
from iobench.chunks.zarr_arrays.through_library import check_through_zarr, read_through_zarr
from iobench.datasets.cf_coordinates import SamplePlaces, netcdf_meteorology, zarr_meteorology
from iobench.datasets.contract import SampleIndex
from iobench.datasets.file_sets import (
    NO_AGREEMENT,
    agreement,
    coordinates_of,
    distinct_samples,
    holder,
    merged_files,
    mixed_units,
    variables_of_files,
    with_one_dtype,
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
from iobench.datasets.inspected_netcdf import inspect_files, whole_variables
from iobench.datasets.plain_loop import open_plainly
from iobench.datasets.positions import are_missing, exact_times
from iobench.datasets.rows import FileCoordinates, SampleRows
from iobench.files.urls import URL, range_file
from iobench.samples import SampleSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.chunks.chunked_variable import ChunkedVariable, Place
    from iobench.coordinates import Meteorology
    from iobench.datasets.contract import Arrays, Locator, Raw
    from iobench.datasets.file_sets import Order

Container = NetcdfFile | ZarrStore | GribFiles
Digest = Callable[[NDArray[Any]], NDArray[Any]]
TEXTS: Final = "not numeric"
"""Why arrays of texts are left out."""


def _text_or_numbers(file: ZarrStore, name: str) -> NDArray[Any]:
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
    variable = numbers_of(file).get(dim)
    is_one = variable is not None and not variable.dims and file.dims.get(dim) == 1
    return variable if variable is not None and (is_one or variable.dims == (dim,)) else None


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
        values = read_through_library(file, variable, dim=dim, index=index)
    else:
        values = read_through_zarr(variable, axis=variable.axis(dim), index=index)
    if len(places) < 2:
        return values
    left = [each for each in variable.dims if each != dim]
    return np.asarray(values[tuple(places.get(each, slice(None)) for each in left)])


class ChunkedSamples(ChunkedFields):
    """Reads and decodes samples of files of one container, dtypes as xarray decodes them.

    Samples are counted file after file. Files are put in the order of their coordinate along the
    sample dimension where that orders them (no overlap; times, or one unit): they are then one row
    of samples. Else, as with forecasts that all have the same lead times, they stay in the order
    given and each is a row of its own. See `SampleRows`.
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
        self._agreement = NO_AGREEMENT
        self._cache_dir = Path()
        self._sampled: dict[int, list[SampledVariable]] = {}

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[Container]:
        """Return what the files hold; the sample dimension is looked for in the first one first."""
        raise NotImplementedError

    def _whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> Mapping[str, Sequence[NDArray[Any] | None]]:
        """Return variables of each file by name, or digests of them; None where it lacks one."""
        raise NotImplementedError

    def _texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        """Return the dimensions of the texts that a file has."""
        return {}

    def _check(self, file: Container) -> None:
        """Check what a file claims of the chosen variables."""

    def _labels(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]]
    ) -> Meteorology:
        """Return coordinates, those along samples as ``known`` of each file, and attributes."""
        raise NotImplementedError

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the samples; files whose schemas differ are an error."""
        self._cache_dir = locator.cache_dir
        inspected = self._inspect(files, locator)
        dims = check_sample_dims(self.selection.sample_dim, dict(inspected[0].dims), files)
        self._dims = dims
        inspected = self._joined(inspected)
        first = inspected[0]
        self._names, skipped = choose_variables(first, self.selection, dims)
        check_same_schema(inspected, self._names, dims)
        self.notes = (*self.notes, *mixed_units(inspected, self._names))
        stored_variables = [first.variables[name] for name in self._names]
        self._axes = {each.name: tuple(each.axis(dim) for dim in dims) for each in stored_variables}
        chosen = [file.variables[name] for file in inspected for name in self._names]
        if any(each.only_library for each in chosen):
            self.fused = ("read", "decode")
        for file in inspected:
            self._check(file)
        self._find_chunks(self.sample_dim, chosen)
        stored = {dim: self._stored(inspected, dim) for dim in dims}
        along = [self._along(inspected, dim, stored[dim]) for dim in dims]
        indexes = None
        if len(dims) == 1 and along[0].is_time:
            flags = self._distinct(inspected, along[0].values)
            with_samples = [number for number, each in enumerate(flags) if each.any()]
            inspected = [inspected[number] for number in with_samples]
            stored = {dims[0]: [stored[dims[0]][number] for number in with_samples]}
            indexes = [np.flatnonzero(flags[number]) for number in with_samples]
            parts = zip(stored[dims[0]], indexes, strict=True)
            along = [self._along(inspected, dims[0], [part[each] for part, each in parts])]
        rows = SampleRows(dims, along, indexes)
        self._files = tuple(inspected[number] for number in rows.order)
        places = rows.where.rows.T
        labels = self._labels(
            SamplePlaces(dims, places[0], dict(zip(dims, places[1:], strict=True))),
            {dim: [parts[number] for number in rows.order] for dim, parts in stored.items()},
        )
        names = self._sample_names(rows, along)
        facts: dict[str, Any] = {"sample_dim": self.sample_dim, "skipped": skipped}
        if self.notes:
            facts["notes"] = list(self.notes)
        index = SampleIndex(
            SampleSpec(
                tuple(sample_variable(each, self.selection, dims) for each in stored_variables)
            ),
            rows.where,
            coordinate=names,
            axes=rows.axes,
            provenance=facts,
            meteorology=labels,
        )
        if len(dims) > 1:
            return index
        (axis,) = rows.axes
        one = {"positions": axis.positions, "position_units": axis.units, "rows": axis.rows}
        return replace(index, axes=(), **one)

    def _joined(self, files: Sequence[Container]) -> Sequence[Container]:
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
            self._whole,
            are_places=all(file.dims[dim] == 1 for file in files for dim in self._dims),
        )

        def places(some: Sequence[Container]) -> list[bytes]:
            keys = [b""] * len(some)
            for dim in self._dims:
                own = self._along(some, dim, self._stored(some, dim))
                values = exact_times(own.values) if own.is_time else own.values
                for number, each in enumerate(values):
                    keys[number] += each.tobytes() + b"|"
            return keys

        self.notes = (*self.notes, *notes, *wider, *self._agreement.notes)
        return merged_files(files, names, self._dims, places)

    def _along(
        self, files: Sequence[Container], dim: str, stored: Sequence[NDArray[Any]]
    ) -> FileCoordinates:
        """Return the coordinate of files along a dimension, by what is stored of it."""
        variables = [_coordinate(file, dim) for file in files]
        units, calendars = (
            [None if each is None else each.attributes.get(name, "") for each in variables]
            for name in ("units", "calendar")
        )
        return FileCoordinates(stored, units, calendars)

    def _stored(self, files: Sequence[Container], dim: str) -> list[NDArray[Any]]:
        """Return the coordinate of each file along a dimension, or the indices without one."""
        some = [file for file in files if _coordinate(file, dim)]
        held = [holder(file, dim) for file in some]
        values = self._whole(held, [dim])[dim] if held else []
        by_path = {file.path: own for file, own in zip(some, values, strict=True)}
        parts = (by_path.get(file.path) for file in files)
        return [
            np.arange(file.dims[dim]) if own is None else own.reshape(-1)
            for file, own in zip(files, parts, strict=True)
        ]

    def _distinct(
        self, files: Sequence[Container], times: Sequence[NDArray[Any]]
    ) -> list[NDArray[np.bool_]]:
        """Return which samples of each file no file before has."""

        def scalars(file: Container) -> dict[str, float]:
            names = [name for name, each in file.variables.items() if not each.dims]
            numbers = {name: self._whole([holder(file, name)], [name])[name][0] for name in names}
            return {name: float(value) for name, value in numbers.items() if value is not None}

        flags, note = distinct_samples(
            files, exact_times(times), self._sample, scalars, self._dims[0]
        )
        self.notes = (*self.notes, *[note] * bool(note))
        return np.split(flags, np.cumsum([len(part) for part in times])[:-1])

    def _sample(self, file: Container, index: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample, read by itself."""
        sample = {}
        for name in self._names:
            each, held = file.variables[name], holder(file, name)
            if each.only_library:
                sample[name] = _through_library(held, each, self._dims, [index])
            else:
                sample[name] = read_box(
                    index_box(range_file(held.path), each, self._axes[name][0], index)
                )
        return self._in_order(file, sample)

    def _in_order(self, file: Container, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Return the arrays of a sample in the order of the first file's coordinates."""
        ordered = dict(arrays)
        if self.orders:
            for name, values in arrays.items():
                dims = [dim for dim in file.variables[name].dims if dim not in self._dims]
                ordered[name] = self._agreement.in_order(file, name, values, dims)
        return ordered

    def _sample_names(self, rows: SampleRows, along: Sequence[FileCoordinates]) -> list[str]:
        """Return names of samples: along one dimension by their file, along several by all."""
        if len(self._dims) == 1:
            (own,) = along
            values = own.values if self._named_by_times else own.stored
            return [
                name
                for file, number in zip(self._files, rows.order, strict=True)
                for name in _names_along(f"{file.path.name} {self._dims[0]}=", values[number])
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

    def read(self, where: tuple[int, ...]) -> Any:
        """Return the sample's bytes; the arrays themselves where the library must read them."""
        number, *indexes = where
        file = self._files[number]
        variables = [file.variables[name] for name in self._names]
        if self.fused:
            values = [
                _through_library(holder(file, each.name), each, self._dims, indexes)
                for each in variables
            ]
            return self._in_order(file, dict(zip(self._names, values, strict=True)))
        paths, axes = self._range_files(file), self._axes
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
        unpacked = {
            name: unpack(stored, variables[name].packing, row)
            for name, stored, row in zip(self._names, raw.arrays(rows), rows, strict=True)
        }
        return self._in_order(file, unpacked) if is_aligned else unpacked

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

    def chunks_of(self, where: tuple[int, ...]) -> list[tuple[SampledVariable, Place]]:
        """Return the chunks that a sample takes; none where only a library can read them."""
        if self.fused or self.orders:
            return []
        number, *indexes = where
        if number not in self._sampled:
            file = self._files[number]
            variables = map(file.variables.__getitem__, self._names)
            self._sampled[number] = [
                SampledVariable(path, each, self._dims)
                for path, each in zip(self._range_files(file), variables, strict=True)
            ]
        return chunks_of_sample(self._sampled[number], indexes)


class NetcdfSamples(ChunkedSamples):
    """Samples of NetCDF files."""

    kind = "NetCDF"

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[Container]:
        # The first by itself: what it lacks is said before thousands are looked into.
        group, dim = self.selection.group, self.selection.sample_dim
        parts: list[Container] = []
        for some in (files[:1], files[1:]):
            inspected = inspect_files(
                some, cache_dir=self._cache_dir, progress=locator.progress, group=group
            )
            parts += [with_file_dim(file, dim) for file in inspected]
            check_not_in_groups(parts[0])
            check_sample_dims(dim, dict(parts[0].dims), files)
        return parts

    def _whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> Mapping[str, Sequence[NDArray[Any] | None]]:
        return whole_variables(files, names, cache_dir=self._cache_dir, digest=digest)

    def _texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        if not any(why.startswith(TEXTS) for why in file.skipped.values()):
            return {}
        described = describe_netcdf(file.path, file.group).variables
        return {name: each.dims for name, each in described.items() if each.texts is not None}

    def _labels(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]]
    ) -> Meteorology:
        files: Any = self._files
        return netcdf_meteorology(
            files,
            dict(zip(self._names, self._names, strict=True)),
            places,
            cache_dir=self._cache_dir,
            known=known,
            agreed=self._agreement,
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

    def _whole(
        self, files: Sequence[Any], names: Sequence[str], *, digest: Digest | None = None
    ) -> Mapping[str, Sequence[NDArray[Any] | None]]:
        by_name: dict[str, list[NDArray[Any] | None]] = {name: [] for name in names}
        for file, name in itertools.product(files, names):
            values = None
            if name in numbers_of(file) or file.skipped.get(name) == TEXTS:
                values = _text_or_numbers(file, name)
                values = values if digest is None else digest(values)
            by_name[name].append(values)
        return by_name

    def _texts(self, file: Any) -> dict[str, tuple[str, ...]]:
        names = [name for name, why in file.skipped.items() if why == TEXTS]
        if not names or isinstance(file.path, URL):
            return {}
        with open_plainly(str(file.path)) as opened:
            return {name: opened.variables[name].dims for name in names}

    def _check(self, file: Container) -> None:
        for name in self._names:
            check_held(file.path, file.variables[name])
            if file.variables[name].only_library:
                check_through_zarr(file.variables[name])

    def _labels(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]]
    ) -> Meteorology:
        stores: Any = self._files
        chosen = dict(zip(self._names, self._names, strict=True))
        return zarr_meteorology(
            stores, self._whole, chosen, places, known=known, agreed=self._agreement
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


def _names_along(start: str, values: NDArray[Any]) -> Sequence[str]:
    if (missing := are_missing(values)).any():
        values = np.where(missing, "unknown", values.astype(str))
    if values.dtype.kind in "iuf":  # a hundred thousand: Python's own numbers are spelled faster
        return [f"{start}{value:g}" for value in values.tolist()]
    return [f"{start}{_spelled(value)}" for value in values]


def _spelled(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto")) if value == value else "unknown"
    return f"{value:g}" if isinstance(value, np.number | int | float) else str(value)
