"""Coordinates of samples of GRIB files: times, steps, members, levels, and the grid's places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.grib.field_cubes import spell_value
from iobench.chunks.grib.grid_description import describe_grid, describe_parameter
from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, Meteorology
from iobench.errors import IobenchError
from iobench.files.source_ranges import read_extents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.grib.field_cubes import FieldCube
    from iobench.datasets.cf_coordinates import SamplePlaces

MAX_NBYTES: Final = 1 << 26
"""Of messages that are read for the names of their parameters."""
NAMED: Final[dict[str, dict[str, Any]]] = {
    "time": {"standard_name": "forecast_reference_time", "units": TIME_UNITS},
    "valid_time": {"standard_name": "time", "units": TIME_UNITS},
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


def grib_meteorology(
    fields: Sequence[FieldCube],
    stored: Mapping[str, ChunkedVariable],
    along: Mapping[str, Sequence[Any]],
    places: SamplePlaces,
) -> Meteorology:
    """Return what GRIB messages say of samples made of them."""
    found: dict[str, Coordinate] = {}
    for dim, values in along.items():
        for name, axis in _axes(dim, values).items():
            taken = axis[places.indices[dim]]
            attributes = NAMED.get(_axis_name(fields, dim), {})
            found[name] = Coordinate(name, (SAMPLE_DIM,), taken, attributes)
    for name, values in _shared(fields).items():
        if name in found or (name == _level(fields) and "level" in along):
            continue
        if isinstance(values[0], tuple):
            for each, axis in _axes(name, values).items():
                found[each] = Coordinate(each, (name,), axis, NAMED.get(name, {}))
            continue
        axis = _axes(name, values)[name]
        if len(axis) > 1:
            found[name] = Coordinate(name, (name,), axis, NAMED.get(name, {}))
        elif name in NAMED and not (name == "number" and axis[0] < 0):
            found[name] = Coordinate(name, (), axis[0], NAMED[name])
    valid = _valid_time(found)
    if valid is not None:
        found["valid_time"] = valid
    left_out, variables = {}, {}
    try:
        for number, (field, message) in enumerate(_first_messages(fields)):
            own = stored[field.name]
            if not number:
                found |= {
                    each.name: each for each in describe_grid(message, own.dims[-_rank(own) :])
                }
            variables[field.name] = {**describe_parameter(message), "units": field.units}
    except IobenchError as error:  # the samples can be made all the same
        left_out["latitude, longitude"] = str(error)
    return Meteorology(places.dims, tuple(found.values()), variables, {}, left_out)


def _axes(dim: str, values: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return the coordinates of a dimension by name: of layers two, their tops and bottoms."""
    if isinstance(values[0], tuple):
        tops, bottoms = np.array(values).T
        return {f"{dim}_top": tops, f"{dim}_bottom": bottoms}
    return {dim: np.array([_value(dim, each) for each in values])}


def _value(dim: str, value: Any) -> Any:
    """Return a value of a dimension as its coordinate has it: times as seconds."""
    if dim != "time":
        return value
    return int(np.datetime64(spell_value("time", value)[5:], "s").astype(np.int64))


def _axis_name(fields: Sequence[FieldCube], dim: str) -> str:
    return _level(fields) if dim == "level" else dim


def _level(fields: Sequence[FieldCube]) -> str:
    return [*fields[0].axes][-1]


def _shared(fields: Sequence[FieldCube]) -> dict[str, list[Any]]:
    """Return the values of dimensions of which all fields that have them have the same."""
    found: dict[str, list[Any]] = {}
    differs = set()
    for field in fields:
        for name in field.axes:
            own = field.values(name)
            if found.setdefault(name, own) != own:
                differs.add(name)
    return {name: values for name, values in found.items() if name not in differs}


def _valid_time(found: Mapping[str, Coordinate]) -> Coordinate | None:
    """Return the times that fields are of, where start and step are known together."""
    start, step = found.get("time"), found.get("step")
    if start is None or step is None:
        return None
    seconds = np.rint(step.values.astype(np.float64) * 3600).astype(np.int64)
    if start.dims == step.dims or not start.dims or not step.dims:
        values: NDArray[Any] = np.asarray(start.values + seconds)
        return Coordinate("valid_time", start.dims or step.dims, values, NAMED["valid_time"])
    # Along dimensions of their own: that of the samples first.
    values = np.add.outer(start.values, seconds)
    dims = (*start.dims, *step.dims)
    if step.of_samples:
        dims, values = dims[::-1], values.T
    return Coordinate("valid_time", dims, values, NAMED["valid_time"])


def _first_messages(fields: Sequence[FieldCube]) -> list[tuple[FieldCube, memoryview]]:
    """Return the first message of each field, as far as they are not too many bytes."""
    rows = [int(field.rows[0]) for field in fields]
    extents = fields[0].index.extents(rows)
    total = np.cumsum([extent.nbytes for extent in extents])
    kept = max(1, int(np.searchsorted(total, MAX_NBYTES, "right")))
    return list(zip(fields[:kept], read_extents(extents[:kept]), strict=True))


def _rank(variable: ChunkedVariable) -> int:
    """Return how many dimensions of a variable are its grid's."""
    return 1 if variable.dims[-1] == "values" else 2
