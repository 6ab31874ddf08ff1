"""What a `Recipe` says its dataset by, and the samples along a dimension of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from iobench.datasets.positions import FileCoordinates, SampleRows, decode_parts, decode_times
from iobench.datasets.source_files import whole_variable
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.chunks.netcdf.file import NetcdfFile
    from iobench.samples import Role

FileKey = Mapping[str, str]
"""What tells a file from the others: the value of each `Key`."""
ZScore = Literal["", "all", "point"]
UNITS = {"s": "second", "m": "minute", "h": "hour", "D": "day"}


class Key(msgspec.Struct, frozen=True):
    """A part of the files' URL, in braces there: its name and the values it has, in order."""

    name: str
    values: Sequence[str]
    text: str = ""
    """What it is, for ``iobench info``: users choose by ``--option NAME=VALUE,VALUE``."""


class Axis(msgspec.Struct, frozen=True):
    """A dimension of the files."""

    name: str
    length: int = 0  # that every file must have; 0 for any
    first: float = 0.0  # of the coordinate that a stand-in has
    step: float = 1.0
    units: str = ""  # of that coordinate


class RecipeVariable(msgspec.Struct, frozen=True):
    """A variable of the files, which may hold it packed or in another floating-point dtype."""

    name: str
    units: str = ""
    low: float = 0.0  # between which a stand-in's values lie
    high: float = 1.0
    dims: tuple[str, ...] = ()  # all axes by default
    dtype: str = "f4"  # of a stand-in's numbers
    is_static: bool = False  # whether files may hold it once, without the sample dimension
    # whether samples hold it less its mean and divided by its deviation over the files of the
    # split ``train``: of ``all`` values, or at each ``point``
    zscore: ZScore = ""
    role: Role = "input"  # where each variable is an array of the sample: what it is to the model
    noise: float = 0.7  # the share of the bits of a stand-in's numbers that are noise


class ChannelGroup(msgspec.Struct, frozen=True):
    """An array of the sample, variables stacked as channels; float32 ``(channel, ...)``."""

    name: str
    fields: tuple[str, ...]
    role: Role = "input"


class Split(msgspec.Struct, frozen=True):
    """Samples by their time: those whose time, as ``2020-03-01T06``, begins with one of these."""

    name: str
    times: Sequence[str]


class Items(msgspec.Struct, frozen=True, eq=False):
    """The samples of a set of files; see `SampleIndex` for each."""

    where: Sequence[Any]
    coordinate: Sequence[str]
    positions: Sequence[float] = ()
    position_units: str = ""
    rows: Sequence[int] = ()
    splits: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)


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
    first = files[0].variables.get(dim)
    units = "" if first is None else first.attributes.get("units", "")
    is_time = dim == "time" or " since " in units
    values: Sequence[NDArray[Any]]
    if is_time:
        values = file_times(files, dim, time_unit)
    else:  # by its coordinate, or counted
        values = [
            whole_variable(file, dim).astype(np.float64)
            if dim in file.variables
            else np.arange(file.dims[dim], dtype=np.float64)
            for file in files
        ]
    along = FileCoordinates(values, [units] * len(files), [""] * len(files))
    along.order = None  # files stay as they are
    samples = SampleRows((dim,), [along])
    (axis,) = samples.axes
    where = list(samples.where)
    if not is_time:
        paths = [file.path for file in files]
        names = [f"{paths[n].name} {dim}={values[n][i]:g}" for n, i in where]
        return Items(where, names, axis.positions, units, axis.rows)
    times = np.concatenate(values)
    if is_distinct and samples.is_doubled:
        distinct, counts = np.unique(times, return_counts=True)
        time = distinct[counts > 1][0]
        before, again = (files[where[n][0]].path for n in np.flatnonzero(times == time)[:2])
        raise FileFormatError(
            f"{again}: holds {time}, which is in {before} already; expected each time once: are "
            "two files copies of one?"
        )
    spelled = np.datetime_as_string(times)
    by_split: dict[str, Sequence[int]] = {}
    for split in splits:
        inside = np.zeros(len(spelled), dtype=np.bool_)
        for length in {len(each) for each in split.times}:
            begins = [each for each in split.times if len(each) == length]
            inside |= np.isin(spelled.astype(f"U{length}"), begins)
        if inside.any():
            by_split[split.name] = np.flatnonzero(inside).tolist()
    return Items(where, spelled.tolist(), axis.positions, axis.units, axis.rows, by_split)


def file_times(
    files: Sequence[NetcdfFile], name: str, unit: str = "s"
) -> list[NDArray[np.datetime64]]:
    """Return a time coordinate of each file, decoded by its CF units; one time of a scalar."""
    attributes: list[tuple[str, str]] = []
    for file in files:
        variable = file.variables.get(name)
        if variable is None or variable.dims not in ((name,), ()):
            actual = "no variable" if variable is None else f"({', '.join(variable.dims)})"
            raise FileFormatError(
                f"{file.path}: has {actual} {name!r}, expected a coordinate along {name!r}"
            )
        own = variable.attributes
        attributes.append((own.get("units", ""), own.get("calendar", "")))
    stored = [np.atleast_1d(whole_variable(file, name)) for file in files]
    every: Sequence[NDArray[Any] | None] | None
    every = decode_parts(stored, *map(list, zip(*attributes, strict=True)))
    if every is None:  # of which file is what follows
        every = [decode_times(own, *each) for own, each in zip(stored, attributes, strict=True)]
    found: list[NDArray[np.datetime64]] = []
    for file, times, (units, calendar) in zip(files, every, attributes, strict=True):
        if times is None or times.dtype.kind != "M" or np.isnat(times).any():
            of_calendar = f" of the calendar {calendar!r}" if calendar else ""
            raise FileFormatError(
                f"{file.path}: {name} has units {units!r}{of_calendar}, expected a date for each, "
                "as 'hours since 1970-01-01 00:00:00' of the standard calendar, in UTC or with a "
                "zone as +01:00"
            )
        exact = (times + np.timedelta64(500, "ms")).astype("M8[s]")
        found.append(exact.astype(f"M8[{unit}]"))
        if (odd := exact[found[-1] != exact]).size:
            raise FileFormatError(
                f"{file.path}: time {odd[0]} is not on a whole {UNITS.get(unit, unit)}"
            )
    return found
