"""The toy data set of application A4: ENS-10's ensemble over Europe, on pressure levels.

No training code of it is published; a sample is made as the D2.3 U-Net's of ENS-10 is (an
assumption): mean and deviation over the members of every variable at every level, normalised.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Axis,
    Downloads,
    Field,
    Hyperslab,
    Items,
    Key,
    Option,
    PluginDownload,
    Recipe,
    SampleIndex,
    file_times,
    index_folders,
    run_jobs,
    stopwatch,
    whole_variable,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.ens10.ens5mini_schema import (
    ALL_MONTHS,
    CHANNELS,
    DIMS,
    LEAD_HOURS,
    LEVELS,
    PRESSURE_VARIABLES,
    month_url,
    parse_months,
)
from iobench_maelstrom.ens10.ens5mini_stand_in import STAND_IN_VERSION, MonthlyPlan, write_month
from iobench_maelstrom.ens10.normalisation import (
    Moments,
    Statistics,
    describe_samples,
    keep_statistics,
    member_moments,
)
from iobench_maelstrom.ens10.schema import CITATION, TERMS
from iobench_maelstrom.ens10.toy_through_plugin import toy_plugin_baseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import (
        Advance,
        Arrays,
        Baseline,
        FileKey,
        Locator,
        NetcdfFile,
        Progress,
        StandIn,
    )
    from iobench.samples import Sample

__all__ = ["Ens5mini"]

FORECASTS_PER_JOB = 16
"""Fixed, so that the sums do not depend on how many processes share the work."""
SMALL_NBYTES = 64 << 20
"""Less is read sooner by this process than by ones that must start first."""
HOURS = {"nanosecond": 1 / 3.6e12, "second": 1 / 3600, "minute": 1 / 60, "hour": 1.0, "day": 24.0}


class Ens5mini(Recipe):
    """The toy data set of ENS-10."""

    name = "maelstrom-ens5mini"
    title = "ENS5-mini ensemble forecasts over Europe, pressure levels, step 24 h (MAELSTROM A4)"
    url = month_url("{date}")
    keys = (Key("date", ALL_MONTHS),)
    options = (
        Option(
            "date",
            "Months as upstream, MM (or MMDD, YYYYMMDD, of which the month counts), separated by "
            "commas. By default all whose files are at hand.",
            (),
            parse=parse_months,
        ),
        Option("dtype", "Pressure levels; there are no others.", "pl", ("pl",)),
    )
    axes = tuple(Axis(dim) for dim in DIMS)
    fields = tuple(Field(each.name, each.units) for each in PRESSURE_VARIABLES)
    sample_dim = "time"
    terms_of_use = TERMS
    citation = CITATION
    synthesis_version = STAND_IN_VERSION

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.lead: tuple[int, ...] = ()
        self._statistics: Statistics | None = None
        self._mapped: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Members, levels, latitudes and longitudes of a variable of one forecast."""
        dims = self.opened[0].dims
        members, levels, latitudes, longitudes = (dims[dim] for dim in (DIMS[0], *DIMS[3:]))
        return members, levels, latitudes, longitudes

    def check(self, file: NetcdfFile, first: NetcdfFile) -> None:
        """Raise FileFormatError where a file is of another schema, or has other levels or steps."""
        super().check(file, first)
        levels = whole_variable(file, "isobaricInhPa").tolist()
        if levels != list(LEVELS):
            told = " ".join(f"{level:g}" for level in levels)
            raise FileFormatError(
                f"{file.path}: isobaricInhPa is {told}, expected {' '.join(map(str, LEVELS))}"
            )

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per forecast, in order of time.

        Raises
        ------
        FileFormatError
            If a file is of another schema, cut short, or holds a forecast another file has.
        """
        index = super().samples(files, locator)
        watch = stopwatch()
        about = describe_samples(
            [str(file) for file in files], index.where, n_members=self.shape[0]
        )
        self._statistics, computed = keep_statistics(
            index_folders(files[0].parent, locator.cache_dir),
            f"ens5mini-normalisation-{about['key'][:16]}",
            about,
            functools.partial(_all_moments, self, index.where, locator.progress),
        )
        self._mapped = None
        return dataclasses.replace(
            index,
            setup={"normalisation": watch()} if computed else {},
            provenance={**index.provenance, "normalisation": self._statistics.facts()},
        )

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return each forecast, in order of time."""
        self.lead = tuple(_lead_index(file) for file in files)
        found: dict[str, tuple[int, int]] = {}
        for number, times in enumerate(file_times(files, "time", "h")):
            for place, start in enumerate(np.datetime_as_string(times, "D").tolist()):
                if start in found:
                    other = files[found[start][0]].path
                    raise FileFormatError(
                        f"{files[number].path}: holds the forecast of {start}, which is in {other} "
                        "already; expected each once: are two files copies of one?"
                    )
                found[start] = number, place
        starts = sorted(found)
        return Items(tuple(found[start] for start in starts), starts)

    def hyperslabs(self, where: tuple[int, int]) -> list[Hyperslab]:
        """Return each variable of the forecast at its lead time."""
        number, place = where
        part = {"time": place, "step": self.lead[number] if self.lead else 0}
        return [Hyperslab(each.name, part) for each in PRESSURE_VARIABLES]

    def spec(self) -> SampleSpec:
        """Return mean and deviation by variable and level, as channels."""
        shape, dims = (len(CHANNELS), *self.shape[2:]), ("channel", "latitude", "longitude")
        return SampleSpec((Variable("inputs", shape, "<f4", dims, "1", channels=CHANNELS),))

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return ``inputs``: normalised mean and deviation by variable and level."""
        _, n_levels, n_latitudes, n_longitudes = self.shape
        if self._mapped is None:
            if self._statistics is None:
                raise OptionError("maelstrom-ens5mini: call samples() before preprocess()")
            self._mapped = self._statistics.load()
        mean, divisor = self._mapped
        n_points = n_latitudes * n_longitudes
        inputs = np.empty((len(PRESSURE_VARIABLES), n_levels, 2, n_points), dtype=np.float32)
        for number, variable in enumerate(PRESSURE_VARIABLES):
            pair = slice(2 * number, 2 * number + 2)
            moments = _moments(arrays[variable.name])
            moments -= mean[pair]
            moments /= divisor[pair]
            inputs[number] = moments.reshape(2, n_levels, n_points).transpose(1, 0, 2)
        return {"inputs": inputs.reshape(len(CHANNELS), n_latitudes, n_longitudes)}

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        starts = [start for each in file_times(files, "time", "h") for start in each]
        return {
            **self.facts([file.path for file in files]),
            "dtype": "pl",
            "step_hours": LEAD_HOURS,
            "starts": [str(start)[:10].replace("-", "") for start in sorted(starts)],
            "target": "none",
            "sample": "as ENS-10's U-Net reads; no training code of ens5mini is published",
        }

    def through_plugin(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return the samples made from the real plugin's arrays (`PluginBaseline`).

        There is no ``upstream``: no training code of ens5mini is published.
        """
        return toy_plugin_baseline(self, [file.path for file in self.opened], index)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; the plugin takes one month at a time.

        Raises
        ------
        OptionError
            If none was asked for: all of them are never fetched by default.
        """
        if not self.chosen["date"]:
            raise OptionError(
                f"--download of {self.name}: say what to fetch, e.g. --option date=01"
            )
        return Downloads(
            tuple(
                PluginDownload(
                    self.name,
                    {"date": month},
                    (month_url(month),),
                    terms_of_use=TERMS,
                    citation=CITATION,
                )
                for month in self.chosen["date"]
            )
        )

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> MonthlyPlan:
        """Return what a stand-in holds."""
        plan = MonthlyPlan.of_size(scale=scale, tiny=tiny, seed=seed)
        self.check_held(plan.keys)
        return plan

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a month's file."""
        assert isinstance(plan, MonthlyPlan)
        return plan.month_nbytes(key["date"])

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a month's file of the stand-in."""
        assert isinstance(plan, MonthlyPlan)
        write_month(plan, key["date"], path, advance)


def _moments(fields: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return mean and deviation over the members, shape (2, levels x points)."""
    flat = fields.reshape(len(fields), -1).astype(np.float32, copy=False)
    moments = np.empty((2, flat.shape[1]), dtype=np.float32)
    member_moments(flat, moments[0], moments[1])
    return moments


def _all_moments(
    recipe: Ens5mini, where: Sequence[tuple[int, int]], progress: Progress
) -> list[Moments]:
    """Return the moments of each variable's channels, merged in a fixed order."""
    jobs = [
        (recipe, where[start : start + FORECASTS_PER_JOB])
        for start in range(0, len(where), FORECASTS_PER_JOB)
    ]
    nbytes = len(where) * len(PRESSURE_VARIABLES) * 4 * int(np.prod(recipe.shape))
    found = dict(
        run_jobs(
            _part_moments,
            jobs,
            processes=1 if nbytes < SMALL_NBYTES else None,
            progress=progress,
            total=len(where),
        )
    )
    merged = found[0]
    for number in range(1, len(jobs)):
        for one, other in zip(merged, found[number], strict=True):
            one.merge(other)
    return merged


def _part_moments(
    job: tuple[Ens5mini, Sequence[tuple[int, int]]], advance: Advance
) -> list[Moments]:
    recipe, where = copy.copy(job[0]), job[1]
    vars(recipe).pop("_chunks", None)  # what is decoded here is not kept for training
    n_values = int(np.prod(recipe.shape[1:]))
    parts = [
        Moments(0, np.zeros((2, n_values)), np.zeros((2, n_values))) for _ in PRESSURE_VARIABLES
    ]
    for one in where:
        raw = recipe.read(one)
        arrays = raw if recipe.fused else recipe.decode(raw, one)
        for moments, variable in zip(parts, PRESSURE_VARIABLES, strict=True):
            moments.add(_moments(arrays[variable.name]))
        advance(1)
    return parts


def _lead_index(file: NetcdfFile) -> int:
    step = file.variables.get("step")
    units = "" if step is None else step.attributes.get("units", "")
    hours = HOURS.get(units.removesuffix("s"))
    if hours is None:
        raise FileFormatError(f"{file.path}: step has units {units!r}, expected 'hours'")
    found = np.flatnonzero(np.isclose(whole_variable(file, "step") * hours, LEAD_HOURS))
    if found.size != 1:
        raise FileFormatError(
            f"{file.path}: expected the step {LEAD_HOURS} h once, found it {found.size} times"
        )
    return int(found[0])
