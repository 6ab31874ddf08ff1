"""Samples along several dimensions, and windows over them: equal to slicing with xarray."""

from __future__ import annotations

import itertools
import pickle
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import eccodes
import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from iobench.chunks.decoded_chunks import forget_decoded
from iobench.datasets.contract import make_sample
from iobench.datasets.positions import FileCoordinates, SampleRows
from iobench.datasets.sample_windows import samples_in_order
from iobench.datasets.selection import CoordinateInterval, place_index_windows, split_index
from iobench.datasets.user_files import UserFiles
from iobench.errors import OptionError
from iobench.loaders.pipeline import dataset_pipeline
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.sample_source import SampleSource
from iobench.samples import Window
from iobench.windows import place_windows

zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")

MEMBERS = "era5/era5-levels-members.grib"
SEVERAL = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DIMS = ("time", "number", "level", "y")


def hypercube(n_times=4, n_members=3, start="2010-01-01", members=None, **chunks):
    """Fields of each date and member, one of each date alone, one of neither."""
    rng = np.random.default_rng(n_times * n_members)
    times = np.datetime64(start, "ns") + np.arange(n_times) * np.timedelta64(12, "h")
    numbers = np.arange(n_members) if members is None else np.asarray(members)
    return xarray.Dataset(
        {
            "t": (DIMS, rng.random((n_times, len(numbers), 2, 5), "f4"), {"units": "K"}),
            "last": (("y", "number", "time"), rng.random((5, len(numbers), n_times))),
            "single": (("number", "time"), rng.random((len(numbers), n_times), "f4")),
            "truth": (("time", "y"), rng.random((n_times, 5), "f4")),
            "orography": (("y",), rng.random(5)),
        },
        coords={"time": times, "number": numbers},
    )


NAMES = ("t", "last", "single")


def assert_as_xarray(made, dataset, dims, names=NAMES):
    sizes = [range(dataset.sizes[dim]) for dim in dims]
    places = list(itertools.product(*sizes))
    assert len(made.index) == len(places)
    for number, place in enumerate(places):
        sample = made.sample(number)
        assert sorted(sample) == sorted(names)
        at = dict(zip(dims, place, strict=True))
        for name in names:
            expected = dataset[name].isel(at, missing_dims="ignore")
            np.testing.assert_array_equal(sample[name], expected.values, strict=True)
            assert made.index.spec[name].dims == expected.dims


def produced(made, memory_nbytes=1 << 30):
    """Return the samples as a conversion makes them."""
    every = range(len(made.index))
    return samples_in_order(made.dataset, made.index, every, workers=2, memory_nbytes=memory_nbytes)


@st.composite
def layouts(draw):
    """Return lengths, an order of sample dimensions, and chunks of each variable, or None."""
    lengths = dict(zip(DIMS, (draw(st.integers(1, 7)), draw(st.integers(1, 5)), 2, 5), strict=True))
    dims = draw(st.permutations(("time", "number", "level")))[: draw(st.integers(2, 3))]
    chunks = {}
    for name, of in (("t", DIMS), ("last", ("y", "number", "time")), ("single", DIMS[1::-1])):
        each = [draw(st.integers(1, lengths[dim])) for dim in of]
        chunks[name] = draw(st.sampled_from([each, each, None]))
    return lengths, dims, chunks


def with_encoding(made, chunks, container):
    for name, each in chunks.items():
        made[name].encoding = {}
        if each is not None:
            key = "chunksizes" if container == "netcdf" else "chunks"
            made[name].encoding[key] = tuple(each)
            if container == "netcdf":
                made[name].encoding.update(zlib=True, shuffle=name != "last")
    return made


@pytest.mark.quick_cases(0)
@pytest.mark.parametrize("container", ["netcdf", "zarr"])
@SEVERAL
@given(layout=layouts(), memory_nbytes=st.sampled_from([20_000, 40_000, 1 << 30]))
def test_samples_are_xarrays_whatever_the_chunks(open_user_files, container, layout, memory_nbytes):
    lengths, dims, chunks = layout
    names = [name for name in NAMES if name == "t" or "level" not in dims]
    made = with_encoding(hypercube(lengths["time"], lengths["number"]), chunks, container)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cube"
        if container == "netcdf":
            made.to_netcdf(path, engine="netcdf4")
        else:
            made.to_zarr(path, zarr_format=2, consolidated=False)
        opened = open_user_files(path, sample_dim=",".join(dims))
        assert_as_xarray(opened, made, dims, names)
        forget_decoded()
        for number, sample in enumerate(produced(opened, memory_nbytes)):
            for name in names:
                np.testing.assert_array_equal(sample[name], opened.sample(number)[name])
        forget_decoded()


def test_samples_are_called_by_all_their_coordinates(tmp_path, open_user_files):
    cube = hypercube()
    cube.to_netcdf(tmp_path / "cube.nc")
    names = ("t", "truth", "orography")  # what lacks a dimension is repeated where it is named
    made = open_user_files(tmp_path / "cube.nc", sample_dim="number,time", variables=names)
    assert_as_xarray(made, cube, ("number", "time"), names)
    made = open_user_files(tmp_path / "cube.nc", sample_dim="time,number")
    assert made.index.coordinate[:4] == [
        "2010-01-01T00, number 0", "2010-01-01T00, number 1", "2010-01-01T00, number 2",
        "2010-01-01T12, number 0",
    ]  # fmt: skip
    assert made.index.provenance["sample_dim"] == "time,number"
    assert made.index.provenance["skipped"]["truth"] == "lacks the dimension number"
    again = pickle.loads(pickle.dumps(made.dataset))
    np.testing.assert_array_equal(
        again.decode(again.read((0, 1, 2)), (0, 1, 2))["t"], made.sample(5)["t"], strict=True
    )


@given(
    times=st.lists(st.sampled_from((1, 1, 1, 1, 2, 3)), max_size=7).map(
        lambda steps: list(itertools.accumulate(steps, initial=0))
    ),
    n_members=st.integers(1, 4),
    cut=st.integers(0, 8),
    dims=st.permutations(("time", "number")),
    offsets=st.sets(st.integers(-2, 3), min_size=1).map(sorted),
)
def test_windows_are_those_of_each_member_alone(times, n_members, cut, dims, offsets):
    """Of two files of following dates, with gaps: by the definition, member by member."""
    assume(2 * np.diff(times).tolist().count(1) > len(times) - 1)
    parts = [part for part in (times[:cut], times[cut:]) if part]
    along = {
        "time": FileCoordinates(list(map(np.array, parts)), ["m"] * len(parts), [""] * len(parts)),
        "number": FileCoordinates(
            [np.arange(n_members)] * len(parts), [""] * len(parts), [""] * len(parts)
        ),
    }
    rows = SampleRows(dims, [along[dim] for dim in dims])
    by_axis = {axis.name: axis for axis in rows.axes}
    axis = by_axis["time"]
    placed = place_windows(axis.positions, Window(tuple(offsets)), rows=axis.rows)
    there = {
        (member, time): number
        for number, (member, time) in enumerate(
            zip(by_axis["number"].positions, axis.positions, strict=True)
        )
    }
    reach = range(min(0, *offsets), max(0, *offsets) + 1)
    expected = sorted(
        [there[member, time + offset] for offset in offsets]
        for member, time in there
        if all((member, time + offset) in there for offset in reach)
    )
    assert sorted(placed.items.tolist()) == expected


@pytest.mark.parametrize(
    ("first", "other", "window", "expected"),
    [
        ({"n_times": 2}, {"n_times": 2, "start": "2010-01-02"}, "time=0,1,2,3",
         [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        ({"members": [2]}, {"members": [1]}, "number=0:1", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ({"n_times": 2, "n_members": 2}, {"n_times": 2, "n_members": 2}, "time=0:1",
         [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ],
    ids=["following dates", "one member each", "the same samples"],
)  # fmt: skip
def test_files_are_rows_as_their_coordinates_follow_each_other(
    tmp_path, open_user_files, first, other, window, expected
):
    hypercube(**first).to_netcdf(tmp_path / "a.nc")
    hypercube(**other).to_netcdf(tmp_path / "b.nc")
    made = open_user_files(tmp_path / "a.nc", tmp_path / "b.nc", sample_dim="time,number")
    placed = place_index_windows(made.index, Window.parse(window))
    assert placed.items.tolist() == expected
    if first == other:
        assert made.index.coordinate[4] == "b.nc, 2010-01-01T00, number 0"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "dims",
    [("time", "number"), ("time",), ("number", "time", "isobaricInhPa"), ("isobaricInhPa", "time")],
)
def test_grib_samples_are_cfgribs(real, open_user_files, dims):
    path = real(MEMBERS)
    made = open_user_files(path, sample_dim=",".join(dims))
    with xarray.open_dataset(path, **CFGRIB) as cube:
        assert_as_xarray(made, cube, dims, ("z", "t"))
    n_messages = 160 // len(made.index)
    assert len(list(made.dataset.read(made.index.where[3]))) == n_messages
    placed = place_index_windows(made.index, Window.parse("time=0:1"))
    assert len(placed) == len(made.index) // 4 * 3
    assert placed.step == 12 * 3600


def test_grib_is_split_by_date_and_member(real, open_user_files):
    index = open_user_files(real(MEMBERS), sample_dim="number,time").index
    asked = ("train:time=2017-01-01", "valid:time=2017-01-02/2017-01-02T12", "number=0/4")
    made = split_index(index, [CoordinateInterval.parse(text) for text in asked])
    assert {name: len(numbers) for name, numbers in made.splits.items()} == {
        "train": 10, "valid": 10
    }  # fmt: skip
    assert index.coordinate[made.splits["valid"][-1]] == "number 4, 2017-01-02T12"


def test_a_plain_loop_loads_the_same_samples(tmp_path, open_user_files):
    hypercube().to_netcdf(tmp_path / "cube.nc")
    made = open_user_files(tmp_path / "cube.nc", sample_dim="number,time")
    loop = made.dataset.upstream([], made.index, batch_size=None).pipeline
    for number, sample in enumerate(produced(made)):
        plain = make_sample(loop, made.index.where[number])
        for name, values in made.sample(number).items():
            np.testing.assert_array_equal(sample[name], values)
            np.testing.assert_array_equal(plain[name], values, strict=True)


def test_dimensions_that_are_not_there_or_twice_are_told(tmp_path, open_user_files):
    hypercube().to_netcdf(tmp_path / "cube.nc")
    with pytest.raises(OptionError) as caught:
        open_user_files(tmp_path / "cube.nc", sample_dim="time,member")
    assert str(caught.value) == (
        f"--sample-dim time,member: {tmp_path / 'cube.nc'} has no dimension 'member'; dimensions "
        "(lengths): level (2), y (5), time (4), number (3)"
    )
    with pytest.raises(OptionError, match="--sample-dim time,time: expected each dimension once"):
        open_user_files(tmp_path / "cube.nc", sample_dim="time,time")


# ---- windows over files

ROLLOUTS = ("0:1", "0:1,2", "0:1,2,3", "0:1,2,3,4")
START = datetime(2020, 1, 1)
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
        items = PipelineSource(dataset_pipeline(dataset, index))
        source = SampleSource(items, placed.items, window=window)
        return placed, source.__getitem__, index

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
    with xarray.open_dataset(path) as ds:
        check_equals_slices(ds, Window.parse(text), placed, make)
        # xarray says as well which steps lie on the grid of the coordinate.
        grid = ds.time.values[placed.items] - ds.time.values[placed.centres][:, None]
        assert (grid == np.array(placed.window.offsets) * np.timedelta64(6, "h")).all()


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
    assert placed.centres.tolist() == [0, 1, 3]
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
