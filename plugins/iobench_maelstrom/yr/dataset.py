"""Application A1: post-processing of Nordic temperature forecasts; a sample is its U-Net's.

A patch of one lead time with 17 channels (8 predictors, 6 static ones, lead time, x and y), as
training in metno/maelstrom-train makes them, and the air temperature that was analysed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Arrays,
    Baseline,
    ChunkedFields,
    Computed,
    Locator,
    NetcdfFile,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    box_through_library,
    inspect_netcdf,
    no_progress,
    read_fields,
    stand_in_identity,
    unpack,
    write_planned_files,
)
from iobench.errors import MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import yr_downloads
from iobench_maelstrom.yr.files import FIELDS, open_files
from iobench_maelstrom.yr.options import YrOptions, parse_options
from iobench_maelstrom.yr.patches import Patch, PatchGrid, split_samples
from iobench_maelstrom.yr.prepared import (
    SampleNames,
    YrPrepared,
    patch_ranges,
    prepared_of,
)
from iobench_maelstrom.yr.schema import (
    ALL_DATES,
    CHANNELS,
    CITATION,
    PREDICTORS,
    RAW_FORECAST,
    STATIC_PREDICTORS,
    TERMS_OF_USE,
    file_url,
)
from iobench_maelstrom.yr.stand_in import STAND_IN_VERSION, YrPlan, planned_files
from iobench_maelstrom.yr.through_plugin import plugin_baseline
from iobench_maelstrom.yr.upstream import upstream_baseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Downloads

__all__ = ["Yr", "yr"]

ROWS_AT_ONCE = 16
PUBLISHED = PublishedStep(
    forward_ns=117_010_000,
    backward_ns=0,
    batch_size=32,
    source="MAELSTROM D2.3, table 1: U-Net, TensorFlow 2.6, one A100 40 GB, median batch (forward "
    "and backward in one, with I/O that was not separated: at most)",
    sample_nbytes=256 * 256 * (len(CHANNELS) + 1) * 4,
    tables={
        "D2.3 table 1, TensorFlow": {
            "epoch": (226.96571, 228.82088, 227.65208, 234.10900, 2.97469),
            "batch": (0.09784, 0.40341, 0.11701, 41.52411, 2.31171),
        },
    },
)


def yr(**options: str) -> Yr:
    """Return the dataset ``maelstrom-yr``.

    Parameters
    ----------
    size : {"5TB", "5GB"}, optional
        Which of the two data sets.
    parameter : {"air_temperature"}, optional
        The only one there is.
    dates : str, optional
        As upstream: ``2020-03-01``, a list or ``A/to/B``. By default all whose files are at hand.
    patch : int or "whole", optional
        Points along a side; by default 256 for 5TB, the whole grid for 5GB.
    x_range, y_range : str, optional
        ``start,stop``, both or none; in training ``215,1751`` and ``50,2098``.
    normalize : {"true", "false"}, optional
        Whether channels are normalised.
    predict_diff : {"false", "true"}, optional
        Whether ``air_temperature_2m`` is subtracted from the target.
    probabilistic_target : {"false", "true"}, optional
        Whether the target has its deviation, too.

    Raises
    ------
    OptionError
        For an unknown option or value.
    """
    return Yr(parse_options(options))


class Yr(ChunkedFields):
    """MAELSTROM A1 as its training reads it; a `Dataset` and a `Synthesizer`.

    Patches are read by extent: of each variable only the stretches of the patch's rows. A row of
    256 predictors is 8 KiB of 56: whole rows would be five times the bytes of a sample, a whole
    lead time fifty times. Measured on a local disk, stretches took 12 ms a sample from it and
    3 ms from memory, whole rows 28 and 5; all 63 patches of a lead time one by one 0.46 s, the
    lead time at once 0.67 s. Targets, 1 KiB of 7 a row, are read with what lies between: fewer
    system calls cost less than the bytes they save.

    Parameters
    ----------
    options : YrOptions
        From `parse_options`.
    """

    name = "maelstrom-yr"
    title = "Nordic temperature forecasts, patches of one lead time (MAELSTROM A1)"
    published: PublishedStep | None = PUBLISHED
    synthesis_version = STAND_IN_VERSION

    def __init__(self, options: YrOptions) -> None:
        self.options = options
        self.fused: tuple[str, ...] = ()
        self._prepared: YrPrepared | None = None
        self._opened: tuple[NetcdfFile, ...] = ()

    @property
    def thread_safe(self) -> bool:
        """Whether threads may read at once: the NetCDF library, where it is needed, is not safe."""
        return not self.fused

    @property
    def stand_in_name(self) -> str:
        """The two sizes have stand-ins of their own."""
        return f"{self.name}-{self.options.size}"

    def files(self, locator: Locator) -> list[Path]:
        """Return one file per date: of the dates asked for, else of those at hand.

        Raises
        ------
        MissingFileError
            Naming what is missing, where it was looked for and how to get it.
        """
        options = self.options
        dates = options.dates or ALL_DATES
        urls = [file_url(options.parameter, options.size, date) for date in dates]
        found = locator.find(urls)
        missing = [url for url, path in zip(urls, found, strict=True) if path is None]
        if missing and (options.dates or len(missing) == len(urls)):
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise MissingFileError(
                f"{self.name}: {', '.join(missing[:5])}{more} not found in {locator.searched()}; "
                "fetch the files and name their folder with --data-dir"
            )
        return [path for path in found if path is not None]

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; raise OptionError where no choice was made."""
        return yr_downloads(self)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per date, lead time and patch, in that order.

        Raises
        ------
        FileFormatError
            If a file is cut short, of another schema, or unlike the others.
        OptionError
            If the patches or ranges asked for do not fit the grid.
        """
        opened = open_files(files, progress=locator.progress)
        self._prepared = prepared_of(opened, self.options)
        grid = self._prepared.grid
        if opened.through_library:
            self.fused = ("read", "decode")
            self._opened = tuple(inspect_netcdf(Path(path)) for path in files)
        starts = [file.start for file in opened.files]
        self._find_chunks("leadtime", opened.stored(self._fields))
        return SampleIndex(
            spec=self._spec(grid),
            where=Computed(len(grid), grid.patch),
            splits=split_samples(starts, grid.patches_per_file),
            coordinate=Computed(len(grid), SampleNames(grid, tuple(starts), opened.leadtimes)),
            provenance={**self._provenance(files, starts, grid), "stand_in": locator.stand_in},
        )

    def read(self, where: Patch) -> Any:
        """Return the bytes of the patch's rows; the arrays where only the library can read."""
        prepared = self._ready()
        ranges = patch_ranges(where, prepared.grid.shape)
        if self.fused:
            file = self._opened[where.file]
            read = {name: box_through_library(file, name, *ranges[name]) for name in self._fields}
            return self._with_coordinates(where, read)
        boxes = [prepared.files.box(where.file, name, *ranges[name]) for name in self._fields]
        return read_fields(self._chunks, boxes, (where.file, where.lead))

    def decode(self, raw: Raw, where: Patch) -> Arrays:
        """Return the variables of the patch as the file has them, and where it is.

        ``predictors`` (y, x, predictor), ``static_predictors`` (y, x, static_predictor),
        ``target_mean`` (y, x), ``target_std`` if asked for; ``leadtime`` in seconds, ``y`` and
        ``x`` as places in the grid; all float32.
        """
        fields = dict(zip(FIELDS, self._ready().files.fields, strict=True))
        arrays = {
            name: unpack(stored, fields[name].packing)
            for name, stored in zip(self._fields, raw.arrays(), strict=True)
        }
        return self._with_coordinates(where, arrays)

    def expect(self, where: Sequence[Patch], *, follows: bool) -> None:
        """Say which samples will be asked for, in order."""
        super().expect([(patch.file, patch.lead) for patch in where], follows=follows)

    def preprocess(self, arrays: Arrays, where: Patch) -> Sample:
        """Return ``predictors`` with all 17 channels, normalised, and ``targets``."""
        prepared = self._ready()
        shape = prepared.grid.shape
        inputs = np.empty((1, *shape, len(CHANNELS)), dtype=np.float32)
        n_dynamic, n_static = len(PREDICTORS), len(STATIC_PREDICTORS)
        grid_rows = inputs[0]
        mean, std = (np.tile(each, shape[1]) for each in (prepared.mean, prepared.std))
        # Some rows at a time, filled and normalised while they are in the processor's cache.
        for first in range(0, shape[0], ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            view = grid_rows[rows]
            view[..., :n_dynamic] = arrays["predictors"][rows]
            view[..., n_dynamic : n_dynamic + n_static] = arrays["static_predictors"][rows]
            view[..., -3] = arrays["leadtime"]
            view[..., -2] = arrays["x"]
            view[..., -1] = arrays["y"][rows, None]
            if self.options.normalize:
                flat = view.reshape(len(view), -1)
                flat -= mean
                flat /= std
        targets = np.empty((1, *shape, self.options.n_targets), dtype=np.float32)
        targets[0, ..., 0] = arrays["target_mean"]
        if self.options.probabilistic_target:
            targets[0, ..., 1] = arrays["target_std"]
        if self.options.predict_diff:
            targets[0, ..., 0] -= arrays["predictors"][..., RAW_FORECAST]
        return {"predictors": inputs, "targets": targets}

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how the training code of metno/maelstrom-train loads these files."""
        return upstream_baseline(self._ready(), self.options, index.spec, batch_size)

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return how these samples are made from what the real plugin gives.

        Raises
        ------
        MissingExtraError
            If the plugin is not installed.
        """
        return plugin_baseline(self, self._ready(), files, index)

    def synthesis_nbytes(self, *, scale: float | None, tiny: bool) -> int:
        """Return about the bytes ``synthesize`` will write."""
        return self._plan(scale=scale, tiny=tiny, seed=0).nbytes

    def synthesize(
        self,
        root: Path,
        *,
        scale: float | None,
        tiny: bool,
        seed: int,
        progress: Progress = no_progress,
        processes: int | None = None,
    ) -> list[Path]:
        """Write the stand-in under ``root`` and return its files, one per date."""
        plan = self._plan(scale=scale, tiny=tiny, seed=seed)
        identity = stand_in_identity(
            self.stand_in_name, seed=seed, version=STAND_IN_VERSION, scale=scale, tiny=tiny
        )
        return write_planned_files(
            root, planned_files(plan), identity=identity, processes=processes, progress=progress
        )

    @property
    def _fields(self) -> tuple[str, ...]:
        """Variables a sample is made of."""
        names = tuple(FIELDS)
        return names if self.options.probabilistic_target else names[:-1]

    def _with_coordinates(self, patch: Patch, fields: Mapping[str, NDArray[Any]]) -> Arrays:
        prepared = self._ready()
        without_lead = {
            name: values[0] if FIELDS[name][0] == "leadtime" else values
            for name, values in fields.items()
        }
        return {**without_lead, **prepared.coordinates(patch)}

    def _plan(self, *, scale: float | None, tiny: bool, seed: int) -> YrPlan:
        plan = YrPlan.of_size(
            self.options.parameter, self.options.size, scale=scale, tiny=tiny, seed=seed
        )
        missing = [date for date in self.options.dates if date not in plan.dates]
        if missing:
            raise OptionError(
                f"dates {missing[0]!r}: no file of it is at hand, and the stand-in holds only "
                f"{' '.join(plan.dates)}; choose among them or give --data-dir"
            )
        return plan

    def _ready(self) -> YrPrepared:
        if self._prepared is None:
            raise OptionError(f"{self.name}: call samples() before read(), decode(), preprocess()")
        return self._prepared

    def _spec(self, grid: PatchGrid) -> SampleSpec:
        dims = ("leadtime", "y", "x", "channel")
        predictors = Variable(
            name="predictors",
            shape=(1, *grid.shape, len(CHANNELS)),
            dtype="<f4",
            dims=dims,
            units="1" if self.options.normalize else "",
            channels=CHANNELS,
        )
        n_targets = self.options.n_targets
        targets = Variable(
            name="targets",
            shape=(1, *grid.shape, n_targets),
            dtype="<f4",
            dims=dims,
            units="celsius",
            role="target",
            channels=("mean", "std")[:n_targets],
        )
        return SampleSpec((predictors, targets))

    def _provenance(
        self, files: Sequence[Path], starts: Sequence[str], grid: PatchGrid
    ) -> dict[str, Any]:
        return {
            "dataset": self.name,
            "schema": "climetlab-maelstrom-yr 0.6.3",
            "options": self.options.to_dict(),
            "starts": list(starts),
            "files": [{"name": file.name, "nbytes": file.stat().st_size} for file in files],
            "patch": list(grid.shape),
            "normalisation": {
                "formula": "(x - mean) / std" if self.options.normalize else "none",
                "source": "climetlab-maelstrom-yr 0.6.3; lead time, x and y by their own moments",
            },
            "terms_of_use": TERMS_OF_USE,
            "citation": CITATION,
        }
