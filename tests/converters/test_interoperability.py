"""What other libraries read in stores is what was written, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from converting import FORMATS

from iobench.samples import Packed, SampleSpec, Variable
from iobench.stores.labels import unique_dims
from iobench.testing import EVERY_DTYPE, flip_bit, random_sample, write_store
from iobench_converters.zarr_metadata import ZarrOptions, plan_arrays

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs"),  # which are not Zarr's own
]
GRID = ("y", "x")
N_SAMPLES = 5


@pytest.fixture
def read_elsewhere(tmp_path):
    """Run a script, whose first argument is a file for its arrays; return the arrays."""

    def run(script, *arguments):
        command = [sys.executable, "-c", script, str(tmp_path / "out.npz"), *map(str, arguments)]
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=110)
        assert done.returncode == 0, done.stderr
        with np.load(tmp_path / "out.npz") as found:
            return dict(found)

    return run


def stacked(spec):
    """Return samples of random bits, and the values of each variable side by side."""
    samples = [random_sample(spec, seed) for seed in range(N_SAMPLES)]
    return samples, {name: np.stack([each[name] for each in samples]) for name in spec.names}


def assert_equal(found, values):
    for name, expected in values.items():
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape), name
        assert found[name].tobytes() == expected.tobytes(), name


# ---- Zarr


OPTIONS = [
    {"codec": "blosc-lz4", "inner-chunk": "y=33"},
    {"codec": "zstd:level=3", "chunk-samples": "2"},
    {},
    {"inner-chunk": "y=33,x=33"},
    {"codec": "blosc-lz4"},
    {"codec": "shuffle,lz4", "chunk-samples": "4", "inner-chunk": "x=33"},
]
ZARR = SampleSpec(
    (
        *EVERY_DTYPE,
        Variable("winds", (2, 80, 80), "f4", ("channel", *GRID), "m s-1", channels=("u", "v")),
        Variable("x", (80, 80), "f4", GRID, "m"),  # named like one of its dimensions
        Variable("y/2", (4,), "f8", ("sample",), role="target"),
    )
)
READ_WITH_TENSORSTORE = """
import sys
from pathlib import Path
import numpy as np
import tensorstore as ts

root = Path(sys.argv[2])
found = {}
for folder in sorted(path.parent.name for path in root.glob("*/zarr.json")):
    kvstore = {"driver": "file", "path": str(root / folder)}
    array = ts.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()
    assert array.domain.labels[0] == "sample", array.domain
    found[folder] = array.read().result()
np.savez(sys.argv[1], **found)
"""


@pytest.fixture(params=OPTIONS, ids=lambda options: ",".join(options.values()))
def zarr_store(request, tmp_path, monkeypatch):
    """Return the folder of a store, and what each of its arrays should hold."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    samples, values = stacked(ZARR)
    path = write_store(
        tmp_path / "store", FORMATS["zarr"], ZARR, samples, options=request.param
    ).path
    arrays = plan_arrays(ZARR, ZarrOptions.parse(request.param))
    dims = unique_dims([(variable.shape, variable.dims) for variable in ZARR])
    return (
        path,
        {a.folder: values[a.variable.name] for a in arrays},
        {a.folder: ("sample", *own) for a, own in zip(arrays, dims, strict=True)},
    )


@pytest.mark.quick_cases(3)
def test_zarr_and_xarray_read_equal_values_with_named_dimensions(zarr_store):
    xarray = pytest.importorskip("xarray", reason="needs pip install 'iobench[zarr]'")
    zarr = pytest.importorskip("zarr", minversion="3", reason="needs pip install 'iobench[zarr]'")
    path, values, dims = zarr_store
    with xarray.open_zarr(path) as opened:
        assert set(opened.variables) == set(values)
        assert {name: opened[name].dims for name in dims} == dims
        assert_equal({name: opened[name].values for name in values}, values)
        assert (opened["winds"].attrs["units"], opened["winds"].attrs["channels"]) == (
            "m s-1", ["u", "v"],
        )  # fmt: skip
    group = zarr.open_group(path, mode="r")
    for name, expected in values.items():
        assert group[name].shards[0] % group[name].chunks[0] == 0
        assert group[name][3].tobytes() == expected[3].tobytes(), name
        alone = zarr.open_array(path / name, mode="r")  # without what the group says of it
        assert alone[-1].tobytes() == expected[-1].tobytes(), name


@pytest.mark.quick_cases(2)
def test_tensorstore_reads_equal_values(zarr_store, read_elsewhere):
    """In a process of its own: its threads do not survive the forks of other tests."""
    if find_spec("tensorstore") is None:
        pytest.skip("needs pip install tensorstore")
    path, values, _ = zarr_store
    if "numcodecs" in (path / "winds/zarr.json").read_text():
        pytest.skip("TensorStore knows no codecs of numcodecs")
    found = read_elsewhere(READ_WITH_TENSORSTORE, path)
    assert set(found) == set(values)
    assert_equal(found, values)


def test_xarray_unpacks_linear_packing(tmp_path):
    pytest.importorskip("zarr", reason="needs pip install 'iobench[zarr]'")
    xarray = pytest.importorskip("xarray", reason="needs pip install 'iobench[zarr]'")
    packed = Packed("<f4", 0.5, 200.0)
    spec = SampleSpec((Variable("t", (3,), "i2", ("x",), "K", packed=packed),))
    write_store(tmp_path, FORMATS["zarr"], spec, [{"t": np.array([-3, 0, 7], dtype="i2")}])
    with xarray.open_zarr(tmp_path) as opened:
        np.testing.assert_array_equal(opened["t"].values, [[198.5, 200.0, 203.5]])


# ---- TFRecord


RECORDS = SampleSpec(
    (
        Variable("fields", (3, 11, 7), "f4", ("channel", "y", "x"), "K"),
        Variable("t2m", (), "f4", ()),
        Variable("month", (2,), "i8", ("end",)),
        Variable("seconds", (4,), "f8", ("step",)),
        Variable("rain", (3, 4), "i2", GRID, packed=Packed("<f8", 0.5, 200.0)),
        Variable("half", (5,), "f2", ("x",)),
    )
)


@pytest.fixture
def records(tmp_path):
    samples, values = stacked(RECORDS)
    store = write_store(tmp_path / "store", FORMATS["tfrecord"], RECORDS, samples)
    return sorted(store.path.glob("*.tfrecord")), values


def test_tensorflow_reads_equal_values_and_finds_the_flipped_bit(records):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow reads its own records")
    files, values = records
    features = {
        "fields": tf.io.FixedLenFeature((3, 11, 7), tf.float32),
        "t2m": tf.io.FixedLenFeature((), tf.float32),
        "month": tf.io.FixedLenFeature((2,), tf.int64),
        **{name: tf.io.FixedLenFeature((), tf.string) for name in ("seconds", "rain", "half")},
    }

    def read():
        found = {name: [] for name in features}
        for record in tf.data.TFRecordDataset(list(map(str, files))):
            parsed = tf.io.parse_single_example(record, features)
            parsed["seconds"] = tf.io.decode_raw(parsed["seconds"], tf.float64)
            parsed["half"] = tf.io.decode_raw(parsed["half"], tf.float16)
            parsed["rain"] = tf.reshape(tf.io.decode_raw(parsed["rain"], tf.int16), (3, 4))
            for name, value in parsed.items():
                found[name].append(value.numpy())
        return {name: np.stack(each) for name, each in found.items()}

    assert_equal(read(), values)
    flip_bit(files[1], 200)
    with pytest.raises(tf.errors.DataLossError):
        read()


READ_WITH_DALI = """
import sys
from pathlib import Path
import numpy as np
from nvidia.dali import fn, pipeline_def, tfrecord

features = {
    "fields": tfrecord.FixedLenFeature((3, 11, 7), tfrecord.float32, 0.0),
    "t2m": tfrecord.FixedLenFeature((), tfrecord.float32, 0.0),
    "month": tfrecord.FixedLenFeature((2,), tfrecord.int64, 0),
}


@pipeline_def(batch_size=5, num_threads=1, device_id=None)
def records(files):
    indexes = [file.removesuffix("tfrecord") + "idx" for file in files]
    read = fn.readers.tfrecord(path=files, index_path=indexes, features=features)
    return tuple(read[name] for name in features)


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def arrays(files):
    return fn.readers.numpy(files=files)


found = {}
if sys.argv[2].endswith("tfrecord"):
    one = records(sys.argv[2:])
    one.build()
    found = {n: np.array(each.as_array()) for n, each in zip(features, one.run())}
for name in [] if found else sys.argv[3:]:
    files = sorted(map(str, Path(sys.argv[2]).glob(f"shard-*.{name}.npy")))
    one = arrays(files)
    one.build()
    found[name] = np.concatenate([np.array(one.run()[0].at(0)) for _ in files])
np.savez(sys.argv[1], **found)
"""


@pytest.fixture
def dali() -> None:
    """Skip where NVIDIA DALI is not installed; import it in a process of its own."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        pytest.skip("needs pip install 'iobench[dali]' (1 GB, not in the test extra)")


@pytest.mark.usefixtures("dali")
def test_dali_reads_equal_values_by_the_index(records, read_elsewhere):
    files, values = records
    found = read_elsewhere(READ_WITH_DALI, *files)
    for name in ("fields", "t2m", "month"):
        assert found[name].tobytes() == values[name].tobytes(), name


# ---- NumPy


ARRAYS = SampleSpec(
    (
        Variable("fields", (2, 96, 130), "f4", ("channel", *GRID), "K"),
        Variable("mask", (300, 300), "u1", GRID),
        Variable("level", (1 << 14,), "f8", ("x",)),
        Variable("half", (200, 200), "f2", GRID),
        Variable("code", (200, 200), "i2", GRID, packed=Packed("<f4", 0.5, 200.0)),
    )
)


def test_numpy_maps_equal_values(tmp_path):
    samples, values = stacked(ARRAYS)
    write_store(tmp_path / "large", FORMATS["numpy"], ARRAYS, samples, shard_n_samples=N_SAMPLES)
    for name, expected in values.items():
        mapped = np.load(tmp_path / f"large/shard-00000.{name}.npy", mmap_mode="r")
        assert mapped.offset % 64 == 0
        assert_equal({name: mapped}, {name: expected})
    samples, values = stacked(EVERY_DTYPE)
    write_store(
        tmp_path / "small", FORMATS["numpy"], EVERY_DTYPE, samples, shard_n_samples=N_SAMPLES
    )
    mapped = np.load(tmp_path / "small/shard-00000.npy", mmap_mode="r")
    assert mapped.offset % 64 == 0
    assert_equal({name: np.ascontiguousarray(mapped[name]) for name in values}, values)


@pytest.mark.usefixtures("dali")
def test_dali_reads_equal_arrays(tmp_path, read_elsewhere):
    samples, values = stacked(ARRAYS)
    store = write_store(tmp_path / "store", FORMATS["numpy"], ARRAYS, samples)
    assert len(store.manifest.shards) > 1
    assert_equal(read_elsewhere(READ_WITH_DALI, store.path, *ARRAYS.names), values)
