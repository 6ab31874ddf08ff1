"""Application A5: statistical downscaling of 2 m temperature, tiers 1 and 2 and their alias.

A sample is one time step: the channels the U-Net read and its targets, z-scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import (
    Arrays,
    Baseline,
    ChunkedFields,
    Locator,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    no_progress,
    stand_in_identity,
    stopwatch,
    write_planned_files,
)
from iobench.errors import MissingFileError, OptionError
from iobench_maelstrom.downloads import downscaling_downloads
from iobench_maelstrom.downscaling.describing import (
    positions_of,
    provenance_of,
    spec_of,
    splits_of,
)
from iobench_maelstrom.downscaling.files import MonthlyFiles, Where, open_monthly_files
from iobench_maelstrom.downscaling.normalisation import Normalisation, normalisation_of
from iobench_maelstrom.downscaling.schema import TIERS, Request, Tier, parse_request
from iobench_maelstrom.downscaling.stand_in import STAND_IN_VERSION, MonthsPlan, planned_files
from iobench_maelstrom.downscaling.through_plugin import plugin_baseline
from iobench_maelstrom.downscaling.upstream import upstream_baseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Downloads
    from iobench.samples import Sample

__all__ = ["Downscaling", "downscaling", "downscaling_tier1", "downscaling_tier2"]

LISTED_URLS = 12
TITLES = {
    1: "2 m temperature downscaled, tier 1: IFS, 00 and 12 UTC (MAELSTROM A5)",
    2: "2 m temperature downscaled, tier 2: ERA5 to COSMO-REA6, hourly (MAELSTROM A5)",
}
PUBLISHED = PublishedStep(
    forward_ns=33_000_000,
    backward_ns=0,
    batch_size=32,
    source=(
        "MAELSTROM D2.3, A5: WGAN, tier 2, Keras on TensorFlow 2.6, one A100 40 GB; 200 ms per "
        "effective batch of 192, the whole step, in which I/O was not told apart: at most"
    ),
    sample_nbytes=(16 + 2) * 96 * 120 * 4,
    tables={
        "D2.3, A5, TensorFlow, batches of 192": {
            "epoch": (553.93, 586.63, 595.58, 661.61, 18.27),
            "batch": (0.17573, 0.19720, 0.20007, 39.25604, 0.09329),
        },
    },
)


def downscaling_tier1(**options: str) -> Downscaling:
    """Return the dataset ``maelstrom-downscaling-tier1``.

    Parameters
    ----------
    months : str, optional
        Months as upstream, ``YYYY-MM-DD`` (or ``YYYY-MM``), separated by commas; all required.
    dataset : str, optional
        ``training``, ``validation``, ``testing``, or a single augmented file: ``training_aug``,
        ``validation_aug``, ``testing_aug``. By default all months whose files are at hand.

    Raises
    ------
    OptionError
        For any other option or value.
    """
    return Downscaling(TIERS[1], parse_request(TIERS[1], options))


def downscaling_tier2(**options: str) -> Downscaling:
    """Return the dataset ``maelstrom-downscaling-tier2``.

    Parameters
    ----------
    months : str, optional
        Months as upstream, ``YYYY-MM-DD`` (or ``YYYY-MM``), separated by commas; all required.
    dataset : str, optional
        ``training``, ``validation`` or ``testing``. By default all months whose files are at hand.
    variant : {"benchmark_t2m", "published"}, optional
        16 channels, with the land masks and without ``t137_in``; or the 15 of the files' first
        version, without the masks. By default the first whose variables the files have.

    Raises
    ------
    OptionError
        For any other option or value.
    """
    return Downscaling(TIERS[2], parse_request(TIERS[2], options))


def downscaling(**options: str) -> Downscaling:
    """Return tier 1 or 2, whose name and title say which.

    Parameters
    ----------
    tier : {"1", "2"}, optional
        By default 2, which the published timing is of.
    months : str, optional
        As of the tier.
    dataset : str, optional
        As of the tier.
    variant : str, optional
        As of tier 2.

    Raises
    ------
    OptionError
        For any other option or value.
    """
    number = options.pop("tier", "2")
    if number not in ("1", "2"):
        raise OptionError(f"tier {number!r}: expected 1 or 2")
    tier = TIERS[int(number)]
    return Downscaling(tier, parse_request(tier, options, of_alias=True), of_alias=True)


class Downscaling(ChunkedFields):
    """Tier 1 or 2 of application A5; a `Dataset` and a `Synthesizer`.

    Parameters
    ----------
    tier : Tier
        Which of the two.
    request : Request
        Months or split that are required; none for the months at hand.
    of_alias : bool
        Whether it was asked for as ``maelstrom-downscaling``.
    """

    synthesis_version = STAND_IN_VERSION

    def __init__(self, tier: Tier, request: Request, *, of_alias: bool = False) -> None:
        self.tier_number = tier.number
        self.request = request
        self.name = tier.name
        self.title = TITLES[tier.number]
        if of_alias:
            other = f"--option tier={3 - tier.number} takes the other"
            self.title += f"; maelstrom-downscaling took tier {tier.number}, {other}"
        self.published: PublishedStep | None = PUBLISHED if tier.number == 2 else None
        self.fused: tuple[str, ...] = ()
        self._monthly: MonthlyFiles | None = None
        self._normalisation: Normalisation | None = None

    @property
    def tier(self) -> Tier:
        """The tier."""
        return TIERS[self.tier_number]

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: the HDF5 library cannot."""
        return not self.fused

    def files(self, locator: Locator) -> list[Path]:
        """Return the months' files, in order of time.

        Raises
        ------
        MissingFileError
            Listing what is missing by URL, where it was looked for and how to get it.
        """
        urls = self._urls()
        found = locator.find(urls)
        missing = [url for url, path in zip(urls, found, strict=True) if path is None]
        # A stand-in has some months of a split, and is asked for no others.
        all_needed = bool(self.request.months) or (
            bool(self.request.dataset) and not locator.stand_in
        )
        if missing and (all_needed or len(missing) == len(urls)):
            more = len(missing) - LISTED_URLS
            listed = ", ".join(missing[:LISTED_URLS]) + (f" and {more} more" if more > 0 else "")
            raise MissingFileError(
                f"{self.name}: {listed} not found in {locator.searched()}; fetch the files and "
                "name their folder with --data-dir"
            )
        return [path for path in found if path is not None]

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; raise OptionError where no choice was made."""
        return downscaling_downloads(self)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per time step, in order of time.

        Raises
        ------
        FileFormatError
            If a file is of another schema, cut short, holds a time another file has, or has
            missing values.
        """
        monthly = open_monthly_files(
            files,
            self.tier,
            variant=self.request.variant,
            distinct=not self.augmented_name,
            cache_dir=locator.cache_dir,
            progress=locator.progress,
        )
        self.fused = ("read", "decode") if monthly.fused else ()
        fitted = self._fitted_files(monthly)
        watch = stopwatch()
        self._normalisation, computed = normalisation_of(monthly, fitted, locator)
        self._monthly = monthly.without_times()
        stored = [variable for file in monthly.files for variable in file.variables.values()]
        self._find_chunks(self.tier.dims[0], [(each, each.storage) for each in stored])
        where = monthly.where()
        positions, units = positions_of(monthly, self.augmented_name)
        return SampleIndex(
            spec=spec_of(monthly),
            where=where,
            splits=splits_of(monthly, where, self.augmented_name),
            coordinate=[str(monthly.times[number][index]) for number, index in where],
            positions=positions,
            position_units=units,
            setup={"normalisation": watch()} if computed else {},
            provenance={
                **provenance_of(self.name, self.request, monthly, self._normalisation, fitted),
                "stand_in": locator.stand_in,
            },
        )

    def read(self, where: Where) -> Raw:
        """Return the time step's bytes, by variable."""
        return self._prepared()[0].read(where, self._chunks)

    def decode(self, raw: Raw, where: Where) -> Arrays:
        """Return each variable at the time step, dtype as stored (float64), in its own units."""
        return self._prepared()[0].decode(raw, where)

    def preprocess(self, arrays: Arrays, where: Where) -> Sample:
        """Return ``inputs`` and ``targets``, z-scored, float32, shape (channel, row, column)."""
        monthly, normalisation = self._prepared()
        channels = monthly.channels
        return {
            "inputs": _scored(arrays, normalisation, channels.inputs),
            "targets": _scored(arrays, normalisation, channels.targets),
        }

    def upstream(
        self, files: Sequence[Path], index: SampleIndex, locator: Locator, *, batch_size: int | None
    ) -> Baseline:
        """Return how the training code of downscaling_benchmark streams these files.

        Raises
        ------
        MissingFileError, FileFormatError
            If xarray cannot open a file.
        """
        monthly, normalisation = self._prepared()
        return upstream_baseline(monthly, normalisation, index, batch_size)

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
        return plugin_baseline(self, self._prepared()[0].channels.names, files, index)

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
        """Write the stand-in under ``root`` and return its files."""
        plan = self._plan(scale=scale, tiny=tiny, seed=seed)
        identity = stand_in_identity(
            self.name, seed=seed, version=STAND_IN_VERSION, scale=scale, tiny=tiny
        )
        return write_planned_files(
            root, planned_files(plan), identity=identity, processes=processes, progress=progress
        )

    @property
    def augmented_name(self) -> str:
        """Upstream's name of the single augmented file asked for; "" where months are."""
        return self.request.dataset if self.request.dataset in self.tier.augmented else ""

    def _urls(self) -> list[str]:
        if self.augmented_name:
            return [self.tier.augmented[self.request.dataset][0]]
        split = self.tier.splits.get(self.request.dataset, ())
        return [
            self.tier.month_url(month) for month in self.request.months or split or self.tier.months
        ]

    def _plan(self, *, scale: float | None, tiny: bool, seed: int) -> MonthsPlan:
        """Return the stand-in's plan; refuse where it lacks what was asked for."""
        plan = MonthsPlan.of_size(self.tier, scale=scale, tiny=tiny, seed=seed)
        held = f"the stand-in holds only the months {' '.join(plan.months)}"
        missing = [month for month in self.request.months if month not in plan.months]
        if missing:
            raise OptionError(
                f"months {missing[0]!r}: no file of it is at hand, and {held}; choose among them "
                "or give --data-dir"
            )
        dataset = self.request.dataset
        if dataset and not set(self.tier.splits.get(dataset, ())) & set(plan.months):
            raise OptionError(
                f"dataset {dataset!r}: no file of it is at hand, and {held}; choose another or "
                "give --data-dir"
            )
        return plan

    def _fitted_files(self, monthly: MonthlyFiles) -> list[int]:
        """Return the files the normalisation is over: the training months, if there are any."""
        months = [str(times[0])[:7] for times in monthly.times]
        training = [n for n, month in enumerate(months) if self.tier.split_of(month) == "train"]
        return training or list(range(len(months)))

    def _prepared(self) -> tuple[MonthlyFiles, Normalisation]:
        if self._monthly is None or self._normalisation is None:
            raise OptionError(f"{self.name}: call samples() before reading a sample")
        return self._monthly, self._normalisation


def _scored(
    arrays: Arrays, normalisation: Normalisation, names: Sequence[str]
) -> NDArray[np.float32]:
    """Return variables z-scored, shape (channel, row, column); computed in float64."""
    shape = arrays[names[0]].shape
    scored = np.empty((len(names), *shape), dtype=np.float32)
    field = np.empty(shape)
    for channel, name in enumerate(names):
        scale = normalisation.scales[name]
        np.subtract(arrays[name], scale.mean, out=field)
        scored[channel] = np.divide(field, scale.divisor, out=field)
    return scored
