"""Application A6's small files: what a turbine reported every ten minutes, the model's levels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import (
    Arrays,
    Locator,
    Progress,
    PublishedStep,
    SampleIndex,
    inspect_netcdf,
    no_progress,
)
from iobench.errors import FileFormatError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import constants_downloads, production_downloads
from iobench_maelstrom.power.boxes import (
    BoxedSamples,
    NamedBox,
    Ranges,
    check_variable,
    hours_of,
    read_times,
    stored_of,
    without_other_variables,
)
from iobench_maelstrom.power.files import find_all
from iobench_maelstrom.power.schema import (
    CITATION,
    CONSTANTS_URL,
    HALF_LEVELS,
    TERMS,
    TURBINES,
    production_url,
)
from iobench_maelstrom.power.stand_in import (
    STAND_IN_VERSION,
    PowerPlan,
    constants_files,
    production_files,
    write_plan,
)
from iobench_maelstrom.power.through_plugin import (
    plugin_baseline,
    plugin_request,
    take_step,
    take_whole,
)

if TYPE_CHECKING:
    from iobench.datasets import Baseline, Downloads, NetcdfFile, PlannedFile

__all__ = ["CONSTANTS_DIMS", "PRODUCTION_DIMS", "LevelConstants", "Production"]

PRODUCTION_DIMS = ("time", "level", "latitude", "longitude")
CONSTANTS_DIMS = ("dim0", "dim0_0")
COEFFICIENTS = ("hyai", "hybi", "hyam", "hybm")


class SmallFile(BoxedSamples):
    """One NetCDF file of A6; what `Production` and `LevelConstants` share.

    ``fused`` is known once ``samples`` has run.
    """

    published: PublishedStep | None = None
    synthesis_version = STAND_IN_VERSION
    name = ""
    url = ""

    def __init__(self) -> None:
        self._file: NetcdfFile | None = None

    def files(self, locator: Locator) -> list[Path]:
        """Return the file; raise MissingFileError naming its URL."""
        return find_all(self.name, [self.url], locator)

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=0)
        return sum(file.nbytes for file in self._planned(plan))

    def synthesize(
        self,
        root: Path,
        *,
        scale: float | None,
        tiny: bool,
        seed: int,
        progress: Progress = no_progress,
    ) -> list[Path]:
        """Write the stand-in under ``root`` and return its files."""
        plan = PowerPlan.of_size(scale=scale, tiny=tiny, seed=seed)
        files = self._planned(plan)
        return write_plan(root, plan, files, self.name, progress=progress, processes=1)

    def _planned(self, plan: PowerPlan) -> list[PlannedFile]:
        raise NotImplementedError

    def _keep(self, file: NetcdfFile, names: Sequence[str]) -> None:
        self._file = without_other_variables(file, names)
        unknown = any(variable.storage is None for variable in self._file.variables.values())
        self.fused = ("read", "decode") if unknown else ()
        self._find_chunks("time", stored_of([self._file]))

    def boxes(self, where: int) -> list[NamedBox]:
        """Return what a sample has of each variable."""
        if (file := self._file) is None:
            raise FileFormatError(f"{self.name}: call samples() before read()")
        return [(name, file, name, self._ranges(where)) for name in file.variables]

    def _ranges(self, where: int) -> Ranges:
        return ()

    def place(self, where: int) -> tuple[int, int]:
        """Return file and index of a sample."""
        return 0, where

    def expect(self, where: Sequence[int], *, follows: bool) -> None:
        """Say which samples will be asked for, in order."""
        super().expect([(0, index) for index in where], follows=follows)

    def _facts(self, file: NetcdfFile, **options: object) -> dict[str, object]:
        return {
            "dataset": self.name,
            "options": options,
            "normalisation": {},
            "terms_of_use": TERMS,
            "citation": CITATION,
            "files": [{"name": file.path.name, "nbytes": file.path.stat().st_size}],
        }


class Production(SmallFile):
    """What one turbine reported: a sample is one ten-minute step.

    Parameters
    ----------
    wind_turbine_id : int
        Which of the four.
    """

    name = "maelstrom-power-production"

    def __init__(self, wind_turbine_id: int) -> None:
        super().__init__()
        others = [each.number for each in TURBINES if each.number != wind_turbine_id]
        self.title = (
            f"Power production of wind turbine {wind_turbine_id}, every ten minutes (MAELSTROM "
            f"A6); --option wind_turbine_id={others[0]}, {others[1]} or {others[2]} takes another"
        )
        self.wind_turbine_id = wind_turbine_id
        self.url = production_url(wind_turbine_id)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per step of ten minutes.

        Raises
        ------
        FileFormatError
            If the file is cut short or of another schema, naming what differs.
        """
        file = inspect_netcdf(files[0])
        check_single_point(file)
        times = read_times(file)
        names = [name for name, v in file.variables.items() if v.dims == PRODUCTION_DIMS]
        self._keep(file, names)
        units = {name: file.variables[name].attributes.get("units", "") for name in names}
        return SampleIndex(
            spec=SampleSpec(
                tuple(
                    Variable(
                        name, (), "<f4", (), units[name],
                        role="target" if name == "production" else "input",
                    )
                    for name in names
                )
            ),
            where=range(len(times)),
            coordinate=[str(time)[:16] for time in times],
            positions=hours_of(times),
            position_units="hours",
            provenance={
                **self._facts(file, wind_turbine_id=self.wind_turbine_id),
                "schema": "maelstrom-ap6 production",
                "stand_in": locator.stand_in,
            },
        )  # fmt: skip

    def _ranges(self, where: int) -> Ranges:
        return ((where, where + 1),)

    def preprocess(self, arrays: Arrays, where: int) -> Sample:
        """Return the numbers in float32, each alone."""
        return {name: np.asarray(values, "<f4").reshape(()) for name, values in arrays.items()}

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how the steps are taken out of what the real plugin opens."""
        return _through_plugin(self, files, index, take_step, wind_turbine_id=self.wind_turbine_id)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches."""
        return production_downloads(self)

    def _planned(self, plan: PowerPlan) -> list[PlannedFile]:
        return production_files(plan)


class LevelConstants(SmallFile):
    """The coefficients A and B of the model levels' bounds: all of them are one sample."""

    name = "maelstrom-constants-a-b"
    title = "Coefficients A and B of the 137 model levels (MAELSTROM A6)"
    url = CONSTANTS_URL

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return the one sample.

        Raises
        ------
        FileFormatError
            If the file is cut short or of another schema, naming what differs.
        """
        file = inspect_netcdf(files[0])
        check_coefficients(file)
        names = [name for name, v in file.variables.items() if v.dims == CONSTANTS_DIMS]
        self._keep(file, names)
        return SampleIndex(
            spec=SampleSpec(
                tuple(
                    Variable(
                        name,
                        file.variables[name].shape,
                        file.variables[name].packing.dtype,
                        CONSTANTS_DIMS,
                        file.variables[name].attributes.get("units", ""),
                    )
                    for name in names
                )
            ),
            where=[0],
            coordinate=[file.path.name],
            provenance={
                **self._facts(file),
                "schema": "maelstrom-ap6 constants",
                "stand_in": locator.stand_in,
            },
        )

    def preprocess(self, arrays: Arrays, where: int) -> Sample:
        """Return the coefficients as they are."""
        return dict(arrays)

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how the coefficients are taken out of what the real plugin opens."""
        return _through_plugin(self, files, index, take_whole)

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches."""
        return constants_downloads(self)

    def _planned(self, plan: PowerPlan) -> list[PlannedFile]:
        return constants_files()


def _through_plugin(
    own: Production | LevelConstants,
    files: Sequence[Path],
    index: SampleIndex,
    take: Callable[..., Arrays],
    **arguments: object,
) -> Baseline:
    request = plugin_request(own.name, {own.url: files[0]}, **arguments)
    take_named = functools.partial(take, names=index.spec.names)
    return plugin_baseline(own, index, [request], take_named)


def check_single_point(file: NetcdfFile) -> None:
    """Raise FileFormatError unless a file holds the production of one point, naming what differs.

    Raises
    ------
    FileFormatError
        As said.
    """
    check_variable(file, "production", PRODUCTION_DIMS)
    for dim in PRODUCTION_DIMS[1:]:
        if file.dims[dim] != 1:
            raise FileFormatError(
                f"{file.path}: dimension {dim!r} is {file.dims[dim]}, expected 1: one turbine"
            )


def check_coefficients(file: NetcdfFile) -> None:
    """Raise FileFormatError unless a file holds the levels' coefficients, naming what differs.

    Raises
    ------
    FileFormatError
        As said.
    """
    for name in COEFFICIENTS:
        variable = check_variable(file, name, CONSTANTS_DIMS)
        if variable.shape[-1] != HALF_LEVELS or variable.shape[0] < 1:
            raise FileFormatError(
                f"{file.path}: variable {name!r} has shape {variable.shape}, expected "
                f"(1, {HALF_LEVELS}): the bounds of 137 levels"
            )
