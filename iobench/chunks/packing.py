"""Numbers as NetCDF files pack them: CF scale, offset, fill values and signedness."""

from __future__ import annotations

import base64
import struct
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from iobench.errors import MissingExtraError
from iobench.files.memory import array_for_one_sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FILLS = ("missing_value", "_FillValue")
CODING = ("missing_value", "_FillValue", "_Unsigned", "scale_factor", "add_offset", "dtype")
"""Attributes that xarray chooses a dtype by."""
SCALES = ("scale_factor", "add_offset")
_DTYPES: dict[tuple[Any, ...], np.dtype[Any]] = {}
"""What xarray chose: files of a set have the same attributes, and asking takes a millisecond."""


class Packing(msgspec.Struct, frozen=True):
    """How a variable's numbers on disk become numbers."""

    stored: str  # dtype on disk, with byte order and the signedness that ``_Unsigned`` gives it
    dtype: str  # dtype after unpacking, as xarray chooses it
    fill_values: tuple[Any, ...] = ()  # stored values that mean "missing" and become NaN
    scale: Any = None
    offset: Any = None  # of the dtype their attribute has, for the arithmetic depends on it


def packing_of(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> Packing:
    """Return the packing that a variable's attributes describe."""
    native = stored.newbyteorder("=")
    signs = {("i", "true"): "u", ("u", "false"): "i"}  # as xarray: any other `_Unsigned` is void
    kind = signs.get((native.kind, _text(attributes.get("_Unsigned"))), native.kind)
    packed = np.dtype(f"{kind}{native.itemsize}")
    scale, offset = (_scale(name, attributes.get(name)) for name in SCALES)
    numbers = [each for name in FILLS for each in _fill_numbers(name, attributes.get(name))]
    fills = [_as_stored(each, native, packed) for each in numbers if each is not None]
    known = {"scale_factor": scale, "add_offset": offset, "dtype": attributes.get("dtype")}
    if any(each is None or each == each for each in numbers):
        known["_FillValue"] = packed.type(0)
    elif numbers and packed.kind == "f":  # scaled by the dtype's own precision, then
        known["_FillValue"] = packed.type(np.nan)
    named = {name: each for name, each in known.items() if each is not None}
    decoded = _decoded_dtype(packed, named)
    fill_values = tuple(dict.fromkeys(each for each in fills if each is not None and each == each))
    if fill_values and decoded.kind in "iu":
        # xarray fails here (an integer scale_factor beside a fill value); NaN needs a float.
        decoded = np.dtype(np.float64)
    in_file = packed.newbyteorder(">") if stored.byteorder == ">" else packed
    return Packing(
        stored=in_file.str,
        dtype=decoded.newbyteorder("<").str,
        fill_values=fill_values,
        scale=scale,
        offset=offset,
    )


def _text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _scale(name: str, value: Any) -> Any:
    """Return the number of a scale or an offset, of the dtype of its attribute."""
    if value is None:
        return None
    array = np.ravel(np.asarray(value))
    if array.size == 1 and array.dtype.kind in "biuf":
        return array[0]
    number = _number_in_text(array[0]) if array.size == 1 else None
    if number is None:
        raise ValueError(f"{name} {_text(value)!r:.80}, expected a number")
    return np.float64(number)


def _fill_numbers(name: str, value: Any) -> list[Any]:
    """Return the numbers of an attribute that names missing values; None: text that is none."""
    array = np.ravel(np.asarray([] if value is None else value))
    if array.dtype.kind in "biuf":
        return list(array)
    numbers = [_number_in_text(each) for each in array]
    if name == "_FillValue" and None in numbers:
        raise ValueError(f"{name} {_text(value)!r:.80}, expected a number")
    return numbers


def _number_in_text(text: Any) -> int | float | None:
    """Return a number that is spelled, or in base64 as xarray writes ``_FillValue`` to Zarr 3."""
    spelled = str(_text(text))
    for parse in (int, float):
        with suppress(ValueError):
            return parse(spelled)
    with suppress(ValueError, struct.error):
        return float(struct.unpack("<d", base64.b64decode(spelled, validate=True))[0])
    return None


def _as_stored(number: Any, stored: np.dtype[Any], packed: np.dtype[Any]) -> Any:
    """Return a missing value as stored numbers are; None where none of these can equal it."""
    if packed.kind == "f":
        with np.errstate(over="ignore"):
            rounded = np.asarray(number).astype(packed)[()]
        return None if np.isinf(rounded) and not np.isinf(number) else rounded
    if not np.isfinite(number) or number != int(number):
        return None
    whole = int(number)
    if not any(np.iinfo(each).min <= whole <= np.iinfo(each).max for each in (stored, packed)):
        return None
    bits = 8 * packed.itemsize
    return np.array(whole % (1 << bits), dtype=f"u{packed.itemsize}").view(packed)[()]


def _decoded_dtype(stored: np.dtype[Any], known: Mapping[str, Any]) -> np.dtype[Any]:
    if not known or (stored.kind == "f" and known.keys() == {"_FillValue"}):
        return stored  # nothing to ask: xarray takes a second to load what it knows
    # Of a scale and an offset the dtype matters alone: each file may have others.
    key: tuple[Any, ...] = (stored.str, _text(known.get("dtype")))
    key += tuple((name, np.asarray(each).dtype.str) for name, each in known.items())
    key += (known.get("_FillValue") != known.get("_FillValue"),)
    if key not in _DTYPES:
        _DTYPES[key] = _dtype_by_xarray(stored, known)
    return _DTYPES[key]


def _dtype_by_xarray(stored: np.dtype[Any], known: Mapping[str, Any]) -> np.dtype[Any]:
    try:
        import xarray
        from xarray.core.indexing import LazilyIndexedArray
    except ImportError as error:
        raise MissingExtraError("NetCDF needs xarray", extra="netcdf") from error
    # As a backend of xarray's has them: of an array it would ask dask and others whether it is
    # theirs, whose import takes 0.4 s.
    zero = LazilyIndexedArray(np.zeros(1, stored))
    one = xarray.Dataset({"v": ("n", zero, known)})
    with warnings.catch_warnings():
        # Several fill values and the like: our own reading masks them all, as xarray does.
        warnings.simplefilter("ignore")
        decoded = xarray.decode_cf(one, decode_times=False, decode_coords=False)
    dtype: np.dtype[Any] = np.dtype(decoded["v"].dtype)
    return dtype


def is_plain(packing: Packing) -> bool:
    """Whether stored numbers are the numbers, but for their dtype."""
    return not packing.fill_values and packing.scale is None and packing.offset is None


def unpack(stored: NDArray[Any], packing: Packing, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the numbers of ``stored``, to be written, in ``out`` where that fits.

    Same operations in the same order and precision as xarray, so that values are equal bit by bit.
    """
    is_as_stored = stored.dtype == packing.dtype and stored.flags.c_contiguous
    is_scaled = packing.scale is not None or packing.offset is not None
    if (
        out is not None
        and out.shape == stored.shape
        and out.dtype == packing.dtype
        and out.flags.writeable
    ):
        values = out
        if stored is not out:
            values[...] = stored
    elif is_as_stored and stored.flags.writeable and not is_scaled:
        values = stored  # nobody else's; missing values stay so where it is asked for again
    else:
        values = array_for_one_sample(stored.shape, packing.dtype)
        values[...] = stored
    if packing.fill_values:
        missing = values == packing.fill_values[0]
        for fill in packing.fill_values[1:]:
            missing |= values == fill
        if missing.any():
            values[missing] = np.nan
    if packing.scale is not None:
        values *= packing.scale
    if packing.offset is not None:
        values += packing.offset
    return values
