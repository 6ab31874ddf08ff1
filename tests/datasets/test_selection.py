"""Where samples lie, and which are selected: of splits, of intervals, of windows in them."""

import datetime
import itertools
import json
import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace

import h5netcdf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import iobench
from iobench.chunks.cf_times import decode_times
from iobench.coordinates import Coordinate, SampleLabels
from iobench.datasets import file_times, inspect_files
from iobench.datasets.contract import SampleAxis, SampleIndex
from iobench.datasets.positions import seconds_since_1970, time_positions
from iobench.datasets.selection import (
    CoordinateInterval,
    place_index_windows,
    select_samples,
    select_split,
    split_index,
)
from iobench.errors import FileFormatError, OptionError, UnknownNameError
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable, Window
from iobench.stores.plan import StoreRequest

xarray = pytest.importorskip("xarray", reason="writes the file")
cftime = pytest.importorskip("cftime", reason="other calendars need cftime")
SPEC = SampleSpec((Variable("v", (), "<f4", ()),))


def dated(times, *, calendar="standard", **more):
    """Samples at these times (texts), each with a coordinate ``time``."""
    units = "hours since 1990-01-01"
    moments = [
        cftime.datetime(*map(int, [*t[:10].split("-"), t[11:13] or 0]), calendar=calendar)
        for t in times
    ]
    values = np.asarray(cftime.date2num(moments, units, calendar))
    coordinate = Coordinate("time", ("sample",), values, {"units": units, "calendar": calendar})
    known = SampleLabels(("time",), (coordinate,))
    return SampleIndex(
        SPEC, range(len(times)), coordinate=list(times), positions=values.tolist(),
        meteorology=known, **more,
    )  # fmt: skip


def every(step, start, stop):
    return np.datetime_as_string(np.arange(start, stop, step, "M8[h]")).tolist()


SIX_HOURLY = every(6, "2014-12-01", "2017-01-01")


def splits(index, *texts):
    made = split_index(index, list(map(CoordinateInterval.parse, texts)))
    return {
        name: [index.coordinate[number] for number in numbers]
        for name, numbers in made.splits.items()
    }


@pytest.mark.parametrize(
    ("interval", "n", "first", "last"),
    [
        ("2015", 1460, "2015-01-01T00", "2015-12-31T18"),
        ("2015/2016", 1460 + 1464, "2015-01-01T00", "2016-12-31T18"),
        ("2015-02", 112, "2015-02-01T00", "2015-02-28T18"),
        ("2015-12-31", 4, "2015-12-31T00", "2015-12-31T18"),
        ("2015-12-31T06", 1, "2015-12-31T06", "2015-12-31T06"),
        ("2015-12-31T06:00/2016-01-01", 7, "2015-12-31T06", "2016-01-01T18"),
        ("2016-12-31/..", 4, "2016-12-31T00", "2016-12-31T18"),
        ("../2014", 124, "2014-12-01T00", "2014-12-31T18"),
    ],
)
def test_a_date_includes_all_that_begins_with_it(interval, n, first, last):
    ((name, held),) = splits(dated(SIX_HOURLY), f"time={interval}").items()
    assert name == f"time={interval}"
    assert (len(held), held[0], held[-1]) == (n, first, last)


def test_intervals_of_one_split_are_joined_and_coordinates_both_hold():
    times, members = every(24, "2015-01-01", "2015-01-11"), range(3)
    both = list(itertools.product(times, members))
    axes = (
        SampleAxis("time", [np.datetime64(t, "s").astype(float) for t, _ in both], "seconds"),
        SampleAxis("number", [float(m) for _, m in both]),
    )
    index = SampleIndex(
        SPEC, range(30), coordinate=[f"{t[8:10]} {m}" for t, m in both], axes=axes,
        splits={"own": range(20, 30)},
    )  # fmt: skip
    train = ("train:time=2015-01-01/2015-01-02", "train:time=2015-01-05", "train:number=0/1")
    assert splits(index, *train)["train"] == ["01 0", "01 1", "02 0", "02 1", "05 0", "05 1"]
    # Without a name they hold for all splits, the dataset's own included.
    assert splits(index, "number=1", "a:time=2015-01-03")["a"] == ["03 1"]
    assert splits(index, "number=1")["own"] == ["08 1", "09 1", "10 1"]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian"])
def test_other_calendars_have_the_same_dates(calendar):
    days = {"noleap": 28, "360_day": 30, "julian": 29}[calendar]
    months = [(m, days if m == 2 else 30) for m in range(1, 13)]
    times = [f"2016-{m:02}-{d:02}" for m, n in months for d in range(1, n + 1)]
    if calendar != "360_day":
        times += [f"2016-{m:02}-31" for m in (1, 3, 5, 7, 8, 10, 12)]
        times.sort()
    index = dated(times, calendar=calendar)
    assert splits(index, "a:time=2016-01-01/2016-12-31")["a"] == times
    assert len(splits(index, "a:time=2016-02")["a"]) == days
    assert splits(index, "a:time=2016-02-28/2016-03-01")["a"][-1] == "2016-03-01"


def test_a_sample_in_two_splits_is_refused():
    with pytest.raises(OptionError) as caught:
        splits(dated(SIX_HOURLY), "train:time=2015/2016-01", "valid:time=2016")
    assert str(caught.value) == (
        "--split-by: train and valid have 124 samples in common, the first: 2016-01-01T00; let one "
        "end before the other begins"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((each, "expected a coordinate and an interval, as time=2010")
          for each in ("time", "=2015", ":time=2015", "time=", "time=../..", "t=1/2/3")),
        *((f"time={each}/..", "is no date; expected one as 2015, 2015-12")
          for each in ("15", "2015-13", "2015-1-1", "2015-01-01T24", "yesterday")),
        ("all:time=2015", "all:time=2015: all is the name of all samples"),
        ("time=2020", "no sample lies in it; time is 2014-12-01T00 to"),
        ("time=2015-02-30", "expected dates that there are"),
        ("tiem=2020", "they have time"),
    ],
)  # fmt: skip
def test_an_interval_that_cannot_be_is_refused(text, message):
    with pytest.raises((OptionError, UnknownNameError), match=message):
        splits(dated(SIX_HOURLY), text)


def test_windows_of_several_splits_cross_none():
    index = dated(every(6, "2015-01-01", "2015-01-05"))
    texts = ("a:time=2015-01-01/2015-01-02", "b:time=2015-01-03")
    index = split_index(index, list(map(CoordinateInterval.parse, texts)))
    placed = place_index_windows(index, Window.parse("time=-1,0:1"), split=["a", "b"])
    assert placed.centres.tolist() == [1, 2, 3, 4, 5, 6, 9, 10]
    assert (placed.n_at_ends, placed.n_at_split) == (1, 3)


@pytest.mark.parametrize(
    ("bounds", "first", "last"),
    [
        (("2015-01", "2015-06"), "2015-01-01T00", "2015-06-30T18"),
        ("2015", "2015-01-01T00", "2015-12-31T18"),
        (("2016-12-30", None), "2016-12-30T00", "2016-12-31T18"),
        ((None, np.datetime64("2014-12-02T06")), "2014-12-01T00", "2014-12-02T06"),
        ([datetime.datetime(2015, 3, 1), "2015-03"], "2015-03-01T00", "2015-03-31T18"),
    ],
)
def test_samples_are_selected_by_an_interval(bounds, first, last):
    times = [time for time in SIX_HOURLY if not time.startswith("2015-02")]
    numbers = select_samples(dated(times), {"time": bounds})
    assert numbers.dtype == np.int64
    assert [times[number] for number in numbers] == [t for t in times if first <= t <= last]


def test_samples_are_selected_by_several_coordinates():
    levels = Coordinate("level", ("sample",), np.tile([500.0, 850.0], 4))
    index = dated(every(6, "2015-01-01", "2015-01-03"))
    known = SampleLabels(("time",), (*index.meteorology.coordinates, levels))
    index = replace(index, meteorology=known)
    assert select_samples(index, {"time": "2015-01-02", "level": 850}).tolist() == [5, 7]
    assert select_samples(index, {"level": (600, None)}).tolist() == [1, 3, 5, 7]
    assert select_samples(index, {}).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ({"tiem": "2015"}, r"select=\{'tiem': '2015'\}: samples have no .* they have time"),
        ({"time": ("2030", None)}, r"select=\{'time': \('2030', None\)\}: no sample lies in it; t"),
        ({"time": (1, 2, 3)}, "expected one value, or the first and the last one"),
        ({"time": (None, None)}, "expected one value, or the first and the last one"),
        ({"time": 15}, r"select=\{'time': 15\}: '15' is no date"),
        ("2015", "select='2015': expected intervals by coordinate, as"),
    ],
)
def test_what_cannot_be_selected_names_the_parameter(select, message):
    with pytest.raises((OptionError, UnknownNameError), match=message):
        select_samples(dated(SIX_HOURLY), select)


def counted(n_samples=10, **facts):
    return SampleIndex(SPEC, range(n_samples), **facts)


SPLITS = {"train": range(6), "validation": [6, 7, 9], "test": []}


@pytest.mark.parametrize(
    ("facts", "name", "message"),
    [
        ({"splits": SPLITS}, "validate", r"no such split; .*: train \(6\), validation"),
        ({}, "train", "has no splits; leave out --split"),
        ({"splits": SPLITS}, "test", "no sample of it"),
    ],
)
def test_a_split_that_is_not_there_is_told(facts, name, message):
    with pytest.raises((OptionError, UnknownNameError), match=message):
        select_split(counted(**facts), name)


def test_five_million_samples_are_planned_in_little_memory():
    n_samples = 5_000_000
    index = counted(
        n_samples, positions=np.arange(float(n_samples)), provenance={"sample_dim": "column"}
    )
    made = split_index(index, [CoordinateInterval.parse("train:column=0/3999999")])
    dataset = SimpleNamespace(name="columns")
    numpy = find_format("numpy")
    tracemalloc.start()
    try:
        samples = select_split(made, "train")
        plan = StoreRequest(dataset, made, numpy, Path("out"), samples=samples).plan()
        assert len(plan.digest) == 64
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert plan.samples == range(4_000_000)


def test_a_window_that_fits_nowhere_says_why():
    there = counted(5, positions=[0, 1, 2, 9, 10], splits={"train": [0, 1, 2]})
    window = Window.parse("0:1,2,3")
    with pytest.raises(OptionError) as caught:
        place_index_windows(there, window)
    assert "in the 5 samples (3 too near an end, 2 too near a gap, 0 at the" in str(caught.value)
    with pytest.raises(OptionError, match=r"in the 3 samples of train \(1 too near an end, 2 too"):
        place_index_windows(there, window, split="train")


def hypercube(n_times=4, n_members=3):
    """Each date and member a sample, dates slowest."""
    times, members = range(n_times), range(n_members)
    both = [(time, member) for time in times for member in members]
    return counted(
        len(both),
        coordinate=[f"day {time}, number {member}" for time, member in both],
        axes=(
            SampleAxis("time", [86400.0 * t for t, _ in both], "seconds", [m for _, m in both]),
            SampleAxis("number", [float(m) for _, m in both], "", [t for t, _ in both]),
        ),
    )


TIMED = {"positions": [0, 1, 2], "provenance": {"sample_dim": "time"}}


@pytest.mark.parametrize(
    ("index", "window", "message"),
    [
        (counted(), "0:1", "--window=0:1: no evenly spaced sample coordinate: windows need one"),
        (
            hypercube(), "-1,0:1",
            "--window=-1,0:1: samples are along time, number: name one of them, as --window "
            "time=-1,0:1",
        ),
        *(
            (
                index, "tine=0:1",
                f"--window=tine=0:1: samples are not along 'tine'; {advice}",
            )
            for index, advice in (
                (hypercube(), "they are along time, number"),
                (counted(3, **TIMED), "they are along time"),
                (counted(3, positions=[0, 1, 2]), "leave tine= out"),
            )
        ),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_laid_says_along_what_it_can(index, window, message):
    with pytest.raises((OptionError, UnknownNameError)) as caught:
        place_index_windows(index, Window.parse(window))
    assert str(caught.value) == message
    assert len(place_index_windows(counted(3, **TIMED), Window.parse("time=0:1"))) == 2


# ---- positions: times in any unit and calendar as seconds, or as months

UNITS = ("seconds", "minutes", "hours", "days")


def positions(times, rows=None):
    return time_positions(times, None if rows is None else np.array(rows))


def by_xarray(values, units, calendar):
    """The times that xarray decodes numbers to, by itself."""
    attributes = {"units": units} | ({"calendar": calendar} if calendar else {})
    one = xarray.Dataset({"t": ("n", values, attributes)})
    coder = xarray.coders.CFDatetimeCoder(time_unit="us")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xarray.decode_cf(one, decode_times=coder)["t"].values


@given(
    st.sampled_from([*UNITS, "hour", "Days"]),
    st.sampled_from(["", "standard", "proleptic_gregorian", "noleap", "360_day", "julian"]),
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


# ---- through commands


@pytest.fixture
def cube(tmp_path):
    """Twelve days of three members."""
    times = np.datetime64("2015-12-26") + np.arange(12)
    values = np.random.default_rng(0).normal(size=(12, 3, 5)).astype("f4")
    made = xarray.Dataset(
        {"t": (("time", "number", "x"), values)}, {"time": times, "number": [0, 1, 2]}
    )
    made.to_netcdf(tmp_path / "cube.nc")
    return tmp_path / "cube.nc"


def test_a_store_keeps_all_splits_that_were_asked_for(cube, iobench_here, tmp_path):
    words = (
        "--sample-dim", "time,number", "--split-by", "train:time=2015-12-26/2015-12-31",
        "--split-by", "valid:time=2016-01-02/2016-01-04",
    )  # fmt: skip
    done = iobench_here("convert", cube, "out", "--to", "numpy", *words)
    assert done.returncode == 0, done.stderr
    store = iobench.open_store("out")
    assert list(store.manifest.samples) == [*range(18), *range(21, 30)]  # not the day between
    index = store.index()
    assert list(select_split(index, "train")) == list(range(18))
    assert list(select_split(index, "valid")) == list(range(18, 27))
    placed = place_index_windows(index, Window.parse("time=0:1"), split="valid")
    assert placed.items.tolist() == [[n, n + 3] for n in range(18, 24)]
    assert iobench_here("verify", "out", "--against", cube).returncode == 0
    quick = ("--batches", "2", "--duration", "20", "--compute", "none", "--out", "run")
    assert iobench_here("profile", cube, *words, "--window", "time=0:1", *quick).returncode == 0
    assert json.loads(Path("run/run.json").read_text())["windows"]["n_windows"] == 21


def test_a_selection_needs_no_name(cube, iobench_here):
    words = ("--sample-dim", "time,number", "--split-by", "time=2016", "--split-by", "number=2")
    done = iobench_here("convert", cube, "out", "--to", "numpy", *words)
    assert done.returncode == 0, done.stderr
    assert "time=2016, number=2: 6 samples, " in done.stderr
    assert list(iobench.open_store("out").manifest.samples) == list(range(20, 36, 3))
    opened = iobench.open_dataset(cube, sample_dim="number,time", split_by="number=1")
    assert len(opened) == 12
    with xarray.open_dataset(cube) as whole:
        np.testing.assert_array_equal(opened[3]["t"], whole.t.sel(number=1).values[3])
