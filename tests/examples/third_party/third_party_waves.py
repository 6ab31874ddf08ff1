"""Dataset ``north-sea``: hourly waves of the North Sea, a NetCDF file for each month."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import Axis, ChannelGroup, Key, Option, Recipe, RecipeVariable, Split

if TYPE_CHECKING:
    from iobench.datasets import Arrays, Where
    from iobench.samples import Sample

MONTHS = tuple(f"{year}-{month:02}" for year in range(2019, 2023) for month in range(1, 13))


class NorthSea(Recipe):
    """One sample is an hour: wind, depth and the waves."""

    name = "north-sea"
    title = "hourly waves of the North Sea, from wind and depth"
    url = "https://waves.example.org/north-sea/{month}.nc"
    keys = (Key("month", MONTHS, "Months as 2019-01. By default all that are found."),)
    axes = (
        Axis("time"),
        Axis("latitude", 48, 51.0, 0.2, "degrees_north"),
        Axis("longitude", 64, -4.0, 0.2, "degrees_east"),
    )
    fields = (
        RecipeVariable("u10", "m s-1", -25.0, 25.0, zscore="all"),
        RecipeVariable("v10", "m s-1", -25.0, 25.0, zscore="all"),
        RecipeVariable("depth", "m", 0.0, 400.0, zscore="all", is_static=True),
        RecipeVariable("swh", "m", 0.0, 9.0),
    )
    channel_groups = (
        ChannelGroup("inputs", ("u10", "v10", "depth")),
        ChannelGroup("waves", ("swh",), role="target"),
    )
    splits = (
        Split("train", ("2019", "2020")),
        Split("validation", ("2021",)),
        Split("test", ("2022",)),
    )
    options = (Option("land", "Waves there: 0, or nan for losses without it.", "0", ("0", "nan")),)
    terms_of_use = "CC BY 4.0"
    tiny = ("2019-01", "2021-01")
    ordinary = ("2019-01", "2019-07", "2021-01", "2022-01")

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return the sample; over land, where waves are missing, with what was chosen for it."""
        waves = np.nan_to_num(arrays["swh"], nan=float(self.chosen["land"]))
        return super().preprocess({**arrays, "swh": waves}, where)
