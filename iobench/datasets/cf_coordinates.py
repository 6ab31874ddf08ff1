"""Coordinates of samples as the CF conventions find them in files, whatever their container.

They are found in the first file, and read where files may differ. Source: CF conventions 1.11,
chapters 4 (coordinate types), 5 (coordinate systems, grid mappings) and 7.1 (bounds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.chunks.netcdf.description import (
    NOT_KEPT,
    DescribedFile,
    DescribedVariable,
    describe_netcdf,
)
from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, Meteorology, json_attributes
from iobench.datasets.file_sets import (
    HORIZONTAL,
    MAX_NBYTES,
    holder,
    is_far,
    same_values,
)
from iobench.datasets.file_variables import numbers_of
from iobench.datasets.inspected_netcdf import whole_variables
from iobench.datasets.positions import decode_times, seconds_since_1970
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.chunks.zarr_store import ZarrStore

ByFile = Mapping[str, Sequence["NDArray[Any] | None"]]
"""What each file has of variables, by name; None where it lacks one."""

MAX_BOUNDS_NBYTES: Final = 1 << 24
MAX_COMPARED_NBYTES: Final = 1 << 20
"""Coordinates up to this size are compared in all files; larger ones in the first and last."""


class SamplePlaces(msgspec.Struct, frozen=True, eq=False):
    """Where each sample is in the files of a source."""

    dims: tuple[str, ...]  # the sample dimensions, slowest first
    files: NDArray[np.int64]  # (samples,): The number of its file
    # (samples,): Its index along each sample dimension of that file
    indices: Mapping[str, NDArray[np.int64]]

    def taken(self, dims: Sequence[str], parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the value of each sample of a variable that each file has along ``dims``."""
        own = [dim for dim in self.dims if dim in dims]
        order = [*map(dims.index, own), *(n for n, dim in enumerate(dims) if dim not in own)]
        turned = [part.transpose(order) for part in parts]
        if len(turned) == 1 and own:
            return np.asarray(turned[0][tuple(self.indices[dim] for dim in own)])
        shape = (len(self.files), *turned[0].shape[len(own) :])
        values = np.empty(shape, dtype=np.result_type(*turned))
        by_file = np.argsort(self.files, kind="stable")
        ends = np.searchsorted(self.files[by_file], np.arange(len(parts) + 1))
        for number, part in enumerate(turned):
            samples = by_file[ends[number] : ends[number + 1]]
            at = tuple(self.indices[dim][samples] for dim in own)
            values[samples] = part[at] if own else part
        return values


class LeftOutError(IobenchError):
    """Why samples do not have a coordinate of their source."""


def netcdf_meteorology(
    files: Sequence[NetcdfFile],
    chosen: Mapping[str, str],
    places: SamplePlaces,
    *,
    cache_dir: Path,
    known: Mapping[str, Sequence[NDArray[Any]]] | None = None,
    windows: Mapping[str, slice] | None = None,
    same: frozenset[str] = frozenset(),
) -> Meteorology:
    """Return what NetCDF files of one grid say of the samples made of them.

    Parameters
    ----------
    chosen : mapping of str to str
        Variables of samples by their names in files; ``""`` for those that samples do not have.
    cache_dir : Path
        Where inspections are kept.
    known : mapping of str to sequence of ndarray, optional
        What each file is known to have of variables.
    windows : mapping of str to slice, optional
        What samples take of dimensions, where that is not all.
    same : frozenset of str, optional
        Coordinates that are known to be the same in all files.
    """
    paths = dict.fromkeys([files[0].path, *(each.path for each in files[0].others.values())])
    try:
        every = [describe_netcdf(path, files[0].group) for path in paths]
    except IobenchError as error:  # the samples can be made all the same
        return Meteorology(places.dims, left_out={"all": str(error)})
    variables = {name: one for each in reversed(every) for name, one in each.variables.items()}

    def read(some: Sequence[NetcdfFile], names: Sequence[str]) -> ByFile:
        if not files[0].others:
            return whole_variables(some, names, cache_dir=cache_dir)
        by_name: dict[str, Sequence[NDArray[Any] | None]] = {}
        for name in names:
            held = [holder(file, name) for file in some]
            by_name |= whole_variables(held, [name], cache_dir=cache_dir)
        return by_name

    described = replace(every[0], variables=variables)
    return _Coordinates(
        files, described, read, chosen, places, known or {}, windows or {}, same
    ).labels()


def zarr_meteorology(
    stores: Sequence[ZarrStore],
    whole: Callable[[Sequence[Any], Sequence[str]], ByFile],
    chosen: Mapping[str, str],
    places: SamplePlaces,
    *,
    known: Mapping[str, Sequence[NDArray[Any]]],
    same: frozenset[str],
) -> Meteorology:
    """Return likewise what Zarr stores say; ``whole`` returns numbers of arrays."""
    first = stores[0]
    variables = {
        name: DescribedVariable(
            each.dims, each.shape, json_attributes(first.described[name], without=NOT_KEPT)
        )
        for name, each in numbers_of(first).items()
    }
    described = DescribedFile(variables, json_attributes(first.attributes))
    return _Coordinates(stores, described, whole, chosen, places, known, {}, same).labels()


class _Coordinates:
    """The coordinates of the chosen variables of files."""

    def __init__(
        self,
        files: Sequence[Any],
        described: DescribedFile,
        read_stored: Callable[[Sequence[Any], Sequence[str]], ByFile],
        chosen: Mapping[str, str],
        places: SamplePlaces,
        known: Mapping[str, Sequence[NDArray[Any]]],
        windows: Mapping[str, slice],
        same: frozenset[str],
    ) -> None:
        self.files, self.described, self.read_stored = files, described, read_stored
        self.variables = described.variables
        self.chosen, self.places, self.windows, self.same = chosen, places, windows, same
        self.known = {name: parts for name, parts in known.items() if name in self.variables}
        self.has_files = bool(places.files.size) and int(places.files.max()) > 0
        self.left_out: dict[str, str] = {}
        self.parents: dict[str, str] = {}  # of bounds
        own = [self.variables[name].dims for name in chosen if name in self.variables]
        self.dims = set(places.dims).union(*own)

    def labels(self) -> Meteorology:
        """Return the coordinates, and attributes of the chosen variables."""
        return Meteorology(
            sample_dims=self.places.dims,
            coordinates=tuple(self._coordinates()),
            variables={
                name: self.variables[own].attributes
                for own, name in self.chosen.items()
                if name and own in self.variables
            },
            attributes=self.described.attributes,
            left_out=self.left_out,
        )

    def _coordinates(self) -> list[Coordinate]:
        """Return those of dimensions first, then the others, then what belongs to these."""
        names = self._names()
        moving = [name for name in names if self._is_moving(name)]
        unread = [n for n in moving if n not in self.known and self.variables[n].is_number]
        parts: dict[str, Any] = {**dict.fromkeys(unread), **self.known}
        if unread and not is_far(self.files):
            for name, own in self.read_stored(self.files, unread).items():
                parts[name] = None if any(part is None for part in own) else list(own)
        coordinates = []
        for name in names:
            each = self.variables[name]
            values: Any = parts.get(name)
            if each.texts is not None and not self.has_files:
                values = [each.texts]
            try:
                if SAMPLE_DIM in set(each.dims) - set(self.places.dims):
                    raise LeftOutError(f"along a dimension called {SAMPLE_DIM!r}, as samples are")
                if name not in moving:
                    coordinates.append(self._static(name))
                elif values is None:
                    raise LeftOutError("not read in every file")
                else:
                    coordinates.append(self._moving(name, values))
            except IobenchError as error:  # a coordinate that cannot be read ends no conversion
                self.left_out[name] = str(error)
        return coordinates

    def _is_moving(self, name: str) -> bool:
        """Whether samples may have values of their own: along their dimension, or by file."""
        each = self.variables[name]
        if self._is_of_file(name) or not set(each.dims).isdisjoint(self.places.dims):
            return True
        is_number = each.is_number and "grid_mapping_name" not in each.attributes
        return self.has_files and not each.dims and is_number

    def _is_of_file(self, name: str) -> bool:
        """Whether samples are along a number that each file has one of."""
        return name in self.places.dims and not self.variables[name].dims

    def _names(self) -> list[str]:
        """Return the names of the coordinates, each once, those they need after them."""
        variables = self.variables
        names = dict.fromkeys(
            name
            for name, each in variables.items()
            if name in self.dims and (each.dims == (name,) or self._is_of_file(name))
        )
        listed: list[str] = []
        for name in self.chosen:
            attributes = variables[name].attributes if name in variables else {}
            listed += _words(attributes.get("coordinates"))
            mappings = _words(attributes.get("grid_mapping"))  # "crs", or "crs: x y latlon: lat"
            listed += [each[:-1] for each in mappings if each.endswith(":")] or mappings[:1]
        listed += _words(self.described.attributes.get("coordinates"))
        listed += [name for name, each in variables.items() if self._looks_like_one(each)]
        for name in listed:
            self._add(names, name)
        for name in list(names):
            attributes = variables[name].attributes
            for other in _words(attributes.get("bounds")) + _words(attributes.get("climatology")):
                self._add(names, other, bounds=True)
                self.parents[other] = name
            for other in _words(attributes.get("formula_terms"))[1::2]:
                self._add(names, other)
        return list(names)

    def _add(self, names: dict[str, None], name: str, *, bounds: bool = False) -> None:
        each = self.variables.get(name)
        if each is None or name in self.chosen or name in names:
            return
        if not set(each.dims[:-1] if bounds else each.dims) <= self.dims:
            return
        nbytes = 8 * int(np.prod(each.shape, dtype=np.int64))
        if not each.is_number and each.texts is None and each.dims:
            self.left_out[name] = "neither numbers nor texts"
        elif nbytes > (MAX_BOUNDS_NBYTES if bounds else MAX_NBYTES):
            self.left_out[name] = f"{nbytes} bytes, more than a store keeps of a coordinate"
        else:
            names[name] = None

    def _looks_like_one(self, each: DescribedVariable) -> bool:
        """Whether a variable says where points are, though nothing names it as a coordinate."""
        words = (each.attributes.get("units"), each.attributes.get("standard_name"))
        is_horizontal = any(isinstance(one, str) and one in HORIZONTAL for one in words)
        is_mapping = "grid_mapping_name" in each.attributes and not each.dims
        return is_mapping or (is_horizontal and set(each.dims) <= self.dims)

    def _of_all(self, name: str) -> NDArray[Any]:
        """Return the values of a variable that all files are to agree on."""
        files = self.files
        first = self.read_stored(files[:1], [name])[name][0]
        if first is None:
            raise LeftOutError(f"not read in {files[0].path.name}")
        compared = files[1:] if name not in self.same else []
        if first.nbytes > MAX_COMPARED_NBYTES or is_far(files):
            compared = compared[-1:]
        others = self.read_stored(compared, [name])[name] if compared else []
        for file, other in zip(compared, others, strict=True):
            if other is None or not same_values(first, other):
                raise LeftOutError(f"{file.path.name} has others than {files[0].path.name}")
        return first

    def _static(self, name: str) -> Coordinate:
        """Return a coordinate that all samples have alike."""
        each = self.variables[name]
        attributes = dict(each.attributes)
        if each.texts is not None:
            read: NDArray[Any] = each.texts
        elif not each.is_number or "grid_mapping_name" in attributes:
            read = np.zeros(each.shape, dtype=np.int32)  # a grid mapping is its attributes
        else:
            read = self._of_all(name)
        if read.dtype.kind == "M":
            read = _seconds(read.reshape(-1)).reshape(read.shape)
            attributes["units"] = TIME_UNITS
        window = tuple(self.windows.get(dim, slice(None)) for dim in each.dims)
        return Coordinate(name, each.dims, read[window], attributes)

    def _moving(self, name: str, parts: Sequence[NDArray[Any]]) -> Coordinate:
        """Return a coordinate of which each sample has a value, or all have the same one."""
        each, attributes = self.variables[name], dict(self.variables[name].attributes)
        if parts[0].dtype.kind == "M":
            parts = [_seconds(part.reshape(-1)).reshape(part.shape) for part in parts]
            attributes["units"] = TIME_UNITS
        of_times = self.parents.get(name, name)
        owners = [file.variables[of_times] for file in self.files if of_times in file.variables]
        texts = [one.attributes for one in owners]
        units = [(one.get("units", ""), one.get("calendar", "")) for one in texts]
        values = list(parts)
        if len(set(units)) > 1:
            values, times = _in_seconds(parts, units)
            attributes |= {} if name in self.parents else times
        values = values if each.dims else [part.reshape(()) for part in values]
        same = not each.dims and all(np.array_equal(part, values[0]) for part in values)
        if same and not self._is_of_file(name):
            return Coordinate(name, (), values[0], attributes)
        rest = tuple(dim for dim in each.dims if dim not in self.places.dims)
        window = (slice(None), *(self.windows.get(dim, slice(None)) for dim in rest))
        taken = self.places.taken(each.dims, values)[window]
        return Coordinate(name, (SAMPLE_DIM, *rest), taken, attributes)


def _words(text: Any) -> list[str]:
    return text.split() if isinstance(text, str) else []


def _in_seconds(
    parts: Sequence[NDArray[Any]], units: Sequence[tuple[str, str]]
) -> tuple[list[NDArray[Any]], dict[str, str]]:
    """Return the times of files that count otherwise in one unit, and its attributes."""
    decoded = [
        decode_times(np.atleast_1d(part).reshape(-1), unit, calendar)
        for part, (unit, calendar) in zip(parts, units, strict=True)
    ]
    times = [each for each in decoded if each is not None]
    kinds = {getattr(each[0], "calendar", "") for each in times if len(each)}
    if len(times) < len(parts) or len(kinds) > 1:
        raise LeftOutError("of several units or calendars in its files")
    calendar = next(iter({each for _, each in units}), "")
    attributes = {"units": TIME_UNITS, **({"calendar": calendar} if calendar else {})}
    values = [_seconds(one).reshape(part.shape) for one, part in zip(times, parts, strict=True)]
    return values, attributes


def _seconds(times: NDArray[Any]) -> NDArray[Any]:
    """Return times as seconds since 1970 of their calendar: whole, or fractions with NaN."""
    seconds = seconds_since_1970(times.astype("M8[us]") if times.dtype.kind == "M" else times)
    is_whole = bool((seconds % 1 == 0).all())  # NaN is none
    return seconds.astype(np.int64) if is_whole else seconds
