"""Application A1: post-processing of Nordic temperature forecasts; a sample is its U-Net's.

A patch of one lead time with 17 channels (8 predictors, 6 static ones, lead time, x and y), as
training in metno/maelstrom-train makes them, and the air temperature that was analysed.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.coordinates import Meteorology, forecast_times
from iobench.datasets import (
    Arrays,
    Axis,
    Baseline,
    Downloads,
    Field,
    FileKey,
    Hyperslab,
    Inspection,
    Items,
    Key,
    Locator,
    Option,
    PublishedStep,
    Recipe,
    SampleIndex,
    Split,
    catalogued,
    file_times,
    hdf5_source,
    open_source_file,
    whole_variable,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.plugin_samples import plugin_downloads
from iobench_maelstrom.yr.patches import Patch, PatchGrid
from iobench_maelstrom.yr.schema import (
    ALL_DATES,
    CHANNELS,
    CITATION,
    LAST_TRAINING_DATE,
    PREDICTORS,
    RAW_FORECAST,
    SIZES,
    STATIC_PREDICTORS,
    TERMS_OF_USE,
    VALIDATION_DATES,
    file_url,
    parse_dates,
)
from iobench_maelstrom.yr.stand_in import YrPlan, write_file
from iobench_maelstrom.yr.through_plugin import yr_through_plugin

if TYPE_CHECKING:
    from iobench.datasets import Advance, NetcdfFile, StandIn

ROWS_AT_ONCE = 16
FIELD = ("leadtime", "y", "x")
KNOWN = {"predictor": PREDICTORS, "static_predictor": STATIC_PREDICTORS}
ANOTHER_VERSION = "another version of the data set; fetch the files of climetlab-maelstrom-yr 0.6"


def as_range(text: str) -> tuple[int, int]:
    """Return what ``start,stop`` says."""
    parts = [part.strip() for part in text.strip("[]").split(",")]
    if len(parts) != 2 or not all(map(_is_number, parts)):
        raise OptionError(f"range {text!r}: expected start,stop, e.g. 215,1751")
    return int(parts[0]), int(parts[1])


def as_patch(text: str) -> int | str:
    """Return the points along a side, or ``whole``."""
    if text == "whole":
        return text
    if not _is_number(text) or int(text) < 1:
        raise OptionError(f"patch {text!r}: expected a whole number from 1, or whole")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 9


class Yr(Recipe):
    """MAELSTROM A1 as its training reads it; see `Recipe`.

    Patches are read by extent: of each variable only the ranges of the patch's rows. A row of 256
    predictors is 8 KiB of 56: whole rows would be five times the bytes of a sample, a whole lead
    time fifty times. Measured on a local disk, ranges took 12 ms a sample from it and 3 ms from
    memory, whole rows 28 and 5; all 63 patches of a lead time one by one 0.46 s, the lead time at
    once 0.67 s. Targets, 1 KiB of 7 a row, are read with what lies between: fewer system calls
    cost less than the bytes they save.
    """

    name = "maelstrom-yr"
    title = "Nordic temperature forecasts, patches of one lead time (MAELSTROM A1)"
    keys = (Key("dates", ALL_DATES),)
    axes = (
        Axis("leadtime"),
        Axis("y"),
        Axis("x"),
        Axis("predictor", len(PREDICTORS)),
        Axis("static_predictor", len(STATIC_PREDICTORS)),
    )
    fields = (
        Field("predictors", dims=(*FIELD, "predictor")),
        Field("static_predictors", dims=(*FIELD[1:], "static_predictor")),
        Field("target_mean", "celsius", dims=FIELD),
        Field("target_std", "celsius", dims=FIELD),
    )
    options = (
        Option("size", "Which of the two data sets.", "5TB", tuple(SIZES)),
        Option("parameter", "The only one.", "air_temperature", ("air_temperature",)),
        Option(
            "dates",
            "As upstream: 2020-03-01, a list or A/to/B. By default all whose files are found.",
            (),
            parse=parse_dates,
        ),
        Option(
            "patch",
            "Points along a side, or whole. By default 256 of 5TB, the whole grid of 5GB.",
            parse=as_patch,
        ),
        Option("x_range", "start,stop; in training 215,1751.", parse=as_range),
        Option("y_range", "start,stop; in training 50,2098. Both ranges or none.", parse=as_range),
        Option("normalize", "Whether channels are normalised.", True),
        Option("predict_diff", "Whether air_temperature_2m is off the target.", False),
        Option("probabilistic_target", "Whether the target has its deviation, too.", False),
    )
    splits = (
        Split("train", [date for date in ALL_DATES if date <= LAST_TRAINING_DATE]),
        Split("validation", VALIDATION_DATES),
        Split("test", [date for date in ALL_DATES if date > LAST_TRAINING_DATE]),
    )
    published: PublishedStep | None = PublishedStep(
        forward_ns=117_010_000,
        backward_ns=0,
        batch_size=32,
        source="MAELSTROM D2.3, table 1: U-Net, TensorFlow 2.6, one A100 40 GB, median batch "
        "(forward and backward in one, with I/O that was not separated: at most)",
        sample_nbytes=256 * 256 * (len(CHANNELS) + 1) * 4,
        tables={
            "D2.3 table 1, TensorFlow": {
                "epoch": (226.96571, 228.82088, 227.65208, 234.10900, 2.97469),
                "batch": (0.09784, 0.40341, 0.11701, 41.52411, 2.31171),
            },
        },
    )
    terms_of_use = TERMS_OF_USE
    citation = CITATION
    grid: PatchGrid
    """The patches; known, as what follows, once the files are open."""
    leadtimes: tuple[float, ...]
    """Seconds after the start, the same in all files."""
    starts: tuple[str, ...]
    """Of each file, as in ``20200301T03Z``."""

    def __init__(self, **options: str) -> None:
        if "location" in options:
            raise OptionError("option 'location': give the folder with --data-dir")
        if ("x_range" in options) != ("y_range" in options):
            raise OptionError("x_range and y_range: give both or none")
        super().__init__(**options)
        self.size: str = self.chosen["size"]
        patch: int | str = self.chosen["patch"] or (256 if self.size == "5TB" else "whole")
        self.patch = None if patch == "whole" else int(patch)

    # ---- files and samples

    @property
    def stand_in_name(self) -> str:
        """The two sizes have stand-ins of their own."""
        return f"{self.name}-{self.size}"

    def file_url(self, key: FileKey) -> str:
        """Return where the file of a date is published."""
        return file_url(self.chosen["parameter"], self.size, key["dates"])

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; raise OptionError where no choice was made."""
        dates = self.chosen["dates"]
        arguments = {
            "size": self.size,
            "parameter": self.chosen["parameter"],
            "dates": [f"{date[:4]}-{date[4:6]}-{date[6:]}" for date in dates],
        }
        example = "dates=2020-03-01,2020-03-02"
        return plugin_downloads(self, arguments, is_chosen=bool(dates), example=example)

    @property
    def n_targets(self) -> int:
        """Channels of the target."""
        return 2 if self.chosen["probabilistic_target"] else 1

    @property
    def sample_fields(self) -> tuple[Field, ...]:
        """The variables a sample is made of: the target's deviation if it was asked for."""
        return self.fields if self.n_targets == 2 else self.fields[:-1]

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, checked, and their channels' names with it."""
        found = super().open(files, locator)
        names = catalogued(files, CHANNEL_NAMES, cache_dir=locator.cache_dir).found
        for path, by_dim in zip(files, names, strict=True):
            for dim, known in KNOWN.items():
                for number, (name, each) in enumerate(zip(by_dim[dim], known, strict=True)):
                    if name != each.name:
                        raise FileFormatError(
                            f"{path}: {dim} {number} is {name!r}, expected {each.name!r}: "
                            f"{ANOTHER_VERSION}"
                        )
        return found

    def items(self, files: Sequence[NetcdfFile]) -> Items:
        """Return one sample per date, lead time and patch, in that order."""
        leadtimes = [whole_variable(file, "leadtime") for file in files]
        for file, own in zip(files, leadtimes, strict=True):
            if not np.array_equal(own, leadtimes[0]):
                raise FileFormatError(
                    f"{file.path}: other values of 'leadtime' than {files[0].path}; fetch files "
                    "of one size"
                )
        self.leadtimes = tuple(leadtimes[0].tolist())
        times = [each.item() for (each,) in file_times(files, "time", "h")]
        self.starts = tuple(f"{time:%Y%m%dT%HZ}" for time in times)
        dims = files[0].dims
        self.grid = PatchGrid.of(
            len(files),
            (dims["leadtime"], dims["y"], dims["x"]),
            patch=self.patch,
            y_range=self.chosen["y_range"] or None,
            x_range=self.chosen["x_range"] or None,
        )
        self.mean, self.std = self._moments()
        return Items(
            self.grid.all(self.grid.patch),
            self.grid.all(functools.partial(self.grid.name, self.starts, self.leadtimes)),
            splits={split.name: some for split in self.splits if (some := self._samples_in(split))},
        )

    def meteorology(
        self, files: Sequence[NetcdfFile], items: Items, cache_dir: Path
    ) -> Meteorology:
        """Return what the files say of the patches, and when their forecasts start and are of."""
        found = super().meteorology(files, items, cache_dir)
        if not found:
            return found
        numbers = np.array([each[:2] for each in items.where], dtype=np.int64)
        starts = np.array([datetime.datetime.strptime(each, "%Y%m%dT%HZ") for each in self.starts])
        times = forecast_times(
            starts.astype("M8[s]")[numbers[:, 0]], np.asarray(self.leadtimes)[numbers[:, 1]]
        )
        others = (each for each in found.coordinates if each.name not in ("time", "valid_time"))
        return msgspec.structs.replace(found, coordinates=(*times, *others))

    def _samples_in(self, split: Split) -> Sequence[int]:
        """Return the samples of the files whose start is in a split; upstream's overlap."""
        dates = set(split.times)
        files = [number for number, start in enumerate(self.starts) if start[:8] in dates]
        return self.grid.of_files(files)

    def _moments(self) -> tuple[Any, Any]:
        """Return each channel's mean and deviation.

        By the plugin's table; lead time, x and y by their own.
        """
        features = (self.leadtimes, range(self.grid.n_columns), range(self.grid.n_rows))
        known = (*PREDICTORS, *STATIC_PREDICTORS)
        mean = [each.mean for each in known] + [float(np.mean(values)) for values in features]
        std = [each.std for each in known] + [float(np.std(values)) or 1.0 for values in features]
        return np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)

    # ---- a sample

    def hyperslabs(self, where: Patch) -> list[Hyperslab]:
        """Return the patch's part of each variable."""
        n_y, n_x = self.grid.shape
        part: dict[str, int | slice] = {
            "leadtime": where.lead,
            "y": slice(where.y, where.y + n_y),
            "x": slice(where.x, where.x + n_x),
        }
        return [Hyperslab(each.name, part) for each in self.sample_fields]

    def coordinates(self, patch: Patch) -> tuple[Any, Any, Any]:
        """Return lead time in seconds, and x and y as places in the grid that is used."""
        y, x = patch.y - self.grid.y_range[0], patch.x - self.grid.x_range[0]
        n_y, n_x = self.grid.shape
        across = np.arange(y, y + n_y, dtype=np.float32)[:, None]
        return self.leadtimes[patch.lead], np.arange(x, x + n_x, dtype=np.float32), across

    def preprocess(self, arrays: Arrays, where: Patch) -> Sample:
        """Return ``predictors`` with all 17 channels, normalised, and ``targets``."""
        shape = self.grid.shape
        inputs = np.empty((1, *shape, len(CHANNELS)), dtype=np.float32)
        n_dynamic, n_static = len(PREDICTORS), len(STATIC_PREDICTORS)
        mean, std = (np.tile(each, shape[1]) for each in (self.mean, self.std))
        lead, x, y = self.coordinates(where)
        # Some rows at a time, filled and normalised while they are in the processor's cache.
        for first in range(0, shape[0], ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            view = inputs[0, rows]
            view[..., :n_dynamic] = arrays["predictors"][rows]
            view[..., n_dynamic : n_dynamic + n_static] = arrays["static_predictors"][rows]
            view[..., -3] = lead
            view[..., -2] = x
            view[..., -1] = y[rows]
            if self.chosen["normalize"]:
                flat = view.reshape(len(view), -1)
                flat -= mean
                flat /= std
        targets = np.empty((1, *shape, self.n_targets), dtype=np.float32)
        targets[0, ..., 0] = arrays["target_mean"]
        if self.n_targets == 2:
            targets[0, ..., 1] = arrays["target_std"]
        if self.chosen["predict_diff"]:
            targets[0, ..., 0] -= arrays["predictors"][..., RAW_FORECAST]
        return {"predictors": inputs, "targets": targets}

    def spec(self) -> SampleSpec:
        """Return what a sample is."""
        shape, dims = (1, *self.grid.shape), ("leadtime", "y", "x", "channel")
        units, targets = "1" if self.chosen["normalize"] else "", ("mean", "std")[: self.n_targets]
        inputs_shape, targets_shape = ((*shape, n) for n in (len(CHANNELS), self.n_targets))
        return SampleSpec(
            (
                Variable("predictors", inputs_shape, "<f4", dims, units, channels=CHANNELS),
                Variable("targets", targets_shape, "<f4", dims, "celsius", "target", targets),
            )
        )

    def provenance(self, files: Sequence[NetcdfFile], fitted: Sequence[str]) -> dict[str, Any]:
        """Return what the samples' values follow from."""
        told = super().provenance(files, fitted)
        ranges = {name: list(self.chosen[name]) or None for name in ("x_range", "y_range")}
        options = {**told["options"], **ranges, "patch": self.patch}
        del options["dates"]
        return {
            **{name: told[name] for name in ("dataset", "files", "terms_of_use", "citation")},
            "schema": "climetlab-maelstrom-yr 0.6.3",
            "options": options,
            "starts": list(self.starts),
            "patch": list(self.grid.shape),
            "normalisation": {
                "formula": "(x - mean) / std" if self.chosen["normalize"] else "none",
                "source": "climetlab-maelstrom-yr 0.6.3; lead time, x and y by their own moments",
            },
        }

    # ---- other ways to load it

    def through_plugin(self, files: Sequence[Path], index: SampleIndex) -> Baseline:
        """Return how these samples are made from what the real plugin gives."""
        return yr_through_plugin(self, files, index)

    # ---- the stand-in

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> YrPlan:
        """Return what a stand-in holds; a share of a few samples is of the lead times, too."""
        plan = YrPlan.of_size(self.size, scale=scale, tiny=tiny, seed=seed)
        self.check_held(plan.keys)
        return plan

    def write(self, plan: StandIn, key: FileKey, path: Path, advance: Advance) -> None:
        """Write a date's file, in the layout of the published ones."""
        assert isinstance(plan, YrPlan)
        write_file(plan, key["dates"], path, advance)

    def file_nbytes(self, key: FileKey, plan: StandIn) -> int:
        """Return about the bytes of a file of a stand-in."""
        assert isinstance(plan, YrPlan)
        return plan.file_nbytes


def _channel_names(path: Path, advance: Advance) -> dict[str, tuple[str, ...]]:
    """Return the names of a file's channels by dimension."""
    import h5py

    try:
        with hdf5_source(open_source_file(path)) as source, h5py.File(source, "r") as file:
            return {dim: tuple(str(name) for name in file[dim].asstr()[...]) for dim in KNOWN}
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path}: the names in 'predictor' and 'static_predictor' cannot be read: "
            f"{' '.join(str(error).split())}; expected NetCDF-4 with strings"
        ) from error


CHANNEL_NAMES: Inspection[dict[str, tuple[str, ...]]] = Inspection(
    "maelstrom-yr channels 1", _channel_names, ()
)
