"""The toy data set of application A4: ENS-10's ensemble over Europe, on pressure levels.

No training code of it is published; a sample is made as the D2.3 U-Net's of ENS-10 is (an
assumption): mean and deviation over the members of every variable at every level, normalised.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.datasets import (
    Axis,
    Items,
    Key,
    Option,
    Recipe,
    RecipeVariable,
    SampleIndex,
    define_axes,
    range_file,
    smooth_values,
    whole_variable,
    writing_library,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.ens10 import files as archive
from iobench_maelstrom.ens10.point_statistics import PointStatistics, normalisation_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Arrays, FileKey, Locator, NetcdfFile, PluginCall
    from iobench.samples import Sample

STAND_IN_VERSION = 2
"""Counts up when the same seed gives other bytes."""
NAMES = tuple(each.name for each in archive.PRESSURE_VARIABLES)
ALL_YEARS = tuple(range(1998, 2008))
MEMBERS = 5
STEPS = (0, 24)
SHAPE = (40, 80)
"""Europe, 0.5 degrees apart: 60 to 40.5 north, 0 to 39.5 east."""
DEFAULT_MONTHS = ("01", "07")
DEFAULT_YEARS: tuple[int, ...] = (1998, 1999)
NOISE = 0.86


def plan_of_months(*, scale: float | None, tiny: bool, seed: int) -> archive.Ensemble:
    """Return the plan of a size: tiny, the profile's default, or a share of all samples."""
    years, n_members, shape = DEFAULT_YEARS, MEMBERS, SHAPE
    if tiny or scale is None:
        by_month = [_in_month(archive.ALL_DATES, month) for month in DEFAULT_MONTHS]
        dates = tuple(date for some in by_month for date in some[: 2 if tiny else None])
    else:
        dates, years = archive.share_of(scale, ALL_YEARS)
    if tiny:
        n_members, shape = 3, (10, 20)
    keys = tuple({"date": month} for month in archive.ALL_MONTHS if _in_month(dates, month))
    return archive.Ensemble(seed, keys, 0, tiny, dates, years, STEPS, n_members, shape)


def _in_month(dates: tuple[str, ...], month: str) -> tuple[str, ...]:
    return tuple(date for date in dates if date[:2] == month)


def month_nbytes(plan: archive.Ensemble, month: str) -> int:
    """Return about the bytes of a month's file."""
    n_starts = len(plan.years) * len(_in_month(plan.dates, month))
    n_fields = len(archive.PRESSURE_VARIABLES) * plan.n_members * len(STEPS) * len(archive.LEVELS)
    return n_starts * n_fields * plan.shape[0] * plan.shape[1] * 4 + (32 << 10)


def write_month(plan: archive.Ensemble, month: str, path: Path) -> None:
    """Write one month's file as xarray writes what cfgrib decodes: contiguous float32."""
    starts = [(year, date) for year in plan.years for date in _in_month(plan.dates, month)]
    times = [np.datetime64(f"{year}-{date[:2]}-{date[2:]}", "s") for year, date in starts]
    latitudes, longitudes = (40 / plan.shape[1] * np.arange(length) for length in plan.shape)
    axes = {
        "number": (np.arange(plan.n_members), "1"),
        "time": (np.array(times).astype(np.int64), "seconds since 1970-01-01"),
        "step": (np.array(STEPS, dtype=np.float64), "hours"),
        "isobaricInhPa": (np.array(archive.LEVELS, dtype=np.float64), "hPa"),
        "latitude": (60.0 - latitudes, "degrees_north"),
        "longitude": (longitudes, "degrees_east"),
    }
    with writing_library("netCDF4", "maelstrom-ens5mini").Dataset(path, "w") as file:
        define_axes(file, axes, calendar="proleptic_gregorian")
        for variable in archive.PRESSURE_VARIABLES:
            stored = file.createVariable(
                variable.name, "f4", tuple(axes), contiguous=True, fill_value=np.float32(np.nan)
            )
            stored.setncatts({"units": variable.units, "long_name": variable.long_name})
        for number, (year, date) in enumerate(starts):
            for variable, (step, hours) in itertools.product(
                archive.PRESSURE_VARIABLES, enumerate(STEPS)
            ):
                what = plan.seed, STAND_IN_VERSION, variable.name, year, int(date), hours
                low, high = np.array(variable.ranges)[:, :, None, None].swapaxes(0, 1)
                shape = (plan.n_members, len(archive.LEVELS), *plan.shape)
                fields = smooth_values(shape, low, high, *what, noise=NOISE)
                file[variable.name][:, number, step] = fields


HOURS = {"nanosecond": 1 / 3.6e12, "second": 1 / 3600, "minute": 1 / 60, "hour": 1.0, "day": 24.0}
"""Of the units that a step may have."""


class Ens5mini(PluginFiles, Recipe):
    """The toy data set of ENS-10."""

    example = "date=01"

    name = "maelstrom-ens5mini"
    title = "ENS5-mini ensemble forecasts over Europe, pressure levels, step 24 h (MAELSTROM A4)"
    url = f"{archive.BUCKET_URL}/toy/ens5mini.{{date}}.nc"
    keys = (Key("date", archive.ALL_MONTHS),)
    options = (
        Option(
            "date",
            "Months as upstream, MM (or MMDD, YYYYMMDD, of which the month counts), separated by "
            "commas. By default all whose files are found.",
            (),
            archive.ALL_MONTHS,
            many=True,
            parse=archive.start_month,
        ),
        Option("dtype", "Pressure levels; there are no others.", "pl", ("pl",)),
    )
    axes = tuple(
        Axis(dim) for dim in ("number", "time", "step", "isobaricInhPa", "latitude", "longitude")
    )
    fields = tuple(RecipeVariable(each.name, each.units) for each in archive.PRESSURE_VARIABLES)
    sample_dim = "time"
    time_unit = "D"
    terms_of_use = archive.TERMS
    citation = archive.CITATION
    synthesis_version = STAND_IN_VERSION

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.lead: tuple[int, ...] = ()
        self._statistics: PointStatistics | None = None

    def check(self, file: NetcdfFile, first: NetcdfFile) -> None:
        """Raise FileFormatError where a file is of another schema, or has other levels or steps."""
        super().check(file, first)
        levels = whole_variable(file, "isobaricInhPa").tolist()
        if levels != list(archive.LEVELS):
            text = " ".join(f"{level:g}" for level in levels)
            raise FileFormatError(
                f"{file.path}: isobaricInhPa is {text}, expected "
                + " ".join(map(str, archive.LEVELS))
            )

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        index = super().samples(files, locator)
        dims = self.opened[0].dims
        lengths = [dims[dim] for dim in ("isobaricInhPa", "latitude", "longitude")]
        self._statistics = normalisation_of(
            self.name,
            self.members_of,
            index.where,
            [range_file(file) for file in files],
            locator,
            sizes=(len(NAMES), dims["number"], int(np.prod(lengths))),
        )
        provenance = {
            "starts": [start.replace("-", "") for start in index.coordinate],
            "normalisation": self._statistics.facts(),
        }
        return msgspec.structs.replace(index, provenance={**index.provenance, **provenance})

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        self.lead = tuple(_lead_index(file) for file in files)
        items = super().items(files)
        pairs = sorted(zip(items.coordinate, items.where, strict=True))
        starts = [start for start, _ in pairs]
        seconds = np.array(starts, "M8[s]").astype(np.float64).tolist()
        return Items(tuple(where for _, where in pairs), starts, seconds, "seconds")

    def ranges(self, where: tuple[int, int]) -> dict[str, int | slice]:
        number, place = where
        return {"time": place, "step": self.lead[number] if self.lead else 0}

    def members_of(self, where: tuple[int, int]) -> list[NDArray[np.float32]]:
        """Return the members of each variable, at all levels: (members, levels x points)."""
        raw = self.read(where)
        arrays = raw if self.fused else self.decode(raw, where)
        return [_flat(arrays[name]) for name in NAMES]

    def spec(self) -> SampleSpec:
        dims = ("latitude", "longitude")
        shape = (len(archive.TOY_CHANNELS), *(self.opened[0].dims[dim] for dim in dims))
        channels = archive.TOY_CHANNELS
        return SampleSpec(
            (Variable("inputs", shape, "<f4", ("channel", *dims), "1", channels=channels),)
        )

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return ``inputs``: normalised mean and deviation by variable and level."""
        if self._statistics is None:
            raise OptionError(f"{self.name}: call samples() before preprocess()")
        _, n_levels, n_latitudes, n_longitudes = arrays[NAMES[0]].shape
        inputs = np.empty((len(NAMES), n_levels, 2, n_latitudes * n_longitudes), dtype=np.float32)
        scored = np.empty((2, n_levels * n_latitudes * n_longitudes), dtype=np.float32)
        for number, name in enumerate(NAMES):
            self._statistics.score(number, _flat(arrays[name]), scored)
            inputs[number] = scored.reshape(2, n_levels, -1).transpose(1, 0, 2)
        return {"inputs": inputs.reshape(-1, n_latitudes, n_longitudes)}

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        return {
            **self.facts([file.path for file in files]),
            "dtype": "pl",
            "step_hours": archive.TOY_LEAD_HOURS,
            "target": "none",
            "sample": "as ENS-10's U-Net reads; no training code of ens5mini is published",
        }

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        return [self.call({"date": key["date"]}, [key]) for key in keys]

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> archive.Ensemble:
        return plan_of_months(scale=scale, tiny=tiny, seed=seed)

    def file_nbytes(self, key: FileKey, plan: Any) -> int:
        return month_nbytes(plan, key["date"])

    def write(self, plan: Any, key: FileKey, path: Path) -> None:
        write_month(plan, key["date"], path)


def _flat(fields: NDArray[Any]) -> NDArray[np.float32]:
    """Return the members of a variable, shape (members, levels x points)."""
    return fields.reshape(len(fields), -1).astype(np.float32, copy=False)


def _lead_index(file: NetcdfFile) -> int:
    step = file.variables.get("step")
    units = "" if step is None else step.attributes.get("units", "")
    hours = HOURS.get(units.removesuffix("s"))
    if hours is None:
        raise FileFormatError(f"{file.path}: step has units {units!r}, expected 'hours'")
    places = np.flatnonzero(
        np.isclose(whole_variable(file, "step") * hours, archive.TOY_LEAD_HOURS)
    )
    if places.size != 1:
        raise FileFormatError(
            f"{file.path}: expected the step {archive.TOY_LEAD_HOURS} h once, found it "
            f"{places.size} times"
        )
    return int(places[0])
