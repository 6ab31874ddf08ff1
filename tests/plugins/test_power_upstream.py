"""The real plugin of application A6, run on the stand-ins, gives the arrays our readers give."""

from __future__ import annotations

import socket
import warnings

import numpy as np
import pytest

from iobench.datasets.locate import FileLocator
from iobench_maelstrom.power.clustering import weather_pressure_level
from iobench_maelstrom.power.production import LevelConstants, Production
from iobench_maelstrom.power.weather import ModelLevels, SurfaceLevels

pytest.importorskip(
    "climetlab_maelstrom_power_production",
    reason="needs climetlab 0.24.0 and climetlab-maelstrom-power-production (--no-deps)",
)

CASES = {
    "maelstrom-weather-model-level": (ModelLevels, {"date": "2019-01-01,2019-01-02"}),
    "maelstrom-weather-pressure-level": (weather_pressure_level, {"date": "2019-01-02"}),
    "maelstrom-weather-surface-level": (SurfaceLevels, {"date": "2019-01-01"}),
    "maelstrom-power-production": (Production, {"wind_turbine_id": "4"}),
    "maelstrom-constants-a-b": (LevelConstants, {}),
}


@pytest.fixture
def no_network(monkeypatch):
    """Any connection is an error at once."""

    def refuse(*arguments):
        raise AssertionError(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def upstream(no_network, tmp_path):
    """Load a data set of climetlab's with the files of a mirror, the network cut off."""

    def load(name, mirror, options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # climetlab's, xarray's and pandas' own
            import climetlab
            from climetlab.mirrors.directory_mirror import DirectoryMirror

            with (
                climetlab.settings.temporary("cache-directory", str(tmp_path / "cache")),
                DirectoryMirror(path=str(mirror)),
            ):
                return climetlab.load_dataset(name, **options).to_xarray().load()

    return load


def upstream_options(options):
    """Return options as Python callers of the plugin give them."""
    typed = dict(options)
    if "date" in typed and "," in typed["date"]:
        typed["date"] = typed["date"].split(",")
    return typed


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CASES)
def test_arrays_are_equal(upstream, store_dir, tiny_root, name):
    make, options = CASES[name]
    dataset = make(**options)
    assert dataset.name == name
    root = tiny_root(make(**options))
    theirs = upstream(name, root, upstream_options(options))
    locator = FileLocator(stand_in=root, cache_dir=store_dir)
    index = dataset.samples(dataset.files(locator), locator)
    in_time = "time" in theirs.dims
    assert len(index) == (theirs.sizes["time"] if in_time else 1)
    step = max(1, len(index) // 200)
    for number in range(0, len(index), step):
        ours = dataset.decode(dataset.read(index.where[number]), index.where[number])
        assert set(ours) == set(theirs.data_vars)
        for variable, values in ours.items():
            whole = theirs[variable]
            expected = whole.isel(time=number).values if in_time else whole.values
            np.testing.assert_array_equal(values.reshape(expected.shape), expected)
            assert values.dtype == expected.dtype
        if in_time:
            assert str(theirs.time.values[number])[:16] == index.coordinate[number]


@pytest.mark.timeout(120)
def test_a_day_is_24_hours_also_upstream(upstream, tiny_root):
    dataset = SurfaceLevels()
    root = tiny_root(dataset)
    theirs = upstream(dataset.name, root, {"date": "2019-01-02"})
    assert theirs.sizes["time"] == 24
