"""``--split-by`` of ``convert`` and ``profile``: samples by coordinate, splits kept in stores."""

import json

import numpy as np
import pytest

import iobench
from iobench.datasets.selection import place_index_windows, select_split
from iobench.samples import Window
from iobench.stores.finished_store import open_store

xarray = pytest.importorskip("xarray", reason="writes the file")


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


SPLITS = (
    "--sample-dim", "time,number", "--split-by", "train:time=2015-12-26/2015-12-31",
    "--split-by", "valid:time=2016-01-02/2016-01-04",
)  # fmt: skip


def test_a_store_keeps_all_splits_that_were_asked_for(cube, iobench_here, tmp_path):
    words = ("convert", str(cube), str(tmp_path / "out"), "--to", "numpy", *SPLITS)
    done = iobench_here(*words)
    assert done.returncode == 0, done.stderr
    store = open_store(tmp_path / "out")
    assert list(store.manifest.samples) == [*range(18), *range(21, 30)]  # not the day between
    index = store.index()
    assert list(select_split(index, "train")) == list(range(18))
    assert list(select_split(index, "valid")) == list(range(18, 27))
    placed = place_index_windows(index, Window.parse("time=0:1"), split="valid")
    assert placed.items.tolist() == [[n, n + 3] for n in range(18, 24)]
    assert iobench_here("verify", str(tmp_path / "out"), "--against", str(cube)).returncode == 0


def test_a_selection_needs_no_name(cube, iobench_here, tmp_path):
    words = ("--sample-dim", "time,number", "--split-by", "time=2016", "--split-by", "number=2")
    done = iobench_here("convert", str(cube), str(tmp_path / "out"), "--to", "numpy", *words)
    assert done.returncode == 0, done.stderr
    assert "time=2016, number=2: 6 samples, " in done.stderr
    assert list(open_store(tmp_path / "out").manifest.samples) == list(range(20, 36, 3))


def test_a_profile_takes_windows_of_the_splits(cube, iobench_here, tmp_path):
    words = (*SPLITS, "--window", "time=0:1", "--batches", "2", "--duration", "20")
    run = tmp_path / "run"
    done = iobench_here("profile", str(cube), *words, "--compute", "none", "--out", str(run))
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "run.json").read_text())["windows"]["n_windows"] == 21


def test_a_program_opens_the_samples_of_an_interval(cube):
    opened = iobench.open_dataset(cube, sample_dim="number,time", split_by="number=1")
    assert len(opened) == 12
    with xarray.open_dataset(cube) as whole:
        np.testing.assert_array_equal(opened[3]["t"], whole.t.sel(number=1).values[3])
