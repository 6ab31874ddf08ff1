"""The toy data set of application A4: ENS-10's ensemble over Europe, on pressure levels.

No training code of it is published: a sample has the members of every variable at every level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import (
    Axis,
    Items,
    Key,
    Option,
    Recipe,
    RecipeVariable,
    Smooth,
    StandInFile,
    StandInVariable,
    axis_variable,
    spread,
    whole_variable,
)
from iobench.errors import FileFormatError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.ens10 import files as archive

if TYPE_CHECKING:
    from iobench.datasets import FileKey, NetcdfFile, PluginCall, StandIn

ALL_YEARS = range(1998, 2008)
HOURS = {"nanosecond": 1 / 3.6e12, "second": 1 / 3600, "minute": 1 / 60, "hour": 1.0, "day": 24.0}
"""Of the units that a step may have."""
LEAD_HOURS = 24
"""The last step there is; ENS-10's U-Net reads its last one, too."""
NOISE = 0.86


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
    tiny = ordinary = ("01", "07")
    tiny_steps, ordinary_steps = 4, 18
    tiny_lengths: Mapping[str, int] = {"number": 3, "latitude": 10, "longitude": 20}

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.lead: tuple[int, ...] = ()

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        self.lead = tuple(map(_lead_index, files))
        items = super().items(files)
        pairs = sorted(zip(items.coordinate, items.where, strict=True))
        starts = [start for start, _ in pairs]
        seconds = np.array(starts, "M8[s]").astype(np.float64).tolist()
        return Items(tuple(where for _, where in pairs), starts, seconds, "seconds")

    def ranges(self, where: tuple[int, int]) -> dict[str, int | slice]:
        number, place = where
        return {"time": place, "step": self.lead[number]}

    def spec(self) -> SampleSpec:
        dims = ("number", "isobaricInhPa", "latitude", "longitude")
        shape = tuple(self.opened[0].dims[dim] for dim in dims)
        return SampleSpec(
            tuple(Variable(each.name, shape, "<f4", dims, each.units) for each in self.fields)
        )

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        return [self.call({"date": key["date"]}, [key]) for key in keys]

    def contents(self, key: FileKey, plan: StandIn) -> StandInFile:
        """Return a month's file as xarray writes what cfgrib decodes: contiguous float32."""
        lengths = {"number": 5, "latitude": 40, "longitude": 80, **plan.lengths}
        dates = [date for date in archive.ALL_DATES if date[:2] == key["date"]]
        days = [f"{year}-{date[:2]}-{date[2:]}" for year in ALL_YEARS for date in dates]
        days = list(spread(days, min(plan.n_steps or len(days), len(days))))
        seconds, since = np.array(days, "M8[s]").astype(np.int64), "seconds since 1970-01-01"
        latitudes, longitudes = (0.5 * np.arange(lengths[dim]) for dim in ("latitude", "longitude"))
        axes = [
            axis_variable("number", np.arange(lengths["number"]), "1"),
            axis_variable("time", seconds, since, calendar="proleptic_gregorian"),
            axis_variable("step", np.array([0.0, LEAD_HOURS]), "hours"),
            axis_variable("isobaricInhPa", np.array(archive.LEVELS, "f8"), "hPa"),
            axis_variable("latitude", 60.0 - latitudes, "degrees_north"),
            axis_variable("longitude", longitudes, "degrees_east"),
        ]
        fields = []
        for each in archive.PRESSURE_VARIABLES:
            low, high = np.array(each.ranges).T[:, :, None, None]
            described = {"units": each.units, "long_name": each.long_name}
            values, dims = Smooth(low, high, NOISE), self.dims_of(self.fields[0])
            fill = np.float32(np.nan)
            fields.append(StandInVariable(each.name, dims, values, "f4", described, fill))
        return StandInFile([*axes, *fields], (plan.seed, self.synthesis_version, key["date"]))


def _lead_index(file: NetcdfFile) -> int:
    step = file.variables.get("step")
    units = "" if step is None else step.attributes.get("units", "")
    hours = HOURS.get(units.removesuffix("s"))
    if hours is None:
        raise FileFormatError(f"{file.path}: step has units {units!r}, expected 'hours'")
    places = np.flatnonzero(np.isclose(whole_variable(file, "step") * hours, LEAD_HOURS))
    if places.size != 1:
        raise FileFormatError(
            f"{file.path}: expected the step {LEAD_HOURS} h once, found it {places.size} times"
        )
    return int(places[0])
