"""Application A4: ENS-10 ensemble post-processing; a sample is what the D2.3 U-Net read.

22 channels, the mean and deviation over ten members of eleven surface variables 48 hours ahead,
normalised, and the 2 m temperature that ERA5 then had; or 14, of seven variables at one pressure
level, and ERA5's geopotential or temperature there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.coordinates import Coordinate, SampleLabels, forecast_times
from iobench.datasets import (
    Arrays,
    Baseline,
    Downloads,
    FileKey,
    FileRange,
    Key,
    Locator,
    Option,
    PlannedFile,
    PluginCall,
    PublishedStep,
    Raw,
    SampleIndex,
    VariablePart,
    array_for_one_sample,
    decode_message,
    describe_grid,
    file_times,
    index_grib,
    inspect_files,
    make_plain_loop,
    own_files,
    range_file,
    read_extents,
    whole_variable,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.ens10 import files as archive
from iobench_maelstrom.ens10.point_statistics import PointStatistics, normalisation_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import GribIndex
    from iobench_maelstrom.ens10.point_statistics import Members

NORTH_TO_SOUTH = 0
"""GRIB's scanning mode of rows from north to south, each from west to east."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the samples of an index have in common."""

    starts: tuple[str, ...]  # start date (``YYYYMMDD``) of each sample, ascending
    members: tuple[int, ...]  # perturbation numbers, the same in all samples
    shape: tuple[int, int]  # latitudes and longitudes

    @property
    def n_members(self) -> int:
        """Members of each variable."""
        return len(self.members)

    @property
    def n_points(self) -> int:
        """Points of one field."""
        return self.shape[0] * self.shape[1]


def find_messages(
    index: GribIndex, task: archive.Task
) -> tuple[Layout, list[list[FileRange[str]]]]:
    """Return what samples are like, and where the messages of each are, by variable and member."""
    parameters = [field.param_id for field in task.fields]
    place: dict[str, Any] = {"typeOfLevel": "surface"}
    if task.level:
        place = {"typeOfLevel": "isobaricInhPa", "level": task.level}
    rows = index.rows(paramId=parameters, step=archive.LEAD_HOURS, dataTime=0, **place)
    if not rows.size:
        kind = f"field at {task.level} hPa" if task.level else "surface field"
        raise FileFormatError(
            f"{index.files[0]}: no {kind} of ENS-10 at step {archive.LEAD_HOURS} h among "
            f"{len(index)} messages in {len(index.files)} file(s); expected files "
            f"output.{task.dtype}.2018*"
        )
    shape = _common_grid(index, rows)
    starts, start_of = np.unique(index["dataDate"], return_inverse=True)
    members, member_of = np.unique(index["number"][rows], return_inverse=True)
    order = np.argsort(parameters)
    variable_of = order[np.searchsorted(np.sort(parameters), index["paramId"][rows])]
    slots = (start_of[rows], variable_of, member_of)
    table = np.full((len(starts), len(parameters), len(members)), -1, dtype=np.int64)
    table[slots] = rows
    missing = np.argwhere(table < 0)
    if missing.size:
        start, variable, member = missing[0].tolist()
        file = index.files[int(index["file"][index["dataDate"] == starts[start]][0])]
        day = str(starts[start])
        raise FileFormatError(
            f"{file}: the forecast of {day[:4]}-{day[4:6]}-{day[6:]} lacks "
            f"{task.fields[variable].name} of member {members[member]} at step "
            f"{archive.LEAD_HOURS} h ({len(missing)} message(s) missing in all); fetch it again"
        )
    repeated = rows[table[slots] != rows]
    if repeated.size:
        raise FileFormatError(
            f"{index.where(int(repeated[0]))} is there twice (same start, variable, member); "
            "expected each once: are two files copies of one?"
        )
    layout = Layout(tuple(map(str, starts.tolist())), tuple(members.tolist()), shape)
    return layout, [index.extents(each) for each in table.reshape(len(starts), -1).tolist()]


def _common_grid(index: GribIndex, rows: NDArray[np.int64]) -> tuple[int, int]:
    odd = rows[index["gridHash"][rows] != index["gridHash"][rows[0]]]
    if odd.size:
        raise FileFormatError(
            f"{index.where(int(odd[0]))} has another grid than the first message; expected one "
            "grid in all files"
        )
    first = int(rows[0])
    shape = int(index["Nj"][first]), int(index["Ni"][first])
    regular = str(index["gridType"][first]) == "regular_ll" and min(shape) > 0
    if not regular or int(index["scanningMode"][first]) != NORTH_TO_SOUTH:
        raise FileFormatError(
            f"{index.where(first)} has grid {index['gridType'][first]} {shape}, scanning mode "
            f"{index['scanningMode'][first]}; expected regular_ll from north to south"
        )
    return shape


@dataclass(frozen=True, slots=True)
class Target:
    """Where the target's fields are: one of each time, one after another."""

    path: Path
    task: archive.Task
    times: NDArray[np.datetime64]
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def range_of(self, start: str) -> FileRange[str]:
        """Return where the field valid at the end of the forecast of ``start`` is."""
        time = archive.valid_time(start)
        places = np.flatnonzero(self.times == time)
        if places.size != 1:
            raise FileFormatError(
                f"{self.path}: expected the time {time} once (forecast of {start} + "
                f"{archive.LEAD_HOURS} h), found it {places.size} times; fetch it for all forecasts"
                f"{self.task.or_without}"
            )
        nbytes = self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize
        return FileRange(range_file(self.path), self.offset + int(places[0]) * nbytes, nbytes)

    def number_of(self, place: FileRange[str]) -> int:
        """Return which time a field is of, by where it is."""
        return (place.offset - self.offset) // place.nbytes


def open_target(path: Path, task: archive.Task, cache_dir: Path) -> Target:
    """Return where the fields of an ERA5 target file are; what it holds is kept."""
    [file], name = inspect_files([path], cache_dir=cache_dir), task.target_variable
    dims = ("time", "latitude", "longitude")
    if missing := {name, *dims[:2]} - set(file.variables):
        raise FileFormatError(f"{path}: has no variable {', '.join(sorted(missing))}")
    variable = file.variables[name]
    dtype = np.dtype(variable.packing.stored)
    if (
        not variable.is_contiguous
        or variable.offset < 0
        or dtype.kind != "f"
        or variable.dims[:2] != dims[:2]
        or len(variable.dims) != 3
        or variable.packing.scale is not None
    ):
        layout = f", in pieces of {variable.chunk}" if variable.is_in_chunks else ""
        raise FileFormatError(
            f"{path}: expected {name} ({', '.join(dims)}) in one piece, found {dtype} "
            f"{variable.dims} {variable.shape}{layout}; store it as contiguous float32 (xarray: "
            f"encoding={{{name!r}: {{'dtype': 'float32', 'contiguous': True}}}}){task.or_without}"
        )
    latitudes = whole_variable(file, "latitude")
    if latitudes[0] < latitudes[-1]:
        raise FileFormatError(
            f"{path}: latitudes go from south to north, the forecasts' from north to south; "
            "turn them (cdo invertlat)"
        )
    [times] = file_times([file], "time", "h")
    return Target(path, task, times, variable.offset, dtype.str, variable.shape[1:])


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
            "epoch": (178.54078, 189.92810, 184.69046, 214.2706, 14.18365),
            "batch": (0.03891, 0.12581, 0.12044, 6.96415, 0.27348),
            "forward": (0.00472, 0.00714, 0.00525, 4.71542, 0.06220),
            "backward": (0.01346, 0.01616, 0.01587, 0.58133, 0.00931),
            "I/O": (0.02158, 0.10881, 0.10577, 6.02123, 0.22815),
        },
        "D2.3 table 5, TensorFlow, TFRecord": {
            "epoch": (196.47212, 255.80167, 263.16660, 282.21101, 34.15999),
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


def _meteorology(starts: Sequence[str], message: memoryview) -> SampleLabels:
    """Return when forecasts start and are of, and where their points are, as a message has it."""
    step = {"standard_name": "forecast_period", "units": "hours"}
    return SampleLabels(
        ("time",),
        (
            *forecast_times(_days(starts), archive.LEAD_HOURS * 3600),
            Coordinate("step", (), np.asarray(archive.LEAD_HOURS), step),
            *describe_grid(message, ("latitude", "longitude")),
        ),
    )


def _days(starts: Sequence[str]) -> NDArray[np.datetime64]:
    return np.array([f"{start[:4]}-{start[4:6]}-{start[6:]}" for start in starts], "M8[s]")


class Ens10(PluginFiles):
    """ENS-10's fields as the D2.3 U-Net read them."""

    example = "date=0101,0104"

    name = "maelstrom-ens10"
    keys = (Key("date", archive.ALL_DATES),)
    terms_of_use = archive.TERMS
    citation = archive.CITATION
    synthesis_version = archive.STAND_IN_VERSION
    options = (
        Option(
            "date",
            "Start dates as upstream, MMDD or YYYYMMDD (the year is ignored), separated by commas. "
            "By default all whose files are found.",
            (),
            archive.ALL_DATES,
            many=True,
            parse=archive.start_date,
        ),
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
        self._layout: Layout | None = None
        self._target: Target | None = None
        self._statistics: PointStatistics | None = None

    @property
    def stand_in_name(self) -> str:
        return self.name if self.task.dtype == "sfc" else f"{self.name}-{self.task.dtype}"

    @property
    def layout(self) -> Layout:
        """What the samples have in common, once they are found."""
        if self._layout is None:
            raise OptionError(f"{self.name}: call samples() before decode() and preprocess()")
        return self._layout

    def file_url(self, key: FileKey) -> str:
        return archive.forecast_url(key["date"], self.task.dtype)

    def files(self, locator: Locator) -> list[Path]:
        paths = self._own_files(locator) or super().files(locator)
        if not self.has_target:
            return paths
        url = self.task.target_url
        target = locator.find([url])[0]
        if target is None:
            raise MissingFileError(
                f"{self.name}: the target era5/{url.rpartition('/')[2]} was not found in "
                f"{locator.searched()}; it holds ERA5's {self.task.target} on the forecasts' grid "
                f"at start + {archive.LEAD_HOURS} h (Climate Data Store): put it there"
                f"{self.task.or_without}"
            )
        return [*paths, target]

    def _own_files(self, locator: Locator) -> list[Path]:
        """Return the files of a user's layout, e.g. one per start date after ``grib_copy``."""
        own, dates = own_files(locator) or (), self.chosen["date"]
        if not dates or not own:
            return [file.path for file in own]
        if not all(file.month and file.day for file in own):
            raise OptionError(
                f"option date: {locator.searched()} does not say which date a file is of; write "
                "{month} and {day} for the digits of it"
            )
        present = {file.month + file.day for file in own}
        missing = [
            archive.forecast_url(date, self.task.dtype) for date in dates if date not in present
        ]
        if missing:
            raise MissingFileError(
                f"{self.name}: {', '.join(missing)} not found in {locator.searched()}; fetch the "
                "files and name their folder with --data-dir"
            )
        return [file.path for file in own if file.month + file.day in dates]

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        forecasts = files[:-1] if self.has_target else files
        index = index_grib(forecasts, cache_dir=locator.cache_dir, progress=locator.progress)
        self._layout, where = find_messages(index, self.task)
        starts, shape = self._layout.starts, self._layout.shape
        self._statistics, setup = normalisation_of(
            self,
            where,
            list(map(range_file, index.files)),
            locator,
            members=(len(self.task.fields), self._layout.n_members, self._layout.n_points),
        )
        grid, channels = ("latitude", "longitude"), self.task.channels
        inputs = (len(channels), *shape)
        variables = [Variable("inputs", inputs, "<f4", ("channel", *grid), "1", channels=channels)]
        if self.has_target:
            target = open_target(files[-1], self.task, locator.cache_dir)
            if target.shape != shape:
                raise FileFormatError(
                    f"{files[-1]}: fields of {target.shape}, expected the forecasts' grid {shape}"
                )
            for ranges, start in zip(where, starts, strict=True):
                ranges.append(target.range_of(start))
            self._target = target
            units = self.task.target_units
            variables.append(Variable(self.task.target, shape, "<f4", grid, units, role="target"))
        is_test = [int(start[:4]) >= FIRST_TEST_YEAR for start in starts]
        splits = {
            name: numbers
            for name, value in (("train", False), ("test", True))
            if (numbers := [number for number, test in enumerate(is_test) if test is value])
        }
        target_text = f"ERA5 {self.task.target} at start + 48 h" if self.has_target else "none"
        return SampleIndex(
            spec=SampleSpec(tuple(variables)),
            where=where,
            splits=splits,
            coordinate=[f"{start[:4]}-{start[4:6]}-{start[6:]}" for start in starts],
            positions=_days(starts).astype(np.float64).tolist(),
            position_units="seconds",
            setup=setup,
            provenance={
                **self.facts(index.files),
                "dtype": self.task.dtype,
                "step_hours": archive.LEAD_HOURS,
                "members": list(self._layout.members),
                "starts": list(starts),
                "target": target_text,
                "normalisation": self._statistics.facts(),
                "stand_in": locator.stand_in,
            },
            meteorology=_meteorology(starts, read_extents(where[0][:1])[0]),
        )

    def members_of(self, number: int) -> Members:
        """Return what reads the members of a variable, by its number."""
        n_members = self.layout.n_members

        def members(where: Sequence[FileRange[str]]) -> NDArray[np.float32]:
            ranges = where[number * n_members : (number + 1) * n_members]
            fields = array_for_one_sample((n_members, self.layout.n_points), np.float32)
            for message, place, field in zip(read_extents(ranges), ranges, fields, strict=True):
                decode_message(message, where=f"{place}", out=field)
            return fields

        return members

    def read(self, where: Sequence[FileRange[str]]) -> Raw:
        return read_extents(where)

    def decode(self, raw: Raw, where: Sequence[FileRange[str]]) -> Arrays:
        """Return the members of each variable, shape (member, latitude, longitude), and ``target``.

        All are float32, in the variables' own units.
        """
        layout, messages = self.layout, iter(raw)
        shape = len(self.task.fields), layout.n_members, layout.n_points
        fields = array_for_one_sample(shape, np.float32)
        arrays: dict[str, NDArray[Any]] = {}
        for variable, members in zip(self.task.fields, fields, strict=True):
            for number, member in zip(layout.members, members, strict=True):
                place = f"{variable.name} of member {number}"
                decode_message(next(messages), where=place, out=member)
            arrays[variable.name] = members.reshape(layout.n_members, *layout.shape)
        if self.has_target:
            arrays["target"] = self.target_array(next(messages))
        return arrays

    def target_array(self, raw: Any) -> NDArray[np.float32]:
        """Return the target's field out of its bytes."""
        assert self._target is not None
        values = np.frombuffer(raw, dtype=self._target.dtype)
        return values.reshape(self.layout.shape).astype(np.float32)

    def preprocess(self, arrays: Arrays, where: Sequence[FileRange[str]]) -> Sample:
        """Return ``inputs``, normalised mean and deviation by channel, and the target."""
        layout = self.layout
        if self._statistics is None:
            raise OptionError(f"{self.name}: call samples() before preprocess()")
        inputs = np.empty((2 * len(self.task.fields), layout.n_points), dtype=np.float32)
        for number, variable in enumerate(self.task.fields):
            fields = arrays[variable.name].reshape(layout.n_members, layout.n_points)
            self._statistics.score(number, fields, inputs[2 * number : 2 * number + 2])
        sample = {"inputs": inputs.reshape(len(inputs), *layout.shape)}
        if self.has_target:
            sample[self.task.target] = arrays["target"]
        return sample

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        days = _days(self.layout.starts).astype(np.int64)
        starts = dict(zip((where[0] for where in index.where), days, strict=True))
        return make_plain_loop(index, functools.partial(self._parts_of, starts), self.preprocess)

    def _parts_of(
        self, starts: Mapping[FileRange[str], np.int64], where: Sequence[FileRange[str]]
    ) -> list[VariablePart]:
        """Return what xarray has to read of a sample; ``starts`` has its time by its first part."""
        labels: dict[str, Any] = {"time": starts[where[0]], "step": archive.LEAD_HOURS}
        if self.task.level:
            labels["isobaricInhPa"] = self.task.level
        parts, n_members = [], self.layout.n_members
        for number, each in enumerate(self.task.fields):
            paths = {place[0] for place in where[number * n_members : (number + 1) * n_members]}
            if len(paths) > 1:
                raise FileFormatError(
                    f"{self.name}: members of {each.name} are in several files, "
                    f"{' and '.join(sorted(paths))}; use --pipeline own"
                )
            source, at = paths.pop(), {"surface": 0}
            parts.append(VariablePart(source, each.short_name, at, labels, each.name))
        if self._target is not None:
            time = {"time": self._target.number_of(where[-1])}
            variable = self.task.target_variable
            parts.append(VariablePart(where[-1][0], variable, time, name="target"))
        return parts

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        dtype = self.task.dtype
        return [self.call({"date": key["date"], "dtype": dtype}, [key]) for key in keys]

    def downloads(self) -> Downloads:
        others = (self.task.target_url,) if self.has_target else ()
        return msgspec.structs.replace(super().downloads(), others=others)

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> archive.Ensemble:
        return archive.plan_of_size(self.task.dtype, scale=scale, tiny=tiny, seed=seed)

    def planned_files(self, plan: Any) -> list[PlannedFile]:
        return [*archive.target_files(plan, self.task.dtype), *super().planned_files(plan)]

    def file_nbytes(self, key: FileKey, plan: Any) -> int:
        return archive.forecasts_nbytes(plan)

    def write(self, plan: Any, key: FileKey, path: Path) -> None:
        archive.write_forecasts(plan, self.task.dtype, key["date"], path)
