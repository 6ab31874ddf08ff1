"""What stand-ins are written with: NetCDF files of axes and variables, smooth values with noise."""

from __future__ import annotations

import math
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

SINCE = np.datetime64("1990-01-01", "h")
N_TERRACES = 32
"""Steps between the bounds of a variable, where it has no noise."""
NOISE_BITS = {2: 16, 4: 24, 8: 53}
"""Of a number's bytes: how many bits of it can be noise."""


def define_axes(
    file: Any, axes: Mapping[str, tuple[NDArray[Any], str]], *, calendar: str = ""
) -> None:
    """Define the dimensions of a NetCDF file, each with its coordinate: values and units.

    ``calendar`` is that of ``time``, if there is one.
    """
    layout = {"contiguous": True} if file.data_model == "NETCDF4" else {}
    for name, (values, units) in axes.items():
        file.createDimension(name, len(values))
        axis = file.createVariable(name, values.dtype, (name,), **layout)
        if units:
            axis.units = units
        axis[:] = values
    if calendar and "time" in axes:
        file["time"].calendar = calendar


def smooth_values(
    shape: tuple[int, ...],
    low: ArrayLike,
    high: ArrayLike,
    *random_key: int | str,
    noise: float = 0.7,
    dtype: DTypeLike = "f4",
    bits: int = 0,
) -> NDArray[Any]:
    """Return waves with noise between two bounds; the key alone decides, on any machine."""
    numbers = [zlib.crc32(each.encode()) if isinstance(each, str) else each for each in random_key]
    random = np.random.default_rng(numbers)
    stored = np.dtype(dtype)
    bits = bits or NOISE_BITS[stored.itemsize]
    work: Any = np.float64 if bits > 24 else np.float32
    # Arithmetic that is rounded alike everywhere: no sines, powers or matrix products.
    values: NDArray[Any] = np.zeros((), dtype=work)
    for length in reversed(shape):
        place = (random.random() + random.integers(1, 4) * np.arange(length) / length) % 1
        wave = 4 * N_TERRACES / len(shape) * place * (1 - place)
        values = wave.astype(work).reshape(-1, *(1,) * values.ndim) + values
    np.floor(values, out=values)
    # In units of the last bit: the grain has 2 ** (bits * noise) steps, less between whole powers.
    power = math.floor(bits * noise)
    steps = math.ldexp(1 + bits * noise - power, power)
    values *= work((2.0**bits - steps) / N_TERRACES)
    if bits > 24:
        grain = random.random(shape)
        grain *= steps
    else:
        words = np.frombuffer(random.bytes(2 * values.size), dtype="<u2").reshape(shape)
        grain = np.multiply(words, work(steps / 65536), out=np.empty(shape, dtype=work))
    values += np.floor(grain, out=grain)
    values *= _whole((1 - 1e-6) / 2.0**bits * np.subtract(high, low), shape).astype(work)
    values += _whole(low, shape).astype(work)
    return (
        np.rint(values).astype(stored) if stored.kind == "i" else values.astype(stored, copy=False)
    )


def _whole(bound: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a bound as an array without short inner axes, along which NumPy is slow."""
    numbers = np.asarray(bound)
    return np.ascontiguousarray(np.broadcast_to(numbers, shape[1:])) if numbers.ndim else numbers


def writing_library(name: str, dataset: str) -> Any:
    """Return a library that stand-ins are written with: ``netCDF4`` or ``h5py``."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"{dataset} needs {name}: pip install 'iobench[netcdf]'") from error
