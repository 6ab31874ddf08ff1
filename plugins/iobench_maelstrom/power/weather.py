"""The weather forecasts of application A6: one sample is the fields of one hour over Europe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import Axis, Items, Option, whole_variable
from iobench.errors import OptionError
from iobench_maelstrom.power.files import DATE, PowerFiles, hour_items, run_times
from iobench_maelstrom.power.schema import (
    HOURS_PER_RUN,
    MODEL,
    PRESSURE,
    SURFACE,
    LevelType,
)
from iobench_maelstrom.power.stand_in import run_nbytes, write_run

if TYPE_CHECKING:
    from iobench.datasets import Advance, FileKey, NetcdfFile, StandIn

OPTIONS = (
    DATE,
    Option(
        "levels",
        "Of which files: those on pressure levels, on model levels 128 to 137, of the surface.",
        PRESSURE.kind,
        (PRESSURE.kind, MODEL.kind, SURFACE.kind),
    ),
    Option(
        "sample",
        "All fields, or the 25 channels of deep clustering (z, r, t, u, v on five levels), of "
        "ERA5's file era5_pl_1964_2023_12.nc where it is found.",
        "fields",
        ("fields", "clustering"),
    ),
    Option(
        "crop",
        "What clustering takes of the grid: 0.8 of it, by default from a place that follows from "
        "the time; its middle; or all.",
        values=("moving", "centre", "none"),
    ),
)


class WeatherFields(PowerFiles):
    """Weather files of one kind of level; of each forecast the first 12 hours are samples."""

    name = "maelstrom-weather-pressure-level"
    level_type: LevelType
    options = OPTIONS
    n_taken: int | None = HOURS_PER_RUN

    def __init_subclass__(cls, **more: Any) -> None:
        level_type = cls.level_type
        cls.prefixes = (level_type.prefix,)
        cls.axes = tuple(Axis(dim) for dim in level_type.dims)
        cls.fields = tuple(v for v in level_type.variables if v.name in level_type.required)
        super().__init_subclass__(**more)

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        if self.chosen["crop"] and self.chosen["sample"] == "fields":
            raise OptionError("crop: fields are not cropped; add --option sample=clustering")
        self.title = f"IFS HRES weather over Europe, {self.level_type.title} (MAELSTROM A6)"
        self.levels: list[int] = []

    @property
    def stand_in_name(self) -> str:
        """What stand-ins are told apart by: the files of each kind of level are others."""
        return f"maelstrom-weather-{self.level_type.kind}-level"

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the first hours of each forecast, in order of time."""
        times = run_times(files, self.n_taken)
        if self.level_type.levels:
            self.levels = whole_variable(files[0], "level").astype(int).tolist()
        where = [(run, step) for run, each in enumerate(times) for step in range(len(each))]
        return hour_items(where, [times[run][step] for run, step in where])

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        return {**super().provenance(files, fitted), "levels": self.levels}

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of the stand-in."""
        return run_nbytes(plan, self.level_type)

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a file of the stand-in."""
        write_run(plan, self.level_type, key["date"], key["hour"], path, advance)


class ModelLevels(WeatherFields):
    """Fields on the lowest model levels."""

    level_type = MODEL


class PressureLevels(WeatherFields):
    """Fields on pressure levels."""

    level_type = PRESSURE


class SurfaceLevels(WeatherFields):
    """Fields of the surface."""

    level_type = SURFACE
