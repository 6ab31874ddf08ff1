"""Stores with fewer bits, in every format: what readers get, with iobench and without."""

from __future__ import annotations

import json

import numpy as np
import pytest
from converting import content, convert

from iobench.datasets.sample_producer import samples_in_order
from iobench.errors import SampleError
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding, merge_errors
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_against, verify_store
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord, zarr_groups

FORMATS = {"numpy": numpy_records.FORMAT, "tfrecord": tfrecord.FORMAT, "zarr": zarr_groups.FORMAT}
N_SAMPLES = 7
pytestmark = pytest.mark.timeout(90)


def spec_of(shape):
    return SampleSpec(
        (
            Variable("T", shape, "f4", ("y", "x"), "K"),
            Variable("p", shape, "f8", ("y", "x"), "Pa", role="target"),
            Variable("land", shape, "i2", ("y", "x")),
        )
    )


class Weather(MadeUpDataset):
    """Values as they are in the atmosphere, and one that is not, if asked for."""

    bad: tuple[int, float] | None = None

    def decode(self, raw, where):
        number = int.from_bytes(raw[0], "little")
        random = np.random.default_rng(number)
        shape = self.spec["T"].shape
        arrays = {
            "T": random.normal(280, 10, shape).astype("f4"),
            "p": random.normal(1e5, 1e3, shape),
            "land": random.integers(-100, 100, shape, dtype="i2"),
        }
        if self.bad is not None and self.bad[0] == number:
            arrays["T"][1, 2] = self.bad[1]
        return {name: arrays[name] for name in self.spec.names}


@pytest.fixture(params=[(3, 4), (200, 201)], ids=["small", "large"])
def dataset(request):
    return Weather(spec_of(request.param))


@pytest.fixture(params=FORMATS)
def fmt(request):
    return FORMATS[request.param]


def make(dataset, fmt, path, encoding, **more):
    shard_nbytes = 3 * encoding.stored_nbytes(dataset.spec)
    return convert(
        dataset,
        dataset.index(N_SAMPLES),
        fmt,
        path,
        **{"shard_nbytes": shard_nbytes, "workers": 2, "encoding": encoding} | more,
    )


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(
    ("dtype", "read_as"),
    [
        (["T=float16", "p=int16"], {"T": "<f2", "p": "<f8"}),  # p is beyond float16
        (["int16"], {"T": "<f4", "p": "<f8"}),
    ],
    ids=["float16", "int16"],
)
def test_readers_get_values(tmp_path, dataset, fmt, dtype, read_as):
    encoding = Encoding.parse(dtype=dtype)
    store = open_store(make(dataset, fmt, tmp_path / "store", encoding).path)
    assert {name: store.spec[name].dtype for name in read_as} == read_as
    assert store.spec["land"].dtype == "<i2"
    assert store.manifest.spec.nbytes == 3 * 2 * int(np.prod(dataset.spec["T"].shape))

    index = dataset.index(N_SAMPLES)
    errors = []
    for number, sample in enumerate(samples_in_order(dataset, index, range(N_SAMPLES))):
        found = store[number]
        store.spec.check(found, where=f"sample {number}")
        assert found["land"].tobytes() == sample["land"].tobytes()
        off = {n: np.abs(found[n].astype("f8") - sample[n].astype("f8")) for n in ("T", "p")}
        errors.append({n: {"max_absolute_error": float(off[n].max())} for n in off})
        assert {n: found[n].tobytes() for n in found} == {
            n: array.tobytes() for n, array in store.__getitems__([number])[0].items()
        }
    told = store.manifest.lossy
    for name, largest in merge_errors(*errors).items():
        assert told[name]["max_absolute_error"] == largest["max_absolute_error"] > 0
    assert verify_store(store) > 0
    result = verify_against(store, index, lambda n: samples_in_order(dataset, index, n))
    assert result.same
    assert set(result.allowed) == {"T", "p"}


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_numpy_alone_reads_them(tmp_path, dtype):
    dataset = Weather(spec_of((200, 201)))
    encoding = Encoding.parse(dtype=f"T={dtype}")
    store = make(dataset, numpy_records.FORMAT, tmp_path / "store", encoding)
    told = json.loads((store.path / "iobench.json").read_text())["variables"][0]
    numbers = np.load(store.path / "shard-00001.T.npy", mmap_mode="r")
    if dtype == "float16":
        values = numbers
    else:
        packed = told["packed"]
        values = (numbers * packed["scale"] + packed["offset"]).astype(packed["dtype"])
    np.testing.assert_array_equal(values, np.stack([store[n]["T"] for n in (3, 4, 5)]))


def test_xarray_reads_scaled_numbers(tmp_path):
    xarray = pytest.importorskip("xarray", reason="a reader of CF attributes")
    pytest.importorskip("zarr", minversion="3", reason="xarray opens Zarr with it")
    dataset = Weather(spec_of((3, 4)))
    encoding = Encoding.parse(dtype=["T=int16", "p=int16"])
    store = make(dataset, zarr_groups.FORMAT, tmp_path / "store", encoding)
    with xarray.open_dataset(store.path, engine="zarr", chunks=None) as opened:
        for name in ("T", "p"):
            values = opened[name].values.astype(store.spec[name].dtype)
            assert values.tobytes() == b"".join(store[n][name].tobytes() for n in range(N_SAMPLES))
        assert opened["land"].dtype == np.int16


def test_packed_numbers_are_bytes_in_a_tfrecord(tmp_path):
    dataset = Weather(spec_of((200, 201)))
    store = make(dataset, tfrecord.FORMAT, tmp_path / "s", Encoding.parse(dtype=["T=int16"]))
    values = 200 * 201
    # T two bytes, p eight, land as varints of up to ten.
    assert store.manifest.nbytes < N_SAMPLES * values * (2 + 8 + 10) * 1.01
    dataset = Weather(SampleSpec((dataset.spec["T"],)))
    store = make(dataset, tfrecord.FORMAT, tmp_path / "t", Encoding.parse(dtype=["T=int16"]))
    assert store.manifest.nbytes < N_SAMPLES * values * 2 * 1.01


def test_runs_and_threads_give_the_same_bytes(tmp_path, fmt):
    dataset = Weather(spec_of((3, 4)))
    for name, workers in (("one", 1), ("two", 4)):
        make(dataset, fmt, tmp_path / name, Encoding.parse(dtype="int16"), workers=workers)
    one, two = (content(tmp_path / name) for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("options", "value", "said"),
    [
        ({"dtype": "T=float16"}, 1e5, r"sample 5: 100000.0 of T\[1, 2\] is beyond the largest"),
        ({"dtype": "T=int16"}, np.nan, r"sample 5: nan of T\[1, 2\] cannot be stored as int16"),
        (
            {"dtype": "T=int16", "ranges": "T=0:400"},
            401,
            r"sample 5: 401.0 of T\[1, 2\] is beyond the range",
        ),
    ],
    ids=["overflow", "nan", "range"],
)
def test_what_cannot_be_stored_names_sample_and_variable(tmp_path, options, value, said):
    dataset = Weather(spec_of((3, 4)))
    encoding = Encoding.parse(**options)
    dataset.bad = (5, value)
    with pytest.raises(SampleError, match=f"made-up {said}"):
        make(dataset, numpy_records.FORMAT, tmp_path / "store", encoding)
    assert not (tmp_path / "store" / "iobench.json").exists()


def test_tensorflow_reads_them(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="the other reader of TFRecords")
    dataset = Weather(spec_of((3, 4)))
    encoding = Encoding.parse(dtype=["T=float16", "p=int16"])
    store = make(dataset, tfrecord.FORMAT, tmp_path / "store", encoding)
    packed = store.manifest.spec["p"].packed
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("T", "p")}
    for number, item in enumerate(
        tf.data.TFRecordDataset(str(store.path / "shard-00000.tfrecord"))
    ):
        parsed = tf.io.parse_single_example(item, features)
        found = tf.io.decode_raw(parsed["T"], tf.float16).numpy().reshape(3, 4)
        np.testing.assert_array_equal(found, store[number]["T"])
        pressure = tf.cast(tf.io.decode_raw(parsed["p"], tf.int16), tf.float64)
        found = (pressure * packed.scale + packed.offset).numpy().reshape(3, 4)
        np.testing.assert_allclose(found, store[number]["p"], rtol=1e-15)
