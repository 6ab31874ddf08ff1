"""Application A4: ENS-10 ensemble post-processing; a sample is what the D2.3 U-Net read.

22 channels, the mean and deviation over ten members of eleven surface variables 48 hours ahead,
normalised, and the 2 m temperature that ERA5 then had; or 14, of seven variables at one pressure
level, and ERA5's geopotential or temperature there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Baseline,
    DatedFile,
    Downloads,
    FileRange,
    GribIndex,
    Locator,
    Option,
    PlannedFile,
    PluginDownload,
    PublishedFiles,
    PublishedStep,
    Raw,
    SampleIndex,
    StandIn,
    decode_message,
    existing_files,
    index_grib,
    own_files,
    read_messages,
    stopwatch,
)
from iobench.errors import FileFormatError, MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.ens10.messages import Layout, find_messages
from iobench_maelstrom.ens10.normalisation import (
    Statistics,
    member_moments,
    normalisation_folder,
)
from iobench_maelstrom.ens10.recycling import RecycledMemory
from iobench_maelstrom.ens10.schema import (
    ALL_DATES,
    CHANNELS,
    CITATION,
    FIRST_TEST_YEAR,
    GRID,
    LEAD_HOURS,
    SURFACE_TASK,
    TERMS,
    UnetTask,
    forecast_url,
    parse_dates,
)
from iobench_maelstrom.ens10.stand_in import STAND_IN_VERSION, StandInPlan, planned_files
from iobench_maelstrom.ens10.target import open_target, or_without
from iobench_maelstrom.ens10.tasks import TASKS
from iobench_maelstrom.ens10.through_plugin import ens10_through_plugin
from iobench_maelstrom.ens10.upstream import grid_loader

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Ens10"]

PUBLISHED = PublishedStep(
    forward_ns=5_250_000,
    backward_ns=15_870_000,
    batch_size=1,
    source="MAELSTROM D2.3, table 4: U-Net, PyTorch 1.12.1, one A100 40 GB",
    exposed_io_s=(0.02158, 0.10881, 0.10577, 6.02123, 0.22815),
    sample_nbytes=(len(CHANNELS) + 1) * GRID.n_points * 4,
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
PUBLISHED_PL = dataclasses.replace(
    PUBLISHED,
    source=f"{PUBLISHED.source}; 22 channels, of which 14 take 98 % of the operations",
    exposed_io_s=None,
    tables={},
    sample_nbytes=(14 + 1) * GRID.n_points * 4,
)


class Ens10(PublishedFiles):
    """ENS-10's fields as the D2.3 U-Net read them.

    Attributes
    ----------
    dates : tuple of str
        Start dates (``MMDD``) whose files are all required; empty for those at hand.
    has_target : bool
        Whether samples have the ERA5 target.
    task : UnetTask
        Which fields, which target.
    """

    name = "maelstrom-ens10"
    terms_of_use = TERMS
    citation = CITATION
    synthesis_version = STAND_IN_VERSION
    options = (
        Option(
            "date",
            "Start dates as upstream, MMDD or YYYYMMDD (the year is ignored), separated by commas. "
            "By default all whose files are at hand.",
            (),
            parse=parse_dates,
        ),
        Option("dtype", "Surface fields, or those at a pressure level.", "sfc", tuple(TASKS)),
        Option(
            "target",
            "For sfc whether samples have the target, ERA5's t2m; for pl which target they have, "
            "which says the level, too. The first of each is the default.",
            values=tuple(target for targets in TASKS.values() for target in targets),
        ),
    )

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        dtype, targets = self.chosen["dtype"], TASKS[self.chosen["dtype"]]
        target = self.chosen["target"] or next(iter(targets))
        if target not in targets:
            raise OptionError(
                f"target {target!r}: of dtype {dtype}, expected {' or '.join(targets)}"
            )
        self.dates: tuple[str, ...] = self.chosen["date"]
        self.has_target = target != "none"
        self.task: UnetTask = targets[target]
        level = self.task.level
        fields = f"fields at {level} hPa" if level else "surface fields"
        self.title = f"ENS-10 ensemble forecasts, {fields} at step 48 h (MAELSTROM A4)"
        self.published = PUBLISHED if self.task is SURFACE_TASK else PUBLISHED_PL
        self._layout: Layout | None = None
        self._target_dtype = ""
        self._statistics: Statistics | None = None
        self._mapped: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        self._memory = RecycledMemory()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def stand_in_name(self) -> str:
        """What stand-ins are told apart by: the files of each dtype are others."""
        dtype = self.task.dtype
        return self.name if dtype == "sfc" else f"{self.name}-{dtype}"

    def urls(self) -> list[str]:
        """Return the URLs of the forecasts."""
        return [forecast_url(date, self.task.dtype) for date in self.dates or ALL_DATES]

    def files(self, locator: Locator) -> list[Path]:
        """Return the forecasts' files and, last, the target's.

        Raises
        ------
        MissingFileError
            Naming what is missing, where it was looked for and how to get it.
        """
        own = own_files(locator)
        if own is None:
            needed = bool(self.dates)
            paths = existing_files(self.name, self.urls(), locator, all_needed=needed)
        else:
            paths = self._own_files(own, locator)
        if not self.has_target:
            return paths
        url = self.task.target_url
        target = locator.find([url])[0]
        if target is None:
            raise MissingFileError(
                f"maelstrom-ens10: the target era5/{url.rpartition('/')[2]} was not found in "
                f"{locator.searched()}; it holds ERA5's {self.task.target} on the forecasts' grid "
                f"at start + {LEAD_HOURS} h (Climate Data Store): put it there"
                f"{or_without(self.task.target_variable)}"
            )
        return [*paths, target]

    def _own_files(self, own: Sequence[DatedFile], locator: Locator) -> list[Path]:
        """Return the files of a user's layout, e.g. one per start date after ``grib_copy``."""
        if not self.dates:
            return [file.path for file in own]
        if not all(file.month and file.day for file in own):
            raise OptionError(
                f"option date: {locator.searched()} does not say which date a file is of; write "
                "{month} and {day} for the digits of it"
            )
        told = {file.month + file.day for file in own}
        dtype = self.task.dtype
        missing = [forecast_url(date, dtype) for date in self.dates if date not in told]
        if missing:
            raise MissingFileError(
                f"{self.name}: {', '.join(missing)} not found in {locator.searched()}; fetch the "
                "files and name their folder with --data-dir"
            )
        return [file.path for file in own if file.month + file.day in self.dates]

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; the plugin takes one start date at a time.

        Raises
        ------
        OptionError
            If none was asked for: all of them are never fetched by default.
        """
        if not self.dates:
            raise OptionError(
                f"--download of {self.name}: say what to fetch, e.g. --option date=0101,0104"
            )
        dtype = self.task.dtype
        calls = tuple(
            PluginDownload(
                self.name,
                {"date": date, "dtype": dtype},
                (forecast_url(date, dtype),),
                terms_of_use=TERMS,
                citation=CITATION,
            )
            for date in self.dates
        )
        # The target is nowhere to be had by itself.
        return Downloads(calls, others=(self.task.target_url,) if self.has_target else ())

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per start date and year, in order of time.

        Raises
        ------
        FileFormatError
            If a forecast lacks a variable or member, or the target a time.
        """
        forecasts = files[:-1] if self.has_target else files
        index = index_grib(forecasts, cache_dir=locator.cache_dir, progress=locator.progress)
        layout = find_messages(index, self.task)
        where = [index.extents(rows.tolist()) for rows in layout.rows]
        watch = stopwatch()
        self._statistics, computed = normalisation_folder(
            forecasts[0].parent,
            locator.cache_dir,
            where,
            n_members=layout.n_members,
            n_points=layout.n_points,
            progress=locator.progress,
        )
        setup = {"normalisation": watch()} if computed else {}
        self._layout = layout.without_rows()
        self._mapped = None
        if self.has_target:
            self._add_target(where, layout, files[-1])
        return SampleIndex(
            spec=self._spec(layout),
            where=where,
            splits=_splits(layout.starts),
            coordinate=[f"{start[:4]}-{start[4:6]}-{start[6:]}" for start in layout.starts],
            setup=setup,
            provenance={**self._provenance(layout, index), "stand_in": locator.stand_in},
        )

    def read(self, where: Sequence[FileRange[str]]) -> Raw:
        """Return the sample's messages, by variable and member, and the target's bytes last."""
        return read_messages(where)

    def decode(self, raw: Raw, where: Sequence[FileRange[str]]) -> Arrays:
        """Return the members of each variable, shape (member, latitude, longitude), and ``target``.

        All are float32, in the variables' own units.
        """
        layout = self._prepared()
        messages = iter(raw)
        variables = self.task.variables
        fields = self._memory.array((len(variables), layout.n_members, layout.n_points))
        arrays: dict[str, NDArray[Any]] = {}
        for variable, members in zip(variables, fields, strict=True):
            for number, member in zip(layout.members, members, strict=True):
                place = f"{variable.name} of member {number}"
                decode_message(next(messages), where=place, out=member)
            arrays[variable.name] = members.reshape(layout.n_members, *layout.shape)
        if self.has_target:
            arrays["target"] = self.target_array(next(messages))
        return arrays

    def preprocess(self, arrays: Arrays, where: Sequence[FileRange[str]]) -> Sample:
        """Return ``inputs``, normalised mean and deviation by channel, and the target."""
        layout = self._prepared()
        if self._mapped is None:
            if self._statistics is None:
                raise OptionError("maelstrom-ens10: call samples() before preprocess()")
            self._mapped = self._statistics.load()
        mean, divisor = self._mapped
        n_channels = len(self.task.channels)
        inputs = np.empty((n_channels, layout.n_points), dtype=np.float32)
        for number, variable in enumerate(self.task.variables):
            fields = arrays[variable.name].reshape(layout.n_members, layout.n_points)
            member_moments(fields, inputs[2 * number], inputs[2 * number + 1])
            pair = slice(2 * number, 2 * number + 2)
            inputs[pair] -= mean[pair]
            inputs[pair] /= divisor[pair]
        sample = {"inputs": inputs.reshape(n_channels, *layout.shape)}
        if self.has_target:
            sample[self.task.target] = arrays["target"]
        return sample

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return the grid loader of the U-Net's training code (`UpstreamBaseline`)."""
        return grid_loader(
            self,
            self._prepared(),
            index,
            locator,
            task=self.task,
            has_target=self.has_target,
            batch_size=batch_size,
        )

    def through_plugin(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return the samples made from the real plugin's arrays (`PluginBaseline`)."""
        target_array = self.target_array if self.has_target else None
        return ens10_through_plugin(self, self._prepared(), index, self.task, target_array)

    def target_array(self, raw: Any) -> NDArray[np.float32]:
        """Return the target's field out of its bytes."""
        values = np.frombuffer(raw, dtype=self._target_dtype)
        return values.reshape(self._prepared().shape).astype(np.float32)

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandInPlan:
        """Return what a stand-in holds: forecasts, and the targets of all tasks."""
        plan = StandInPlan.of_size(scale=scale, tiny=tiny, seed=seed, dtype=self.task.dtype)
        missing = [date for date in self.dates if date not in plan.dates]
        if missing:
            raise OptionError(
                f"date {missing[0]!r}: no file of it is at hand, and the stand-in holds only "
                f"{' '.join(plan.dates)}; choose among them or give --data-dir"
            )
        return plan

    def planned_files(self, plan: StandIn) -> list[PlannedFile]:
        """Return the files of a stand-in, the targets first."""
        assert isinstance(plan, StandInPlan)
        return planned_files(plan)

    def _add_target(self, where: list[list[FileRange[str]]], layout: Layout, path: Path) -> None:
        target = open_target(path, self.task.target_variable)
        if target.shape != layout.shape:
            raise FileFormatError(
                f"{path}: fields of {target.shape}, expected the forecasts' grid {layout.shape}"
            )
        for extents, start in zip(where, layout.starts, strict=True):
            extents.append(target.extent(start))
        self._target_dtype = target.dtype

    def _prepared(self) -> Layout:
        if self._layout is None:
            raise OptionError("maelstrom-ens10: call samples() before decode() and preprocess()")
        return self._layout

    def _spec(self, layout: Layout) -> SampleSpec:
        grid = ("latitude", "longitude")
        task = self.task
        shape = (len(task.channels), *layout.shape)
        inputs = Variable("inputs", shape, "<f4", ("channel", *grid), "1", channels=task.channels)
        target = Variable(task.target, layout.shape, "<f4", grid, task.target_units, role="target")
        return SampleSpec((inputs, target) if self.has_target else (inputs,))

    def _provenance(self, layout: Layout, index: GribIndex) -> dict[str, Any]:
        statistics = self._statistics
        return {
            **self.facts(index.files),
            "dtype": self.task.dtype,
            "step_hours": LEAD_HOURS,
            "members": list(layout.members),
            "starts": list(layout.starts),
            "target": f"ERA5 {self.task.target} at start + 48 h" if self.has_target else "none",
            "normalisation": statistics.facts() if statistics else {},
        }


def _splits(starts: Sequence[str]) -> dict[str, list[int]]:
    """Return the samples of training and testing, by year as upstream; without empty ones."""
    is_test = [int(start[:4]) >= FIRST_TEST_YEAR for start in starts]
    splits = {
        "train": [number for number, test in enumerate(is_test) if not test],
        "test": [number for number, test in enumerate(is_test) if test],
    }
    return {name: numbers for name, numbers in splits.items() if numbers}
