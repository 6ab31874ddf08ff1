"""ENS-10's stand-in in each container, opened by xarray, TensorFlow and NumPy by themselves."""

import json

import numpy as np
import pytest
import xarray

STARTS = np.array(["2015-01-01", "2015-01-04", "2016-01-01", "2016-01-04"], "M8[s]")
READ_WITH_TENSORFLOW = """
import json, sys
import numpy as np
import tensorflow as tf

folder = sys.argv[2]
with np.load(f"{folder}/iobench.index.npz") as index:
    times, latitude, longitude = (index[name] for name in ("time", "latitude", "longitude"))
    test = index["iobench.split.test"]
with open(f"{folder}/iobench.json") as manifest:
    told = json.load(manifest)["index"]
features = {"t2m": tf.io.FixedLenFeature((latitude.size, longitude.size), tf.float32)}
records = tf.data.TFRecordDataset(f"{folder}/shard-00000.tfrecord")
numbered = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(times), records)
found = []
for time, record in numbered:
    found.append(tf.io.parse_single_example(record, features)["t2m"])
units = next(each for each in told["coordinates"] if each["name"] == "time")["attributes"]["units"]
np.savez(sys.argv[1], t2m=np.stack(found), times=times, latitude=latitude, test=test, units=units)
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Convert the stand-in to each container."""
    from iobench.__main__ import main

    folder = tmp_path_factory.mktemp("ens10")
    for to in ("zarr", "tfrecord", "numpy"):
        words = ["convert", "maelstrom-ens10", "--tiny", "--to", to, str(folder / to)]
        assert main([*words, "--store-dir", str(folder / "places")]) == 0
    return folder


@pytest.mark.thorough
def test_xarray_selects_by_date(stores):
    with xarray.open_zarr(stores / "zarr", decode_timedelta=False) as found:
        np.testing.assert_array_equal(found.time.values.astype("M8[s]"), STARTS)
        one = found.sel(time="2016-01-01", latitude=50, longitude=10, method="nearest")
        assert one.valid_time.values == np.datetime64("2016-01-03")
        assert (float(one.latitude), float(one.longitude)) == (50, 10)
        assert found.inputs.sel(channel="t2m_mean").dims == ("time", "latitude", "longitude")
        assert found.t2m.attrs["units"] == "K"
        assert 180 < float(one.t2m) < 330


def test_tensorflow_and_the_index_say_the_same(stores, tensorflow_reads):
    found = tensorflow_reads(READ_WITH_TENSORFLOW, stores / "tfrecord")
    with xarray.open_zarr(stores / "zarr", decode_timedelta=False) as expected:
        np.testing.assert_array_equal(found["t2m"], expected.t2m)
        np.testing.assert_array_equal(found["latitude"], expected.latitude)
    assert str(found["units"]) == "seconds since 1970-01-01"
    np.testing.assert_array_equal(found["times"].astype("M8[s]"), STARTS)
    assert found["test"].tolist() == [2, 3]


def test_numpy_and_the_index_say_the_same(stores):
    folder = stores / "numpy"
    held = np.load(folder / "shard-00000.npy", mmap_mode="r")
    with np.load(folder / "iobench.index.npz") as index:
        times, train = index["time"].astype("M8[s]"), index["iobench.split.train"]
        told = json.loads((folder / "iobench.json").read_text())["index"]
    with xarray.open_zarr(stores / "zarr", decode_timedelta=False) as expected:
        for name in ("inputs", "t2m"):
            np.testing.assert_array_equal(held[name][train], expected[name].sel(time=times[train]))
    assert told["sample_dims"] == ["time"]
    mapping = next(each for each in told["coordinates"] if each["name"] == "crs")["attributes"]
    assert mapping["grid_mapping_name"] == "latitude_longitude"
