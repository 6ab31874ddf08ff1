"""Application A6's small files: what a turbine reported every ten minutes, the model's levels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Axis, Field, Hyperslab, Items, Key, file_times
from iobench.samples import SampleSpec, Variable
from iobench_maelstrom.power.files import (
    TURBINE,
    TURBINE_NUMBERS,
    Call,
    PowerRecipe,
    hour_items,
    production_call,
)
from iobench_maelstrom.power.schema import CONSTANTS_URL, HALF_LEVELS, PRODUCTION_URL
from iobench_maelstrom.power.stand_in import (
    HEADER_NBYTES,
    production_nbytes,
    write_constants,
    write_production,
)

if TYPE_CHECKING:
    from iobench.datasets import (
        Advance,
        Arrays,
        FileKey,
        NetcdfFile,
        StandIn,
    )
    from iobench.samples import Role, Sample


class Production(PowerRecipe):
    """What one turbine reported: a sample is one ten-minute step."""

    name = "maelstrom-power-production"
    schema_name = "production"
    url = PRODUCTION_URL
    keys = (Key("wind_turbine_id", TURBINE_NUMBERS),)
    options = (TURBINE,)
    axes = (Axis("time"), Axis("level", 1), Axis("latitude", 1), Axis("longitude", 1))
    fields = (Field("production"),)

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.number: str = self.chosen["wind_turbine_id"]
        others = [each for each in TURBINE_NUMBERS if each != self.number]
        self.title = (
            f"Power production of wind turbine {self.number}, every ten minutes (MAELSTROM A6); "
            f"--option wind_turbine_id={others[0]}, {others[1]} or {others[2]} takes another"
        )

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the steps of ten minutes."""
        [times] = file_times(files, "time")
        return hour_items([(0, step) for step in range(len(times))], list(times))

    def spec(self) -> SampleSpec:
        """Return single numbers."""
        role: dict[str, Role] = {"production": "target"}
        numbers = (
            Variable(each.name, (), "<f4", (), each.units, role.get(each.name, "input"))
            for each in self.fields
        )
        return SampleSpec(tuple(numbers))

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return the numbers in float32, each alone."""
        return {name: np.asarray(values, "<f4").reshape(()) for name, values in arrays.items()}

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples follow from."""
        told = super().provenance(files, fitted)
        return {**told, "options": {"wind_turbine_id": int(self.number)}}

    def calls(self, days: Sequence[str]) -> list[Call]:
        """Return the call for a turbine."""
        return [production_call(self.number)]

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a turbine's file."""
        return production_nbytes(plan)

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a turbine's file of the stand-in."""
        write_production(plan, int(key["wind_turbine_id"]), path, advance)


class LevelConstants(PowerRecipe):
    """The coefficients A and B of the model levels' bounds: all of them are one sample."""

    name = "maelstrom-constants-a-b"
    title = "Coefficients A and B of the 137 model levels (MAELSTROM A6)"
    schema_name = "constants"
    url = CONSTANTS_URL
    axes = (Axis("dim0", 1), Axis("dim0_0", HALF_LEVELS))
    fields = tuple(Field(name) for name in ("hyai", "hybi", "hyam", "hybm"))

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return the one sample."""
        return Items([(0, 0)], [files[0].path.name])

    def hyperslabs(self, where: tuple[int, int]) -> list[Hyperslab]:
        """Return all there is."""
        return [Hyperslab(each.name, {}) for each in self.fields]

    def spec(self) -> SampleSpec:
        """Return the coefficients as they are stored."""
        stored = [(self.opened[0].variables[each.name], each.units) for each in self.fields]
        return SampleSpec(
            tuple(
                Variable(each.name, each.shape, each.packing.dtype, each.dims, units)
                for each, units in stored
            )
        )

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return the coefficients as they are."""
        return dict(arrays)

    def calls(self, days: Sequence[str]) -> list[Call]:
        """Return the one call."""
        return [("constants-a-b", {}, [self.url])]

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of the file."""
        return HEADER_NBYTES

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write the file of the stand-in."""
        write_constants(path, advance)
