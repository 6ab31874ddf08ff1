"""What a Python call says of its own parameters, and that what it returns travels."""

from __future__ import annotations

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import IobenchError

xarray = pytest.importorskip("xarray", reason="it writes the file that is converted")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("calls") / "own.nc"
    values = np.arange(12 * 3 * 4, dtype="f4").reshape(12, 3, 4)
    made = xarray.Dataset({"t": (("time", "y", "x"), values)}, {"time": np.arange(12)})
    made.to_netcdf(path, engine="h5netcdf")
    return path


@pytest.fixture(scope="module")
def store(file):
    there = file.with_name("store")
    words = ["convert", file, there, "--to", "zarr", "--sample-dim", "time", "--store-dir"]
    assert main([*map(str, words), str(file.parent)]) == 0
    return there


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": "0:99"}, "window='0:99': fits nowhere"),
        ({"window": "x"}, "window='x': expected offsets"),
        ({"split": "x"}, "split='x': this dataset has no splits; leave out split=..."),
        ({"batch_size": 0}, "batch_size=0: expected 1 or more"),
    ],
)
def test_errors_of_loaders_name_parameters(file, store, options, said):
    options = {"batch_size": 2, **options}
    dataset = iobench.open_dataset(file, sample_dim="time")
    for made in (lambda: iobench.loader(store, **options), lambda: dataset.loader(**options)):
        with pytest.raises(IobenchError) as refused:
            made()
        assert said in str(refused.value)
        assert "--" not in str(refused.value)


@pytest.mark.parametrize("index", [slice(0, 4), [0, 1], np.array([0, 1]), "t", None])
def test_samples_are_asked_for_one_by_one(file, store, index):
    for samples in (iobench.open_store(store), iobench.open_dataset(file, sample_dim="time")):
        with pytest.raises(IobenchError, match="expected the number of one sample; take several"):
            samples[index]
        assert samples[np.int64(-1)]["t"].shape == samples[11]["t"].shape == (3, 4)
