"""Samples of users' own GRIB files: one index along a dimension of the fields they hold.

With the index of GRIB files, which is kept, and the coordinates of samples: times, steps, members,
levels, and the grid's places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.grib.decoding import load_eccodes
from iobench.chunks.grib.field_cubes import (
    GribFiles,
    field_dims,
    find_fields,
    spell_value,
    undescribed_messages,
)
from iobench.chunks.grib.grid_description import describe_grid, describe_parameter
from iobench.chunks.grib.message_index import GribIndex, inspect_messages, joined_index
from iobench.coordinates import SAMPLE_DIM, TIME_UNITS, Coordinate, SampleLabels
from iobench.datasets.catalogue import Inspection, catalogued
from iobench.datasets.containers import Container
from iobench.datasets.contract import Progress, no_progress
from iobench.datasets.file_variables import check_sample_dims, lacking
from iobench.datasets.positions import FileCoordinates
from iobench.errors import FileFormatError, IobenchError, OptionError
from iobench.files.ranges import read_extents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.grib.field_cubes import FieldCube
    from iobench.datasets.file_labels import SamplePlaces

INDEX_VERSION: Final = 4
MAX_MESSAGE_NBYTES: Final = 1 << 26
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


PRESSURE_UNITS = {"isobaricInhPa": "hPa", "isobaricInPa": "Pa"}
EPOCH = 197001010000


def index_grib(
    files: Sequence[Path], *, cache_dir: Path, progress: Progress = no_progress
) -> GribIndex:
    """Index GRIB files; an index is built once per file and kept."""
    codes = load_eccodes()
    inspection = Inspection(
        f"grib {INDEX_VERSION}, ecCodes {codes.codes_get_api_version()}",
        inspect_messages,
        (GribIndex,),
    )
    indexes = catalogued(files, inspection, cache_dir=cache_dir, progress=progress)
    return joined_index(indexes)


class GribMessages(Container):
    """Samples of GRIB files, float32: all files hold one set of fields.

    Dimensions are those cfgrib gives: number, time, step and the type of level by its own name
    (``level`` stands for any), then the grid's; those of length one are left out.
    """

    kind = "GRIB"
    _fields: Sequence[FieldCube] = ()
    _along: Mapping[str, Sequence[Any]] = {}  # the values of each sample dimension

    def inspect(self, files: Sequence[Path]) -> Sequence[GribFiles]:
        """Return what all files hold together; a missing or doubled message is an error."""
        locator = self.locator
        index = index_grib(files, cache_dir=locator.cache_dir, progress=locator.progress)
        named, asks_for = self.selection.variables, self.selection.asks_for
        # Those not asked for need not be complete.
        fields = find_fields(index, lambda name: not named or asks_for(name))
        dims = check_sample_dims(self.selection.sample_dim, field_dims(fields), files)
        self.selection.check_names([field.name for field in fields], {})
        self.notes = undescribed_messages(index)
        chosen, skipped = [], {}
        for field in fields:
            there = [dim for dim in dims if field.axis(dim) is not None]
            if named and field.name not in named:
                skipped[field.name] = "not asked for"
            elif not asks_for(field.name) and len(there) < len(dims):
                skipped[field.name] = lacking(dims, there)
            else:
                chosen.append(field)
                if len({field.axis(dim) for dim in there}) < len(there):
                    raise OptionError(
                        f"--sample-dim {','.join(dims)}: level is another name of one of them"
                    )
        self._fields, self._along = chosen, {dim: _values(chosen, dim, dims) for dim in dims}
        variables = {
            field.name: field.stored(
                dim
                for dim, values in self._along.items()
                if not _is_repeated(field, dim, values, is_named=asks_for(field.name))
            )
            for field in chosen
        }
        lengths = {dim: len(values) for dim, values in self._along.items()}
        return [GribFiles(files[0], lengths, variables, skipped)]

    def along(self, files: Sequence[Any], dim: str) -> FileCoordinates:
        """Return where samples lie: valid times along time and step, else the values themselves.

        A valid time needs one step for all times, or one time for all steps; of several, or where
        samples are along both, along time it is the forecasts' start, along step the seconds since
        then.
        """
        values, units = self._along[dim], PRESSURE_UNITS.get(dim, "")
        if dim not in ("time", "step"):
            tops = [value[0] if isinstance(value, tuple) else value for value in values]
            return FileCoordinates([np.asarray(tops, dtype=np.float64)], [units], [""])
        other = "step" if dim == "time" else "time"
        others = list({value for field in self._fields for value in field.values(other)})
        if len(others) != 1 or other in self._along:
            others = [0 if dim == "time" else EPOCH]
        times, steps = (values, others) if dim == "time" else (others, values)
        starts = np.array([spell_value("time", value)[5:] for value in times], "datetime64[ms]")
        hours = np.array(steps, dtype=np.float64)
        valid = starts + np.rint(hours * 3_600_000).astype("timedelta64[ms]")
        return FileCoordinates([valid], [units], [""])

    def labels(
        self,
        files: Sequence[Any],
        names: Sequence[str],
        places: SamplePlaces,
        same: frozenset[str],
    ) -> SampleLabels:
        """Return coordinates and attributes of the samples."""
        fields, stored = self._fields, files[0].variables
        coordinates: dict[str, Coordinate] = {}
        level = [*fields[0].axes][-1]
        for dim, values in self._along.items():
            attributes = NAMED.get(level if dim == "level" else dim, {})
            for name, axis in _axes(dim, values).items():
                taken = axis[places.indices[dim]]
                coordinates[name] = Coordinate(name, (SAMPLE_DIM,), taken, attributes)
        for dim in dict.fromkeys(name for field in fields for name in field.axes):
            own = [field.values(dim) for field in fields if dim in field.axes]
            if dim in self._along or (dim == level and "level" in self._along):
                continue
            if any(values != own[0] for values in own):
                continue
            attributes = NAMED.get(dim, {})
            for name, axis in _axes(dim, own[0]).items():
                if len(axis) > 1 or name != dim:
                    coordinates[name] = Coordinate(name, (dim,), axis, attributes)
                elif dim in NAMED and not (dim == "number" and axis[0] < 0):
                    coordinates[name] = Coordinate(name, (), axis[0], attributes)
        if (valid := _valid_time(coordinates)) is not None:
            coordinates["valid_time"] = valid
        left_out, variables = {}, {}
        try:
            for number, (field, message) in enumerate(_first_messages(fields)):
                if not number:
                    dims = stored[field.name].dims
                    grid = dims[-1:] if dims[-1] == "values" else dims[-2:]
                    coordinates |= {each.name: each for each in describe_grid(message, grid)}
                variables[field.name] = {**describe_parameter(message), "units": field.units}
        except IobenchError as error:  # the samples can be made all the same
            left_out["latitude, longitude"] = str(error)
        return SampleLabels(places.dims, tuple(coordinates.values()), variables, {}, left_out)


def _values(fields: Sequence[FieldCube], dim: str, dims: Sequence[str]) -> list[Any]:
    """Return the values of a sample dimension over all fields, in order."""
    each = [field.values(dim) for field in fields]
    every = set().union(*each)
    if not every:
        names = ", ".join(field.name for field in fields)
        has = "it" if len(dims) == 1 else dim
        raise OptionError(f"--sample-dim {','.join(dims)}: none of the variables {names} has {has}")
    return sorted(every, reverse=any(own != sorted(own) for own in each))


def _is_repeated(field: FieldCube, dim: str, values: Sequence[Any], *, is_named: bool) -> bool:
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


def _axes(dim: str, values: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return the coordinates of a dimension by name: times as seconds; of layers two."""
    if isinstance(values[0], tuple):
        tops, bottoms = np.array(values).T
        return {f"{dim}_top": tops, f"{dim}_bottom": bottoms}
    if dim == "time":
        spelled = [spell_value("time", each)[5:] for each in values]
        return {dim: np.array(spelled, "datetime64[s]").astype(np.int64)}
    return {dim: np.array(values)}


def _valid_time(coordinates: Mapping[str, Coordinate]) -> Coordinate | None:
    """Return the times that fields are of, where start and step are known together."""
    start, step = coordinates.get("time"), coordinates.get("step")
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
    n_fields = max(1, int(np.searchsorted(total, MAX_MESSAGE_NBYTES, "right")))
    return list(zip(fields[:n_fields], read_extents(extents[:n_fields]), strict=True))
