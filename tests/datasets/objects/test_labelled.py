"""``xarray.Dataset`` objects, lazy and in memory, by name and handed over."""

import pickle

import numpy as np
import pytest

from iobench.datasets.contract import make_sample, sample_steps
from iobench.datasets.python_objects import object_dataset
from iobench.errors import OptionError
from iobench.testing import DatasetTests

xarray = pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:numpy.ndarray size changed:RuntimeWarning")

START = np.datetime64("2024-01-01", "ns")
OPENERS = """
import xarray

def lazily():
    return xarray.open_dataset("fields.nc")

def with_dask():
    return xarray.open_dataset("fields.nc", chunks={"time": 2})

def in_memory():
    with xarray.open_dataset("fields.nc") as lazy:
        return lazy.load()

"""


def fields():
    random = np.random.default_rng(1)
    values = random.normal(size=(6, 3, 4)).astype("f4")
    return xarray.Dataset(
        {
            "t2m": (("time", "y", "x"), values, {"units": "K"}),
            "packed": (("y", "time"), random.integers(0, 9, (3, 6)) + 0.5, {"units": "m"}),
            "area": (("y", "x"), np.ones((3, 4))),
            "when": (("time",), np.arange(6).astype("timedelta64[s]")),
            "cells": (("time", "bound"), np.zeros((6, 2))),
        },
        {
            "time": (("time",), START + np.arange(6) * np.timedelta64(6, "h")),
            "latitude": (("y", "x"), np.zeros((3, 4)), {"bounds": "cells"}),
            "station": (("time",), np.arange(6)),
        },
    )  # fmt: skip


@pytest.fixture
def own_files(own_module):
    (own_module / "mydata.py").write_text(OPENERS)
    encoding = {"packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}}
    encoding["time"] = {"units": "hours since 2024-01-01", "dtype": "f8"}
    fields().to_netcdf(own_module / "fields.nc", encoding=encoding)
    return own_module


class TestLazy(DatasetTests):
    reads_files = False

    @pytest.fixture
    def dataset(self, own_files):
        return object_dataset("mydata:lazily", sample_dim="time")

    @pytest.fixture
    def files(self, dataset, locator):
        return dataset.files(locator)


class TestWithDask(TestLazy):
    @pytest.fixture
    def dataset(self, own_files):
        pytest.importorskip("dask", reason="dask is not installed")
        return object_dataset("mydata:with_dask", sample_dim="time")


@pytest.mark.parametrize("name", ["lazily", "in_memory"])
def test_samples_are_what_isel_gives(own_files, opened, name):
    dataset, index = opened(f"mydata:{name}", sample_dim="time")
    assert [step for step, _ in sample_steps(dataset)] == ["read+decode", "preprocess"]
    assert index.spec.names == ("t2m", "packed")
    assert index.spec["t2m"].dims == ("y", "x")
    assert index.spec["t2m"].units == "K"
    truth = fields()
    for number in range(6):
        sample = make_sample(dataset, index.where[number])
        for each in index.spec.names:
            np.testing.assert_array_equal(sample[each], truth[each].isel(time=number).values)
    assert index.provenance["skipped"] == {
        "area": "lacks the dimension time",
        "when": "is no number: dtype timedelta64[s]",
        "cells": "a coordinate",
        "time": "is no number: dtype datetime64[ns]",
        "latitude": "a coordinate",
        "station": "a coordinate",
    }
    first = 1704067200.0  # 2024-01-01
    assert list(index.positions[:3]) == [first, first + 21600, first + 43200]
    assert index.position_units == "seconds"
    assert index.coordinate[1] == "2024-01-01T06"


def test_variables_that_are_asked_for(own_files, opened):
    dataset, index = opened("mydata:lazily", sample_dim="time", variables=["area", "station"])
    assert {v.name: v.shape for v in index.spec} == {"area": (3, 4), "station": ()}
    assert make_sample(dataset, (4,))["station"] == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, r"say which dimension counts samples with --sample-dim; .* time \(6\)"),
        ({"sample_dim": "lon"}, r"--sample-dim lon: .* no such dimension; .* y \(3\)"),
        ({"sample_dim": "time", "variables": ["t"]}, "no variable t; .* have t2m"),
        ({"sample_dim": "time", "variables": ["when"]}, "no variable when .*timedelta64"),
        ({"sample_dim": "bound"}, "--sample-dim bound: no variable of mydata:lazily has it"),
    ],
)
def test_wrong_choices_list_what_there_is(own_files, opened, options, expected):
    with pytest.raises(OptionError, match=expected):
        opened("mydata:lazily", **options)


def test_an_array_handed_over_is_a_dataset_of_one_and_travels(opened):
    dataset, index = opened(fields().packed, sample_dim="y")
    copy = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(make_sample(copy, (1,))["packed"], fields().packed.values[1])
    assert not len(index.positions)
    with pytest.raises(OptionError, match="its dimension time is empty"):
        opened(fields().isel(time=slice(0, 0)), sample_dim="time")


@pytest.mark.parametrize("name", ["lazily", "in_memory"])
def test_workers_load_it(own_files, opened, load, name):
    dataset, index = opened(f"mydata:{name}", sample_dim="time")
    make_sample(dataset, (0,))  # by this process, whose open files the workers must not use
    loaded = np.concatenate([batch["t2m"] for batch in load(dataset, index, 3)])
    np.testing.assert_array_equal(loaded, fields().t2m.values)


@pytest.mark.parametrize(
    ("labels", "positions"),
    [
        ([1, 3, 4], [1.0, 3.0, 4.0]),
        ([5, 3, 2], [5.0, 3.0, 2.0]),
        ([3, 1, 2], ()),
        ([1, 1, 2], ()),
        ([0.0, np.nan, 1.0], ()),
        (["a", "b", "c"], ()),
        (np.array([0, 60, 90], "timedelta64[s]"), [0.0, 60.0, 90.0]),
        (np.array(["1970-01-31", "1970-02-28", "1970-03-31"], "datetime64[ns]"), [0.0, 1.0, 2.0]),
        (
            xarray.date_range("1970-02-01", periods=3, calendar="360_day", use_cftime=True),
            [30 * 86400.0, 31 * 86400.0, 32 * 86400.0],
        ),
    ],
)
def test_samples_have_positions_where_they_lie_in_a_row(opened, labels, positions):
    value = xarray.Dataset({"v": (("t", "x"), np.zeros((3, 2)))}, {"t": labels})
    _, index = opened(value, sample_dim="t")
    assert list(index.positions) == list(positions)
