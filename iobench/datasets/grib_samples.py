"""Samples of users' own GRIB files: one index along a dimension of the fields they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.grib.field_cubes import GribFiles, field_dims, find_fields, spell_value
from iobench.datasets.chunked_samples import ChunkedSamples
from iobench.datasets.grib_index import index_grib
from iobench.datasets.selection import check_sample_dim
from iobench.errors import FileFormatError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.grib.field_cubes import FieldCube
    from iobench.datasets.contract import Locator

__all__ = ["GribSamples"]

PRESSURE_UNITS = {"isobaricInhPa": "hPa", "isobaricInPa": "Pa"}
EPOCH = 197001010000


class GribSamples(ChunkedSamples):
    """Samples of GRIB files, float32: all files hold one set of fields.

    Dimensions are those cfgrib gives: number, time, step and the type of level by its own name
    (``level`` stands for any), then the grid's; those of length one are left out.
    """

    kind = "GRIB"

    def _inspect(self, files: Sequence[Path], locator: Locator) -> Sequence[GribFiles]:
        """Return what all files hold together; a missing or doubled message is an error."""
        index = index_grib(files, cache_dir=locator.cache_dir, progress=locator.progress)
        asked, asks_for = self.selection.variables, self.selection.asks_for
        # Those not asked for need not be complete.
        fields = find_fields(index, lambda name: not asked or asks_for(name))
        dim = check_sample_dim(self.selection.sample_dim, field_dims(fields), files)
        self.selection.check_names([field.name for field in fields])
        chosen, skipped = [], {}
        for field in fields:
            if asked and field.name not in asked:
                skipped[field.name] = "not asked for"
            elif not asks_for(field.name) and field.axis(dim) is None:
                skipped[field.name] = f"lacks the dimension {dim}"
            else:
                chosen.append(field)
        values = _values(chosen, dim)
        variables = {
            field.name: field.stored(
                dim, is_repeated=_is_repeated(field, dim, values, asked=asks_for(field.name))
            )
            for field in chosen
        }
        names = [spell_value(dim, value) for value in values]
        along = _positions(chosen, dim, values)
        units = PRESSURE_UNITS.get(dim, "")
        return [GribFiles(files[0], {dim: len(values)}, variables, skipped, along, units, names)]


def _values(fields: Sequence[FieldCube], dim: str) -> list[Any]:
    """Return the values of the sample dimension over all fields, in order."""
    each = [field.values(dim) for field in fields]
    found = set().union(*each)
    if not found:
        names = ", ".join(field.name for field in fields)
        raise OptionError(f"--sample-dim {dim}: none of the variables {names} has it")
    return sorted(found, reverse=any(own != sorted(own) for own in each))


def _positions(fields: Sequence[FieldCube], dim: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return where samples lie: valid times along time and step, else the values themselves.

    A valid time needs one step for all times, or one time for all steps; of several, along time
    it is the forecasts' start, along step the seconds since then.
    """
    if dim not in ("time", "step"):
        return np.asarray(values, dtype=np.float64)
    other = "step" if dim == "time" else "time"
    others = list({value for field in fields for value in field.values(other)})
    if len(others) != 1:
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
