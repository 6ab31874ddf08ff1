"""The weather forecasts of application A6: one sample is the fields of one hour over Europe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import Axis, Items, Key, Option, whole_variable
from iobench.errors import OptionError
from iobench_maelstrom.power.files import (
    DATE,
    DAY,
    Call,
    PowerRecipe,
    hour_items,
    run_files,
    run_times,
    weather_call,
)
from iobench_maelstrom.power.schema import (
    HOURS_PER_RUN,
    MODEL,
    PRESSURE,
    RUNS,
    SURFACE,
    LevelType,
    run_url,
)
from iobench_maelstrom.power.stand_in import FIRST_DAYS, run_nbytes, write_run

if TYPE_CHECKING:
    from iobench.datasets import (
        Advance,
        FileKey,
        Locator,
        NetcdfFile,
        StandIn,
    )

SAMPLE = Option(
    "sample",
    "All fields, or the 25 channels of deep clustering (z, r, t, u, v on five levels), of ERA5's "
    "file era5_pl_1964_2023_12.nc where it is found.",
    "fields",
    ("fields", "clustering"),
)
CROP = Option(
    "crop",
    "What clustering takes of the grid: 0.8 of it, by default from a place that follows from the "
    "time; its middle; or all.",
    values=("moving", "centre", "none"),
)


class WeatherFields(PowerRecipe):
    """Weather files of one kind of level; of each forecast the first 12 hours are samples."""

    level_type: LevelType
    keys = (DAY, Key("hour", RUNS))
    options: tuple[Option, ...] = (DATE,)
    tiny = FIRST_DAYS
    ordinary = FIRST_DAYS[:1]
    n_taken: int | None = HOURS_PER_RUN

    def __init_subclass__(cls, **more: Any) -> None:
        level_type = cls.level_type
        cls.name = f"maelstrom-weather-{level_type.kind}-level"
        cls.schema_name = level_type.prefix
        cls.axes = tuple(Axis(dim) for dim in level_type.dims)
        cls.fields = tuple(v for v in level_type.variables if v.name in level_type.required)
        super().__init_subclass__(**more)

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.title = f"IFS HRES weather over Europe, {self.level_type.title} (MAELSTROM A6)"
        self.days: list[str] = []
        self.levels: list[int] = []

    def files(self, locator: Locator) -> list[Path]:
        """Return two files for each day; see `run_files`."""
        return run_files(self, [self.level_type.prefix], locator)

    def file_url(self, key: FileKey) -> str:
        """Return where the forecast of a day and hour is published."""
        return run_url(self.level_type.prefix, key["date"], key["hour"])

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the first hours of each forecast, in order of time."""
        times = run_times(files, self.n_taken)
        if self.level_type.levels:
            self.levels = whole_variable(files[0], "level").astype(int).tolist()
        self.days = sorted({str(each[0])[:10] for each in times})
        where = [(run, step) for run, each in enumerate(times) for step in range(len(each))]
        return hour_items(where, [times[run][step] for run, step in where])

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        own = {"hours_per_run": HOURS_PER_RUN, "levels": self.levels}
        return {**super().provenance(files, fitted), **own, "options": {"date": self.days}}

    def calls(self, days: Sequence[str]) -> list[Call]:
        """Return the call for two runs of each day."""
        return [weather_call(self.level_type, days)]

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of the stand-in."""
        return run_nbytes(plan, self.level_type)

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a file of the stand-in."""
        write_run(plan, self.level_type, key["date"], key["hour"], path, advance)


class ModelLevels(WeatherFields):
    """The dataset ``maelstrom-weather-model-level``."""

    level_type = MODEL


class PressureLevels(WeatherFields):
    """The fields of the dataset ``maelstrom-weather-pressure-level``."""

    level_type = PRESSURE
    options = (DATE, SAMPLE, CROP)

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        if self.chosen["crop"] and self.chosen["sample"] == "fields":
            raise OptionError(
                "crop: fields are not cropped; give --option sample=clustering with it"
            )


class SurfaceLevels(WeatherFields):
    """The dataset ``maelstrom-weather-surface-level``."""

    level_type = SURFACE
