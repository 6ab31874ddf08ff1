"""Application A4: ENS-10 ensemble post-processing; a sample is what the D2.3 U-Net read.

Mean and deviation over ten members of eleven surface variables, or seven at a level; and ERA5's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.coordinates import Coordinate, SampleLabels, forecast_times
from iobench.datasets import (
    Arrays,
    Baseline,
    ChunkedSamples,
    FieldCube,
    FileKey,
    Hyperslab,
    Key,
    Locator,
    NetcdfFile,
    Option,
    PluginCall,
    PublishedStep,
    SampleIndex,
    VariablePart,
    describe_grid,
    file_times,
    index_grib,
    inspect_files,
    make_plain_loop,
    only_variables,
    range_file,
    read_extents,
    spread,
    whole_variable,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.ens10 import files as archive
from iobench_maelstrom.ens10.point_statistics import (
    SPREAD,
    keep_statistics,
    mapped,
    member_moments,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import GribIndex, StandIn

NORTH_TO_SOUTH = ("regular_ll", 0)
FIRST_TEST_YEAR = 2016
PUBLISHED = PublishedStep(
    forward_ns=5_250_000,
    backward_ns=15_870_000,
    batch_size=1,
    source="MAELSTROM D2.3, table 4: U-Net, PyTorch 1.12.1, one A100 40 GB",
    exposed_io_s=(0.02158, 0.10881, 0.10577, 6.02123, 0.22815),
    sample_nbytes=(22 + 1) * archive.GRID[0] * archive.GRID[1] * 4,
    tables={
        "D2.3 table 4, PyTorch, NumPy": {
            "batch": (0.03891, 0.12581, 0.12044, 6.96415, 0.27348),
            "I/O": (0.02158, 0.10881, 0.10577, 6.02123, 0.22815),
        },
        "D2.3 table 5, TensorFlow, TFRecord": {
            "batch": (0.05325, 0.16876, 0.06064, 46.32998, 1.02192),
            "I/O": (0.00043, 0.03479, 0.00089, 28.64989, 0.69822),
        },
    },
)
PUBLISHED_PL = msgspec.structs.replace(
    PUBLISHED,
    source=f"{PUBLISHED.source}; 22 channels, of which 14 take 98 % of the operations",
    exposed_io_s=None,
    tables={},
    sample_nbytes=(14 + 1) * archive.GRID[0] * archive.GRID[1] * 4,
)


Where = tuple[int, int, int]
"""The forecasts, which are as one file; the start's number there; the time's in the target's."""


class Ens10(PluginFiles, ChunkedSamples):
    """ENS-10's fields as the D2.3 U-Net read them."""

    example = "date=0101,0104"
    name = "maelstrom-ens10"
    keys = (
        Key(
            "date", archive.ALL_DATES,
            "Start dates as upstream, MMDD or YYYYMMDD (the year is ignored), separated by commas. "
            "By default all whose files are found.",
            lambda text: text[4:] if len(text) == 8 else text,
        ),
    )  # fmt: skip
    tiny, tiny_steps = archive.ALL_DATES[:2], len(archive.DEFAULT_YEARS)
    ordinary_steps = len(archive.DEFAULT_YEARS)
    terms_of_use = archive.TERMS
    citation = archive.CITATION
    synthesis_version = archive.STAND_IN_VERSION
    options = (
        Option(
            "dtype", "Surface fields, or those at a pressure level.", "sfc", tuple(archive.TASKS)
        ),
        Option(
            "target",
            "For sfc whether samples have the target, ERA5's t2m; for pl which target they have, "
            "which says the level, too. The first of each is the default.",
            values=tuple(target for targets in archive.TASKS.values() for target in targets),
        ),
    )

    def __init__(self, **options: str) -> None:
        ChunkedSamples.__init__(self)
        super().__init__(**options)
        dtype, targets = self.chosen["dtype"], archive.TASKS[self.chosen["dtype"]]
        target = self.chosen["target"] or next(iter(targets))
        if target not in targets:
            raise OptionError(
                f"target {target!r}: of dtype {dtype}, expected {' or '.join(targets)}"
            )
        self.has_target = target != "none"
        self.task: archive.Task = targets[target]
        level = self.task.level
        fields = f"fields at {level} hPa" if level else "surface fields"
        self.title = f"ENS-10 ensemble forecasts, {fields} at step 48 h (MAELSTROM A4)"
        self.published = PUBLISHED_PL if level else PUBLISHED
        # A date's file of pressure levels is larger by 14 to 11.
        self.ordinary = spread(archive.ALL_DATES, 4 if level else 12)
        self.starts: tuple[str, ...] = ()  # ``YYYYMMDD``, ascending
        self.statistics = Path()  # see `point_statistics`

    @property
    def stand_in_name(self) -> str:
        return self.name if self.task.dtype == "sfc" else f"{self.name}-{self.task.dtype}"

    # ---- which samples

    def file_url(self, key: FileKey) -> str:
        return f"{archive.BUCKET_URL}/output.{self.task.dtype}.2018{key['date']}"

    def files(self, locator: Locator) -> list[Path]:
        paths = super().files(locator)
        if not self.has_target:
            return paths
        target = locator.find([self.task.target_url])[0]
        if target is None:
            raise MissingFileError(
                f"{self.name}: the target era5/{self.task.target_file} was not found in "
                f"{locator.searched()}; it holds ERA5's {self.task.target} on the forecasts' grid "
                f"at start + {archive.LEAD_HOURS} h (Climate Data Store): put it there"
                f"{self.task.or_without}"
            )
        return [*paths, target]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        forecasts = files[:-1] if self.has_target else files
        index = index_grib(forecasts, cache_dir=locator.cache_dir, progress=locator.progress)
        cubes = find_fields(index, self.task)
        members, times = (cubes[0].values(dim) for dim in ("number", "time"))
        self.starts = tuple(str(time // 10000) for time in times)
        fields = {each.name: each.stored(("time",)) for each in cubes}
        shape = next(iter(fields.values())).shape[-2:]
        opened = [NetcdfFile(index.files[0], {"time": len(times)}, fields, {}, "GRIB")]
        rows = [0] * len(times)
        if self.has_target:
            target, rows = find_target(files[-1], self.task, self.starts, shape, locator.cache_dir)
            opened.append(target)
        self.keep_files(opened, ("time",))
        where: list[Where] = [(0, number, row) for number, row in enumerate(rows)]
        name = f"ens10-{self.task.target}"
        self.statistics = keep_statistics(name, self.members_of, where, index.files, locator)
        grid, channels = ("latitude", "longitude"), self.task.channels
        inputs = (len(channels), *shape)
        variables = [Variable("inputs", inputs, "<f4", ("channel", *grid), "1", channels=channels)]
        if self.has_target:
            units = self.task.target_units
            variables.append(Variable(self.task.target, shape, "<f4", grid, units, role="target"))
        years = [int(start[:4]) for start in self.starts]
        splits = {
            "train": [n for n, year in enumerate(years) if year < FIRST_TEST_YEAR],
            "test": [n for n, year in enumerate(years) if year >= FIRST_TEST_YEAR],
        }
        days = _days(self.starts)
        step = {"standard_name": "forecast_period", "units": "hours"}
        lead = Coordinate("step", (), np.asarray(archive.LEAD_HOURS), step)
        points = describe_grid(read_extents(index.extents([int(cubes[0].rows[0])]))[0], grid)
        known = forecast_times(days, archive.LEAD_HOURS * 3600)
        return SampleIndex(
            spec=SampleSpec(tuple(variables)),
            where=where,
            splits={name: numbers for name, numbers in splits.items() if numbers},
            coordinate=np.datetime_as_string(days, "D").tolist(),
            positions=days.astype(np.float64).tolist(),
            position_units="seconds",
            provenance={
                **self.facts(),
                "dtype": self.task.dtype,
                "members": members,
                "starts": list(self.starts),
                "target": self.task.target if self.has_target else "none",
                "normalisation": {
                    "formula": f"(x - mean) / (std + {SPREAD})",
                    "over": "samples, per channel and grid point, ddof 0",
                    "sha256": hashlib.sha256(mapped(self.statistics).data).hexdigest(),
                },
                "stand_in": locator.stand_in,
            },
            meteorology=SampleLabels(("time",), (*known, lead, *points)),
        )

    # ---- a sample

    def hyperslabs(self, where: Where) -> list[Hyperslab]:
        """Return the members of each variable, (member, latitude, longitude), and ``target``."""
        _, number, row = where
        slabs = [Hyperslab(each.name, {"time": number}) for each in self.task.fields]
        if self.has_target:
            variable = self.task.target_variable
            slabs.append(Hyperslab(variable, {"time": row}, 1, "target", of_all=True))
        return slabs

    def members_of(self, where: Where) -> NDArray[np.float32]:
        """Return the members of each variable, shape (variable, member, point)."""
        arrays = self.decode(self.read(where), where)
        fields = [arrays[each.name] for each in self.task.fields]
        return np.stack([each.reshape(-1, each.shape[-2] * each.shape[-1]) for each in fields])

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return ``inputs``, normalised mean and deviation by channel, and the target."""
        shape = arrays[self.task.fields[0].name].shape[-2:]
        mean, divisor = mapped(self.statistics)
        inputs = np.empty((2 * len(self.task.fields), shape[0] * shape[1]), dtype=np.float32)
        for number, variable in enumerate(self.task.fields):
            pair = slice(2 * number, 2 * number + 2)
            member_moments(arrays[variable.name].reshape(-1, inputs.shape[1]), inputs[pair])
            inputs[pair] -= mean[pair]
            inputs[pair] /= divisor[pair]
        sample = {"inputs": inputs.reshape(len(inputs), *shape)}
        if self.has_target:
            sample[self.task.target] = arrays["target"].astype(np.float32, copy=False)
        return sample

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        return make_plain_loop(index, self.plain_parts, self.preprocess)

    def plain_parts(self, where: Where) -> list[VariablePart]:
        """Return what xarray has to read of a sample."""
        _, number, row = where
        start = _days([self.starts[number]]).astype(np.int64)[0]
        labels: dict[str, Any] = {"time": start, "step": archive.LEAD_HOURS}
        if self.task.level:
            labels["isobaricInhPa"] = self.task.level
        parts = []
        for each in self.task.fields:
            variable = self.opened[0].variables[each.name]
            files = np.unique(np.take(variable.numbers, number, variable.axis("time")))
            if len(files) > 1:
                paths = " and ".join(variable.files[file] for file in files)
                raise FileFormatError(
                    f"{self.name}: members of {each.name} are in several files, {paths}; use "
                    "--pipeline own"
                )
            source, at = variable.files[files[0]], {"surface": 0}
            parts.append(VariablePart(source, each.short_name, at, labels, each.name))
        if self.has_target:
            path, variable = range_file(self.opened[1].path), self.task.target_variable
            parts.append(VariablePart(path, variable, {"time": row}, name="target"))
        return parts

    # ---- files that are not at hand

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        dtype = self.task.dtype
        return [self.call({"date": key["date"], "dtype": dtype}, [key]) for key in keys]

    def stand_in_urls(self, plan: StandIn) -> dict[str, Callable[[Path], None]]:
        tasks = dict.fromkeys(archive.TASKS[self.task.dtype].values())
        targets = {each.target_url: archive.target_contents(plan, each).write for each in tasks}
        return {**targets, **super().stand_in_urls(plan)}

    def write(self, plan: StandIn, key: FileKey, path: Path) -> None:
        archive.write_forecasts(plan, self.task.dtype, key["date"], path)


def _days(starts: Sequence[str]) -> NDArray[np.datetime64]:
    return np.array([f"{start[:4]}-{start[4:6]}-{start[6:]}" for start in starts], "M8[s]")


def find_fields(index: GribIndex, task: archive.Task) -> list[FieldCube]:
    """Return the fields of samples, of which there is one for each start and member."""
    place: dict[str, Any] = {"typeOfLevel": "surface"}
    if task.level:
        place = {"typeOfLevel": "isobaricInhPa", "level": task.level}
    cubes: list[FieldCube] = []
    starts = (np.unique(index["dataDate"]).astype(np.int64) * 10000).tolist()
    for field in task.fields:
        rows = index.rows(paramId=field.param_id, step=archive.LEAD_HOURS, dataTime=0, **place)
        if not rows.size:
            raise FileFormatError(
                f"{index.files[0]}: no {field.name} of ENS-10 at step {archive.LEAD_HOURS} h among "
                f"{len(index)} messages in {len(index.files)} file(s); expected files "
                f"output.{task.dtype}.2018*"
            )
        cubes.append(FieldCube(index, field.name, rows))
        try:
            cubes[-1].check()
        except FileFormatError as error:
            said = str(error).rpartition("; ")[0]
            raise FileFormatError(f"{said}; expected each once: fetch the files again") from error
        for dim, values in (("time", starts), ("number", cubes[0].values("number"))):
            if cubes[-1].values(dim) != values:
                raise FileFormatError(
                    f"{index.files[0]}: {field.name} and other fields differ in {dim}; fetch the "
                    "files again"
                )
    every = np.concatenate([each.rows for each in cubes])
    first = int(every[0])
    kind = str(index["gridType"][first]), int(index["scanningMode"][first])
    if kind != NORTH_TO_SOUTH or len(np.unique(index["gridHash"][every])) > 1:
        raise FileFormatError(
            f"{index.where(first)} has grid and scanning mode {kind}; expected all on one grid, "
            f"{NORTH_TO_SOUTH}: from north to south"
        )
    return cubes


def find_target(
    path: Path, task: archive.Task, starts: Sequence[str], shape: tuple[int, ...], cache_dir: Path
) -> tuple[NetcdfFile, list[int]]:
    """Return ERA5's file, and which of its times is that of each start."""
    [file], name = inspect_files([path], cache_dir=cache_dir), task.target_variable
    dims, variable = ("time", "latitude", "longitude"), file.variables.get(name)
    is_alike = variable is not None and (variable.dims, variable.shape[1:]) == (dims, shape)
    latitudes = whole_variable(file, "latitude") if "latitude" in file.variables else np.zeros(2)
    if not is_alike or not (np.diff(latitudes) < 0).all():
        raise FileFormatError(
            f"{path}: expected {name} ({', '.join(dims)}) on the forecasts' grid {shape}, from "
            f"north to south{task.or_without}"
        )
    [times] = file_times([file], "time")
    rows = []
    for start in starts:
        time = archive.valid_time(start)
        places = np.flatnonzero(times == time)
        if places.size != 1:
            raise FileFormatError(
                f"{path}: expected the time {time} once (forecast of {start} + "
                f"{archive.LEAD_HOURS} h), found it {places.size} times; fetch it for all forecasts"
                f"{task.or_without}"
            )
        rows.append(int(places[0]))
    return only_variables(file, [name]), rows
