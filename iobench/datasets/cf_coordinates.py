"""Coordinates of samples as the CF conventions find them in a source, whatever its container.

Source: CF conventions 1.11, chapters 4 (coordinate types), 5 (coordinate systems, grid mappings)
and 7.1 (bounds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, Meteorology
from iobench.datasets.positions import decode_times
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.netcdf.description import DescribedFile, DescribedVariable

MAX_NBYTES: Final = 1 << 28
"""Of one coordinate that is kept: two of 16 million points each make a large grid."""
MAX_BOUNDS_NBYTES: Final = 1 << 24
HORIZONTAL: Final = frozenset({
    "degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN",
    "degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE",
    "latitude", "longitude",
})  # fmt: skip
"""Units and standard names of places (CF conventions 1.11, sections 4.1 and 4.2)."""


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
        by_file = np.argsort(self.files, kind="stable")
        ends = np.searchsorted(self.files[by_file], np.arange(len(parts) + 1))
        shape = (len(self.files), *turned[0].shape[len(own) :])
        found = np.empty(shape, dtype=np.result_type(*turned))
        for number, part in enumerate(turned):
            chosen = by_file[ends[number] : ends[number + 1]]
            at = tuple(self.indices[dim][chosen] for dim in own)
            found[chosen] = part[at] if own else part
        return found


class SourceValues(msgspec.Struct, frozen=True, eq=False):
    """How the values of variables are read."""

    # returns the values of a variable in the first file, decoded
    first: Callable[[str], NDArray[Any]]
    # returns the values of variables, by name, in each file, in the order of `SamplePlaces`; of a
    # variable that one lacks None
    each: Callable[[Sequence[str]], Mapping[str, Sequence[NDArray[Any]] | None]]
    # returns units and calendar of a variable in each file
    units: Callable[[str], Sequence[tuple[str, str]]]
    # what each file is known to have
    known: Mapping[str, Sequence[NDArray[Any]]] = msgspec.field(default_factory=dict)


def cf_meteorology(
    file: DescribedFile,
    chosen: Mapping[str, str],
    places: SamplePlaces,
    values: SourceValues,
    *,
    windows: Mapping[str, slice] | None = None,
) -> Meteorology:
    """Return what a source says of its samples."""
    collector = _Collector(file, chosen, places, values, windows or {})
    coordinates = collector.coordinates()
    return Meteorology(
        sample_dims=places.dims,
        coordinates=tuple(coordinates),
        variables={
            name: file.variables[own].attributes
            for own, name in chosen.items()
            if name and own in file.variables
        },
        attributes=file.attributes,
        left_out=collector.left_out,
    )


class LeftOutError(IobenchError):
    """Why samples do not have a coordinate of their source."""


class _Collector:
    """Finds the coordinates of the chosen variables and reads them."""

    def __init__(
        self,
        file: DescribedFile,
        chosen: Mapping[str, str],
        places: SamplePlaces,
        values: SourceValues,
        windows: Mapping[str, slice],
    ) -> None:
        self.file, self.chosen, self.places = file, chosen, places
        self.values, self.windows = values, windows
        self.left_out: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self.dims = set(places.dims)
        for name in chosen:
            if name in file.variables:
                self.dims.update(file.variables[name].dims)

    def coordinates(self) -> list[Coordinate]:
        """Return them: those of dimensions first, then the others, then what belongs to these."""
        names = self._named()
        moving = [name for name in names if self._is_moving(name)]
        unread = [
            name
            for name in moving
            if name not in self.values.known and self._variable(name).is_number
        ]
        parts: dict[str, Any] = {**self.values.known}
        if unread:
            parts.update(self.values.each(unread))
        found = []
        for name in names:
            try:
                texts = self._variable(name).texts
                if SAMPLE_DIM in set(self._variable(name).dims) - set(self.places.dims):
                    self.left_out[name] = f"along a dimension called {SAMPLE_DIM!r}, as samples are"
                elif name not in moving:
                    found.append(self._static(name))
                elif texts is not None and not self._has_files:
                    found.append(self._moving(name, [texts]))
                elif parts.get(name) is None:
                    self.left_out[name] = "not read in every file"
                else:
                    found.append(self._moving(name, parts[name]))
            except IobenchError as error:  # a coordinate that cannot be read ends no conversion
                self.left_out[name] = str(error)
        return found

    def _is_moving(self, name: str) -> bool:
        """Whether samples may have values of their own: along their dimension, or by file."""
        if self._is_of_file(name):
            return True
        each = self._variable(name)
        if not set(each.dims).isdisjoint(self.places.dims):
            return True
        is_number = each.is_number and "grid_mapping_name" not in each.attributes
        return self._has_files and not each.dims and is_number

    def _is_of_file(self, name: str) -> bool:
        """Whether samples are along a number that each file has one of."""
        return name in self.places.dims and not self._variable(name).dims

    @property
    def _has_files(self) -> bool:
        return bool(self.places.files.size) and int(self.places.files.max()) > 0

    def _variable(self, name: str) -> DescribedVariable:
        return self.file.variables[name]

    def _named(self) -> list[str]:
        """Return the names of the coordinates, each once, those they need behind them."""
        variables = self.file.variables
        names = dict.fromkeys(
            name
            for name, each in variables.items()
            if name in self.dims and (each.dims == (name,) or self._is_of_file(name))
        )
        told: list[str] = []
        for name in self.chosen:
            attributes = variables[name].attributes if name in variables else {}
            told += _words(attributes.get("coordinates"))
            told += _grid_mappings(attributes.get("grid_mapping"))
        told += _words(self.file.attributes.get("coordinates"))
        told += [name for name, each in variables.items() if self._looks_like_one(each)]
        for name in told:
            self._add(names, name)
        for name in list(names):
            attributes = self._variable(name).attributes
            for key in ("bounds", "climatology"):
                for other in _words(attributes.get(key)):
                    self._add(names, other, bounds=True)
                    self.parents[other] = name
            for other in _words(attributes.get("formula_terms"))[1::2]:
                self._add(names, other)
        return list(names)

    def _add(self, names: dict[str, None], name: str, *, bounds: bool = False) -> None:
        each = self.file.variables.get(name)
        if each is None or name in self.chosen or name in names:
            return
        dims = each.dims[:-1] if bounds else each.dims
        if not set(dims) <= self.dims:
            return
        if not each.is_number and each.texts is None and each.dims:
            self.left_out[name] = "neither numbers nor texts"
            return
        nbytes = 8 * int(np.prod(each.shape, dtype=np.int64))
        if nbytes > (MAX_BOUNDS_NBYTES if bounds else MAX_NBYTES):
            self.left_out[name] = f"{nbytes} bytes, more than a store keeps of a coordinate"
            return
        names[name] = None

    def _looks_like_one(self, each: DescribedVariable) -> bool:
        """Whether a variable tells where points are, though nothing names it as a coordinate."""
        told = (each.attributes.get("units"), each.attributes.get("standard_name"))
        is_horizontal = any(isinstance(one, str) and one in HORIZONTAL for one in told)
        is_mapping = "grid_mapping_name" in each.attributes and not each.dims
        return is_mapping or (is_horizontal and set(each.dims) <= self.dims)

    def _attributes(self, name: str) -> dict[str, Any]:
        return dict(self._variable(name).attributes)

    def _static(self, name: str) -> Coordinate:
        each = self._variable(name)
        if each.texts is not None:
            read: NDArray[Any] = each.texts
        elif not each.is_number or "grid_mapping_name" in each.attributes:
            read = np.zeros(each.shape, dtype=np.int32)  # a grid mapping is its attributes
        else:
            read = self.values.first(name)
        attributes = self._attributes(name)
        if read.dtype.kind == "M":
            read = _seconds(read.reshape(-1)).reshape(read.shape)
            attributes["units"] = TIME_UNITS
        window = tuple(self.windows.get(dim, slice(None)) for dim in each.dims)
        return Coordinate(name, each.dims, read[window], attributes)

    def _moving(self, name: str, parts: Sequence[NDArray[Any]]) -> Coordinate:
        """Return a coordinate of which each sample has a value, or all have the same one."""
        each, attributes = self._variable(name), self._attributes(name)
        if parts[0].dtype.kind == "M":
            parts = [_seconds(part.reshape(-1)).reshape(part.shape) for part in parts]
            attributes["units"] = TIME_UNITS
        values, times = _times_in_one_unit(parts, self.values.units(self.parents.get(name, name)))
        if times is None:
            raise LeftOutError("of several units or calendars in its files")
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


def _grid_mappings(text: Any) -> list[str]:
    """Return the variables that ``crs`` or ``crs: x y latlon: lat lon`` name."""
    words = _words(text)
    mappings = [word.rstrip(":") for word in words if word.endswith(":")]
    return mappings or words[:1]


def _times_in_one_unit(
    parts: Sequence[NDArray[Any]], units: Sequence[tuple[str, str]]
) -> tuple[list[NDArray[Any]], dict[str, str] | None]:
    """Return the values of files in one unit, and the attributes that are new by that, or None."""
    given = list(parts)
    if len(set(units)) <= 1:
        return given, {}
    shapes = [part.shape for part in given]
    decoded: list[NDArray[Any]] = []
    for part, (unit, calendar) in zip(given, units, strict=True):
        times = decode_times(np.atleast_1d(part).reshape(-1), unit, calendar)
        if times is None or times.dtype.kind not in "MO":
            return given, None
        decoded.append(times)
    kinds = {getattr(part[0], "calendar", "") for part in decoded if len(part)}
    if len(kinds) > 1:
        return given, None
    whole = [_seconds(part) for part in decoded]
    attributes = {"units": TIME_UNITS}
    calendar = next(iter({each for _, each in units}), "")
    if calendar:
        attributes["calendar"] = calendar
    return [part.reshape(shape) for part, shape in zip(whole, shapes, strict=True)], attributes


def _seconds(times: NDArray[Any]) -> NDArray[Any]:
    """Return times as seconds since 1970 of their calendar: whole, or fractions with NaN."""
    if times.dtype.kind == "M":
        micro = times.astype("datetime64[us]").astype(np.int64)
        if (missing := np.isnat(times)).any():
            return np.where(missing, np.nan, micro / 1e6)
    else:
        epoch = type(times[0])(1970, 1, 1) if len(times) else None
        micro = np.array([_microseconds(time - epoch) for time in times], dtype=np.int64)
    return micro // 10**6 if not (micro % 10**6).any() else micro / 1e6


def _microseconds(apart: Any) -> int:
    return int((apart.days * 86400 + apart.seconds) * 10**6 + apart.microseconds)
