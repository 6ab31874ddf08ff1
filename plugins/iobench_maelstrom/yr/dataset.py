"""Application A1: Nordic temperature forecasts; a sample is a patch of 17 channels, one lead time.

As training in metno/maelstrom-train makes it, with the air temperature that was analysed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.coordinates import SampleLabels, forecast_times
from iobench.datasets import (
    Arrays,
    Axis,
    FileKey,
    Key,
    LazySequence,
    Locator,
    Option,
    PublishedStep,
    Recipe,
    RecipeVariable,
    SampleIndex,
    Split,
    file_times,
    whole_variable,
    whole_variables,
)
from iobench.errors import FileFormatError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.climetlab_plugin import PluginFiles
from iobench_maelstrom.yr import files as archive

if TYPE_CHECKING:
    from iobench.datasets import NetcdfFile, PluginCall, StandIn, StandInFile

ROWS_AT_ONCE = 16
KNOWN, FIELD = archive.KNOWN, archive.FIELD


def as_range(text: str) -> tuple[int, int]:
    """Return what ``start,stop`` says."""
    try:
        start, stop = map(int, text.split(","))
    except ValueError as error:
        raise OptionError(f"range {text!r}: expected start,stop, e.g. 215,1751") from error
    return start, stop


def as_patch(text: str) -> int | str:
    """Return the points along a side, or ``whole``."""
    if text != "whole" and not (text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise OptionError(f"patch {text!r}: expected a whole number from 1, or whole")
    return text if text == "whole" else int(text)


class Patch(NamedTuple):
    """One sample: its file, lead time, and first row and column in the file's grid."""

    file: int
    lead: int
    y: int
    x: int


class PatchGrid(msgspec.Struct, frozen=True):
    """Patches side by side, without overlap; what is left over at the far edges is not used."""

    starts: tuple[str, ...]  # of each file, as in ``2020-03-01T03:00:00``
    leadtimes: tuple[float, ...]  # seconds after the start, the same in all files
    y_range: tuple[int, int]
    x_range: tuple[int, int]  # first row or column used and the one after the last
    shape: tuple[int, int]  # rows and columns of a patch

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """How many files, lead times, rows and columns of patches there are."""
        sides = zip((self.y_range, self.x_range), self.shape, strict=True)
        n_rows, n_columns = ((stop - start) // length for (start, stop), length in sides)
        return len(self.starts), len(self.leadtimes), n_rows, n_columns

    def patch(self, number: int) -> Patch:
        """Return sample ``number``: file after file, lead time after lead time, row after row."""
        file, lead, row, column = map(int, np.unravel_index(number, self.counts))
        y, x = self.y_range[0] + row * self.shape[0], self.x_range[0] + column * self.shape[1]
        return Patch(file, lead, y, x)

    def name(self, number: int) -> str:
        """Return start, lead time and place of a sample, for messages."""
        file, lead, y, x = self.patch(number)
        return f"{self.starts[file]} +{self.leadtimes[lead] / 3600:g}h y={y} x={x}"

    def number_in(self, files: tuple[int, ...], number: int) -> int:
        """Return which sample one of some of the files is."""
        place, within = divmod(number, per_file := math.prod(self.counts[1:]))
        return files[place] * per_file + within


class Yr(PluginFiles, Recipe):
    """MAELSTROM A1 as its training reads it: of each variable only the ranges of a patch's rows."""

    example = "dates=2020-03-01,2020-03-02"
    name = "maelstrom-yr"
    title = "Nordic temperature forecasts, patches of one lead time (MAELSTROM A1)"
    keys = (
        Key(
            "dates", archive.ALL_DATES,
            "YYYY-MM-DD, separated by commas. By default all whose files are found.",
            lambda text: text.replace("-", ""),
        ),
    )  # fmt: skip
    axes = (
        Axis("leadtime"),
        Axis("y"),
        Axis("x"),
        Axis("predictor", len(archive.PREDICTORS)),
        Axis("static_predictor", len(archive.STATIC_PREDICTORS)),
    )
    fields = (
        RecipeVariable("predictors", dims=(*FIELD, "predictor")),
        RecipeVariable("static_predictors", dims=(*FIELD[1:], "static_predictor")),
        RecipeVariable("target_mean", "celsius", dims=FIELD),
        RecipeVariable("target_std", "celsius", dims=FIELD),
    )
    options = (
        Option("size", "Which of the two data sets.", "5TB", tuple(archive.SIZES)),
        Option(
            "patch",
            "Points along a side, or whole. By default 256 of 5TB, the whole grid of 5GB.",
            parse=as_patch,
        ),
        Option("x_range", "start,stop; in training 215,1751.", parse=as_range),
        Option("y_range", "start,stop; in training 50,2098.", parse=as_range),
        Option("normalize", "Whether channels are normalised.", True),
        Option("predict_diff", "Whether air_temperature_2m is off the target.", False),
        Option("probabilistic_target", "Whether the target has its deviation, too.", False),
    )
    splits = (
        Split("train", [date for date in archive.ALL_DATES if date <= archive.LAST_TRAINING_DATE]),
        Split("validation", archive.VALIDATION_DATES),
        Split("test", [date for date in archive.ALL_DATES if date > archive.LAST_TRAINING_DATE]),
    )
    published: PublishedStep | None = PublishedStep(
        forward_ns=117_010_000,
        backward_ns=0,
        batch_size=32,
        source="MAELSTROM D2.3, table 1: U-Net, TensorFlow 2.6, one A100 40 GB, median batch "
        "(forward and backward in one, with I/O that was not separated: at most)",
        sample_nbytes=256 * 256 * (len(archive.CHANNELS) + 1) * 4,
        tables={
            "D2.3 table 1, TensorFlow": {"batch": (0.09784, 0.40341, 0.11701, 41.52411, 2.31171)}
        },
    )
    terms_of_use = archive.TERMS_OF_USE
    citation = archive.CITATION
    synthesis_version = 4
    grid: PatchGrid
    """The patches; known once the files are open."""

    def __init__(self, **options: str) -> None:
        super().__init__(**options)
        self.size: str = self.chosen["size"]
        patch: int | str = self.chosen["patch"] or (256 if self.size == "5TB" else "whole")
        self.patch = None if patch == "whole" else int(patch)
        self.tiny, self.ordinary = archive.stand_in_dates(self.size)

    # ---- files and samples

    @property
    def stand_in_name(self) -> str:
        return f"{self.name}-{self.size}"

    def file_url(self, key: FileKey) -> str:
        name = archive.start_name(key["dates"])
        return f"{archive.BUCKET_URL}/{archive.PARAMETER}/{self.size}/{name}.nc"

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        names = ("size", "normalize", "predict_diff", "probabilistic_target")
        arguments = {name: self.chosen[name] for name in names}
        dates = [f"{date[:4]}-{date[4:6]}-{date[6:]}" for date in (key["dates"] for key in keys)]
        return [self.call({"parameter": archive.PARAMETER, **arguments, "dates": dates}, keys)]

    @property
    def n_targets(self) -> int:
        """Channels of the target."""
        return 2 if self.chosen["probabilistic_target"] else 1

    @property
    def sample_fields(self) -> tuple[RecipeVariable, ...]:
        return self.fields if self.n_targets == 2 else self.fields[:-1]

    def open(self, files: Sequence[Path], locator: Locator) -> tuple[NetcdfFile, ...]:
        """Return what the files hold, checked to agree, and the channels' names of the first."""
        opened = super().open(files, locator)
        texts = whole_variables(opened[:1], list(KNOWN), cache_dir=locator.cache_dir)
        for dim, channels in KNOWN.items():
            (own,) = texts[dim]
            names = [] if own is None else list(map(str, own.tolist()))
            expected = [each.name for each in channels]
            if names != expected:
                raise FileFormatError(
                    f"{opened[0].path}: {dim} is {', '.join(names)}, expected "
                    f"{', '.join(expected)}: another version of the data set; fetch the files of "
                    "climetlab-maelstrom-yr 0.6"
                )
        return opened

    def items(self, files: Sequence[NetcdfFile]) -> SampleIndex:
        leadtimes = [whole_variable(file, "leadtime") for file in files]
        for file, own in zip(files, leadtimes, strict=True):
            if not np.array_equal(own, leadtimes[0]):
                raise FileFormatError(
                    f"{file.path}: other values of 'leadtime' than {files[0].path}; fetch files "
                    "of one size"
                )
        starts = [str(time) for (time,) in file_times(files, "time")]
        sides = []
        for name in ("y", "x"):
            length = files[0].dims[name]
            start, stop = self.chosen[f"{name}_range"] or (0, length)
            if not 0 <= start < stop <= length:
                raise OptionError(
                    f"{name}_range {start},{stop}: expected a range inside 0,{length}"
                )
            sides.append((start, stop))
        y_range, x_range = sides
        n_rows, n_columns = shape = [stop - start for start, stop in sides]
        if self.patch is not None and self.patch > min(shape):
            raise OptionError(
                f"patch {self.patch}: larger than the grid of {n_rows} rows and {n_columns} "
                f"columns; expected 1 to {min(shape)}, or whole"
            )
        self.grid = grid = PatchGrid(
            tuple(starts),
            tuple(leadtimes[0].tolist()),
            y_range,
            x_range,
            (n_rows, n_columns) if self.patch is None else (self.patch, self.patch),
        )
        self.mean, self.std = self._moments()
        splits: dict[str, Sequence[int]] = {}
        for split in self.splits:  # upstream's overlap
            days = {f"{date[:4]}-{date[4:6]}-{date[6:]}" for date in split.times}
            some = tuple(n for n, start in enumerate(starts) if start[:10] in days)
            if some:
                n_samples = len(some) * math.prod(grid.counts[1:])
                splits[split.name] = LazySequence(n_samples, partial(grid.number_in, some))
        n_samples = math.prod(grid.counts)
        where, names = LazySequence(n_samples, grid.patch), LazySequence(n_samples, grid.name)
        return SampleIndex(self.spec(), where, splits, names)

    def meteorology(
        self, files: Sequence[NetcdfFile], index: SampleIndex, cache_dir: Path
    ) -> SampleLabels:
        labels = super().meteorology(files, index, cache_dir)
        if not labels:
            return labels
        file, lead = np.array([each[:2] for each in index.where]).T
        starts = np.array(self.grid.starts, dtype="M8[s]")[file]
        times = forecast_times(starts, np.array(self.grid.leadtimes)[lead])
        return replace(labels, coordinates=(*times, *labels.coordinates))

    def _moments(self) -> tuple[Any, Any]:
        """Return each channel's mean and deviation, by the plugin's table or its own values."""
        (y, y_end), (x, x_end) = self.grid.y_range, self.grid.x_range
        features = (self.grid.leadtimes, range(x_end - x), range(y_end - y))
        known = (*archive.PREDICTORS, *archive.STATIC_PREDICTORS)
        mean = [each.mean for each in known] + [float(np.mean(values)) for values in features]
        std = [each.std for each in known] + [float(np.std(values)) or 1.0 for values in features]
        return np.array(mean, dtype=np.float32), np.array(std, dtype=np.float32)

    # ---- a sample

    def ranges(self, where: Patch) -> dict[str, int | slice]:
        n_y, n_x = self.grid.shape
        return {
            "leadtime": where.lead,
            "y": slice(where.y, where.y + n_y),
            "x": slice(where.x, where.x + n_x),
        }

    def preprocess(self, arrays: Arrays, where: Patch) -> Sample:
        """Return ``predictors`` with all 17 channels, normalised, and ``targets``."""
        shape = self.grid.shape
        inputs = np.empty((1, *shape, len(archive.CHANNELS)), dtype=np.float32)
        n_dynamic, n_static = len(archive.PREDICTORS), len(archive.STATIC_PREDICTORS)
        mean, std = (np.tile(each, shape[1]) for each in (self.mean, self.std))
        # Places in the grid that is used.
        y = np.arange(shape[0], dtype=np.float32)[:, None] + (where.y - self.grid.y_range[0])
        x = np.arange(shape[1], dtype=np.float32) + (where.x - self.grid.x_range[0])
        # Some rows at a time, filled and normalised while they are in the processor's cache.
        for first in range(0, shape[0], ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            view = inputs[0, rows]
            view[..., :n_dynamic] = arrays["predictors"][rows]
            view[..., n_dynamic : n_dynamic + n_static] = arrays["static_predictors"][rows]
            view[..., -3] = self.grid.leadtimes[where.lead]
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
            targets[0, ..., 0] -= arrays["predictors"][..., archive.RAW_FORECAST]
        return {"predictors": inputs, "targets": targets}

    def spec(self) -> SampleSpec:
        shape, dims = (1, *self.grid.shape), ("leadtime", "y", "x", "channel")
        units, targets = "1" if self.chosen["normalize"] else "", ("mean", "std")[: self.n_targets]
        inputs_shape, targets_shape = ((*shape, n) for n in (len(archive.CHANNELS), self.n_targets))
        return SampleSpec(
            (
                Variable("predictors", inputs_shape, "<f4", dims, units, channels=archive.CHANNELS),
                Variable("targets", targets_shape, "<f4", dims, "celsius", "target", targets),
            )
        )

    # ---- the stand-in

    def stand_in(self, *, scale: float | None, tiny: bool, seed: int) -> StandIn:
        plan = super().stand_in(scale=scale, tiny=tiny, seed=seed)
        return replace(plan, lengths=archive.stand_in_lengths(self.size, scale=scale, tiny=tiny))

    def contents(self, key: FileKey, plan: StandIn) -> StandInFile:
        return archive.contents(self.size, plan, key["dates"])
