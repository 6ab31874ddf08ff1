"""The samples along a dimension of NetCDF files: where, when, in which splits and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets.inspected_netcdf import whole_variable
from iobench.datasets.positions import cf_times, row_numbers, time_positions
from iobench.datasets.recipe_data import Items
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.datasets.recipe_data import Split

UNITS = {"s": "second", "m": "minute", "h": "hour", "D": "day"}


def items_along(
    dim: str,
    files: Sequence[NetcdfFile],
    *,
    time_unit: str,
    splits: Sequence[Split],
    is_distinct: bool,
) -> Items:
    """Return each index along a dimension, file after file."""
    for file in files:
        if not file.dims.get(dim):
            raise FileFormatError(f"{file.path}: has nothing along {dim!r}, expected samples")
    where = [(n, i) for n, file in enumerate(files) for i in range(file.dims[dim])]
    first = files[0].variables.get(dim)
    by_split: dict[str, Sequence[int]] = {}
    units = "" if first is None else first.attributes.get("units", "")
    is_time = dim == "time" or " since " in units
    if is_time:
        times = file_times(files, dim, time_unit)
        if is_distinct:
            _check_distinct(files, times)
        together = np.concatenate(times)
        names = np.datetime_as_string(together).tolist()
        by_split = _splits(splits, names)
        numbers = row_numbers([each.astype(np.float64) for each in times])
        positions, units = time_positions(together, numbers)
    else:  # no time: by its coordinate, or counted
        values = [
            np.arange(file.dims[dim], dtype=np.float64)
            if dim not in file.variables
            else whole_variable(file, dim).astype(np.float64)
            for file in files
        ]
        names = [f"{files[n].path.name} {dim}={values[n][i]:g}" for n, i in where]
        numbers, positions = row_numbers(values), np.concatenate(values)
    steps = np.diff(positions)[np.diff(numbers) == 0]
    if not ((steps > 0).all() or (not is_time and (steps < 0).all())):
        return Items(where, names, splits=by_split)
    rows = numbers.tolist() if numbers.any() else ()
    return Items(where, names, positions.tolist(), units, rows, by_split)


def file_times(
    files: Sequence[NetcdfFile], name: str, unit: str = "s"
) -> list[NDArray[np.datetime64]]:
    """Return a time coordinate of each file, decoded by its CF units; one time of a scalar."""
    by_units: dict[tuple[str, str], list[int]] = {}
    for number, file in enumerate(files):
        variable = file.variables.get(name)
        if variable is None or variable.dims not in ((name,), ()):
            actual = "no variable" if variable is None else f"({', '.join(variable.dims)})"
            raise FileFormatError(
                f"{file.path}: has {actual} {name!r}, expected a coordinate along {name!r}"
            )
        both = (variable.attributes.get("units", ""), variable.attributes.get("calendar", ""))
        by_units.setdefault(both, []).append(number)
    stored = [np.atleast_1d(whole_variable(file, name)) for file in files]
    times: dict[int, NDArray[np.datetime64]] = {}
    for (units, calendar), numbers in by_units.items():
        # All files of one unit at once: asking xarray takes as long for a time as for many.
        joined = np.concatenate([stored[number] for number in numbers])
        path = files[numbers[0]].path
        exact = cf_times(path, joined, units, calendar)
        decoded: NDArray[Any] = exact.astype(f"M8[{unit}]")
        if (odd := exact[decoded != exact]).size:
            raise FileFormatError(
                f"{path}: time {odd[0]} is not on a whole {UNITS.get(unit, unit)}"
            )
        ends = np.cumsum([len(stored[number]) for number in numbers])[:-1]
        times.update(zip(numbers, np.split(decoded, ends), strict=True))
    return [times[number] for number in range(len(files))]


def _splits(splits: Sequence[Split], names: Sequence[str]) -> dict[str, Sequence[int]]:
    """Return the samples of each split that has any, by the names of their times."""
    by_name: dict[str, Sequence[int]] = {}
    for split in splits:
        begins: dict[int, set[str]] = {}
        for each in split.times:
            begins.setdefault(len(each), set()).add(each)
        numbers = [
            number
            for number, name in enumerate(names)
            if any(name[:length] in some for length, some in begins.items())
        ]
        if numbers:
            by_name[split.name] = numbers
    return by_name


def _check_distinct(files: Sequence[NetcdfFile], times: Sequence[NDArray[Any]]) -> None:
    together = np.concatenate(times)
    if len(np.unique(together)) == len(together):
        return
    known: dict[str, Path] = {}
    for file, own in zip(files, times, strict=True):
        for name in np.datetime_as_string(own).tolist():
            if name in known:
                raise FileFormatError(
                    f"{file.path}: holds {name}, which is in {known[name]} already; expected each "
                    "time once: are two files copies of one?"
                )
            known[name] = file.path
