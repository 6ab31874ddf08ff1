"""Where samples lie along a dimension, as numbers that windows can be laid over."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.coordinates import decode_whole_seconds
from iobench.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SHORTEST_MONTH_S: Final = 28 * 86400
NAMED_ZONE: Final = re.compile(r"[\d\s](?!(?:UTC|GMT|Z|T)\b)[A-Za-z][A-Za-z/_]*\s*$")
"""A time zone by its name at the end of units: pandas leaves out what it does not know."""
SAME_DAY_DAYS: Final = 3
"""Monthly values are dated on one day of the month, its last or its middle: within these days."""


def time_positions(
    times: NDArray[Any], rows: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.float64], str]:
    """Return positions of times and their unit."""
    seconds = seconds_since_1970(times)
    neighbours = np.diff(np.zeros(len(times)) if rows is None else rows) == 0
    apart = np.abs(np.diff(seconds)[neighbours])
    if not apart.size or not np.isfinite(seconds).all():
        return seconds, "seconds"
    if apart.min() < SHORTEST_MONTH_S or np.ptp(apart) < 1:
        return seconds, "seconds"
    months, days = _months_and_days(times)
    # The last of a month is 28 to 31, its middle 14 to 17.
    if np.ptp(days) > SAME_DAY_DAYS or (np.diff(months)[neighbours] == 0).any():
        return seconds, "seconds"
    return months, "months"


def seconds_since_1970(times: NDArray[Any]) -> NDArray[np.float64]:
    """Return times (datetime64 or cftime objects) as seconds, NaN where unknown."""
    if times.dtype.kind == "M":
        seconds = (times - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        return seconds.astype(np.float64)
    epoch = type(times[0])(1970, 1, 1) if len(times) else None
    return np.array([(time - epoch).total_seconds() for time in times], dtype=np.float64)


def spell_times(times: NDArray[Any]) -> list[str]:
    """Return times (datetime64 or cftime objects) in one unit, hours unless that loses something.

    ``"unknown"`` of one that is missing.
    """
    if times.dtype.kind != "M":
        whole = all((time.minute, time.second, time.microsecond) == (0, 0, 0) for time in times)
        return [time.isoformat(timespec="hours" if whole else "auto") for time in times]
    known = times[~np.isnat(times)]
    for unit in ("h", "m", "s", "us", "ns"):
        if (known.astype(f"M8[{unit}]") == known).all():
            break
    spelled = np.datetime_as_string(times, unit=unit).tolist()
    return ["unknown" if each == "NaT" else each for each in spelled]


def decode_times(values: NDArray[Any], units: str, calendar: str) -> NDArray[Any] | None:
    """Return the times that numbers mean by CF: datetime64, or cftime objects of other calendars.

    None where ``units`` are not those of a time ("... since ..."), or cannot be decoded, as with a
    time zone that is neither UTC nor a number of hours.
    """
    if " since " not in units or NAMED_ZONE.search(units):
        return None
    missing = are_missing(values)
    if missing.any():
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
            decoded = coder.decode(Variable("n", values, attributes)).values
    except (ValueError, OverflowError, ImportError):
        return None  # a unit that CF does not know, or a calendar without cftime
    times: NDArray[Any] = decoded
    return times if times.dtype.kind in "MO" else None


def decode_parts(
    parts: Sequence[NDArray[Any]], units: Sequence[str | None], calendars: Sequence[str | None]
) -> list[NDArray[Any]] | None:
    """Return the times that arrays mean, or None unless all mean times of one calendar.

    Arrays of one unit are decoded together: asking xarray takes as long for a time as for many.
    """
    times: list[NDArray[Any]] = list(parts)
    alike: dict[Any, list[int]] = {}
    for number, part in enumerate(parts):
        if part.dtype.kind not in "MO":
            key = units[number] or "", calendars[number] or "", part.dtype.str
            alike.setdefault(key, []).append(number)
    for (unit, calendar, _), numbers in alike.items():
        joined = np.concatenate([parts[number].reshape(-1) for number in numbers])
        decoded = decode_times(joined, unit, calendar)
        if decoded is None:
            return None
        ends = np.cumsum([parts[number].size for number in numbers])[:-1]
        for number, each in zip(numbers, np.split(decoded, ends), strict=True):
            times[number] = each.reshape(parts[number].shape)
    kinds = {getattr(each.flat[0], "calendar", each.dtype.kind) for each in times if each.size}
    return times if len(kinds) == 1 else None


def are_missing(values: NDArray[Any] | np.number[Any]) -> NDArray[np.bool_]:
    """Return which whole numbers stand for no time: NumPy's, which xarray writes as it is."""
    if values.dtype == np.int64:
        return np.asarray(values == np.iinfo(np.int64).min)
    return np.zeros(values.shape, dtype=np.bool_)


def coordinate_times(values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return the times that values of a coordinate mean by its attributes, in their shape.

    None as of `decode_times`, and where they are no numbers.
    """
    if values.dtype.kind not in "iuf":
        return None
    units, calendar = (str(attributes.get(name, "")) for name in ("units", "calendar"))
    times = decode_times(values.reshape(-1), units, calendar)
    return None if times is None else times.reshape(values.shape)


def cf_times(
    path: str | Path, values: NDArray[Any], units: str, calendar: str = ""
) -> NDArray[np.datetime64]:
    """Return a time axis decoded by its CF units, in UTC."""
    times = decode_times(np.atleast_1d(values), units, calendar)
    if times is None or times.dtype.kind != "M" or np.isnat(times).any():
        of_calendar = f" of the calendar {calendar!r}" if calendar else ""
        raise FileFormatError(
            f"{path}: time has units {units!r}{of_calendar}, expected a date for each, as 'hours "
            "since 1970-01-01 00:00:00' of the standard calendar, in UTC or with a zone as +01:00"
        )
    half = np.timedelta64(500, "ms")
    rounded: NDArray[np.datetime64] = (times + half).astype("datetime64[s]").reshape(values.shape)
    return rounded


def row_numbers(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return the row of each value: all in one if the parts follow each other, else one each."""
    differences = np.diff(np.concatenate(parts))
    follow = bool((differences > 0).all() or (differences < 0).all())
    rows = np.zeros(len(parts), np.int64) if follow else np.arange(len(parts), dtype=np.int64)
    return np.repeat(rows, [len(part) for part in parts])


def _months_and_days(times: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return months since January 1970, and the day of the month."""
    if times.dtype.kind == "M":
        months = times.astype("datetime64[M]")
        days = (times.astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64) + 1
        return months.astype(np.int64).astype(np.float64), days
    months = np.array([(time.year - 1970) * 12 + time.month - 1 for time in times], np.float64)
    return months, np.array([time.day for time in times], dtype=np.int64)
