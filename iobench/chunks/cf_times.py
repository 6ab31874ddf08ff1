"""Times as the CF conventions write them, decoded: by xarray, or where that is plain without it."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.coordinates import decode_whole_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

NAMED_ZONE: Final = re.compile(r"[\d\s](?!(?:UTC|GMT|Z|T)\b)[A-Za-z][A-Za-z/_]*\s*$")
"""A time zone by its name at the end of units: pandas leaves out what it does not know."""
NO_TIME: Final = np.iinfo(np.int64).min
"""NumPy's, which xarray writes as it is."""


def decode_times(values: NDArray[Any], units: str, calendar: str) -> NDArray[Any] | None:
    """Return the times that numbers mean by CF, cftime's of other calendars; None where none."""
    if " since " not in units or NAMED_ZONE.search(units):
        return None
    if values.dtype == np.int64 and (values == NO_TIME).any():
        missing = values == NO_TIME
        known = decode_times(values[~missing], units, calendar)
        if known is None or known.dtype.kind != "M":
            return None
        every = np.full(values.shape, "NaT", dtype=known.dtype)
        every[~missing] = known
        return every
    whole = decode_whole_seconds(values, units, calendar)
    if whole is not None:
        return whole
    from xarray import Variable
    from xarray.coders import CFDatetimeCoder

    attributes = {"units": units} | ({"calendar": calendar} if calendar else {})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dates before 1582 become cftime's, with a warning
            # Microseconds reach every year; xarray's default of nanoseconds ends in 2262.
            coder = CFDatetimeCoder(time_unit="us")
            times: NDArray[Any] = coder.decode(Variable("n", values, attributes)).values
    except (ValueError, OverflowError, ImportError):
        return None  # a unit that CF does not know, or a calendar without cftime
    return times if times.dtype.kind in "MO" else None


def coordinate_times(values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return the times that values of a coordinate mean by its attributes, in their shape."""
    if values.dtype.kind not in "iuf":
        return None
    units, calendar = (str(attributes.get(name, "")) for name in ("units", "calendar"))
    times = decode_times(values.reshape(-1), units, calendar)
    return None if times is None else times.reshape(values.shape)
