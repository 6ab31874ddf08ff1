"""Stores in xarray: by its own reader of Zarr, and by to_xarray() whatever the container."""

import eccodes
import netCDF4
import numpy as np
import pytest
import xarray
from converting import convert as driver
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import iobench
from iobench.coordinates import Coordinate, SampleLabels
from iobench.registry import find_format
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.stores.plan import boxed_n_samples
from iobench.testing import MadeUpDataset
from iobench_converters.zarr_groups import shard_place, shard_shape

FORMATS = ("zarr", "tfrecord", "numpy")


@pytest.fixture
def convert(iobench_here, tmp_path):
    """Convert files along dimensions and return the store's folder."""

    def run(name, *words):
        done = iobench_here("convert", *map(str, words), "--to", name.partition("-")[0], name)
        assert done.returncode == 0, done.stderr
        done = iobench_here("verify", name)
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    return run


def write(path, calendar="standard", units="hours since 2001-02-27", step=6, n_times=7):
    """Write dates and members on levels of a small grid, with bounds and names."""
    random = np.random.default_rng(3)
    with netCDF4.Dataset(path, "w") as file:
        shape = {"time": n_times, "number": 6, "level": 2, "latitude": 3, "longitude": 4}
        for name, length in {**shape, "bnds": 2}.items():
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.setncatts({
            "units": units, "calendar": calendar, "standard_name": "time", "bounds": "time_bnds",
        })  # fmt: skip
        time[:] = step * np.arange(n_times)
        bounds = file.createVariable("time_bnds", "f8", ("time", "bnds"))
        bounds[:] = step * (np.arange(n_times)[:, None] + [-0.5, 0.5])
        number = file.createVariable("number", "i4", ("number",))
        number.standard_name = "realization"
        number[:] = np.arange(10, 16)
        kind = file.createVariable("kind", str, ("number",))
        kind[:] = np.array(["control", *["perturbed"] * 5], dtype=object)
        for name, values in (("level", [850, 500]), ("latitude", [60, 50, 40])):
            file.createVariable(name, "f4", (name,))[:] = values
        file["latitude"].units = "degrees_north"
        file.createVariable("longitude", "f4", ("longitude",))[:] = [0, 10, 20, 30]
        t = file.createVariable("t", "f4", tuple(shape), fill_value=-999.0)
        t.setncatts({
            "units": "K", "standard_name": "air_temperature", "coordinates": "kind",
            "cell_methods": "time: point",
        })  # fmt: skip
        t[:] = random.normal(280, 5, tuple(shape.values()))
        file.setncatts({"Conventions": "CF-1.8", "institution": "nobody's"})
    return path


def test_dates_and_members_are_dimensions(convert, tmp_path):
    path = write(tmp_path / "a.nc")
    out = convert("zarr", path, "--sample-dim", "time,number", "--shard-size", "300B")
    shards = sorted(file.name for file in (out / "t").glob("c.*"))
    assert shards[:4] == ["c.0.0.0.0.0", "c.0.1.0.0.0", "c.1.0.0.0.0", "c.1.1.0.0.0"]
    with xarray.open_dataset(path) as source, xarray.open_zarr(out, consolidated=True) as found:
        assert found.t.dims == ("time", "number", "level", "latitude", "longitude")
        xarray.testing.assert_equal(found.load(), source.load())
        one = found.sel(time="2001-02-28T00", number=13)
        np.testing.assert_array_equal(one.t, source.t.sel(time="2001-02-28T00", number=13))
        assert one.kind == "perturbed"
        assert found.t.attrs["standard_name"] == "air_temperature"
        assert found.t.attrs["units"] == "K"
        assert found.number.attrs == {"standard_name": "realization"}
        assert found.attrs["institution"] == "nobody's"
    store = open_store(out)
    np.testing.assert_array_equal(store[8]["t"], source.t.values.reshape(42, 2, 3, 4)[8])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dims", ["time", "time,number"])
def test_all_containers_say_the_same(convert, tmp_path, dims):
    path = write(tmp_path / "a.nc")
    stores = [convert(to, path, "--sample-dim", dims) for to in FORMATS]
    with xarray.open_zarr(stores[0]) as read:
        expected = read.load()
    for store in stores:
        lazy = open_store(store).to_xarray()
        part = lazy.t.isel(time=[4, 1], latitude=slice(1, 3), level=1)
        np.testing.assert_array_equal(
            part, expected.t.isel(time=[4, 1], latitude=slice(1, 3), level=1)
        )
        found = lazy.load()
        xarray.testing.assert_equal(found, expected)
        assert found.attrs == expected.attrs
        for name in expected.variables:
            assert found[name].attrs == expected[name].attrs, name


@pytest.mark.parametrize("to", FORMATS)
def test_a_probe_of_a_part_has_its_own_times(tmp_path, to):
    made = MadeUpDataset(SampleSpec((Variable("a", (2,), "<f4", ("x",)),)))
    time = Coordinate("time", ("sample",), np.arange(10) * 6, {"units": "hours since 2000-01-01"})
    index = replace(
        made.index(10),
        meteorology=SampleLabels(("time",), (time,)),
        splits={"train": range(6), "test": range(6, 10)},
    )
    store = driver(made, index, find_format(to), tmp_path / "probe", samples=[8, 0, 4])
    found = store.to_xarray()
    assert found.a.dims == ("time", "x")
    assert found.time.values.astype("M8[D]").astype(str).tolist() == [
        "2000-01-03", "2000-01-01", "2000-01-02",
    ]  # fmt: skip
    assert {name: each.tolist() for name, each in found.attrs["splits"].items()} == {
        "train": [1, 2], "test": [0],
    }  # fmt: skip


def test_grib_says_times_levels_members_and_places(convert, real):
    path = real("era5/era5-levels-members.grib")
    out = convert("zarr", path, "--sample-dim", "time,number")
    options = {"engine": "cfgrib", "backend_kwargs": {"indexpath": ""}, "decode_timedelta": False}
    with (
        xarray.open_zarr(out, decode_timedelta=False) as found,
        xarray.open_dataset(path, **options) as source,
    ):
        at = {"time": "2017-01-02T00", "number": 3}
        one, expected = found.sel(at), source.sel(at)
        np.testing.assert_array_equal(one.t, expected.t)
        for name in ("latitude", "longitude", "isobaricInhPa", "valid_time", "step", "number"):
            np.testing.assert_allclose(one[name].astype(float), expected[name].astype(float))
        assert found.t.attrs["standard_name"] == "air_temperature"
        assert found.isobaricInhPa.attrs["units"] == "hPa"
        assert found.crs.attrs["grid_mapping_name"] == "latitude_longitude"


@pytest.mark.parametrize("grid", ["lambert", "rotated_ll"])
def test_points_of_a_projection_of_grib_have_places(convert, tmp_path, grid):
    path = tmp_path / "a.grib"
    with path.open("wb") as file:
        for hour in (0, 12):
            handle = eccodes.codes_grib_new_from_samples("GRIB2")
            eccodes.codes_set(handle, "gridType", grid)
            shape = {"Nx": 4, "Ny": 3} if grid == "lambert" else {"Ni": 4, "Nj": 3}
            steps = {
                "DxInMetres": 3000, "DyInMetres": 3000, "Latin1InDegrees": 25,
                "Latin2InDegrees": 50, "LoVInDegrees": 265, "LaDInDegrees": 40,
            } if grid == "lambert" else {
                "iDirectionIncrementInDegrees": 1, "jDirectionIncrementInDegrees": 1,
                "latitudeOfFirstGridPointInDegrees": 2, "latitudeOfLastGridPointInDegrees": 0,
                "longitudeOfFirstGridPointInDegrees": 0, "longitudeOfLastGridPointInDegrees": 3,
            }  # fmt: skip
            told = {"paramId": 167, "dataDate": 20200101, "dataTime": hour * 100}
            for key, value in {**shape, **steps, **told}.items():
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, np.arange(12.0))
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    with xarray.open_zarr(convert("zarr", path, "--sample-dim", "time")) as found:
        assert found[found["2t"].attrs["grid_mapping"]].attrs["GRIB_gridType"] == grid
        assert found.latitude.dims == found["2t"].dims[1:]
        assert found.latitude.attrs["units"] == "degrees_north"
        assert {"latitude", "longitude"} <= set(found["2t"].coords)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_stores_of_others_say_the_same(convert, tmp_path, zarr_format):
    with xarray.open_dataset(write(tmp_path / "a.nc"), decode_times=False) as source:
        kept = source.load().drop_vars(["kind"])
    kept.t.attrs.pop("coordinates", None)
    kept.to_zarr(tmp_path / "own", zarr_format=zarr_format, consolidated=zarr_format == 2)
    out = convert("zarr", tmp_path / "own", "--sample-dim", "time,number")
    with xarray.open_zarr(out, decode_times=False) as found:
        xarray.testing.assert_equal(found.load(), kept)
        for name in kept.variables:
            assert kept[name].attrs.items() <= found[name].attrs.items(), name


@pytest.mark.parametrize("to", ["zarr", "numpy"])
def test_samples_have_their_own_part_of_each_coordinate(tmp_path, to):
    made = MadeUpDataset(SampleSpec((Variable("t", (3, 2), "<f4", ("latitude", "longitude")),)))
    latitude = Coordinate("latitude", ("latitude",), 10.0 * np.arange(6, 0, -1))
    parts = {"latitude": [slice(n % 4, n % 4 + 3) for n in range(8)]}
    part = latitude.cut(parts, max_nbytes=1 << 20)
    index = replace(made.index(8), meteorology=SampleLabels((), (part,)))
    store = driver(made, index, find_format(to), tmp_path / "store")
    if to == "zarr":
        found = store.to_xarray()
        assert found.t.dims[0] == "sample"
        np.testing.assert_array_equal(found.sample_latitude[5], [50, 40, 30])
    loader = iobench.loader(store.path, 4, patch={"latitude": 2}, shuffle=True)
    for batch in loader:
        where = loader.coordinates()
        rows = zip(where["sample"], where["latitude_start"], strict=True)
        for row, (sample, start) in enumerate(rows):
            inside = slice(start, start + 2)
            np.testing.assert_array_equal(where["latitude"][row], part.values[sample])
            assert batch["t"][row].tobytes() == store[sample]["t"][inside].tobytes()
    loader.close()


@given(st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(1, 60), st.integers(1, 3))
def test_shards_are_boxes_of_the_grid(grid, wanted, n_chunks):
    lengths = {f"d{n}": length for n, length in enumerate(grid)}
    n_samples = boxed_n_samples(wanted, lengths)
    shape = shard_shape(grid, n_samples)
    assert np.prod(shape) == n_samples
    numbers = np.arange(np.prod(grid)).reshape(grid)
    for shard in range(-(-numbers.size // n_samples)):
        place = shard_place(shard, grid, shape)
        box = tuple(slice(at * n, (at + 1) * n) for at, n in zip(place, shape, strict=True))
        expected = np.arange(shard * n_samples, min(numbers.size, (shard + 1) * n_samples))
        np.testing.assert_array_equal(numbers[box].reshape(-1), expected)


def test_odd_names_and_dimensions_without_coordinates(convert, tmp_path):
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, length in {"time": 3, "member": 2, "x": 4}.items():
            file.createDimension(name, length)
        file.createVariable("a", "f4", ("time", "member", "x"))[:] = np.arange(24).reshape(3, 2, 4)
        file["a"].setncatts({"coordinates": "place run", "grid_mapping": "lost"})
        file.createVariable("place", "f4", ("x",))[:] = np.arange(4)
        odd = file.createVariable("an odd name", "f4", ("x",))
        odd[:], odd.units = np.arange(4), "degrees_north"
    store = open_store(convert("zarr", path, "--sample-dim", "time,member"))
    found = store.to_xarray()
    assert found.a.dims == ("time", "member", "x")
    np.testing.assert_array_equal(found.a, np.arange(24).reshape(3, 2, 4))
    assert "place" in found.coords
    assert "grid_mapping" not in found.a.attrs
    assert "an odd name" in found.variables
    assert "an odd name" in store.index().meteorology


@pytest.mark.parametrize("n_samples", [3, 5])
def test_a_dimension_of_the_grid_called_as_samples_are(convert, iobench_here, tmp_path, n_samples):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        for name, length in {"time": n_samples, "sample": 3, "x": 2}.items():
            file.createDimension(name, length)
            file.createVariable(name, "f8", (name,))[:] = range(length)
        file.createVariable("t", "f4", ("time", "sample", "x"))[:] = np.ones((n_samples, 3, 2))
    out = convert("zarr", tmp_path / "a.nc", "--sample-dim", "time")
    made = open_store(out).to_xarray()
    assert set(made.coords) == {"time", "x"}
    assert made["t"].shape == (n_samples, 3, 2)
    said = iobench_here("info", out).stdout
    assert "along a dimension called 'sample', as samples are" in " ".join(said.split())
