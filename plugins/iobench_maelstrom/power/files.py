"""Application A6's files: which are at hand, and what the weather runs among them hold."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import run_jobs
from iobench.errors import FileFormatError, MissingFileError
from iobench_maelstrom.power.boxes import (
    check_variable,
    index_file,
    read_times,
    without_other_variables,
)
from iobench_maelstrom.power.schema import ALL_DAYS, HOURS_PER_RUN, RUNS, LevelType, run_url

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Locator, NetcdfFile, Progress

__all__ = ["WeatherRuns", "find_all", "find_runs", "open_runs"]

MANY_FILES = 64
"""Fewer are indexed sooner by this process than by ones that must start first."""


def find_all(dataset: str, urls: Sequence[str], locator: Locator) -> list[Path]:
    """Return the files of all URLs.

    Raises
    ------
    MissingFileError
        Naming the URLs that are missing, where they were looked for and how to get them.
    """
    return _all_found(dataset, urls, locator.find(urls), locator)


def find_runs(
    dataset: str, prefixes: Sequence[str], days: Sequence[datetime.date], locator: Locator
) -> list[Path]:
    """Return the weather files, those of the first prefix first, each in order of time.

    Without ``days`` it is those at hand; a day at hand only in part is an error, like a day asked
    for.

    Raises
    ------
    MissingFileError
        Naming the URLs that are missing, where they were looked for and how to get them.
    """
    groups = {
        day: [run_url(prefix, day, hour) for prefix in prefixes for hour in RUNS]
        for day in days or ALL_DAYS
    }
    urls = [url for group in groups.values() for url in group]
    at_hand = dict(zip(urls, locator.find(urls), strict=True))
    if not days:
        partly = {d: g for d, g in groups.items() if any(at_hand[url] for url in g)}
        groups = partly or groups
    wanted = [run_url(prefix, day, hour) for prefix in prefixes for day in groups for hour in RUNS]
    return _all_found(dataset, wanted, [at_hand[url] for url in wanted], locator)


def _all_found(
    dataset: str, urls: Sequence[str], found: Sequence[Path | None], locator: Locator
) -> list[Path]:
    missing = [url for url, path in zip(urls, found, strict=True) if path is None]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise MissingFileError(
            f"{dataset}: {', '.join(missing[:5])}{more} not found in {locator.searched()}; fetch "
            "them and name their folder with --data-dir"
        )
    return [path for path in found if path is not None]


@dataclass(frozen=True, slots=True)
class WeatherRuns:
    """The weather files of one kind of level, all of one schema, and the times taken of each."""

    level_type: LevelType
    files: tuple[NetcdfFile, ...]
    times: tuple[NDArray[np.datetime64], ...]
    names: tuple[str, ...]

    @property
    def hours(self) -> list[tuple[int, int]]:
        """File and step of every hour, in order of time."""
        return [(run, step) for run, times in enumerate(self.times) for step in range(len(times))]

    def time(self, run: int, step: int) -> np.datetime64:
        """Return the time of a step."""
        time: np.datetime64 = self.times[run][step]
        return time

    @property
    def days(self) -> list[str]:
        """The days that have a first step of a file, ``YYYY-MM-DD``, in order."""
        return sorted({str(times[0])[:10] for times in self.times})

    def fused(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the steps that cannot be told apart: reading and decoding through the library."""
        unknown = any(file.variables[name].storage is None for file in self.files for name in names)
        return ("read", "decode") if unknown else ()

    def without_other_variables(self, names: Sequence[str]) -> tuple[NetcdfFile, ...]:
        """Return the files with these variables only: what travels to the workers."""
        return tuple(without_other_variables(file, names) for file in self.files)


def open_runs(
    paths: Sequence[Path],
    level_type: LevelType,
    progress: Progress,
    *,
    n_steps: int | None = HOURS_PER_RUN,
) -> WeatherRuns:
    """Return what weather files of one kind hold.

    Parameters
    ----------
    paths : sequence of Path
        In order of time.
    level_type : LevelType
        What they hold.
    progress : Progress
        Shown while they are indexed.
    n_steps : int or None
        Steps taken of each, the first ones; None for all.

    Raises
    ------
    FileFormatError
        If a file is cut short, of another schema than training needs or than the first one, has
        fewer steps than are taken, or does not follow in time on the one before.
    """
    jobs = list(paths)
    files: list[NetcdfFile | None] = [None] * len(jobs)
    processes = 1 if len(jobs) < MANY_FILES else None
    for number, file in run_jobs(
        index_file, jobs, processes=processes, progress=progress, total=len(jobs)
    ):
        files[number] = file
    opened = tuple(file for file in files if file is not None)
    names = _field_names(opened[0], level_type)
    for file in opened:
        _check_schema(file, opened[0], names, level_type)
        _check_n_steps(file, n_steps or 1)
    times = tuple(read_times(file)[:n_steps] for file in opened)
    _check_times(opened, times)
    return WeatherRuns(level_type, opened, times, names)


def _field_names(file: NetcdfFile, level_type: LevelType) -> tuple[str, ...]:
    """Return the fields of a file; all that have the dimensions of fields."""
    for name in level_type.required:
        check_variable(file, name, level_type.dims)
    return tuple(
        name for name, variable in file.variables.items() if variable.dims == level_type.dims
    )


def _check_schema(
    file: NetcdfFile, first: NetcdfFile, names: Sequence[str], level_type: LevelType
) -> None:
    for name in names:
        variable, expected = check_variable(file, name, level_type.dims), first.variables[name]
        if variable.packing.dtype != expected.packing.dtype:
            raise FileFormatError(
                f"{file.path}: variable {name!r} decodes to {variable.packing.dtype}, expected "
                f"{expected.packing.dtype} as in {first.path}"
            )
    for dim in level_type.dims:
        length, expected_length = file.dims[dim], first.dims[dim]
        if dim != "time" and length != expected_length:
            raise FileFormatError(
                f"{file.path}: dimension {dim!r} is {length}, expected {expected_length} as in "
                f"{first.path}"
            )


def _check_n_steps(file: NetcdfFile, n_steps: int) -> None:
    if file.dims["time"] < n_steps:
        raise FileFormatError(
            f"{file.path}: dimension 'time' is {file.dims['time']}, expected at least "
            f"{n_steps}: one step an hour until the next run starts"
        )


def _check_times(files: Sequence[NetcdfFile], times: Sequence[NDArray[np.datetime64]]) -> None:
    last = None
    for file, found in zip(files, times, strict=True):
        follows = last is None or found[0] > last
        if not follows or not (np.diff(found) > np.timedelta64(0, "s")).all():
            raise FileFormatError(
                f"{file.path}: its times {found[0]} to {found[-1]} do not follow on those of the "
                f"run before, which end at {last}; is it the file its name says?"
            )
        last = found[-1]
