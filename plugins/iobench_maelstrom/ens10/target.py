"""The ERA5 target: one field at each forecast's valid time, in one contiguous variable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import FileRange, cf_times, netcdf4
from iobench.errors import FileFormatError, MissingExtraError
from iobench_maelstrom.ens10.schema import LEAD_HOURS, Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray


__all__ = ["Target", "hourly_times", "open_target", "or_without", "valid_time", "write_target"]

LONG_NAMES = {"t2m": "2 metre temperature", "z": "Geopotential", "t": "Temperature"}
EPOCH = np.datetime64("1900-01-01T00", "h")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the target's fields are: one of ``field_nbytes`` per time, one after another."""

    path: Path
    times: NDArray[np.datetime64]
    offset: int
    dtype: str
    shape: tuple[int, int]
    variable: str = "t2m"

    @property
    def field_nbytes(self) -> int:
        """Bytes of one field."""
        return self.shape[0] * self.shape[1] * np.dtype(self.dtype).itemsize

    def extent(self, start: str) -> FileRange[str]:
        """Return where the field valid at the end of the forecast of ``start`` is.

        Raises
        ------
        FileFormatError
            If the file does not hold that time.
        """
        time = valid_time(start)
        found = np.flatnonzero(self.times == time)
        if found.size != 1:
            raise FileFormatError(
                f"{self.path}: expected the time {time} once (forecast of {start} + "
                f"{LEAD_HOURS} h), found it {found.size} times; fetch it for all forecasts"
                f"{or_without(self.variable)}"
            )
        first = self.offset + int(found[0]) * self.field_nbytes
        return FileRange(str(self.path), first, self.field_nbytes)


def or_without(variable: str) -> str:
    """Return the way round a missing target, for messages, where there is one."""
    return ", or go without: --option target=none" if variable == "t2m" else ""


def valid_time(start: str) -> np.datetime64:
    """Return when the forecast of a start date (``YYYYMMDD``, 0 UTC) is valid."""
    day = np.datetime64(f"{start[:4]}-{start[4:6]}-{start[6:]}T00", "h")
    return day + np.timedelta64(LEAD_HOURS, "h")


def write_target(
    path: Path,
    times: Sequence[np.datetime64],
    fields: Iterable[NDArray[Any]],
    grid: Grid,
    *,
    variable: str = "t2m",
    units: str = "K",
) -> None:
    """Write a NetCDF-4 file with one variable (time, latitude, longitude), contiguous float32."""
    with netcdf4("maelstrom-ens10").Dataset(path, "w", format="NETCDF4") as file:
        axes = {
            "time": (np.array([(time - EPOCH).astype(int) for time in times]), "i4"),
            "latitude": (90.0 - grid.spacing * np.arange(grid.n_latitudes), "f4"),
            "longitude": (grid.spacing * np.arange(grid.n_longitudes), "f4"),
        }
        axis_units = {
            "time": "hours since 1900-01-01 00:00:00",
            "latitude": "degrees_north",
            "longitude": "degrees_east",
        }
        for name, (values, dtype) in axes.items():
            file.createDimension(name, len(values))
            axis = file.createVariable(name, dtype, (name,), contiguous=True)
            axis.units = axis_units[name]
            axis[:] = values
        file["time"].calendar = "gregorian"
        stored = file.createVariable(variable, "f4", tuple(axes), contiguous=True)
        stored.setncatts({"units": units, "long_name": LONG_NAMES[variable]})
        for number, field in enumerate(fields):
            stored[number] = field


def open_target(path: Path, name: str = "t2m") -> Target:
    """Return where the fields of an ERA5 target file are.

    Raises
    ------
    FileFormatError
        If the file is not NetCDF-4, or the variable is not a contiguous float (time, lat, lon).
    """
    try:
        import h5py
    except ImportError as error:
        raise _missing_extra() from error
    try:
        with h5py.File(path, "r") as file:
            return _described(path, file, name)
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be read as NetCDF-4 ({error}); fetch it again, or convert it: "
            "nccopy -k nc4 OLD NEW"
        ) from error


def _described(path: Path, file: Any, name: str) -> Target:
    missing = {name, "time", "latitude"} - set(file)
    if missing:
        raise FileFormatError(f"{path}: has no variable {', '.join(sorted(missing))}")
    variable, latitudes = file[name], file["latitude"][:]
    offset = variable.id.get_offset()
    n_times = len(file["time"])
    if (
        offset is None
        or variable.dtype.kind != "f"
        or variable.ndim != 3
        or variable.shape[:2] != (n_times, len(latitudes))
        or "scale_factor" in variable.attrs
    ):
        layout = "packed" if variable.dtype.kind != "f" else f"chunks {variable.chunks}"
        raise FileFormatError(
            f"{path}: expected {name} (time, latitude, longitude) in one piece, found "
            f"{variable.dtype} {variable.shape}, {layout}; store it as contiguous float32 (xarray: "
            f"encoding={{{name!r}: {{'dtype': 'float32', 'contiguous': True}}}}){or_without(name)}"
        )
    if latitudes[0] < latitudes[-1]:
        raise FileFormatError(
            f"{path}: latitudes go from south to north, the forecasts' from north to south; "
            "turn them (cdo invertlat)"
        )
    times, shape = _times(path, file["time"]), variable.shape[1:]
    return Target(path, times, offset, variable.dtype.str, shape, name)


def _times(path: Path, axis: Any) -> NDArray[np.datetime64]:
    units, calendar = (_text(axis.attrs.get(name, "")) for name in ("units", "calendar"))
    return hourly_times(path, axis[:], units, calendar)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def hourly_times(
    path: Path, values: NDArray[Any], units: str, calendar: str
) -> NDArray[np.datetime64]:
    """Return a time axis decoded by its CF units, as datetime64[h].

    Raises
    ------
    FileFormatError
        As `iobench.datasets.cf_times`, and if a time is not on a whole hour.
    """
    times = cf_times(path, values, units, calendar)
    hours = times.astype("datetime64[h]")
    if (hours != times).any():
        raise FileFormatError(
            f"{path}: time {times[hours != times][0]} is not on a whole hour, expected the hours "
            f"that forecasts are for; see its units, {units!r}"
        )
    return hours


def _missing_extra() -> MissingExtraError:
    return MissingExtraError(
        "maelstrom-ens10 needs NetCDF for its target: pip install 'iobench[grib,netcdf]'"
    )
