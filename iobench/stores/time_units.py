"""Units of time that xarray cannot decode: they would keep it from opening a whole store."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

KEPT_UNITS: Final = "time_units"
"""The attribute that has such units instead."""
PLAIN_UNITS: Final = re.compile(
    r"(day|hour|minute|second)s since (19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])"
    r"([ T]00:00(:00(\.0)?)?)?"
)
MOST_DAYS: Final = 36500


def decodable_attributes(attributes: Mapping[str, Any], values: NDArray[Any]) -> dict[str, Any]:
    """Return the attributes of numbers so that xarray opens them: as times, or as they are."""
    units, calendar = attributes.get("units"), attributes.get("calendar", "standard")
    if not isinstance(units, str) or "since" not in units or values.dtype.kind not in "iuf":
        return dict(attributes)
    if _is_plain(units, calendar, values) or _is_decoded(attributes, values):
        return dict(attributes)
    return {KEPT_UNITS if key == "units" else key: each for key, each in attributes.items()}


def _is_plain(units: str, calendar: Any, values: NDArray[Any]) -> bool:
    """Return whether times are of a kind that needs no question; xarray takes a second to load."""
    spelled = PLAIN_UNITS.fullmatch(units)
    if not spelled or calendar not in ("standard", "gregorian", "proleptic_gregorian"):
        return False
    most = MOST_DAYS * {"day": 1, "hour": 24, "minute": 1440, "second": 86400}[spelled[1]]
    return bool((np.abs(values.astype("f8")) < most).all())


def _is_decoded(attributes: Mapping[str, Any], values: NDArray[Any]) -> bool:
    try:
        import xarray
    except ImportError:
        return True  # nothing here can tell
    one = xarray.Dataset({"t": ("n", values.reshape(-1), dict(attributes))})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dates that become cftime's
            decoded = xarray.decode_cf(one, decode_timedelta=False, decode_coords=False)
            _ = decoded["t"].values
    except (ValueError, OverflowError, TypeError, AttributeError):
        return False
    return True
