"""Writes stand-ins of application A6: packed weather files, the constants, turbines' production.

Every value follows from (seed, variable, time, level) alone, so that the bytes do not depend on how
many processes write, and the weather goes on smoothly from run to run.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iobench.datasets import Axis, StandIn, netcdf4
from iobench_maelstrom.power.schema import (
    ALL_DAYS,
    GRID,
    HALF_LEVELS,
    N_STEPS,
    PRODUCTION_VARIABLES,
    TINY_GRID,
    TURBINES,
    Grid,
    LevelType,
    Turbine,
    WeatherField,
)

if TYPE_CHECKING:
    from iobench.datasets import Advance

STAND_IN_VERSION = 1
"""Counts up when the same seed gives other bytes."""
FIRST_DAYS = ("2019-01-01", "2019-01-02")
"""Of a stand-in: a tiny one has both, the default the first."""
N_TINY_PRODUCTION_DAYS = 30
NAME = "maelstrom-power"
N_MODES = 6
STEPS_PER_DAY = 144
"""Of production: one every ten minutes."""
HEADER_NBYTES = 20 << 10
"""About what the axes and attributes of a file take."""
FILL = np.int16(-32767)
LARGEST = 32766

Field = NDArray[np.float32]


def _random(plan: StandIn, *key: str | int) -> np.random.Generator:
    """Return the random numbers that belong to a name."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    return np.random.default_rng([plan.seed, STAND_IN_VERSION, *words])


def _grid(plan: StandIn) -> Grid:
    return TINY_GRID if plan.tiny else GRID


def _grid_shape(plan: StandIn) -> tuple[int, int]:
    latitudes, longitudes = _grid(plan)
    return latitudes.length, longitudes.length


def _n_production_days(plan: StandIn) -> int:
    return N_TINY_PRODUCTION_DAYS if plan.tiny else len(ALL_DAYS)


def run_nbytes(plan: StandIn, level_type: LevelType) -> int:
    """Return about the bytes of a weather file."""
    n_fields = N_STEPS * max(1, len(level_type.levels)) * len(level_type.variables)
    return n_fields * int(np.prod(_grid_shape(plan))) * 2 + HEADER_NBYTES


def production_nbytes(plan: StandIn) -> int:
    """Return about the bytes of a turbine's file."""
    return _n_production_days(plan) * STEPS_PER_DAY * (len(PRODUCTION_VARIABLES) + 1) * 8 + (
        HEADER_NBYTES
    )


def write_run(
    plan: StandIn, level_type: LevelType, day: str, hour: str, path: Path, advance: Advance
) -> None:
    """Write one forecast as grib_to_netcdf does: classic, 64-bit offsets, int16 packed."""
    start = np.datetime64(f"{day}T{hour}", "h")
    n_hours = int((start - np.datetime64("1900-01-01T00", "h")).astype(int))
    grid = {axis.name: (_coordinate(axis), "f4", axis.units) for axis in reversed(_grid(plan))}
    axes: dict[str, tuple[NDArray[Any], str, str]] = {
        **grid,
        "level": (np.array(level_type.levels), "i4", level_type.level_units),
        "time": (n_hours + np.arange(N_STEPS), "i4", "hours since 1900-01-01 00:00:00.0"),
    }
    if not level_type.levels:
        del axes["level"]
    with netcdf4(NAME).Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.set_fill_off()
        file.Conventions = "CF-1.6"
        file.history = "iobench stand-in, laid out as grib_to_netcdf writes"
        for name, (values, dtype, units) in axes.items():
            file.createDimension(name, len(values))
            axis = file.createVariable(name, dtype, (name,))
            axis.setncatts({"units": units, "long_name": name})
            axis[:] = values
        file["time"].calendar = "gregorian"
        for variable in level_type.variables:
            _create_packed(plan, file, level_type, variable, n_hours)
        for variable in level_type.variables:
            _write_packed(plan, file[variable.name], level_type, variable, n_hours, advance)


def _coordinate(axis: Axis) -> NDArray[np.float64]:
    return np.round(axis.first + axis.step * np.arange(axis.length), 3)


def _create_packed(
    plan: StandIn, file: Any, level_type: LevelType, variable: WeatherField, n_hours: int
) -> None:
    """Create a packed variable; each file has a range of its own, as with real ones."""
    margin = _random(plan, "packing", level_type.prefix, variable.name, n_hours).uniform(0, 1e-2)
    low = variable.low - margin * (variable.high - variable.low)
    high = variable.high + margin * (variable.high - variable.low)
    created = file.createVariable(variable.name, "i2", level_type.dims, fill_value=FILL)
    created.setncatts(
        {
            "scale_factor": np.float64((high - low) / (2 * LARGEST)),
            "add_offset": np.float64((high + low) / 2),
            "missing_value": FILL,
            "units": variable.units,
            "long_name": variable.long_name,
        }
    )


def _write_packed(
    plan: StandIn,
    variable: Any,
    level_type: LevelType,
    field: WeatherField,
    n_hours: int,
    advance: Advance,
) -> None:
    scale, offset = np.float32(variable.scale_factor), np.float32(variable.add_offset)
    variable.set_auto_maskandscale(False)
    n_levels = max(1, len(level_type.levels))
    maker = _maker(plan, level_type.prefix, field.name)
    packed = np.empty((n_levels, *_grid_shape(plan)), dtype=np.int16)
    for step in range(N_STEPS):
        for level in range(n_levels):
            values = maker(n_hours + step, level)
            values *= np.float32(np.atleast_1d(field.deviations)[level % np.size(field.deviations)])
            values += np.float32(np.atleast_1d(field.means)[level % np.size(field.means)])
            np.clip(values, field.low, field.high, out=values)
            values -= offset
            values /= scale
            packed[level] = np.rint(values, out=values)
        variable[step] = packed if level_type.levels else packed[0]
        advance(packed.nbytes)


@functools.lru_cache(maxsize=2)
def _modes(seed: int, tiny: bool) -> Field:
    """Return smooth patterns of mean 0 and deviation 1, shape (mode, latitude, longitude).

    White noise filtered to amplitudes falling with the wave number to the power 2, as of
    temperature and wind at these scales; the last one is the gradient from north to south.
    """
    plan = StandIn(seed, (), tiny=tiny)
    n_latitudes, n_longitudes = _grid_shape(plan)
    noise = _random(plan, "modes").standard_normal((N_MODES, 2 * n_latitudes, 2 * n_longitudes))
    spectrum = np.fft.rfft2(noise)
    along = np.fft.rfftfreq(2 * n_longitudes, 1 / (2 * n_longitudes))[None, :]
    across = np.fft.fftfreq(2 * n_latitudes, 1 / (2 * n_latitudes))[:, None]
    wave_number = np.hypot(along, across)
    spectrum *= np.exp(-((wave_number / 40) ** 2)) / np.maximum(wave_number, 2.0) ** 2
    patterns = np.fft.irfft2(spectrum, s=noise.shape[1:])[:, :n_latitudes, :n_longitudes]
    patterns[-1] = np.linspace(-1, 1, n_latitudes)[:, None]
    patterns -= patterns.mean(axis=(1, 2), keepdims=True)
    patterns /= patterns.std(axis=(1, 2), keepdims=True)
    return patterns.astype(np.float32)


def _maker(plan: StandIn, *key: str) -> Callable[[int, int], Field]:
    """Return what makes a variable's pattern at an hour and level: modes that come and go."""
    modes = _modes(plan.seed, plan.tiny)
    random = _random(plan, "weights", *key)
    period = random.uniform(18, 200, N_MODES)
    shift = random.uniform(0, 2 * np.pi, N_MODES)

    def make(hour: int, level: int) -> Field:
        angle = 2 * np.pi * hour / period + shift + 0.07 * level
        weights = np.cos(angle) * np.sqrt(2 / N_MODES)
        weights[-1] += 0.8
        pattern = np.zeros(modes.shape[1:], dtype=np.float32)
        product = np.empty_like(pattern)
        for weight, mode in zip(weights, modes, strict=True):
            pattern += np.multiply(mode, np.float32(weight), out=product)
        return pattern

    return make


def write_production(plan: StandIn, number: int, path: Path, advance: Advance) -> None:
    """Write ten-minute production of one turbine: NetCDF-4, contiguous, one point."""
    turbine = TURBINES[number - 1]
    n_steps = _n_production_days(plan) * STEPS_PER_DAY
    origin = ALL_DAYS[0]
    first = ALL_DAYS.index(FIRST_DAYS[0]) * STEPS_PER_DAY if plan.tiny else 0
    dims = ("time", "level", "latitude", "longitude")
    axes = {
        "time": (10 * (first + np.arange(n_steps)), "i8", f"minutes since {origin} 00:00:00"),
        "level": (np.array([turbine.hub_height]), "f8", "m"),
        "latitude": (np.array([turbine.latitude]), "f8", "degrees_north"),
        "longitude": (np.array([turbine.longitude]), "f8", "degrees_east"),
    }
    with netcdf4(NAME).Dataset(path, "w", format="NETCDF4") as file:
        file.setncatts(
            {
                "wind plant": f"stand-in {turbine.number}",
                "power rating": f"{turbine.power_rating:g} kW",
                "hub height": f"{turbine.hub_height:g} m",
            }
        )
        for name, (values, dtype, units) in axes.items():
            file.createDimension(name, len(values))
            axis = file.createVariable(name, dtype, (name,), contiguous=True)
            axis.units = units
            axis[:] = values
        file["time"].calendar = "proleptic_gregorian"
        for name, values in _turbine_series(plan, turbine, n_steps).items():
            created = file.createVariable(name, "f8", dims, contiguous=True, fill_value=np.nan)
            created.units = PRODUCTION_VARIABLES[name]
            created[:] = values.reshape(n_steps, 1, 1, 1)
            advance(values.nbytes)


def _turbine_series(
    plan: StandIn, turbine: Turbine, n_steps: int
) -> dict[str, NDArray[np.float64]]:
    """Return what a turbine reported: a cubic power curve, losses when calm, a few gaps."""
    random = _random(plan, "turbine", turbine.number)
    hours = np.arange(n_steps) / 6
    periods = random.uniform(8, 400, 12)
    shifts = random.uniform(0, 2 * np.pi, 12)
    waves = np.cos(2 * np.pi * hours[:, None] / periods + shifts).sum(axis=1)
    wind = np.abs(7.0 + 1.4 * waves + random.normal(0, 0.5, n_steps))
    share = np.clip((wind - 3.0) / 9.0, 0, 1) ** 3
    regulation = np.where(random.random(n_steps) < 0.01, 60.0, 100.0)
    status = np.where(random.random(n_steps) < 0.005, 2.0, 1.0)
    running = (wind > 3.0) & (wind < 25.0) & (status == 1.0)
    production = turbine.power_rating * share * regulation / 100
    production = np.where(running, production, -random.uniform(1, 5, n_steps))
    production[random.random(n_steps) < 0.004] = np.nan
    rotor_speed = np.where(running, 8.0 + 14.0 * np.sqrt(share), 0.0)
    return {
        "production": production,
        "wind_speed": wind,
        "rotor_speed": rotor_speed,
        "regulation": regulation,
        "status": status,
    }


def write_constants(path: Path, advance: Advance) -> None:
    """Write coefficients that begin and end as those of the 137 levels, smooth in between."""
    height = np.linspace(0, 1, HALF_LEVELS)
    pressure = 1 - (1 - height) ** 1.2
    b = pressure**3
    a = 101325.0 * (pressure - b)
    dims = ("dim0", "dim0_0")
    with netcdf4(NAME).Dataset(path, "w", format="NETCDF4") as file:
        for name, length in zip(dims, (1, HALF_LEVELS), strict=True):
            file.createDimension(name, length)
            axis = file.createVariable(name, "i8", (name,), contiguous=True)
            axis[:] = np.arange(length)
        for name, values in {"hyai": a, "hybi": b, "hyam": a, "hybm": b}.items():
            created = file.createVariable(name, "f8", dims, contiguous=True)
            created.units = "Pa" if name.startswith("hya") else "1"
            created[:] = values[None]
            advance(values.nbytes)
