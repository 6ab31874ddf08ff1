"""The values of a GRIB message: unpacked by numpy where ecCodes does the same, else by ecCodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.chunks.grib.simple_packing import simple_packing
from iobench.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

LONG_EDITION_1 = 0x800000
"""Set in the length of a message of edition 1 that is longer than three bytes can say."""
_MISSING = float(np.finfo(np.float32).max)


def decode_message(
    buffer: memoryview | bytes,
    dtype: type[np.float32] | type[np.float64] = np.float32,
    *,
    where: str = "a GRIB message",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Decode the values of a message, on one core, without the GIL."""
    packing = simple_packing(buffer)
    if packing is not None:
        values = np.empty(packing.count, dtype) if out is None else out
        _check_size(values, packing.count, where)
        packing.unpack(buffer, values)
        return values
    decoded = _through_eccodes(buffer, where)
    if out is None:
        return decoded.astype(dtype, copy=False)
    _check_size(out, decoded.size, where)
    out[:] = decoded
    return out


def _check_size(values: NDArray[Any], count: int, where: str) -> None:
    if values.shape != (count,):
        raise FileFormatError(
            f"{where} has {count} values, expected {values.size}: the file has changed since it "
            "was indexed"
        )


def _through_eccodes(buffer: memoryview | bytes, where: str) -> NDArray[np.float64]:
    _check_whole(buffer, where)
    codes = load_eccodes()
    try:
        handle = codes.codes_new_from_message(buffer)
        try:
            return _values(codes, handle)
        finally:
            codes.codes_release(handle)
    except codes.CodesInternalError as error:
        raise FileFormatError(f"{where} cannot be decoded: ecCodes says {error}") from error


def _check_whole(buffer: memoryview | bytes, where: str) -> None:
    """Raise FileFormatError for a part of a message: ecCodes reads on beyond its end, and crashes.

    Lengths are where WMO's GRIB editions 1 and 2 have them; of messages of edition 1 that are
    longer than theirs can say only the ends are checked.
    """
    whole = len(buffer) >= 20 and bytes(buffer[:4]) == b"GRIB" and bytes(buffer[-4:]) == b"7777"
    if whole and buffer[7] == 1:
        stated = int.from_bytes(buffer[4:7], "big")
        whole = bool(stated & LONG_EDITION_1) or stated == len(buffer)
    elif whole and buffer[7] == 2:
        whole = int.from_bytes(buffer[8:16], "big") == len(buffer)
    if not whole:
        raise FileFormatError(
            f"{where} cannot be decoded: {len(buffer)} bytes that are no whole GRIB message; fetch "
            "the file again"
        )


def _values(codes: ModuleType, handle: int) -> NDArray[np.float64]:
    gaps = codes.codes_get_long(handle, "bitmapPresent") or (
        codes.codes_is_defined(handle, "missingValueManagementUsed")
        and codes.codes_get_long(handle, "missingValueManagementUsed")
    )
    if gaps:
        codes.codes_set_double(handle, "missingValue", _MISSING)
    # Not asked for float32: with a decimal scale it would round twice, and it takes longer.
    values: NDArray[np.float64] = codes.codes_get_values(handle, np.float64)
    if gaps:
        values[values == _MISSING] = np.nan
    return values


def load_eccodes() -> ModuleType:
    """Return ecCodes."""
    try:
        import eccodes
    except ImportError as error:
        raise MissingExtraError("GRIB files need ecCodes: pip install 'iobench[grib]'") from error
    return eccodes  # type: ignore[no-any-return]
