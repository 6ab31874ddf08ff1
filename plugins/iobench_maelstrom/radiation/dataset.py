"""Application A3 as NetCDF: a sample is one atmospheric column, a row of each of 25 arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.datasets import (
    Arrays,
    Axis,
    FileKey,
    Key,
    LazySequence,
    Locator,
    Option,
    PluginCall,
    Recipe,
    SampleIndex,
    Smooth,
    StandIn,
    StandInFile,
    StandInVariable,
    inspect_files,
    only_variables,
)
from iobench.errors import FileFormatError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.radiation import files as archive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.coordinates import SampleLabels
    from iobench.datasets import NetcdfFile, RecipeVariable

COLUMN = "column"
OUTPUT_PRESSURE = "pressure_hl of outputs"
"""Both files hold ``pressure_hl``: how the second is called among decoded arrays."""
INPUTS_PREFIX = "rad4NN_inputs"
PREFIXES = {
    "tripleclouds": "triplecloud_outputs",
    "mcica": "rad4NN_outputs",
    "3dcorrection": "3dcorrection_outputs",
    "spartacus": "spartacus_outputs",
}
"""How the names of a scheme's outputs begin; inputs are all schemes' own."""
DATES = tuple(sorted((*archive.DATES_2020, *archive.SPLITS_2019)))
PATCHES = tuple(map(str, range(16)))
BANDS = ("sw", "lw")
OUTPUTS = (*archive.FLUXES, archive.PRESSURE.name)
FIELDS = {**archive.INPUTS, **archive.POSITIONS, **archive.FLUXES}
GROUP_UNITS = {"pressure_hl": "Pa", "inter_inputs": "1"}
"""The other groups mix quantities."""


class Radiation(archive.RadiationFiles, Recipe):
    """Columns of the raw radiation files, inputs first; options as upstream's."""

    name = "maelstrom-radiation"
    title = "Atmospheric columns and their radiative fluxes, NetCDF (MAELSTROM A3)"
    keys = (
        Key("date", DATES, "Days: every 30 days of 2020, and four of 2019.", default=("20200101",)),
        Key("timestep", archive.TIMESTEPS, default=("0",)),
        Key("patch", PATCHES, default=PATCHES[::2]),
    )
    left_out: Mapping[str, str] = {
        "time": "files are named by date and time step of the model; none has a time"
    }
    axes = (Axis(COLUMN), *(Axis(name) for name in archive.LENGTHS))
    fields = tuple(FIELDS.values())
    subsets: Mapping[str, tuple[Sequence[str], ...]] = {
        "tier-1": (("20200101",), ("0",), PATCHES[::2]),
        "2020": (archive.DATES_2020, archive.TIMESTEPS, PATCHES),
    }
    stand_in_subsets = ("tier-1",)
    n_columns = (128, 4096, 16960)
    options = (
        archive.SCHEME,
        Option("subset", "Instead of date, timestep and patch.", values=tuple(subsets)),
    )

    def file_url(self, key: FileKey) -> str:
        name = f"{key['prefix']}_{key['date']}00_{key['timestep']}c{key['patch']}.nc"
        return f"{archive.BUCKET_URL}/{name}"

    def file_keys(self) -> list[FileKey]:
        prefixes = (INPUTS_PREFIX, PREFIXES[self.solver])
        return [{**pair, "prefix": prefix} for prefix in prefixes for pair in self.file_numbers]

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        return [self.call({**self.plugin_arguments(), "raw_inputs": True}, keys)]

    # ---- which samples

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, checked: columns of both files of a pair are the same."""
        half = len(self.file_numbers)
        opened = inspect_files(files, cache_dir=locator.cache_dir, progress=locator.progress)
        for number, file in enumerate(opened):
            names = archive.INPUTS if number < half else OUTPUTS
            for name in names:
                self._check_variable(file, name, opened[number // half * half])
            n_columns = opened[number % half].dims[COLUMN]
            if file.dims[COLUMN] != n_columns:
                raise FileFormatError(
                    f"{file.path}: dimension {COLUMN!r} is {file.dims[COLUMN]}, expected "
                    f"{n_columns} as in {opened[number % half].path}"
                )
        kept = [only_variables(file, tuple(archive.INPUTS)) for file in opened[:half]]
        outputs = [only_variables(file, OUTPUTS) for file in opened[half:]]
        self.keep([*kept, *map(_named_apart, outputs)])
        return tuple(opened)

    def _check_variable(self, file: NetcdfFile, name: str, first: NetcdfFile) -> None:
        """Raise FileFormatError where a variable is of another schema, or not as in ``first``."""
        variable = file.variables.get(name)
        if COLUMN not in file.dims or variable is None:
            lacks = f"variable {name!r}" if COLUMN in file.dims else f"dimension {COLUMN!r}"
            raise FileFormatError(f"{file.path}: lacks the {lacks}; fetch the file again")
        dims = dict(zip(variable.dims, variable.shape, strict=True))
        lengths = {COLUMN: file.dims[COLUMN], **archive.LENGTHS}
        expected = {dim: lengths[dim] for dim in (COLUMN, *FIELDS[name].dims)}
        # Upstream broadcasts a scalar irradiance; some dimensions may have other names, or order.
        is_known = sorted(dims.values()) == sorted(expected.values())
        is_known |= name == archive.SHARED and not dims
        is_like_first = variable.dims == first.variables[name].dims
        if not (is_known and is_like_first and np.dtype(variable.packing.dtype) == np.float32):
            raise FileFormatError(
                f"{file.path}: variable {name!r} is {np.dtype(variable.packing.dtype)} {dims}, "
                f"expected float32 {expected} as in {first.path}"
            )

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        lengths = [file.dims[COLUMN] for file in files[: len(self.file_numbers)]]
        starts = archive.first_samples(lengths)
        return SampleIndex(
            self.spec(),
            LazySequence(starts[-1], functools.partial(archive.locate, starts)),
            self.split_samples(lengths),
            LazySequence(starts[-1], functools.partial(_column_name, self.file_numbers, starts)),
        )

    @property
    def sample_fields(self) -> tuple[RecipeVariable, ...]:
        return tuple(FIELDS[name] for name in (*archive.INPUTS, *archive.FLUXES))

    def meteorology(
        self, files: Sequence[NetcdfFile], index: SampleIndex, cache_dir: Path
    ) -> SampleLabels:
        return super().meteorology(files[: len(self.file_numbers)], index, cache_dir)

    # ---- a sample

    def files_of(self, where: tuple[int, int]) -> tuple[int, int]:
        """Return the files of inputs and of outputs."""
        return where[0], where[0] + len(self.file_numbers)

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return inputs as grouped, fluxes, and heating rates."""
        aerosols = arrays["aerosol_mmr"]
        if len(aerosols) == archive.LENGTHS["aerosol_type"]:  # as upstream found them
            arrays = {**arrays, "aerosol_mmr": aerosols.T}
        sample = archive.group_inputs(arrays)
        sample.update((name, arrays[name]) for name in archive.FLUXES)
        for band in BANDS:
            down, up = arrays[f"flux_dn_{band}"], arrays[f"flux_up_{band}"]
            sample[f"hr_{band}"] = archive.heating_rate(down, up, arrays[OUTPUT_PRESSURE])
        return sample

    def spec(self) -> SampleSpec:
        variables = []
        for name, (dims, shape) in archive.GROUPS.items():
            units, channels = GROUP_UNITS.get(name, ""), archive.CHANNELS[name]
            variables.append(Variable(name, shape, "<f4", dims, units, channels=channels))
        targets = [(name, "half_level", "W m-2") for name in archive.FLUXES]
        targets += [(f"hr_{band}", "level", "K d-1") for band in BANDS]
        for name, dim, units in targets:
            length = archive.LENGTHS[dim]
            variables.append(Variable(name, (length,), "<f4", (dim,), units, "target"))
        return SampleSpec(tuple(variables))

    # ---- the stand-in

    def stand_in_keys(self, keys: Sequence[FileKey]) -> list[FileKey]:
        prefixes = (INPUTS_PREFIX, PREFIXES["tripleclouds"])
        return [{**key, "prefix": prefix} for key in keys for prefix in prefixes]

    def contents(self, key: FileKey, plan: StandIn) -> StandInFile:
        random_key: tuple[int | str, ...] = (plan.seed, self.synthesis_version, *key.values())
        names = (*archive.INPUTS, *archive.POSITIONS)
        if key["prefix"] != INPUTS_PREFIX:
            names = OUTPUTS
        variables = [_stored(FIELDS[name], random_key) for name in names]
        lengths = {COLUMN: plan.n_steps, **archive.LENGTHS}
        return StandInFile(variables, random_key, lengths=lengths)


def _stored(field: RecipeVariable, key: tuple[Any, ...]) -> StandInVariable:
    """Return a variable of a stand-in; pressure is the same in both files of a pair."""
    values: Any = Smooth(field.low, field.high, field.noise)
    dims = (COLUMN, *field.dims)
    if field.name == archive.SHARED:
        values, dims = values((), "f4", (*key, field.name)), ()
    elif field.name == archive.PRESSURE.name:
        values = _pressure
    elif field.name == "aerosol_mmr":  # no order is published; upstream transposes what it reads
        dims = (COLUMN, *reversed(field.dims))
    return StandInVariable(field.name, dims, values, "f4", {"units": field.units})


def _pressure(shape: tuple[int, ...], dtype: Any, key: tuple[int | str, ...]) -> NDArray[Any]:
    *pair, _prefix, _name, start = key
    return archive.smooth_pressure(shape[0], (*pair, start))


def _named_apart(outputs: NetcdfFile) -> NetcdfFile:
    names = {archive.PRESSURE.name: OUTPUT_PRESSURE}
    variables = {names.get(name, name): each for name, each in outputs.variables.items()}
    return msgspec.structs.replace(outputs, variables=variables)


def _column_name(pairs: Sequence[FileKey], starts: Sequence[int], number: int) -> str:
    """Return the name of a column: that of its pair, and its number in it."""
    place, column = archive.locate(starts, number)
    pair = pairs[place]
    return f"{pair['date']} step {pair['timestep']} patch {pair['patch']} column {column}"
