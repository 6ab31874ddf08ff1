"""What a store keeps of its source beside values: times, places, names, attributes, splits.

By its index, by xarray's own reader of Zarr, and by ``to_xarray()`` whatever the container.
"""

from importlib.metadata import version
from pathlib import Path

import eccodes
import netCDF4
import numpy as np
import pytest
import xarray
from converting import FORMATS
from converting import convert as driver
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import iobench
from iobench.cli import main
from iobench.coordinates import Coordinate, SampleLabels
from iobench.datasets.selection import place_index_windows
from iobench.errors import StoreError
from iobench.samples import SampleSpec, Variable, Window
from iobench.stores.finished_store import open_store
from iobench.stores.index_file import INDEX_NAME
from iobench.stores.manifest import MANIFEST_NAME
from iobench.stores.plan import boxed_n_samples
from iobench_converters.zarr_groups import shard_place, shard_shape
from tests.support.made_up_dataset import MadeUpDataset

pytest.importorskip("zarr", reason="needs pip install 'iobench[zarr]'")

# Of files beside the arrays, and of dates before 1582.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command in the test's folder, which ends well; return what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(list(map(str, words)))
        said = capsys.readouterr()
        assert code == 0, said.err
        return " ".join((said.out + said.err).split())

    return run


@pytest.fixture
def convert(run):
    """Convert along dimensions to a container and return the store's folder."""

    def convert(to, *words):
        run("convert", *words, "--to", to, f"out-{to}")
        run("verify", f"out-{to}")
        return Path(f"out-{to}")

    return convert


def write(calendar="standard", units="hours since 2001-02-27", step=6, n_times=7):
    """Write dates and members on levels of a small grid, with bounds and names."""
    random = np.random.default_rng(3)
    with netCDF4.Dataset("a.nc", "w") as file:
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
    return "a.nc"


# ---- the index


@pytest.fixture
def forecasts(run):
    """Two files of a projected grid, each with hours since a date of its own, and a run."""
    paths = []
    for number in range(2):
        times = np.datetime64("2020-01-01", "h") + (6 * np.arange(6) + 36 * number).astype("m8[h]")
        attributes = {
            "units": "K", "standard_name": "air_temperature", "grid_mapping": "crs",
            "cell_methods": "time: mean",
        }  # fmt: skip
        mapping = {"grid_mapping_name": "lambert_conformal_conic", "standard_parallel": [30, 60.0]}
        latitude = np.linspace(40, 50, 20).reshape(4, 5)
        made = xarray.Dataset(
            {"t2m": (("time", "y", "x"), np.full((6, 4, 5), number, "f4"), attributes)},
            {
                "time": times,
                "y": ("y", 1000.0 * np.arange(4), {"units": "m"}),
                "x": ("x", 1000.0 * np.arange(5), {"units": "m"}),
                "lat": (("y", "x"), latitude, {"units": "degrees_north"}),
                "crs": ((), 0, mapping),
                "run": ((), number, {"long_name": "number of the run"}),
                "row_name": ("y", np.array(["north", "east", "south", "west"])),
            },
            {"title": "forecasts", "history": "from https://me:hunter22@example.org/x?token=abc"},
        )
        paths.append(f"f{number}.nc")
        made.to_netcdf(
            paths[-1], encoding={"time": {"units": f"hours since 2020-01-0{number + 1}"}}
        )
    return paths


@pytest.mark.long
def test_a_store_knows_when_and_where_its_samples_are(forecasts, convert, run):
    paths = [convert(to, *forecasts, "--sample-dim", "time") for to in FORMATS]
    assert len({(path / INDEX_NAME).read_bytes() for path in paths}) == 1
    store = open_store(paths[0])
    index = store.index()
    assert list(index.where) == list(range(12))
    assert index.spec == store.spec
    assert index.position_units == "seconds"
    assert index.coordinate[7] == "2020-01-02T18"
    assert len(place_index_windows(index, Window((-1, 0), (1,)))) == 10
    known = index.meteorology
    assert known.sample_dims == ("time",)
    time = known["time"]
    assert time.attributes["units"] == "seconds since 1970-01-01"
    hours = (6 * np.arange(12)).astype("m8[h]")
    expected = (np.datetime64("2020-01-01", "h") + hours).astype("M8[s]")
    np.testing.assert_array_equal(time.values, expected.astype(np.int64))
    assert known["run"].dims == ("sample",)
    np.testing.assert_array_equal(known["run"].values, np.repeat([0, 1], 6))
    assert known["lat"].dims == ("y", "x")
    assert known["lat"].attributes == {"units": "degrees_north"}
    assert known["crs"].attributes["standard_parallel"] == [30.0, 60.0]
    assert known["row_name"].values.tolist() == ["north", "east", "south", "west"]
    told = known.variables["t2m"]
    assert (told["standard_name"], told["cell_methods"]) == ("air_temperature", "time: mean")
    assert known.attributes["title"] == "forecasts"
    with np.load(paths[0] / INDEX_NAME) as found:  # NumPy alone opens it
        np.testing.assert_array_equal(found["x"], 1000.0 * np.arange(5))
        assert found["lat"].shape == (4, 5)
    content = (paths[0] / MANIFEST_NAME).read_bytes()
    assert b"example.org" in content
    assert b"hunter22" not in content
    assert b"abc" not in content
    told = run("info", paths[0])
    assert "lat y, x degrees_north" in told
    assert f"iobench: {version('iobench')}" in told
    damaged = bytearray((paths[0] / INDEX_NAME).read_bytes())
    damaged[-100] ^= 1
    (paths[0] / INDEX_NAME).write_bytes(damaged)
    with pytest.raises(StoreError, match=INDEX_NAME):
        open_store(paths[0]).index()
    assert main(["verify", str(paths[0])]) == 1


def test_a_store_knows_the_date_and_the_member(convert, run):
    source = write()
    store = open_store(convert("numpy", source, "--sample-dim", "number,time"))
    index = store.index()
    assert index.coordinate[8] == "number 11, 2001-02-27T06"
    assert (index.dims, len(index.positions)) == (("number", "time"), 0)
    assert list(index.along("number").positions) == list(np.repeat(np.arange(10.0, 16), 7))
    placed = place_index_windows(index, Window((-1,), (0,), "time"))
    assert placed.items.tolist() == [[n, n + 1] for n in range(42) if n % 7 < 6]
    known = index.meteorology
    assert known.sample_dims == ("number", "time")
    np.testing.assert_array_equal(known["number"].values, np.repeat(np.arange(10, 16), 7))
    with xarray.open_dataset(source) as opened:
        values = opened.t.values
    for number, (member, time) in enumerate(np.ndindex(6, 7)):
        np.testing.assert_array_equal(store[number]["t"], values[time, member])
    run("verify", store.path, "--against", source)


# ---- xarray


def test_dates_and_members_are_dimensions(convert):
    path = write()
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


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("dims", ["time,number", "time"])
def test_all_containers_say_the_same(convert, dims):
    path = write()
    with xarray.open_zarr(convert("zarr", path, "--sample-dim", dims)) as read:
        expected = read.load()
    for to in FORMATS:
        store = convert(to, path, "--sample-dim", dims) if to != "zarr" else "out-zarr"
        lazy = open_store(store).to_xarray()
        part = {"time": [4, 1], "latitude": slice(1, 3), "level": 1}
        np.testing.assert_array_equal(lazy.t.isel(part), expected.t.isel(part))
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
    store = driver(made, index, FORMATS[to], tmp_path / "probe", samples=[8, 0, 4])
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
def test_points_of_a_projection_of_grib_have_places(convert, grid):
    with Path("a.grib").open("wb") as file:
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
    with xarray.open_zarr(convert("zarr", "a.grib", "--sample-dim", "time")) as found:
        assert found[found["2t"].attrs["grid_mapping"]].attrs["GRIB_gridType"] == grid
        assert found.latitude.dims == found["2t"].dims[1:]
        assert found.latitude.attrs["units"] == "degrees_north"
        assert {"latitude", "longitude"} <= set(found["2t"].coords)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_stores_of_others_say_the_same(convert, zarr_format):
    with xarray.open_dataset(write(), decode_times=False) as source:
        kept = source.load().drop_vars(["kind"])
    kept.t.attrs.pop("coordinates", None)
    kept.to_zarr("own", zarr_format=zarr_format, consolidated=zarr_format == 2)
    out = convert("zarr", "./own", "--sample-dim", "time,number")
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
    store = driver(made, index, FORMATS[to], tmp_path / "store")
    if to == "zarr":
        found = xarray.open_zarr(store.path)
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


@given(st.lists(st.integers(1, 7), min_size=2, max_size=4), st.integers(1, 60))
def test_shards_are_boxes_of_the_grid(grid, wanted):
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


# ---- odd names and units


def test_odd_names_and_dimensions_without_coordinates(convert):
    with netCDF4.Dataset("a.nc", "w") as file:
        for name, length in {"time": 3, "member": 2, "x": 4}.items():
            file.createDimension(name, length)
        file.createVariable("a", "f4", ("time", "member", "x"))[:] = np.arange(24).reshape(3, 2, 4)
        file["a"].setncatts({"coordinates": "place run", "grid_mapping": "lost"})
        file.createVariable("place", "f4", ("x",))[:] = np.arange(4)
        odd = file.createVariable("an odd name", "f4", ("x",))
        odd[:], odd.units = np.arange(4), "degrees_north"
    store = open_store(convert("zarr", "a.nc", "--sample-dim", "time,member"))
    found = xarray.open_zarr(store.path)
    assert found.a.dims == ("time", "member", "x")
    np.testing.assert_array_equal(found.a, np.arange(24).reshape(3, 2, 4))
    assert "place" in found.coords
    assert "grid_mapping" not in found.a.attrs
    assert "an odd name" in found.variables
    assert "an odd name" in store.index().meteorology


@pytest.mark.parametrize("n_samples", [3, 5])
def test_a_dimension_of_the_grid_called_as_samples_are(convert, run, n_samples):
    with netCDF4.Dataset("a.nc", "w") as file:
        for name, length in {"time": n_samples, "sample": 3, "x": 2}.items():
            file.createDimension(name, length)
            file.createVariable(name, "f8", (name,))[:] = range(length)
        file.createVariable("t", "f4", ("time", "sample", "x"))[:] = np.ones((n_samples, 3, 2))
    out = convert("zarr", "a.nc", "--sample-dim", "time")
    made = xarray.open_zarr(out)
    assert set(made.coords) == {"time", "x"}
    assert made["t"].shape == (n_samples, 3, 2)
    assert "along a dimension called 'sample', as samples are" in run("info", out)


VALUES = np.arange(18, dtype="f4").reshape(6, 3)


def write_named(names=("r",), time=None):
    with netCDF4.Dataset("f.nc", "w") as file:
        file.createDimension("time", 6)
        file.createDimension("x", 3)
        if time is not None:
            axis = file.createVariable("time", "f4", ("time",))
            axis.setncatts(time)
            axis[:] = np.arange(6) + 720.5
        for number, name in enumerate(names):
            file.createVariable(name, "f4", ("time", "x"))[:] = VALUES + number


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(
    ("units", "calendar", "first"),
    [
        ("months since 1960-01-01", None, None),
        ("months since 1960-01-01", "360", None),
        ("years since 1-1-1", None, None),
        ("weeks since 2000-01-01", None, None),
        ("days since 2000-01-01", "of the moon", None),
        ("days since 2000-02-31", None, None),
        ("hours since the start", None, None),
        ("days since 2000-01-01", None, "2001-12-21T12:00:00"),
        ("days since 2000-01-01", "", "2001-12-21T12:00:00"),
        ("hours since 1800-01-01 00:00:00", None, "1800-01-31T00:30:00"),
        ("days since 2000-01-01", "noleap", "2001-12-22T12:00:00"),
        ("days since 0001-01-01 00:00:0.0 UTC", None, "0002-12-22T12:00:00"),
    ],
)
def test_times_stay_times_and_units_that_nobody_decodes_are_kept(convert, units, calendar, first):
    write_named(time={"units": units} | ({"calendar": calendar} if calendar is not None else {}))
    path = convert("zarr", "f.nc", "--sample-dim", "time")
    for consolidated in (False, True):
        found = xarray.open_zarr(path, consolidated=consolidated)
        np.testing.assert_array_equal(found["r"].values, VALUES)
        if first is None:
            np.testing.assert_array_equal(found["time"].values, np.arange(6) + 720.5)
            own = found["time"].attrs
            assert own.get("time_units", own.get("units")) == units
            continue
        value = found["time"].values[0]
        spelled = str(value)[:19] if isinstance(value, np.datetime64) else value.isoformat()
        assert spelled[:19] == first


def test_names_are_kept_and_others_are_said(run):
    names = ("air temperature", "T2M", "t2m", "a+b", "temp%C", "_x", "__y", "a::b", "温度 (2 m)")
    write_named(names)
    said = run("convert", "f.nc", "out", "--to", "zarr", "--sample-dim", "time")
    stored = dict(zip(names, names, strict=True)) | {"__y": "variable-6", "a::b": "variable-7"}
    assert said.count("is stored as") == 2
    for found in (xarray.open_zarr("out"), xarray.open_zarr("out", consolidated=False)):
        for number, name in enumerate(names):
            np.testing.assert_array_equal(found[stored[name]].values, VALUES + number)
    again = open_store("out")
    for number, name in enumerate(names):
        np.testing.assert_array_equal(again[2][name], VALUES[2] + number)
    run("verify", "out", "--against", "f.nc")
