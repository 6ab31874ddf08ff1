"""Files of application A1: that they are of the schema, and where their variables lie."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.datasets import (
    Box,
    NetcdfFile,
    NetcdfVariable,
    Progress,
    box_extents,
    box_through_library,
    decode_box,
    inspect_netcdf,
    make_box,
    no_progress,
    read_extents,
    run_jobs,
)
from iobench.errors import FileFormatError, MissingExtraError
from iobench_maelstrom.yr.schema import PREDICTORS, STATIC_PREDICTORS, Predictor

if TYPE_CHECKING:
    from iobench.datasets import Chunked, Contiguous, Storage

__all__ = ["FIELDS", "YrFile", "YrFiles", "open_files"]

FIELDS = {
    "predictors": ("leadtime", "y", "x", "predictor"),
    "static_predictors": ("y", "x", "static_predictor"),
    "target_mean": ("leadtime", "y", "x"),
    "target_std": ("leadtime", "y", "x"),
}
NAMES = {"predictor": PREDICTORS, "static_predictor": STATIC_PREDICTORS}
TIME_UNITS = "seconds since 1970-01-01 00:00:00 +00:00"
SAME_UNITS = re.compile(r"seconds since 1970-01-01([T ]00:00(:00(\.0*)?)?)? ?(\+00(:?00)?|Z|UTC)?")
SERIAL_FILES = 32
"""Fewer are inspected sooner by this process than by ones that must start first."""


@dataclass(frozen=True, slots=True, eq=False)
class YrFile:
    """One file: its path, its start as in ``20200301T03Z``, where each of `FIELDS` lies in it."""

    path: str
    start: str
    storages: tuple[Contiguous | Chunked | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class YrFiles:
    """Files of one schema.

    Parameters
    ----------
    files : tuple of YrFile
        In the order given.
    fields : tuple of NetcdfVariable
        Schema of each of `FIELDS`, the same in all files.
    leadtimes : tuple of float
        Seconds after the start, the same in all files.
    """

    files: tuple[YrFile, ...]
    fields: tuple[NetcdfVariable, ...]
    leadtimes: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Lead times, rows and columns."""
        n_leads, n_y, n_x = self.fields[list(FIELDS).index("target_mean")].shape
        return n_leads, n_y, n_x

    @property
    def through_library(self) -> bool:
        """Whether some file is stored in a way that only the NetCDF library knows."""
        return any(storage is None for file in self.files for storage in file.storages)

    def box(self, file: int, name: str, start: Sequence[int], stop: Sequence[int]) -> Box:
        """Return a box of one of `FIELDS` in file number ``file``."""
        number = list(FIELDS).index(name)
        held = self.files[file]
        storage = held.storages[number]
        if storage is None:
            raise FileFormatError(f"{held.path}: variable {name!r} has no known extents")
        field = self.fields[number]
        axis = field.dims.index("leadtime") if "leadtime" in field.dims else -1
        return Box(held.path, field, storage, tuple(start), tuple(stop), axis)

    def stored(self, names: Sequence[str]) -> Iterator[tuple[NetcdfVariable, Storage | None]]:
        """Yield each of these variables of each file, and how it is stored."""
        for file in self.files:
            for name, field, storage in zip(FIELDS, self.fields, file.storages, strict=True):
                if name in names:
                    yield field, storage


def open_files(paths: Sequence[Path], *, progress: Progress = no_progress) -> YrFiles:
    """Return where the variables of the files lie, several inspected at once.

    Raises
    ------
    FileFormatError
        If one is not NetCDF-4, cut short, of another schema, or unlike the first.
    """
    found: list[Any] = [None] * len(paths)
    jobs = run_jobs(
        _inspect,
        [Path(path) for path in paths],
        processes=1 if len(paths) < SERIAL_FILES else None,
        progress=progress,
        total=len(paths),
    )
    for number, inspected in jobs:
        found[number] = inspected
    first, leadtimes, fields = found[0]
    for file, found_leadtimes, found_fields in found[1:]:
        for expected, variable in zip(fields, found_fields, strict=True):
            if variable.shape != expected.shape:
                raise FileFormatError(
                    f"{file.path}: variable {variable.name!r} is {variable.shape}, expected "
                    f"{expected.shape} as in {first.path}; fetch files of one size"
                )
        if found_leadtimes != leadtimes:
            raise FileFormatError(
                f"{file.path}: other values of 'leadtime' than {first.path}; fetch files of one "
                "size"
            )
    return YrFiles(tuple(file for file, _, _ in found), fields, leadtimes)


def _inspect(
    path: Path, advance: Callable[[int], None]
) -> tuple[YrFile, tuple[float, ...], tuple[NetcdfVariable, ...]]:
    file = inspect_netcdf(path)
    for dim, expected in NAMES.items():
        _check_length(file, dim, len(expected))
    for name, dims in FIELDS.items():
        _check_variable(file, name, dims, "<f4")
    _check_variable(file, "leadtime", ("leadtime",), "<f8")
    _check_variable(file, "time", (), "<f8")
    _check_names(path)
    fields = tuple(file.variables[name] for name in FIELDS)
    leadtimes = tuple(float(value) for value in _values(file, "leadtime"))
    storages = tuple(field.storage for field in fields)
    advance(1)
    return YrFile(str(path), _start(file), storages), leadtimes, fields


def _check_length(file: NetcdfFile, dim: str, expected: int) -> None:
    found = file.dims.get(dim)
    if found != expected:
        what = "missing" if found is None else str(found)
        raise FileFormatError(
            f"{file.path}: dimension {dim!r} is {what}, expected {expected}: another version of "
            "the data set; fetch the files of climetlab-maelstrom-yr 0.6"
        )


def _check_variable(file: NetcdfFile, name: str, dims: tuple[str, ...], dtype: str) -> None:
    variable = file.variables.get(name)
    found = "missing"
    if variable is not None:
        if variable.dims == dims and variable.packing.dtype == dtype:
            return
        found = f"{variable.packing.dtype} ({', '.join(variable.dims)})"
    raise FileFormatError(
        f"{file.path}: variable {name!r} is {found}, expected {dtype} ({', '.join(dims)}): another "
        "version of the data set; fetch the files of climetlab-maelstrom-yr 0.6"
    )


def _check_names(path: Path) -> None:
    """Check that the channels are the known ones in the known order."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError(
            "maelstrom-yr needs NetCDF: pip install 'iobench[netcdf]'"
        ) from error
    try:
        with h5py.File(path, "r") as file:
            found = {dim: [str(name) for name in file[dim].asstr()[...]] for dim in NAMES}
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path}: the names in 'predictor' and 'static_predictor' cannot be read: "
            f"{' '.join(str(error).split())}; expected NetCDF-4 with strings"
        ) from error
    for dim, expected in NAMES.items():
        _check_same(path, dim, found[dim], expected)


def _check_same(path: Path, dim: str, found: list[str], expected: Sequence[Predictor]) -> None:
    for number, (name, wanted) in enumerate(zip(found, expected, strict=True)):
        if name != wanted.name:
            raise FileFormatError(
                f"{path}: {dim} {number} is {name!r}, expected {wanted.name!r}: another version "
                "of the data set; fetch the files of climetlab-maelstrom-yr 0.6"
            )


def _values(file: NetcdfFile, name: str) -> Any:
    variable = file.variables[name]
    start, stop = (0,) * len(variable.shape), variable.shape
    if variable.storage is None:
        return box_through_library(file, name, start, stop)
    box = make_box(file, name, start, stop)
    return decode_box(box, read_extents(box_extents(box)))


def _start(file: NetcdfFile) -> str:
    units = file.variables["time"].attributes.get("units", "")
    if not SAME_UNITS.fullmatch(units):
        raise FileFormatError(
            f"{file.path}: variable 'time' has units {units!r}, expected {TIME_UNITS!r}"
        )
    seconds = float(_values(file, "time"))
    if seconds % 3600:
        raise FileFormatError(
            f"{file.path}: begins {seconds:.0f} s after 1970, expected a whole hour"
        )
    start = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return f"{start:%Y%m%dT%HZ}"
