"""The ERA5 target: one field at each forecast's valid time, in one contiguous variable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iobench.datasets import (
    FileRange,
    file_times,
    inspect_files,
    range_file,
    whole_variable,
)
from iobench.errors import FileFormatError
from iobench_maelstrom.ens10.schema import LEAD_HOURS, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Target:
    """Where the target's fields are: one of each time, one after another."""

    path: Path
    task: Task
    times: NDArray[np.datetime64]
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def range_of(self, start: str) -> FileRange[str]:
        """Return where the field valid at the end of the forecast of ``start`` is."""
        time = valid_time(start)
        places = np.flatnonzero(self.times == time)
        if places.size != 1:
            raise FileFormatError(
                f"{self.path}: expected the time {time} once (forecast of {start} + "
                f"{LEAD_HOURS} h), found it {places.size} times; fetch it for all forecasts"
                f"{self.task.or_without}"
            )
        nbytes = self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize
        return FileRange(range_file(self.path), self.offset + int(places[0]) * nbytes, nbytes)

    def number_of(self, place: FileRange[str]) -> int:
        """Return which time a field is of, by where it is."""
        return (place.offset - self.offset) // place.nbytes


def valid_time(start: str) -> np.datetime64:
    """Return when the forecast of a start date (``YYYYMMDD``, 0 UTC) is valid."""
    day = np.datetime64(f"{start[:4]}-{start[4:6]}-{start[6:]}T00", "h")
    return day + np.timedelta64(LEAD_HOURS, "h")


def open_target(path: Path, task: Task, cache_dir: Path) -> Target:
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
