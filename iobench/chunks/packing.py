"""Numbers as NetCDF files pack them: CF scale, offset, fill values and signedness."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import MissingExtraError
from iobench.files.memory import array_for_one_sample
from iobench.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FILLS = {"missing_value", "_FillValue"}
CODING = ("missing_value", "_FillValue", "_Unsigned", "scale_factor", "add_offset", "dtype")
"""Attributes that xarray chooses a dtype by."""
SCALES = ("scale_factor", "add_offset")
_ASKED: dict[tuple[Any, ...], np.dtype[Any]] = {}
"""What xarray chose: files of a set have the same attributes, and asking takes a millisecond."""


@frozen
class Packing:
    """How a variable's numbers on disk become numbers.

    Parameters
    ----------
    stored : str
        dtype on disk, with byte order and the signedness that ``_Unsigned`` gives it.
    dtype : str
        dtype after unpacking, as xarray chooses it.
    fill_values : tuple of numbers
        Stored values that mean "missing" and become NaN.
    scale, offset : number or None
        Of the dtype their attribute has, for the arithmetic depends on it.
    """

    stored: str
    dtype: str
    fill_values: tuple[Any, ...] = ()
    scale: Any = None
    offset: Any = None


def packing_of(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> Packing:
    """Return the packing that a variable's attributes describe.

    The dtype is the one ``xarray.open_dataset`` decodes to; xarray is asked for it.
    """
    attributes = {name: _scalar(value) for name, value in attributes.items()}
    fills = [attributes.get(name) for name in ("missing_value", "_FillValue")]
    packed = stored.newbyteorder("=")
    if packed.kind in "iu" and "_Unsigned" in attributes:
        kind = "u" if attributes["_Unsigned"] == "true" else "i"
        packed = np.dtype(f"{kind}{packed.itemsize}")
        fills = [None if fill is None else np.asarray(fill).astype(packed) for fill in fills]
    values = [value for fill in fills if fill is not None for value in np.ravel(fill)]
    in_file = packed.newbyteorder(">") if stored.byteorder == ">" else packed
    fill_values = tuple(
        value for value in dict.fromkeys(values) if not isinstance(value, str) and value == value
    )
    decoded = _decoded_dtype(stored.newbyteorder("="), attributes)
    if fill_values and decoded.kind in "iu":
        # xarray fails here (an integer scale_factor beside a fill value); NaN needs a float.
        decoded = np.dtype(np.float64)
    return Packing(
        stored=in_file.str,
        dtype=decoded.newbyteorder("<").str,
        fill_values=fill_values,
        scale=attributes.get("scale_factor"),
        offset=attributes.get("add_offset"),
    )


def _scalar(value: Any) -> Any:
    array = np.asarray(value)
    return array.reshape(-1)[0] if array.size == 1 and array.dtype.kind in "biuf" else value


def _decoded_dtype(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    known = {name: attributes[name] for name in CODING if name in attributes}
    if not known or (stored.kind == "f" and known.keys() <= FILLS):
        return stored  # nothing to ask: xarray takes a second to load what it knows
    arrays = {name: np.asarray(value) for name, value in known.items()}
    # Of a scale and an offset the dtype matters alone: each file may have others.
    told = (
        (name, array.dtype.str, array.shape, type(known[name]))
        + (() if name in SCALES else (repr(known[name]),))
        for name, array in arrays.items()
    )
    key = (stored.str, *told)
    if key not in _ASKED:
        _ASKED[key] = _asked_dtype(stored, known)
    return _ASKED[key]


def _asked_dtype(stored: np.dtype[Any], known: Mapping[str, Any]) -> np.dtype[Any]:
    try:
        import xarray
        from xarray.core.indexing import LazilyIndexedArray
    except ImportError as error:
        raise MissingExtraError("NetCDF needs xarray: pip install 'iobench[netcdf]'") from error
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
    """Return the numbers of ``stored``, in native byte order and C order; they may be written.

    They are ``out`` where they can be: of their shape and dtype, maybe ``stored`` itself.
    Same operations in the same order and precision as xarray, so that values are equal bit by bit.
    """
    is_as_wanted = stored.dtype == packing.dtype and stored.flags.c_contiguous
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
    elif is_as_wanted and stored.flags.writeable and not is_scaled:
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
