"""Labels of samples of NetCDF files and Zarr stores: coordinates, and attributes of variables.

xarray tells which variables of the first file are coordinates, bounds and grid mappings, by the CF
conventions; they are read where files may differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, SampleLabels
from iobench.datasets.file_sets import HORIZONTAL, MAX_NBYTES, digest, is_far, same_values
from iobench.datasets.file_variables import numbers_of
from iobench.datasets.positions import decode_parts, seconds_since_1970
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.netcdf.description import Description

Whole = Callable[..., Mapping[str, Sequence["NDArray[Any] | None"]]]

MAX_BOUNDS_NBYTES: Final = 1 << 24
RELATIONS: Final = frozenset(
    {"coordinates", "bounds", "climatology", "grid_mapping", "formula_terms", "cell_measures"}
)
"""Attributes that name other variables."""


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


def labels_of_files(
    files: Sequence[Any],
    describe: Callable[[Any], Description],
    whole: Whole,
    chosen: Mapping[str, str],
    places: SamplePlaces,
    *,
    same: frozenset[str] = frozenset(),
) -> SampleLabels:
    """Return what files of one grid say of the samples made of them.

    Parameters
    ----------
    describe : callable
        Returns what a file says of itself.
    whole : callable
        ``whole(files, names, digest=None)`` returns by name what each file has, or digests of it.
    chosen : mapping of str to str
        Variables of samples by their names in files; ``""`` for those that samples do not have.
    same : frozenset of str, optional
        Coordinates that are known to be the same in all files.
    """
    try:
        described = describe(files[0])
    except IobenchError as error:  # the samples can be made all the same
        return SampleLabels(places.dims, left_out={"all": str(error)})
    return _FileLabels(files, described, whole, chosen, places, same).labels()


class _FileLabels:
    """The coordinates of the chosen variables of files, as the first one is described."""

    def __init__(
        self,
        files: Sequence[Any],
        described: Description,
        whole: Whole,
        chosen: Mapping[str, str],
        places: SamplePlaces,
        same: frozenset[str],
    ) -> None:
        self.files, self.described, self.whole = files, described, whole
        self.chosen, self.places, self.same = chosen, places, same
        self.attributes, self.texts = described.variables, described.texts
        numbers = numbers_of(files[0])
        shapes = {name: (each.dims, each.shape) for name, each in numbers.items()}
        shapes |= {name: (dims, values.shape) for name, (dims, values) in self.texts.items()}
        self.shapes = {
            name: dict(zip(dims, shape, strict=True))
            for name, (dims, shape) in shapes.items()
            if len(set(dims)) == len(dims)
        }
        self.has_files = bool(places.files.size) and int(places.files.max()) > 0
        own = [numbers[name].dims for name in chosen if name in numbers]
        self.dims = set(places.dims).union(*own)
        self.left_out: dict[str, str] = {}
        self.parents = {  # of bounds
            self.attributes[name][key]: name
            for name in self.shapes
            for key in ("bounds", "climatology")
            if isinstance(self.attributes[name].get(key), str)
        }

    def labels(self) -> SampleLabels:
        """Return the coordinates, and attributes of the chosen variables."""
        names = self._names()
        moving = [name for name in names if self._is_moving(name)]
        read = [name for name in moving if name in self.places.dims or not is_far(self.files)]
        parts = self.whole(self.files, read)
        coordinates = []
        for name in names:
            try:
                if SAMPLE_DIM in self.shapes[name].keys() - set(self.places.dims):
                    raise LeftOutError(f"along a dimension called {SAMPLE_DIM!r}, as samples are")
                values = [each for each in parts.get(name, ()) if each is not None]
                if name not in moving:
                    values = [self._of_all(name)]
                elif len(values) < len(self.files):
                    raise LeftOutError("not read in every file")
                coordinates.append(self._coordinate(name, values, is_moving=name in moving))
            except IobenchError as error:  # a coordinate that cannot be read ends no conversion
                self.left_out[name] = str(error)
        return SampleLabels(
            sample_dims=self.places.dims,
            coordinates=tuple(coordinates),
            variables={
                name: self.attributes[own]
                for own, name in self.chosen.items()
                if name and own in self.attributes
            },
            attributes=self.described.attributes,
            left_out=self.left_out,
        )

    def _names(self) -> list[str]:
        """Return the names of coordinates, those of dimensions first."""
        names = [
            name
            for name, shape in self.shapes.items()
            if name in self.dims and (shape.keys() == {name} or self._is_of_file(name))
        ]
        related = coordinate_names(self.shapes, self.attributes, self.described.attributes)
        for name, shape in self.shapes.items():
            own = self.attributes[name]
            is_place = {str(own.get(key)) for key in ("units", "standard_name")} & HORIZONTAL
            if name not in related and not is_place and "grid_mapping_name" not in own:
                continue
            is_bounds = name in self.parents
            dims = [*shape][:-1] if is_bounds else shape
            if name in self.chosen or name in names or not self.dims.issuperset(dims):
                continue
            nbytes = 8 * int(np.prod([*shape.values()], dtype=np.int64))
            if nbytes <= (MAX_BOUNDS_NBYTES if is_bounds else MAX_NBYTES):
                names.append(name)
            else:
                self.left_out[name] = f"{nbytes} bytes, more than a store keeps of a coordinate"
        return names

    def _is_of_file(self, name: str) -> bool:
        """Whether samples are along a number that each file has one of."""
        return name in self.places.dims and not self.shapes[name]

    def _is_mapping(self, name: str) -> bool:
        """Whether it is a grid mapping, which is its attributes."""
        return "grid_mapping_name" in self.attributes[name]

    def _is_moving(self, name: str) -> bool:
        """Whether samples may have values of their own: along their dimension, or by file."""
        if self._is_of_file(name) or not self.shapes[name].keys().isdisjoint(self.places.dims):
            return True
        is_number = name not in self.texts and not self._is_mapping(name)
        return self.has_files and not self.shapes[name] and is_number

    def _of_all(self, name: str) -> NDArray[Any]:
        """Return the values of a variable that all files are to agree on."""
        if self._is_mapping(name):
            return np.zeros([*self.shapes[name].values()], dtype=np.int32)
        if name in self.texts:
            return self.texts[name][1]
        first = self.whole(self.files[:1], [name])[name][0]
        if first is None:
            raise LeftOutError(f"not read in {self.files[0].path.name}")
        compared = self.files[1:] if name not in self.same else []
        compared = compared[-1:] if is_far(self.files) else compared
        digests = self.whole(compared, [name], digest=digest)[name]
        for file, own in zip(compared, digests, strict=True):
            if own is not None and own.tobytes() == digest(first).tobytes():
                continue
            other = self.whole([file], [name])[name][0]
            if other is None or not same_values(first, other):
                raise LeftOutError(f"{file.path.name} has others than {self.files[0].path.name}")
        return first

    def _coordinate(self, name: str, parts: list[NDArray[Any]], *, is_moving: bool) -> Coordinate:
        """Return a coordinate of which each sample has a value, or all have the same one."""
        dims, attributes = tuple(self.shapes[name]), dict(self.attributes[name])
        if parts[0].dtype.kind == "M":
            parts = [_seconds(part) for part in parts]
            attributes["units"] = TIME_UNITS
        of_times = self.parents.get(name, name)
        owners = [numbers_of(file).get(of_times) for file in self.files] if is_moving else []
        texts = [one.attributes for one in owners if one is not None]
        units = [(one.get("units", ""), one.get("calendar", "")) for one in texts]
        if len(set(units)) > 1:
            times = decode_parts(parts, *zip(*units, strict=True))
            if times is None:
                raise LeftOutError("of several units or calendars in its files")
            parts = [_seconds(each) for each in times]
            if name not in self.parents:
                calendar = {"calendar": units[0][1]} if units[0][1] else {}
                attributes |= {"units": TIME_UNITS, **calendar}
        parts = parts if dims else [part.reshape(()) for part in parts]
        same = not dims and all(np.array_equal(part, parts[0]) for part in parts)
        if not is_moving or (same and not self._is_of_file(name)):
            return Coordinate(name, dims, parts[0], attributes)
        rest = tuple(dim for dim in dims if dim not in self.places.dims)
        values = self.places.taken(dims, parts)
        return Coordinate(name, (SAMPLE_DIM, *rest), values, attributes)


def coordinate_names(
    shapes: Mapping[str, Mapping[str, int]],
    attributes: Mapping[str, Mapping[str, Any]],
    of_file: Mapping[str, Any],
) -> frozenset[str]:
    """Return which variables xarray takes for coordinates, bounds, grid mappings, by attributes."""
    if all(RELATIONS.isdisjoint(own) for own in (of_file, *attributes.values())):
        return frozenset()
    import xarray  # which takes half a second

    variables = {
        name: xarray.Variable(
            [*shape],
            np.broadcast_to(np.int8(0), [*shape.values()]),
            {key: each for key, each in attributes[name].items() if isinstance(each, str)},
        )
        for name, shape in shapes.items()
    }
    for related in ("all", "coordinates"):  # the second where a grid mapping is misspelled
        with warnings.catch_warnings(), suppress(ValueError):
            warnings.simplefilter("ignore")  # of names that are not there
            _, _, names = xarray.conventions.decode_cf_variables(
                variables, of_file, decode_times=False, mask_and_scale=False,
                concat_characters=False, decode_coords=related,
            )  # fmt: skip
            return frozenset(names)
    return frozenset()


def _seconds(times: NDArray[Any]) -> NDArray[Any]:
    """Return times as seconds since 1970 of their calendar: whole, or fractions with NaN."""
    flat = times.reshape(-1)
    seconds = seconds_since_1970(flat.astype("M8[us]") if times.dtype.kind == "M" else flat)
    is_whole = bool((seconds % 1 == 0).all())  # NaN is none
    return (seconds.astype(np.int64) if is_whole else seconds).reshape(times.shape)
