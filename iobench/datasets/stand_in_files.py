"""Files of stand-ins, said as tables: dimensions, variables, and what their values are."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike, DTypeLike, NDArray

N_TERRACES = 32  # steps between the bounds of a variable, where it has no noise
NOISE_BITS = {2: 16, 4: 24, 8: 53}  # of a number's bytes: how many bits of it can be noise
MOST_VALUES: Final = 1 << 22  # made at once, but for the values of one row


class Smooth(msgspec.Struct, frozen=True):
    """Waves with noise between two bounds, which may differ along the last dimensions.

    Parameters
    ----------
    low, high : float or array
        The bounds.
    noise : float
        The share of a number's bits that no compressor takes away.
    bits : int
        How many bits of a number can be noise; by default as its dtype has.
    """

    low: Any
    high: Any
    noise: float = 0.7
    bits: int = 0

    def __call__(
        self, shape: tuple[int, ...], dtype: DTypeLike, key: Sequence[int | str]
    ) -> NDArray[Any]:
        """Return values; the key alone decides, on any machine."""
        random = np.random.default_rng(
            [zlib.crc32(each.encode()) if isinstance(each, str) else each for each in key]
        )
        stored = np.dtype(dtype)
        bits = self.bits or NOISE_BITS[stored.itemsize]
        work: Any = np.float64 if bits > 24 else np.float32
        # Arithmetic that is rounded alike everywhere: no sines, powers or matrix products.
        values: NDArray[Any] = np.zeros((), dtype=work)
        for length in reversed(shape):
            place = (random.random() + random.integers(1, 4) * np.arange(length) / length) % 1
            wave = 4 * N_TERRACES / len(shape) * place * (1 - place)
            values = wave.astype(work).reshape(-1, *(1,) * values.ndim) + values
        np.floor(values, out=values)
        # In units of the last bit: the grain has 2 ** (bits * noise) steps, less between powers.
        power = math.floor(bits * self.noise)
        steps = math.ldexp(1 + bits * self.noise - power, power)
        values *= work((2.0**bits - steps) / N_TERRACES)
        if bits > 24:
            grain = random.random(shape)
            grain *= steps
        else:
            words = np.frombuffer(random.bytes(2 * values.size), dtype="<u2").reshape(shape)
            grain = np.multiply(words, work(steps / 65536), out=np.empty(shape, dtype=work))
        values += np.floor(grain, out=grain)
        span = (1 - 1e-6) / 2.0**bits * np.subtract(self.high, self.low)
        values *= _whole(span, shape).astype(work)
        values += _whole(self.low, shape).astype(work)
        if stored.kind == "i":
            np.rint(values, out=values)
        return values.astype(stored, copy=False)


class StandInVariable(msgspec.Struct, frozen=True, eq=False):
    """A variable of a `StandInFile`.

    ``values`` are an array; or a function of shape, dtype and random key, such as `Smooth`, which
    is called for some rows at a time.
    """

    name: str
    dims: tuple[str, ...]
    values: Any
    dtype: Any = "f4"
    attributes: Mapping[str, Any] = {}
    fill: Any = False  # by default none


class StandInFile(msgspec.Struct, frozen=True, eq=False):
    """A NetCDF file; of NetCDF-4 all variables are contiguous and uncompressed."""

    variables: Sequence[StandInVariable]
    key: tuple[int | str, ...] = ()  # what random values follow from, with the variable's name
    attributes: Mapping[str, Any] = {}
    lengths: Mapping[str, int] = {}  # of dimensions that have no coordinate
    format: str = "NETCDF4"

    def write(self, path: Path) -> None:
        """Write the file."""
        axes = [each for each in self.variables if each.dims == (each.name,)]
        dims = {**self.lengths, **{each.name: len(each.values) for each in axes}}
        with writing_library("netCDF4").Dataset(path, "w", format=self.format) as file:
            file.set_fill_off()
            file.setncatts(dict(self.attributes))
            for name, length in dims.items():
                file.createDimension(name, length)
            for each in self.variables:
                is_plain = self.format == "NETCDF4" and each.dtype is not str
                more = {"contiguous": True, "fill_value": each.fill} if is_plain else {}
                if each.fill is not False:
                    more["fill_value"] = each.fill
                stored = file.createVariable(each.name, each.dtype, each.dims, **more)
                stored.setncatts(dict(each.attributes))
                stored.set_auto_maskandscale(False)
            for each in self.variables:
                stored, shape = file[each.name], tuple(dims[dim] for dim in each.dims)
                if not callable(each.values):
                    stored[...] = each.values
                    continue
                rows = max(1, MOST_VALUES // math.prod(shape[1:]))
                for start in range(0, shape[0], rows):
                    part = (min(rows, shape[0] - start), *shape[1:])
                    key = (*self.key, each.name, start)
                    stored[start : start + rows] = each.values(part, each.dtype, key)


def axis_variable(name: str, values: ArrayLike, units: str = "", **more: Any) -> StandInVariable:
    """Return the coordinate of a dimension."""
    numbers = np.asarray(values)
    attributes = {"units": units, **more} if units else more
    return StandInVariable(name, (name,), numbers, numbers.dtype, attributes)


def _whole(bound: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a bound as an array without short inner axes, along which NumPy is slow."""
    numbers = np.asarray(bound)
    return np.ascontiguousarray(np.broadcast_to(numbers, shape[1:])) if numbers.ndim else numbers


def writing_library(name: str) -> Any:
    """Return a library that stand-ins are written with: ``netCDF4`` or ``h5py``."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"a stand-in needs {name}", extra="netcdf") from error
