"""Samples of users' own GRIB files: one index along a dimension of the fields they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.grib.field_cubes import (
    GribCoordinate,
    GribFiles,
    field_dims,
    find_fields,
    spell_value,
    undescribed_messages,
)
from iobench.coordinates import Meteorology
from iobench.datasets.chunked_samples import ChunkedSamples
from iobench.datasets.file_variables import check_sample_dims, lacking
from iobench.datasets.grib_coordinates import grib_meteorology
from iobench.datasets.grib_index import index_grib
from iobench.errors import FileFormatError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.chunked_variable import ChunkedVariable
    from iobench.chunks.grib.field_cubes import FieldCube
    from iobench.datasets.cf_coordinates import SamplePlaces
    from iobench.datasets.contract import Locator

PRESSURE_UNITS = {"isobaricInhPa": "hPa", "isobaricInPa": "Pa"}
EPOCH = 197001010000


class GribSamples(ChunkedSamples):
    """Samples of GRIB files, float32: all files hold one set of fields.

    Dimensions are those cfgrib gives: number, time, step and the type of level by its own name
    (``level`` stands for any), then the grid's; those of length one are left out.
    """

    kind = "GRIB"
    _found: (
        tuple[Sequence[FieldCube], Mapping[str, ChunkedVariable], Mapping[str, Sequence[Any]]]
        | None
    ) = None

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[GribFiles]:
        """Return what all files hold together; a missing or doubled message is an error."""
        index = index_grib(files, cache_dir=locator.cache_dir, progress=locator.progress)
        asked, asks_for = self.selection.variables, self.selection.asks_for
        # Those not asked for need not be complete.
        fields = find_fields(index, lambda name: not asked or asks_for(name))
        dims = check_sample_dims(self.selection.sample_dim, field_dims(fields), files)
        self.selection.check_names([field.name for field in fields], {})
        self.notes = undescribed_messages(index)
        chosen, skipped = [], {}
        for field in fields:
            there = [dim for dim in dims if field.axis(dim) is not None]
            if asked and field.name not in asked:
                skipped[field.name] = "not asked for"
            elif not asks_for(field.name) and len(there) < len(dims):
                skipped[field.name] = lacking(dims, there)
            else:
                chosen.append(field)
                if len({field.axis(dim) for dim in there}) < len(there):
                    raise OptionError(
                        f"--sample-dim {','.join(dims)}: level is another name of one of them"
                    )
        values = {dim: _values(chosen, dim, dims) for dim in dims}
        variables = {
            field.name: field.stored(
                dim
                for dim, along in values.items()
                if not _is_repeated(field, dim, along, asked=asks_for(field.name))
            )
            for field in chosen
        }
        along = {
            dim: GribCoordinate(
                _positions(chosen, dim, own, dims),
                PRESSURE_UNITS.get(dim, ""),
                [spell_value(dim, value) for value in own],
            )
            for dim, own in values.items()
        }
        lengths = {dim: len(own) for dim, own in values.items()}
        self._found = chosen, variables, values
        return [GribFiles(files[0], lengths, variables, skipped, along)]

    def _meteorology(
        self, places: SamplePlaces, known: Mapping[str, Sequence[NDArray[Any]]], cache_dir: Path
    ) -> Meteorology:
        found, self._found = self._found, None  # the index is not for the workers
        return Meteorology(places.dims) if found is None else grib_meteorology(*found, places)


def _values(fields: Sequence[FieldCube], dim: str, dims: Sequence[str]) -> list[Any]:
    """Return the values of a sample dimension over all fields, in order."""
    each = [field.values(dim) for field in fields]
    found = set().union(*each)
    if not found:
        names = ", ".join(field.name for field in fields)
        has = "it" if len(dims) == 1 else dim
        raise OptionError(f"--sample-dim {','.join(dims)}: none of the variables {names} has {has}")
    return sorted(found, reverse=any(own != sorted(own) for own in each))


def _positions(
    fields: Sequence[FieldCube], dim: str, values: Sequence[Any], dims: Sequence[str]
) -> NDArray[Any]:
    """Return where samples lie: valid times along time and step, else the values themselves.

    A valid time needs one step for all times, or one time for all steps; of several, or where
    samples are along both, along time it is the forecasts' start, along step the seconds since
    then.
    """
    if dim not in ("time", "step"):
        tops = [value[0] if isinstance(value, tuple) else value for value in values]
        return np.asarray(tops, dtype=np.float64)
    other = "step" if dim == "time" else "time"
    others = list({value for field in fields for value in field.values(other)})
    if len(others) != 1 or other in dims:
        others = [0 if dim == "time" else EPOCH]
    start, steps = (values, others) if dim == "time" else (others, values)
    starts = np.array([spell_value("time", value)[5:] for value in start], "datetime64[ms]")
    hours = np.array(steps, dtype=np.float64)
    valid: NDArray[Any] = starts + np.rint(hours * 3_600_000).astype("timedelta64[ms]")
    return valid


def _is_repeated(field: FieldCube, dim: str, values: Sequence[Any], *, asked: bool) -> bool:
    """Return whether every sample has all of a field; raise where some samples would lack it."""
    own = field.values(dim)
    if own == list(values) or not own:
        return not own
    if len(own) == 1 and asked:
        return True
    missing = [value for value in values if value not in own]
    hint = " (named there, a variable with one value is repeated in every sample)"
    raise FileFormatError(
        f"{field.name} lacks {len(missing)} of {len(values)} values of {dim}, the first: "
        f"{spell_value(dim, missing[0])}; add the files that hold them, or choose with "
        f"--variables{hint if len(own) == 1 else ''}"
    )
