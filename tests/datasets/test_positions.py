"""Positions of samples: times in any unit and calendar as seconds, or as months."""

from __future__ import annotations

import warnings

import cftime
import h5netcdf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.chunks.cf_times import decode_times
from iobench.datasets import file_times, inspect_files
from iobench.datasets.positions import (
    seconds_since_1970,
    time_positions,
)
from iobench.errors import FileFormatError

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
CALENDARS = ("", "standard", "proleptic_gregorian", "noleap", "360_day", "julian", "all_leap")


def positions(times, rows=None):
    return time_positions(times, None if rows is None else np.array(rows))


@given(
    st.sampled_from(sorted(UNITS)),
    st.sampled_from(CALENDARS),
    st.sampled_from(["1600-02-28", "1900-01-01 00:00:00", "2000-02-28T12:00", "2350-12-30"]),
    st.lists(st.integers(0, 50_000), min_size=1, max_size=5),
)
def test_seconds_are_cftimes(unit, calendar, reference, numbers):
    units = f"{unit} since {reference}"
    times = decode_times(np.array(numbers), units, calendar)
    seconds, named = positions(times)
    if named == "seconds":
        known = calendar or "standard"
        dates = cftime.num2date(numbers, units, known)
        expected = cftime.date2num(dates, "seconds since 1970-01-01", known)
        np.testing.assert_allclose(seconds, np.asarray(expected, float), rtol=0, atol=1e-4)
    assert len(seconds) == len(numbers)


def by_xarray(values, units, calendar):
    """The times that xarray decodes numbers to, by itself."""
    import xarray

    attributes = {"units": units} | ({"calendar": calendar} if calendar else {})
    one = xarray.Dataset({"t": ("n", values, attributes)})
    coder = xarray.coders.CFDatetimeCoder(time_unit="us")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xarray.decode_cf(one, decode_times=coder)["t"].values


@given(
    st.sampled_from([*UNITS, "hour", "Days"]),
    st.sampled_from(["", "standard", "gregorian", "proleptic_gregorian"]),
    st.sampled_from(
        [
            "1582-10-16", "1900-01-01 00:00:00", "2000-02-28T12:00", "1970-01-01 00:00:00.0",
            "2261-12-30", "1850-1-1", "0001-01-01", "1970-01-01 00:00:00 +00:00",
            "1970-01-01T00:00:00Z", "1970-01-01 00:00 UTC",
        ]
    ),
    st.lists(st.integers(-200_000, 200_000), min_size=1, max_size=5),
    st.sampled_from(["i4", "i8", "f4", "f8", ">i4"]),
)  # fmt: skip
@settings(max_examples=5 * settings().max_examples, deadline=None)
def test_whole_numbers_are_xarrays_times(unit, calendar, since, numbers, dtype):
    values = (np.array(numbers) / (4 if dtype == "f8" else 1)).astype(dtype)
    units = f"{unit} since {since}"
    found, expected = decode_times(values, units, calendar), by_xarray(values, units, calendar)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(seconds_since_1970(found), seconds_since_1970(expected))


MONTHS = np.arange("2019-01", "2021-01", dtype="datetime64[M]")
NEXT = (MONTHS + np.timedelta64(1, "M")).astype("datetime64[s]")
MIDDLES = MONTHS.astype("datetime64[s]") + (NEXT - MONTHS.astype("datetime64[s]")) // 2


@pytest.mark.parametrize(
    ("times", "rows", "steps"),
    [
        ([f"2020-{month:02}" for month in range(1, 13)], None, [1] * 11),
        ([f"2020-{month:02}-15" for month in range(1, 13)], None, [1] * 11),
        (["1999-07", "2000-07", "2001-07", "2004-07"], None, [12, 12, 36]),
        (["2020-01", "2020-02", "2020-03", "2020-01", "2020-02"], [0, 0, 0, 1, 1], [1, 1, -2, 1]),
        (MIDDLES, None, [1] * 23),
        (NEXT - np.timedelta64(1, "D"), None, [1] * 23),
    ],
)
def test_months_and_years_have_no_fixed_length(times, rows, steps):
    found, units = positions(np.array(times, "datetime64[us]"), rows)
    assert (np.diff(found).tolist(), units) == (steps, "months")


def test_months_of_other_calendars():
    times = np.array([cftime.DatetimeNoLeap(2000, month, 16) for month in range(1, 13)])
    assert positions(times)[0].tolist() == [*range(360, 372)]
    even = np.array([cftime.Datetime360Day(2000, month, 16) for month in range(1, 13)])
    assert positions(even)[1] == "seconds"


@pytest.mark.parametrize(
    "days", [[0, 30, 60, 90], [0, 40, 75, 130], [0, 1, 2], [0, 31, 60, 61], [0]]
)
def test_other_times_are_seconds(days):
    found, units = positions(np.datetime64("2020-01-01", "us") + np.array(days, "m8[D]"))
    assert (((found - found[0]) / 86400).tolist(), units) == (days, "seconds")


def times_of(folder, values, units, calendar=""):
    with h5netcdf.File(folder / "a.nc", "w") as file:
        file.dimensions = {"time": len(values)}
        file.create_variable("time", ("time",), data=np.asarray(values)).attrs.update(
            {"units": units} | ({"calendar": calendar} if calendar else {})
        )
    (times,) = file_times(inspect_files([folder / "a.nc"], cache_dir=folder), "time")
    return times


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ("hours since 2020-01-01 06:30", "2020-01-01T07:30:00"),
        ("hours since 2020-01-01T06:30:15Z", "2020-01-01T07:30:15"),
        ("hours since 2020-01-01 06:30:00.0 +02:00", "2020-01-01T05:30:00"),
        ("minutes since 2020-01-01 00:00 -5:30", "2020-01-01T05:31:00"),
        ("days since 2019-12-31 UTC", "2020-01-01T00:00:00"),
    ],
)
def test_minutes_and_zones_of_units_count(tmp_path, units, expected):
    assert times_of(tmp_path, [1], units).tolist() == [np.datetime64(expected).item()]


def test_days_as_floating_point_numbers_are_whole_hours(tmp_path):
    times = times_of(tmp_path, np.arange(48) / 24, "days since 1900-01-01")
    assert (times == np.datetime64("1900-01-01T00") + np.arange(48)).all()


@pytest.mark.parametrize(
    ("units", "calendar", "values"),
    [
        ("hours since 2020-01-01 06:00 CET", "", [1]),
        ("days since 2020-01-01", "noleap", [59]),
        ("fortnights since 2020-01-01", "", [1]),
        ("hours since 2020-01-01", "", [np.nan]),
        ("metres", "", [1]),
    ],
)
def test_what_is_no_date_is_refused(tmp_path, units, calendar, values):
    with pytest.raises(FileFormatError, match=f"a.nc: time has units {units!r}"):
        times_of(tmp_path, values, units, calendar)
