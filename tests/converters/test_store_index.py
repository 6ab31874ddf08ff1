"""A store keeps what its source says of its samples: times, coordinates, attributes, splits."""

from importlib.metadata import version

import numpy as np
import pytest
import xarray

from iobench.datasets.selection import place_index_windows
from iobench.errors import StoreError
from iobench.samples import Window
from iobench.stores.finished_store import open_store
from iobench.stores.index_file import INDEX_NAME
from iobench.stores.manifest import MANIFEST_NAME

FORMATS = ("zarr", "tfrecord", "numpy")


@pytest.fixture
def run(iobench_here):
    """Run a command in this process, which ends well."""

    def run(*words):
        done = iobench_here(*map(str, words))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def forecasts(tmp_path):
    """Two files of a projected grid, each with hours since a date of its own, and a run."""
    paths = []
    for number in range(2):
        times = np.datetime64("2020-01-01", "h") + (6 * np.arange(6) + 36 * number).astype("m8[h]")
        values = np.random.default_rng(number).normal(size=(6, 4, 5)).astype("f4")
        attributes = {
            "units": "K", "standard_name": "air_temperature", "grid_mapping": "crs",
            "cell_methods": "time: mean",
        }  # fmt: skip
        mapping = {"grid_mapping_name": "lambert_conformal_conic", "standard_parallel": [30, 60.0]}
        latitude = np.linspace(40, 50, 20).reshape(4, 5)
        made = xarray.Dataset(
            {"t2m": (("time", "y", "x"), values, attributes)},
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
        paths.append(tmp_path / f"f{number}.nc")
        units = {"time": {"units": f"hours since 2020-01-0{number + 1}"}}
        made.to_netcdf(paths[-1], encoding=units)
    return paths


@pytest.mark.parametrize("to", FORMATS)
def test_a_store_knows_when_and_where_its_samples_are(forecasts, run, tmp_path, to):
    run("convert", *forecasts, "--sample-dim", "time", "--to", to, tmp_path / "out")
    store = open_store(tmp_path / "out")
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
    run("verify", tmp_path / "out")


def test_numpy_alone_opens_the_index_and_it_tells_no_secret(forecasts, run, tmp_path):
    run("convert", *forecasts, "--sample-dim", "time", "--to", "numpy", tmp_path / "out")
    with np.load(tmp_path / "out" / INDEX_NAME) as found:
        np.testing.assert_array_equal(found["x"], 1000.0 * np.arange(5))
        assert found["lat"].shape == (4, 5)
    content = (tmp_path / "out" / MANIFEST_NAME).read_bytes()
    assert b"example.org" in content
    assert b"hunter22" not in content
    assert b"abc" not in content


def test_all_containers_keep_the_same_bytes(forecasts, run, tmp_path):
    for to in FORMATS:
        run("convert", *forecasts, "--sample-dim", "time", "--to", to, tmp_path / to)
    first, *others = [(tmp_path / to / INDEX_NAME).read_bytes() for to in FORMATS]
    assert all(each == first for each in others)


def test_a_damaged_index_is_found(forecasts, run, iobench_here, tmp_path):
    run("convert", forecasts[0], "--sample-dim", "time", "--to", "numpy", tmp_path / "out")
    path = tmp_path / "out" / INDEX_NAME
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=INDEX_NAME):
        open_store(tmp_path / "out").index()
    done = iobench_here("verify", str(tmp_path / "out"))
    assert done.returncode == 1
    assert INDEX_NAME in done.stderr.replace("\n", "")


def test_a_store_knows_the_date_and_the_member(run, tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 3, 5)).astype("f4")
    times = np.datetime64("2020-01-01", "h") + (6 * np.arange(4)).astype("m8[h]")
    made = xarray.Dataset(
        {"t2m": (("time", "number", "x"), values)}, {"time": times, "number": [1, 2, 3]}
    )
    made.to_netcdf(tmp_path / "cube.nc")
    words = ("--sample-dim", "number,time", "--to", "numpy", tmp_path / "out")
    run("convert", tmp_path / "cube.nc", *words)
    store = open_store(tmp_path / "out")
    index = store.index()
    assert index.coordinate[5] == "number 2, 2020-01-01T06"
    assert (index.dims, len(index.positions)) == (("number", "time"), 0)
    assert list(index.along("number").positions) == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    placed = place_index_windows(index, Window((-1,), (0,), "time"))
    assert placed.items.tolist() == [[n, n + 1] for n in range(12) if n % 4 < 3]
    known = index.meteorology
    assert known.sample_dims == ("number", "time")
    np.testing.assert_array_equal(known["number"].values, np.repeat([1, 2, 3], 4))
    for number, (member, time) in enumerate(np.ndindex(3, 4)):
        np.testing.assert_array_equal(store[number]["t2m"], values[time, member])
    run("verify", tmp_path / "out", "--against", tmp_path / "cube.nc")


def test_info_names_the_coordinates_of_samples(forecasts, run, tmp_path):
    run("convert", *forecasts, "--sample-dim", "time", "--to", "numpy", tmp_path / "out")
    told = " ".join(run("info", tmp_path / "out").split())
    assert "name lat, dims y, x, units degrees_north" in told
    assert f"iobench {version('iobench')}" in told
