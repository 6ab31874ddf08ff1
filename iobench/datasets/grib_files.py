"""GRIB files of the user's own as one source file: fields, and where and when they are.

Dimensions are those cfgrib gives: number, time, step and the type of level by its own name, then
the grid's; those of length one are left out. Where variables have other values of one, as other
levels, the second set is ``isobaricInhPa_2``, as cdo counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.chunked_variable import ChunkedVariable
from iobench.chunks.grib.field_cubes import (
    describe_grid,
    describe_parameter,
    field_dims,
    find_fields,
    spell_value,
    undescribed_messages,
)
from iobench.chunks.packing import Packing
from iobench.chunks.source_file import SourceFile
from iobench.datasets.file_variables import check_sample_dims, lacking
from iobench.datasets.source_files import index_grib
from iobench.errors import FileFormatError, OptionError
from iobench.files.ranges import read_extents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.grib.field_cubes import FieldCube
    from iobench.datasets.file_variables import Selection
    from iobench.datasets.locate import Locator

    Values = tuple[tuple[str, ...], NDArray[Any]]  # of a coordinate, with its dimensions

MAX_MESSAGE_NBYTES: Final = 1 << 26  # of messages that are read for the names of their parameters
PLACES: Final = ("latitude", "longitude")
NAMED: Final[dict[str, dict[str, str]]] = {
    "time": {"standard_name": "forecast_reference_time"},
    "valid_time": {"standard_name": "time"},
    "step": {"standard_name": "forecast_period", "units": "hours"},
    "number": {"standard_name": "realization"},
    "isobaricInhPa": {"standard_name": "air_pressure", "units": "hPa", "positive": "down"},
    "isobaricInPa": {"standard_name": "air_pressure", "units": "Pa", "positive": "down"},
    "heightAboveGround": {"standard_name": "height", "units": "m", "positive": "up"},
    "heightAboveSea": {"standard_name": "height_above_mean_sea_level", "units": "m"},
    "hybrid": {"standard_name": "atmosphere_hybrid_sigma_pressure_coordinate"},
    "depthBelowLand": {"standard_name": "depth", "units": "m", "positive": "down"},
}
"""Attributes as cfgrib gives them: ``time`` is a forecast's start."""


def inspect_grib(
    files: Sequence[Path], selection: Selection, locator: Locator
) -> tuple[SourceFile, tuple[str, ...]]:
    """Return what all files hold together, and notes; a missing or doubled message is an error."""
    index = index_grib(files, cache_dir=locator.cache_dir, progress=locator.progress)
    # Those not asked for need not be complete.
    fields = find_fields(index, lambda name: not selection.variables or selection.asks_for(name))
    dims = check_sample_dims(selection.sample_dim, field_dims(fields), files)
    selection.check_names([field.name for field in fields], {})
    chosen, skipped = [], {}
    for field in fields:
        there = [dim for dim in dims if dim in field.axes]
        if selection.variables and field.name not in selection.variables:
            skipped[field.name] = "not asked for"
        elif not selection.asks_for(field.name) and len(there) < len(dims):
            skipped[field.name] = lacking(dims, there)
        else:
            chosen.append(field)
    along = {dim: _values(chosen, dim, dims) for dim in dims}
    variables, sets = {}, dict[str, list[list[Any]]]()
    for field in chosen:
        is_named = selection.asks_for(field.name)
        own = [
            dim for dim, values in along.items() if not _is_repeated(field, dim, values, is_named)
        ]
        names = {
            dim: _own_dim(sets, dim, each.tolist())
            for dim, each in field.axes.items()
            if len(each) > 1 and dim not in own
        }
        variables[field.name] = field.stored(own, names)
    coordinates, described = _coordinates(chosen, along, sets)
    for number, (field, message) in enumerate(_first_messages(chosen)):
        if not number:
            own_dims = variables[field.name].dims
            grid = own_dims[-1:] if own_dims[-1] == "values" else own_dims[-2:]
            for each in describe_grid(message, grid):
                coordinates[each.name] = each.dims, each.values
                described[each.name] = each.attributes
        described[field.name] = {**describe_parameter(message), "units": field.units}
    notes = undescribed_messages(index)
    grids = index["gridHash"][[field.rows[0] for field in chosen]]
    if (others := np.flatnonzero(grids != grids[0])).size:
        coordinates = {n: own for n, own in coordinates.items() if n not in PLACES}
        notes += (
            f"{chosen[others[0]].name} is on another grid than {chosen[0].name}: latitudes and "
            "longitudes are left out; --variables chooses those of one grid",
        )
    source = SourceFile(
        path=files[0],
        dims={dim: len(values) for dim, values in along.items()},
        variables=variables,
        skipped=skipped,
        kind="GRIB",
        coordinates={
            name: ChunkedVariable(
                name, own, values.shape, Packing(values.dtype.str, values.dtype.str), 0,
                {key: text for key, text in described[name].items() if isinstance(text, str)},
                values=values,
            )
            for name, (own, values) in coordinates.items()
        },
        described=described,
    )  # fmt: skip
    return source, notes


def _values(fields: Sequence[FieldCube], dim: str, dims: Sequence[str]) -> list[Any]:
    """Return the values of a sample dimension over all fields, in order."""
    each = [field.values(dim) for field in fields]
    every = set().union(*each)
    if not every:
        names = ", ".join(field.name for field in fields)
        has = "it" if len(dims) == 1 else dim
        raise OptionError(f"--sample-dim {','.join(dims)}: none of the variables {names} has {has}")
    return sorted(every, reverse=any(own != sorted(own) for own in each))


def _is_repeated(field: FieldCube, dim: str, values: Sequence[Any], is_named: bool) -> bool:
    """Return whether every sample has all of a field; raise where some samples would lack it."""
    own = field.values(dim)
    if own == list(values) or not own:
        return not own
    if len(own) == 1 and is_named:
        return True
    missing = [value for value in values if value not in own]
    hint = " (named there, a variable with one value is repeated in every sample)"
    raise FileFormatError(
        f"{field.name} lacks {len(missing)} of {len(values)} values of {dim}, the first: "
        f"{spell_value(dim, missing[0])}; add the files that hold them, or choose with "
        f"--variables{hint if len(own) == 1 else ''}"
    )


def _own_dim(sets: dict[str, list[list[Any]]], dim: str, values: list[Any]) -> str:
    """Return the name of a dimension of these values; ``sets`` has all those of each."""
    known = sets.setdefault(dim, [])
    if values not in known:
        known.append(values)
    number = 1 + known.index(values)
    return dim if number == 1 else f"{dim}_{number}"


def _coordinates(
    fields: Sequence[FieldCube],
    along: Mapping[str, Sequence[Any]],
    sets: dict[str, list[list[Any]]],
) -> tuple[dict[str, Values], dict[str, Mapping[str, Any]]]:
    """Return the coordinates of all dimensions, or that all fields share, and their attributes."""
    shared = [(dim, dim, values) for dim, values in along.items()]
    for dim in dict.fromkeys(name for field in fields for name in field.axes):
        own = [field.values(dim) for field in fields if dim in field.axes]
        if dim not in {*along, *sets} and all(values == own[0] for values in own):
            shared.append((dim, dim, own[0]))
    for dim, several in sets.items():
        shared += [(dim, _own_dim(sets, dim, values), values) for values in several]
    coordinates: dict[str, Values] = {}
    described: dict[str, Mapping[str, Any]] = {}
    for kind, dim, values in shared:
        attributes = NAMED.get(kind, {})
        for name, axis in _axes(kind, dim, values).items():
            if dim in along or len(axis) > 1 or name != dim:
                coordinates[name] = (dim,), axis
            elif kind in NAMED and not (kind == "number" and axis[0] < 0):
                coordinates[name] = (), np.asarray(axis[0])
            described[name] = attributes
    if "time" in coordinates and "step" in coordinates:
        (start_dims, starts), (step_dims, steps) = coordinates["time"], coordinates["step"]
        seconds = np.rint(steps.astype(np.float64) * 3600).astype("m8[s]")
        times = np.add.outer(starts, seconds)
        coordinates["valid_time"] = (*start_dims, *step_dims), np.asarray(times)
        described["valid_time"] = NAMED["valid_time"]
    return coordinates, described


def _axes(kind: str, dim: str, values: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return the coordinates of a dimension by name; of layers two."""
    if isinstance(values[0], tuple):
        tops, bottoms = np.array(values).T
        return {f"{dim}_top": tops, f"{dim}_bottom": bottoms}
    if kind == "time":
        spelled = [spell_value("time", each)[5:] for each in values]
        return {dim: np.array(spelled, "datetime64[s]")}
    return {dim: np.array(values)}


def _first_messages(fields: Sequence[FieldCube]) -> list[tuple[FieldCube, memoryview]]:
    """Return the first message of each field, as far as they are not too many bytes."""
    extents = fields[0].index.extents([int(field.rows[0]) for field in fields])
    total = np.cumsum([extent.nbytes for extent in extents])
    n_fields = max(1, int(np.searchsorted(total, MAX_MESSAGE_NBYTES, "right")))
    return list(zip(fields[:n_fields], read_extents(extents[:n_fields]), strict=True))
