"""The toy data set of application A4: ENS-10's ensemble over Europe, on pressure levels.

No training code of it is published; a sample is made as the D2.3 U-Net's of ENS-10 is (an
assumption): mean and deviation over the members of every variable at every level, normalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import (
    Advance,
    Arrays,
    Baseline,
    ChunkedFields,
    DecodedChunks,
    Locator,
    Progress,
    PublishedStep,
    Raw,
    SampleIndex,
    index_folders,
    no_progress,
    run_jobs,
    stand_in_identity,
    stopwatch,
    write_planned_files,
)
from iobench.errors import MissingFileError, OptionError
from iobench.samples import Sample, SampleSpec, Variable
from iobench_maelstrom.downloads import ens5mini_downloads
from iobench_maelstrom.ens10.ens5mini_files import NAMES, Forecasts, open_forecasts
from iobench_maelstrom.ens10.ens5mini_schema import (
    ALL_MONTHS,
    CHANNELS,
    LEAD_HOURS,
    PRESSURE_VARIABLES,
    month_url,
    parse_months,
)
from iobench_maelstrom.ens10.ens5mini_stand_in import STAND_IN_VERSION, MonthlyPlan, planned_files
from iobench_maelstrom.ens10.normalisation import (
    SPREAD,
    Moments,
    Statistics,
    describe_samples,
    keep_statistics,
    member_moments,
)
from iobench_maelstrom.ens10.schema import CITATION, TERMS
from iobench_maelstrom.ens10.toy_through_plugin import toy_plugin_baseline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Downloads

__all__ = ["Ens5mini", "ens5mini"]

OPTIONS = ("date", "dtype")
FORECASTS_PER_JOB = 16
"""Fixed, so that the sums do not depend on how many processes share the work."""
SMALL_NBYTES = 64 << 20
"""Less is read sooner by this process than by ones that must start first."""


def ens5mini(**options: str) -> Ens5mini:
    """Return the dataset ``maelstrom-ens5mini``.

    Parameters
    ----------
    date : str, optional
        Months as upstream, ``MM`` (or ``MMDD``, ``YYYYMMDD``, of which the month counts),
        separated by commas. By default all whose files are at hand.
    dtype : {"pl"}, optional
        Pressure levels; there are no others.

    Raises
    ------
    OptionError
        For any other option or value.
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise OptionError(f"option {unknown[0]!r}: maelstrom-ens5mini knows {', '.join(OPTIONS)}")
    if options.get("dtype", "pl") != "pl":
        raise OptionError(f"dtype {options['dtype']!r}: expected pl")
    return Ens5mini(months=parse_months(options["date"]) if "date" in options else ())


class Ens5mini(ChunkedFields):
    """The toy data set of ENS-10; a `Dataset` and a `Synthesizer`.

    Parameters
    ----------
    months : tuple of str
        Months (``MM``) whose files are all required; empty for those at hand.
    """

    name = "maelstrom-ens5mini"
    title = "ENS5-mini ensemble forecasts over Europe, pressure levels, step 24 h (MAELSTROM A4)"
    published: PublishedStep | None = None
    synthesis_version = STAND_IN_VERSION

    def __init__(self, *, months: tuple[str, ...] = ()) -> None:
        self.months = months
        self.fused: tuple[str, ...] = ()
        self._forecasts: Forecasts | None = None
        self._statistics: Statistics | None = None
        self._mapped: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make samples at once: the HDF5 library cannot."""
        return not self.fused

    def files(self, locator: Locator) -> list[Path]:
        """Return the months' files.

        Raises
        ------
        MissingFileError
            Listing what is missing by URL, where it was looked for and how to get it.
        """
        urls = [month_url(month) for month in self.months or ALL_MONTHS]
        found = locator.find(urls)
        missing = [url for url, path in zip(urls, found, strict=True) if path is None]
        if missing and (self.months or len(missing) == len(urls)):
            raise MissingFileError(
                f"maelstrom-ens5mini: {', '.join(missing)} not found in {locator.searched()}; "
                "fetch the files and name their folder with --data-dir"
            )
        return [path for path in found if path is not None]

    def downloads(self) -> Downloads:
        """Return what ``--download`` fetches; raise OptionError where no choice was made."""
        return ens5mini_downloads(self)

    def samples(self, files: Sequence[Path], locator: Locator) -> SampleIndex:
        """Return one sample per forecast, in order of time.

        Raises
        ------
        FileFormatError
            If a file is of another schema, cut short, or holds a forecast another file has.
        """
        forecasts = open_forecasts(files)
        self.fused = ("read", "decode") if forecasts.fused else ()
        watch = stopwatch()
        self._statistics, computed = _normalisation(forecasts, files, locator)
        self._forecasts = forecasts.without_starts()
        stored = [file.variables[name] for file in forecasts.files for name in NAMES]
        self._find_chunks("time", [(each, each.storage) for each in stored])
        self._mapped = None
        starts = [f"{start[:4]}-{start[4:6]}-{start[6:]}" for start in forecasts.starts]
        return SampleIndex(
            spec=_spec(forecasts),
            where=forecasts.where,
            coordinate=starts,
            setup={"normalisation": watch()} if computed else {},
            provenance={**self._provenance(forecasts), "stand_in": locator.stand_in},
        )

    def read(self, where: tuple[int, int]) -> Raw:
        """Return the forecast's bytes at the lead time, by variable and member."""
        return self._prepared().read(where, self._chunks)

    def decode(self, raw: Raw, where: tuple[int, int]) -> Arrays:
        """Return each variable, float32, shape (member, level, latitude, longitude)."""
        return self._prepared().decode(raw, where)

    def preprocess(self, arrays: Arrays, where: tuple[int, int]) -> Sample:
        """Return ``inputs``: normalised mean and deviation by variable and level."""
        _, n_levels, n_latitudes, n_longitudes = self._prepared().shape
        if self._mapped is None:
            if self._statistics is None:
                raise OptionError("maelstrom-ens5mini: call samples() before preprocess()")
            self._mapped = self._statistics.load()
        mean, divisor = self._mapped
        n_points = n_latitudes * n_longitudes
        inputs = np.empty((len(PRESSURE_VARIABLES), n_levels, 2, n_points), dtype=np.float32)
        for number, variable in enumerate(PRESSURE_VARIABLES):
            pair = slice(2 * number, 2 * number + 2)
            moments = _moments(arrays[variable.name])
            moments -= mean[pair]
            moments /= divisor[pair]
            inputs[number] = moments.reshape(2, n_levels, n_points).transpose(1, 0, 2)
        return {"inputs": inputs.reshape(len(CHANNELS), n_latitudes, n_longitudes)}

    def through_plugin(
        self,
        files: Sequence[Path],
        index: SampleIndex,
        locator: Locator,
        *,
        batch_size: int | None = None,
    ) -> Baseline:
        """Return the samples made from the real plugin's arrays (`PluginBaseline`).

        There is no ``upstream``: no training code of ens5mini is published.
        """
        return toy_plugin_baseline(self, self._prepared(), index)

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

    def _plan(self, *, scale: float | None, tiny: bool, seed: int) -> MonthlyPlan:
        plan = MonthlyPlan.of_size(scale=scale, tiny=tiny, seed=seed)
        missing = [month for month in self.months if month not in plan.months]
        if missing:
            raise OptionError(
                f"date {missing[0]!r}: no file of it is at hand, and the stand-in holds only the "
                f"months {' '.join(plan.months)}; choose among them or give --data-dir"
            )
        return plan

    def _prepared(self) -> Forecasts:
        if self._forecasts is None:
            raise OptionError("maelstrom-ens5mini: call samples() before reading a sample")
        return self._forecasts

    def _provenance(self, forecasts: Forecasts) -> Mapping[str, Any]:
        statistics = self._statistics
        files = [file.path for file in forecasts.files]
        return {
            "dataset": self.name,
            "dtype": "pl",
            "step_hours": LEAD_HOURS,
            "starts": list(forecasts.starts),
            "files": [{"name": file.name, "nbytes": file.stat().st_size} for file in files],
            "target": "none",
            "sample": "as ENS-10's U-Net reads; no training code of ens5mini is published",
            "normalisation": {
                "formula": f"(x - mean) / (std + {SPREAD})",
                "over": "samples, per channel and grid point, ddof 0",
                "sha256": statistics.checksum() if statistics else "",
            },
            "terms_of_use": TERMS,
            "citation": CITATION,
        }


def _spec(forecasts: Forecasts) -> SampleSpec:
    shape = (len(CHANNELS), *forecasts.shape[2:])
    dims = ("channel", "latitude", "longitude")
    return SampleSpec((Variable("inputs", shape, "<f4", dims, "1", channels=CHANNELS),))


def _moments(fields: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return mean and deviation over the members, shape (2, levels x points)."""
    flat = fields.reshape(len(fields), -1)
    moments = np.empty((2, flat.shape[1]), dtype=np.float32)
    member_moments(flat, moments[0], moments[1])
    return moments


def _normalisation(
    forecasts: Forecasts, files: Sequence[Path], locator: Locator
) -> tuple[Statistics, bool]:
    about = describe_samples(
        [str(file) for file in files], forecasts.where, n_members=forecasts.shape[0]
    )
    places = index_folders(files[0].parent, locator.cache_dir)
    name = f"ens5mini-normalisation-{about['key'][:16]}"
    return keep_statistics(places, name, about, lambda: _all_moments(forecasts, locator.progress))


def _all_moments(forecasts: Forecasts, progress: Progress) -> list[Moments]:
    """Return the moments of each variable's channels, merged in a fixed order."""
    where = forecasts.where
    jobs = [
        (forecasts.without_starts(), where[start : start + FORECASTS_PER_JOB])
        for start in range(0, len(where), FORECASTS_PER_JOB)
    ]
    nbytes = len(where) * len(PRESSURE_VARIABLES) * 4 * int(np.prod(forecasts.shape))
    found = dict(
        run_jobs(
            _part_moments,
            jobs,
            processes=1 if nbytes < SMALL_NBYTES else None,
            progress=progress,
            total=len(where),
        )
    )
    merged = found[0]
    for number in range(1, len(jobs)):
        for one, other in zip(merged, found[number], strict=True):
            one.merge(other)
    return merged


def _part_moments(
    job: tuple[Forecasts, Sequence[tuple[int, int]]], advance: Advance
) -> list[Moments]:
    forecasts, where = job
    n_values = int(np.prod(forecasts.shape[1:]))
    parts = [
        Moments(0, np.zeros((2, n_values)), np.zeros((2, n_values))) for _ in PRESSURE_VARIABLES
    ]
    chunks = DecodedChunks()
    for one in where:
        raw = forecasts.read(one, chunks)
        arrays = raw if forecasts.fused else forecasts.decode(raw, one)
        for moments, variable in zip(parts, PRESSURE_VARIABLES, strict=True):
            moments.add(_moments(arrays[variable.name]))
        advance(1)
    return parts
