"""Application A4: ENS-10 ensemble post-processing; a sample is what the D2.3 U-Net read.

Mean and deviation over ten members of eleven surface variables, or seven at a level; and ERA5's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    range_file,
    read_extents,
    whole_variable,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.ens10 import files as archive
from iobench_maelstrom.ens10.point_statistics import (
    PointStatistics,
    keep_statistics,
    member_moments,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import GribIndex

NORTH_TO_SOUTH = 0
"""GRIB's scanning mode of rows from north to south, each from west to east."""
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


class Layout(msgspec.Struct, frozen=True):
    """What the samples of an index have in common."""

    starts: tuple[str, ...]  # start date (``YYYYMMDD``) of each sample, ascending
    members: tuple[int, ...]  # perturbation numbers, the same in all samples
    shape: tuple[int, int]  # latitudes and longitudes


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

    layout: Layout
    """What the samples have in common, once they are found."""
    _statistics: PointStatistics

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
        self._target_rows: tuple[int, ...] = ()  # of each sample
        self._target_dtype = ""

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

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        forecasts = files[:-1] if self.has_target else files
        index = index_grib(forecasts, cache_dir=locator.cache_dir, progress=locator.progress)
        self.layout, where = find_messages(index, self.task)
        starts, members, shape = self.layout.starts, self.layout.members, self.layout.shape
        n_values = len(self.task.fields) * len(members) * shape[0] * shape[1]
        files_of_index = list(map(range_file, index.files))
        self._statistics = keep_statistics(
            self.name, self.members_of, where, files_of_index, locator, n_values=n_values
        )
        grid, channels = ("latitude", "longitude"), self.task.channels
        inputs = (len(channels), *shape)
        variables = [Variable("inputs", inputs, "<f4", ("channel", *grid), "1", channels=channels)]
        if self.has_target:
            ranges, self._target_rows, self._target_dtype = target_ranges(
                files[-1], self.task, self.layout, locator.cache_dir
            )
            for messages, field in zip(where, ranges, strict=True):
                messages.append(field)
            units = self.task.target_units
            variables.append(Variable(self.task.target, shape, "<f4", grid, units, role="target"))
        years = [int(start[:4]) for start in starts]
        splits = {
            "train": [n for n, year in enumerate(years) if year < FIRST_TEST_YEAR],
            "test": [n for n, year in enumerate(years) if year >= FIRST_TEST_YEAR],
        }
        days = _days(starts)
        step = {"standard_name": "forecast_period", "units": "hours"}
        lead = Coordinate("step", (), np.asarray(archive.LEAD_HOURS), step)
        points = describe_grid(read_extents(where[0][:1])[0], grid)
        times = forecast_times(days, archive.LEAD_HOURS * 3600)
        return SampleIndex(
            spec=SampleSpec(tuple(variables)),
            where=where,
            splits={name: numbers for name, numbers in splits.items() if numbers},
            coordinate=np.datetime_as_string(days, "D").tolist(),
            positions=days.astype(np.float64).tolist(),
            position_units="seconds",
            provenance={
                **self.facts(index.files),
                "dtype": self.task.dtype,
                "step_hours": archive.LEAD_HOURS,
                "members": list(members),
                "starts": list(starts),
                "target": f"ERA5 {self.task.target} at start + 48 h" if self.has_target else "none",
                "normalisation": self._statistics.facts(),
                "stand_in": locator.stand_in,
            },
            meteorology=SampleLabels(("time",), (*times, lead, *points)),
        )

    # ---- a sample

    def members_of(self, where: Sequence[FileRange[str]]) -> NDArray[np.float32]:
        """Return the members of each variable, shape (variable, member, point)."""
        n_messages = len(self.task.fields) * len(self.layout.members)
        return self._fields(iter(read_extents(where[:n_messages])))

    def _fields(self, messages: Iterator[Any]) -> NDArray[np.float32]:
        members, shape = self.layout.members, self.layout.shape
        size = len(self.task.fields), len(members), shape[0] * shape[1]
        fields = array_for_one_sample(size, np.float32)
        for variable, own in zip(self.task.fields, fields, strict=True):
            for number, member in zip(members, own, strict=True):
                place = f"{variable.name} of member {number}"
                decode_message(next(messages), where=place, out=member)
        return fields

    def read(self, where: Sequence[FileRange[str]]) -> Raw:
        return read_extents(where)

    def decode(self, raw: Raw, where: Sequence[FileRange[str]]) -> Arrays:
        """Return the members of each variable, (member, latitude, longitude), and ``target``."""
        messages, shape = iter(raw), self.layout.shape
        fields = self._fields(messages)
        arrays: dict[str, NDArray[Any]] = {
            variable.name: members.reshape(len(members), *shape)
            for variable, members in zip(self.task.fields, fields, strict=True)
        }
        if self.has_target:
            field = np.frombuffer(next(messages), self._target_dtype)
            arrays["target"] = field.reshape(shape).astype(np.float32)
        return arrays

    def preprocess(self, arrays: Arrays, where: Sequence[FileRange[str]]) -> Sample:
        """Return ``inputs``, normalised mean and deviation by channel, and the target."""
        shape = self.layout.shape
        mean, divisor = self._statistics.mean_and_divisor
        inputs = np.empty((2 * len(self.task.fields), shape[0] * shape[1]), dtype=np.float32)
        for number, variable in enumerate(self.task.fields):
            pair = slice(2 * number, 2 * number + 2)
            fields = arrays[variable.name].reshape(len(self.layout.members), -1)
            member_moments(fields, inputs[pair])
            inputs[pair] -= mean[pair]
            inputs[pair] /= divisor[pair]
        sample = {"inputs": inputs.reshape(len(inputs), *shape)}
        if self.has_target:
            sample[self.task.target] = arrays["target"]
        return sample

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, *, batch_size: int | None
    ) -> Baseline:
        numbers = {where[0]: number for number, where in enumerate(index.where)}
        return make_plain_loop(index, functools.partial(self._parts_of, numbers), self.preprocess)

    def _parts_of(
        self, numbers: Mapping[FileRange[str], int], where: Sequence[FileRange[str]]
    ) -> list[VariablePart]:
        """Return what xarray has to read of a sample, whose number its first message tells."""
        sample = numbers[where[0]]
        start = _days([self.layout.starts[sample]]).astype(np.int64)[0]
        labels: dict[str, Any] = {"time": start, "step": archive.LEAD_HOURS}
        if self.task.level:
            labels["isobaricInhPa"] = self.task.level
        parts, n_members = [], len(self.layout.members)
        for number, each in enumerate(self.task.fields):
            paths = {place[0] for place in where[number * n_members : (number + 1) * n_members]}
            if len(paths) > 1:
                raise FileFormatError(
                    f"{self.name}: members of {each.name} are in several files, "
                    f"{' and '.join(sorted(paths))}; use --pipeline own"
                )
            source, at = paths.pop(), {"surface": 0}
            parts.append(VariablePart(source, each.short_name, at, labels, each.name))
        if self.has_target:
            at, variable = {"time": self._target_rows[sample]}, self.task.target_variable
            parts.append(VariablePart(where[-1][0], variable, at, name="target"))
        return parts

    # ---- files that are not at hand

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        dtype = self.task.dtype
        return [self.call({"date": key["date"], "dtype": dtype}, [key]) for key in keys]

    def downloads(self) -> Downloads:
        others = (self.task.target_url,) if self.has_target else ()
        return msgspec.structs.replace(super().downloads(), others=others)

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> archive.Ensemble:
        return archive.plan_of_size(self.task.dtype, scale=scale, tiny=tiny, seed=seed)

    def stand_in_urls(self, plan: Any) -> dict[str, Callable[[Path], None]]:
        tasks = dict.fromkeys(archive.TASKS[self.task.dtype].values())
        targets = {each.target_url: archive.target_contents(plan, each).write for each in tasks}
        return {**targets, **super().stand_in_urls(plan)}

    def write(self, plan: Any, key: FileKey, path: Path) -> None:
        archive.write_forecasts(plan, self.task.dtype, key["date"], path)


def _days(starts: Sequence[str]) -> NDArray[np.datetime64]:
    return np.array([f"{start[:4]}-{start[4:6]}-{start[6:]}" for start in starts], "M8[s]")


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


def target_ranges(
    path: Path, task: archive.Task, layout: Layout, cache_dir: Path
) -> tuple[list[FileRange[str]], tuple[int, ...], str]:
    """Return where ERA5's field of each sample is in its file, which time there, and its dtype."""
    [file], name = inspect_files([path], cache_dir=cache_dir), task.target_variable
    dims, variable = ("time", "latitude", "longitude"), file.variables.get(name)
    is_plain = (
        variable is not None
        and {*dims[:2]} <= set(file.variables)
        and variable.dims == dims
        and variable.shape[1:] == layout.shape
        and variable.is_contiguous
        and variable.offset >= 0
        and variable.packing.scale is None
        and np.dtype(variable.packing.stored).kind == "f"
        and whole_variable(file, "latitude")[0] > whole_variable(file, "latitude")[-1]
    )
    if variable is None or not is_plain:
        raise FileFormatError(
            f"{path}: expected {name} ({', '.join(dims)}) on the forecasts' grid {layout.shape}, "
            "from north to south, as contiguous floats (xarray: "
            f"encoding={{{name!r}: {{'dtype': 'float32', 'contiguous': True}}}}){task.or_without}"
        )
    dtype = np.dtype(variable.packing.stored)
    [times] = file_times([file], "time")
    rows = []
    for start in layout.starts:
        time = archive.valid_time(start)
        places = np.flatnonzero(times == time)
        if places.size != 1:
            raise FileFormatError(
                f"{path}: expected the time {time} once (forecast of {start} + "
                f"{archive.LEAD_HOURS} h), found it {places.size} times; fetch it for all forecasts"
                f"{task.or_without}"
            )
        rows.append(int(places[0]))
    nbytes = layout.shape[0] * layout.shape[1] * dtype.itemsize
    source = range_file(path)
    ranges = [FileRange(source, variable.offset + row * nbytes, nbytes) for row in rows]
    return ranges, tuple(rows), dtype.str
