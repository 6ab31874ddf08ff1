"""Windows over users' own NetCDF and GRIB files: equal to slicing with xarray."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import eccodes
import netCDF4
import numpy as np
import pytest
import xarray

from iobench.datasets.selection import place_index_windows
from iobench.datasets.user_files import UserFiles
from iobench.errors import OptionError
from iobench.loaders.pipeline import dataset_pipeline, windowed_pipeline
from iobench.samples import Window

ROLLOUTS = ("0:1", "0:1,2", "0:1,2,3", "0:1,2,3,4")
START = datetime(2020, 1, 1)
MEMBERS = "era5/era5-levels-members.grib"
CFGRIB = {"engine": "cfgrib", "backend_kwargs": {"indexpath": ""}, "decode_timedelta": True}


def write_hours(path, hours, *, reference=START, calendar="standard", **storage):
    """Write ``t`` and ``z`` (time, y, x), 6-hourly or as told, since a reference."""
    random = np.random.default_rng(len(hours))
    with netCDF4.Dataset(path, "w") as ds:
        for dim, length in (("time", None), ("y", 3), ("x", 4)):
            ds.createDimension(dim, length)
        time = ds.createVariable("time", "f8", ("time",))
        time.units, time.calendar = f"hours since {reference:%Y-%m-%d %H:%M}", calendar
        shift = (reference - START) / timedelta(hours=1)
        time[:] = np.asarray(hours) - shift
        for name, dtype in (("t", "f4"), ("z", "f8")):
            values = random.normal(280, 10, (len(hours), 3, 4))
            ds.createVariable(name, dtype, ("time", "y", "x"), **storage)[:] = values
    return path


@pytest.fixture
def place(locator):
    """Lay a window over files; return the placement, and a function that makes window i."""

    def place_over(paths, text, **options):
        dataset = UserFiles(paths, **options)
        index = dataset.samples(dataset.files(locator), locator)
        window = Window.parse(text)
        placed = place_index_windows(index, window)
        pipeline = windowed_pipeline(dataset_pipeline(dataset, index), placed.items, window)

        def make(number):
            value = pipeline.make(number)
            pipeline.spec.check(value, where=str(number))
            return value

        return placed, make, index

    return place_over


def check_equals_slices(ds, window, placed, make, dim="time"):
    """Compare every window with the same steps cut out of the whole by xarray."""
    ds = ds.transpose(dim, ...).load()
    for number, centre in enumerate(placed.centres.tolist()):
        sample = make(number)
        for name, array in sample.items():
            variable = name.removesuffix("_target")
            offsets = window.inputs if variable == name else window.targets
            expected = ds[variable].isel({dim: [centre + offset for offset in offsets]})
            np.testing.assert_array_equal(array, expected.values, strict=True)
    assert len(placed) > 0


@pytest.mark.parametrize("text", [*ROLLOUTS, "-1,0:1"])
@pytest.mark.parametrize("storage", [{}, {"zlib": True, "chunksizes": (4, 3, 4)}])
def test_windows_are_xarrays_slices(tmp_path, place, text, storage):
    hours = [*range(0, 60, 6), *range(72, 120, 6)]
    path = write_hours(tmp_path / "a.nc", hours, **storage)
    placed, make, index = place([path], text, sample_dim="time")
    assert (placed.step, index.position_units) == (21600, "seconds")
    assert [(gap.before, gap.after, gap.n_missing) for gap in placed.gaps] == [(9, 10, 2)]
    with xarray.open_dataset(path) as ds:
        check_equals_slices(ds, Window.parse(text), placed, make)
        # xarray says as well which steps lie on the grid of the coordinate.
        grid = ds.time.values[placed.items] - ds.time.values[placed.centres][:, None]
        assert (grid == np.array(placed.window.offsets) * np.timedelta64(6, "h")).all()


def test_files_with_references_of_their_own_are_one_row(tmp_path, place):
    hours = np.arange(0, 96, 6)
    late = write_hours(tmp_path / "a.nc", hours[8:], reference=datetime(2020, 1, 3))
    early = write_hours(tmp_path / "b.nc", hours[:8])
    placed, make, index = place([late, early], "-1,0:1", sample_dim="time")
    assert (placed.gaps, index.rows, len(placed)) == ((), (), 14)
    with xarray.open_dataset(early) as first, xarray.open_dataset(late) as second:
        joined = xarray.concat([first.load(), second.load()], "time")
    check_equals_slices(joined, placed.window, placed, make)


MONTHS = [(datetime(2020 + n // 12, n % 12 + 1, 16) - START).days * 24 for n in range(26)]


@pytest.mark.parametrize(
    ("files", "has_times", "centres", "rows", "units"),
    [
        # Nothing says that the second file follows the first.
        ([range(4), range(4)], False, [0, 1, 2, 4, 5, 6], [0] * 4 + [1] * 4, ""),
        ([[0, 6], [], [12, 18]], True, [0, 1, 2], [], "seconds"),
        ([("noleap", [0, 1, 2]), ("360_day", [3, 4, 5])], True, [0, 1, 3, 4],
         [0, 0, 0, 1, 1, 1], "hours since 2020-01-01 00:00"),
        ([[*MONTHS[:14], *MONTHS[16:]]], True, [*range(13), *range(14, 23)], [], "months"),
    ],
    ids=["no coordinate", "a file without times", "two calendars", "months"],
)  # fmt: skip
def test_files_are_rows_as_their_times_follow_each_other(
    tmp_path, place, files, has_times, centres, rows, units
):
    paths = []
    for number, each in enumerate(files):
        calendar, hours = each if isinstance(each, tuple) else ("standard", each)
        paths.append(write_hours(tmp_path / f"{number}.nc", hours, calendar=calendar))
        if not has_times:
            with xarray.open_dataset(paths[-1]) as ds:
                counted = ds.load().drop_vars("time")
            counted.to_netcdf(paths[-1])
    placed, _, index = place(paths, "0:1", sample_dim="time")
    assert placed.centres.tolist() == centres
    assert (list(index.rows), index.position_units) == (rows, units)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("text", ["-1,0:1", "0:1,2,3"])
def test_windows_over_grib_are_xarrays_slices(real, place, text):
    path = real(MEMBERS)
    placed, make, index = place([path], text, sample_dim="time")
    assert (placed.step, index.position_units) == (43200, "seconds")
    with xarray.open_dataset(path, **CFGRIB) as ds:
        valid = ds.valid_time.values.astype("datetime64[s]").astype(float)
        np.testing.assert_array_equal(index.positions, valid)
        check_equals_slices(ds[["z", "t"]], placed.window, placed, make)


def write_grib(path, *, times=("202001010000",), steps=(0,)):
    """Write a message for each time and step, its hour as value."""
    with path.open("wb") as file:
        for time, step in itertools.product(times, steps):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib1")
            keys = {"dataDate": int(time[:8]), "dataTime": int(time[8:]), "step": step}
            for key, value in keys.items():
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, np.full(496, float(step)))
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    return path


def test_steps_of_one_forecast_lie_at_their_valid_times(tmp_path, place):
    path = write_grib(tmp_path / "a.grib", steps=(0, 6, 12, 24, 30))
    placed, make, index = place([path], "0:1", sample_dim="step")
    assert index.positions[1] == np.datetime64("2020-01-01T06:00", "s").astype(float)
    assert [(gap.before, gap.n_missing) for gap in placed.gaps] == [(2, 1)]
    (name,) = {name.removesuffix("_target") for name in make(2)}
    assert make(2)[f"{name}_target"].max() == pytest.approx(30, abs=1e-3)


@pytest.mark.parametrize(("sample_dim", "other"), [("step", "time"), ("time", "step")])
def test_valid_times_are_known_where_starts_and_steps_are_several(
    tmp_path, place, sample_dim, other
):
    times = ("202001010000", "202001020000")
    path = write_grib(tmp_path / "a.grib", times=times, steps=(0, 6, 12))
    _, _, index = place([path], "0:0", sample_dim=sample_dim)
    found = index.meteorology["valid_time"]
    assert found.dims == ("sample", other)
    with xarray.open_dataset(path, **CFGRIB) as ds:
        expected = ds.valid_time.transpose(sample_dim, other).values.astype("M8[s]")
    np.testing.assert_array_equal(found.values.astype("M8[s]"), expected)


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_a_time_that_is_missing_is_unknown(tmp_path, place, locator, suffix):
    path = tmp_path / f"a.{suffix}"
    times = np.array(["2020-01-01", "NaT", "2020-01-03"], "M8[ns]")
    source = xarray.Dataset({"a": ("time", np.zeros(3, "f4"))}, {"time": times})
    source.to_netcdf(path) if suffix == "nc" else source.to_zarr(path, consolidated=False)
    with pytest.raises(OptionError, match=r"sample 1 \(unknown\) has no position"):
        place([path], "0:0", sample_dim="time")
    made = UserFiles([path], sample_dim="time")
    index = made.samples(made.files(locator), locator)
    assert [name == "unknown" for name in index.coordinate] == [False, True, False]
    known = index.meteorology["time"]
    one = xarray.Dataset({"t": ("t", known.values, dict(known.attributes))})
    np.testing.assert_array_equal(xarray.decode_cf(one).t.values, times)
