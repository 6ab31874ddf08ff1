"""Writes stand-ins of application A6: packed weather files, the constants, turbines' production.

Smooth values with noise, which follow from (seed, variable, time) alone, so that the bytes do not
depend on how many processes write.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Axis, StandIn, define_axes, netcdf4, smooth_values
from iobench_maelstrom.power.schema import (
    ALL_DAYS,
    GRID,
    HALF_LEVELS,
    N_STEPS,
    PRODUCTION_VARIABLES,
    TINY_GRID,
    Grid,
    LevelType,
    Turbine,
    WeatherField,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Advance

STAND_IN_VERSION = 2
"""Counts up when the same seed gives other bytes."""
FIRST_DAYS = ("2019-01-01", "2019-01-02")
"""Of a stand-in: a tiny one has both, the default the first."""
N_TINY_PRODUCTION_DAYS = 30
NAME = "maelstrom-power"
STEPS_PER_DAY = 144
"""Of production: one every ten minutes."""
HEADER_NBYTES = 20 << 10
"""About what the axes and attributes of a file take."""
FILL = np.int16(-32767)
LARGEST = 32766


def _grid(plan: StandIn) -> Grid:
    return TINY_GRID if plan.tiny else GRID


def _n_production_days(plan: StandIn) -> int:
    return N_TINY_PRODUCTION_DAYS if plan.tiny else len(ALL_DAYS)


def run_nbytes(plan: StandIn, level_type: LevelType) -> int:
    """Return about the bytes of a weather file."""
    n_fields = N_STEPS * max(1, len(level_type.levels)) * len(level_type.variables)
    return HEADER_NBYTES + 2 * n_fields * math.prod(axis.length for axis in _grid(plan))


def production_nbytes(plan: StandIn) -> int:
    """Return about the bytes of a turbine's file."""
    n_steps = _n_production_days(plan) * STEPS_PER_DAY
    return HEADER_NBYTES + 8 * n_steps * (len(PRODUCTION_VARIABLES) + 1)


def write_run(
    plan: StandIn, level_type: LevelType, day: str, hour: str, path: Path, advance: Advance
) -> None:
    """Write one forecast as grib_to_netcdf does: classic, 64-bit offsets, int16 packed."""
    start = np.datetime64(f"{day}T{hour}", "h")
    n_hours = int((start - np.datetime64("1900-01-01T00", "h")).astype(int))
    axes = {axis.name: (_coordinate(axis), axis.units) for axis in reversed(_grid(plan))}
    if level_type.levels:
        axes["level"] = np.array(level_type.levels, dtype="i4"), level_type.level_units
    hours = n_hours + np.arange(N_STEPS, dtype="i4")
    axes["time"] = hours, "hours since 1900-01-01 00:00:00.0"
    with netcdf4(NAME).Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.set_fill_off()
        file.Conventions = "CF-1.6"
        file.history = "iobench stand-in, laid out as grib_to_netcdf writes"
        define_axes(file, axes, calendar="gregorian")
        for name in axes:
            file[name].long_name = name
        for variable in level_type.variables:
            _create_packed(file, variable, level_type.dims, n_hours)
        for variable in level_type.variables:
            stored = file[variable.name]
            stored.set_auto_maskandscale(False)
            shape = stored.shape[1:]
            for step in range(N_STEPS):
                what = plan.seed, STAND_IN_VERSION, level_type.prefix, variable.name, n_hours, step
                stored[step] = smooth_values(
                    shape, -LARGEST, LARGEST, *what, noise=variable.noise, dtype="i2"
                )
                advance(2 * math.prod(shape))


def _coordinate(axis: Axis) -> NDArray[Any]:
    return np.round(axis.first + axis.step * np.arange(axis.length), 3).astype("f4")


def _create_packed(file: Any, variable: WeatherField, dims: tuple[str, ...], n_hours: int) -> None:
    """Create a packed variable; each file has a range of its own, as with real ones."""
    margin = n_hours % 97 / 9700
    low = variable.low + margin * (variable.high - variable.low)
    high = variable.high - margin * (variable.high - variable.low)
    created = file.createVariable(variable.name, "i2", dims, fill_value=FILL)
    created.setncatts(
        {
            "scale_factor": np.float64((high - low) / (2 * LARGEST)),
            "add_offset": np.float64((high + low) / 2),
            "missing_value": FILL,
            "units": variable.units,
            "long_name": variable.long_name,
        }
    )


def write_production(plan: StandIn, turbine: Turbine, path: Path, advance: Advance) -> None:
    """Write ten-minute production of one turbine: NetCDF-4, contiguous, one point."""
    n_steps = _n_production_days(plan) * STEPS_PER_DAY
    first = ALL_DAYS.index(FIRST_DAYS[0]) * STEPS_PER_DAY if plan.tiny else 0
    axes = {
        "time": (10 * (first + np.arange(n_steps)), f"minutes since {ALL_DAYS[0]} 00:00:00"),
        "level": (np.array([turbine.hub_height]), "m"),
        "latitude": (np.array([turbine.latitude]), "degrees_north"),
        "longitude": (np.array([turbine.longitude]), "degrees_east"),
    }
    with netcdf4(NAME).Dataset(path, "w", format="NETCDF4") as file:
        file.setncatts(
            {
                "wind plant": f"stand-in {turbine.number}",
                "power rating": f"{turbine.power_rating:g} kW",
                "hub height": f"{turbine.hub_height:g} m",
            }
        )
        define_axes(file, axes, calendar="proleptic_gregorian")
        for name, values in _turbine_series(plan, turbine, n_steps).items():
            created = file.createVariable(
                name, "f8", tuple(axes), contiguous=True, fill_value=np.nan
            )
            created.units = PRODUCTION_VARIABLES[name]
            created[:] = values.reshape(n_steps, 1, 1, 1)
            advance(values.nbytes)


def _turbine_series(
    plan: StandIn, turbine: Turbine, n_steps: int
) -> dict[str, NDArray[np.float64]]:
    """Return what a turbine reported: a few gaps, hours when it was limited or stood still."""
    key = plan.seed, STAND_IN_VERSION, turbine.number
    fields = {"production": (-5.0, turbine.power_rating, 0.98), "wind_speed": (0.0, 25.0, 0.97),
              "rotor_speed": (0.0, 22.0, 0.79)}  # fmt: skip
    series: dict[str, NDArray[np.float64]] = {
        name: smooth_values((n_steps,), low, high, *key, name, noise=noise, dtype="f8")
        for name, (low, high, noise) in fields.items()
    }
    gaps, limited, still = np.random.default_rng(key).random((3, n_steps))
    series["production"][gaps < 0.004] = np.nan
    series["regulation"] = np.where(limited < 0.01, 60.0, 100.0)
    series["status"] = np.where(still < 0.005, 2.0, 1.0)
    return series


def write_constants(path: Path, advance: Advance) -> None:
    """Write coefficients that begin and end as those of the 137 levels, smooth in between."""
    height = np.linspace(0, 1, HALF_LEVELS)
    pressure = height * (2 - height)
    b = pressure * pressure * pressure
    a = 101325.0 * (pressure - b)
    axes = {"dim0": (np.arange(1), ""), "dim0_0": (np.arange(HALF_LEVELS), "")}
    with netcdf4(NAME).Dataset(path, "w", format="NETCDF4") as file:
        define_axes(file, axes)
        for name, values in {"hyai": a, "hybi": b, "hyam": a, "hybm": b}.items():
            created = file.createVariable(name, "f8", tuple(axes), contiguous=True)
            created.units = "Pa" if name.startswith("hya") else "1"
            created[:] = values[None]
            advance(values.nbytes)
