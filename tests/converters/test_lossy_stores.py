"""Stores with fewer bits, in every format: what readers get, with iobench and without."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
from converting import content, convert

from iobench.datasets.sample_windows import samples_in_order
from iobench.errors import StoreError
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_against, verify_store
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord, zarr_groups

FORK = multiprocessing.get_context("fork")
FORMATS = {"numpy": numpy_records.FORMAT, "tfrecord": tfrecord.FORMAT, "zarr": zarr_groups.FORMAT}
N = 7
SMALL, LARGE = (3, 4), (200, 201)
pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class Weather(MadeUpDataset):
    """Values as they are in the atmosphere, and ``bad`` ones of samples.

    Sample 5 is read ``n_reads`` times, then the process is killed.
    """

    def __init__(self, shape=SMALL, bad=None, n_reads=99):
        dims = ("y", "x")
        super().__init__(
            SampleSpec(
                (
                    Variable("T", shape, "f4", dims, "K"),
                    Variable("p", shape, "f8", dims, "Pa", role="target"),
                    Variable("land", shape, "i2", dims),
                )
            )
        )
        self.bad, self.n_reads, self.reads = bad or {}, n_reads, []

    def read(self, where):
        self.reads.append(where)
        if self.reads.count(5) > self.n_reads:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(where)

    def decode(self, raw, where):
        number = int.from_bytes(raw[0], "little")
        random = np.random.default_rng(number)
        shape = self.spec["T"].shape
        arrays = {
            "T": random.normal(280, 10, shape).astype("f4"),
            "p": random.normal(1e5, 1e3, shape),
            "land": random.integers(-100, 100, shape, dtype="i2"),
        }
        if number in self.bad:
            arrays["T"][1, 2] = self.bad[number]
        return {name: arrays[name] for name in self.spec.names}


@pytest.fixture(params=FORMATS)
def fmt(request):
    return FORMATS[request.param]


def make(path, fmt, dtype="float16", *, dataset=None, ranges=None, **more):
    """Convert to shards of three samples."""
    dataset, encoding = dataset or Weather(), Encoding.parse(dtype=dtype, ranges=ranges)
    nbytes = (
        3 * (encoding.stored_spec(dataset.spec, guess=True) if encoding else dataset.spec).nbytes
    )
    more = {"shard_nbytes": nbytes, "workers": 2, "encoding": encoding} | more
    return convert(dataset, dataset.index(N), fmt, path, **more)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("dtype", "read_as"),
    [
        (["T=float16", "p=int16"], {"T": "<f2", "p": "<f8"}),  # p is beyond float16
        (["int16"], {"T": "<f4", "p": "<f8"}),
    ],
    ids=["float16", "int16"],
)
def test_readers_get_values_and_their_errors(tmp_path, shape, fmt, dtype, read_as):
    dataset = Weather(shape)
    store = open_store(make(tmp_path / "store", fmt, dtype, dataset=dataset).path)
    assert [shard.n_samples for shard in store.manifest.shards] == [3, 3, 1]
    assert {name: store.spec[name].dtype for name in read_as} == read_as
    assert store.spec["land"].dtype == "<i2"
    assert store.manifest.spec.nbytes == 3 * 2 * int(np.prod(shape))
    index = dataset.index(N)
    made = list(samples_in_order(dataset, index, range(N)))
    found = store.__getitems__(range(N))
    for number, sample in enumerate(found):
        store.spec.check(sample, where=f"sample {number}")
        assert sample["land"].tobytes() == made[number]["land"].tobytes()
        assert {n: each.tobytes() for n, each in store[number].items()} == {
            n: each.tobytes() for n, each in sample.items()
        }
    assert set(store.manifest.lossy) == {"T", "p"}
    for name, told in store.manifest.lossy.items():
        before, after = (
            np.stack([one[name] for one in all_]).astype("f8") for all_ in (made, found)
        )
        off = after - before
        assert told["max_absolute_error"] == np.abs(off).max() > 0
        assert told["rmse"] == pytest.approx(np.sqrt((off**2).mean()), rel=5e-5)
        assert told["bias"] == pytest.approx(off.mean(), abs=7e-6 * off.std())
        for when, values in (("before", before), ("after", after)):
            assert told[when]["std"] == pytest.approx(values.std(), rel=5e-5)
            assert told[when]["mean"] == pytest.approx(values.mean(), abs=7e-6 * values.std())
            assert (told[when]["min"], told[when]["max"]) == (values.min(), values.max())
    assert store.manifest.statistics["all"]["T"]["std"] == store.manifest.lossy["T"]["after"]["std"]
    assert verify_store(store) > 0
    result = verify_against(store, index, lambda n: samples_in_order(dataset, index, n))
    assert result.same
    assert set(result.allowed) == {"T", "p"}


def test_errors_of_missing_values_are_those_of_the_others(tmp_path):
    dataset = Weather(bad={2: np.nan, 4: np.nan})
    told = make(tmp_path / "store", FORMATS["numpy"], "T=float16", dataset=dataset).manifest.lossy
    assert [told["T"][when]["n_missing"] for when in ("before", "after")] == [2, 2]
    made = list(samples_in_order(dataset, dataset.index(N), range(N)))
    values = np.stack([each["T"] for each in made]).astype("f8")
    assert told["T"]["before"]["std"] == pytest.approx(np.nanstd(values), rel=5e-5)


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_numpy_alone_reads_them(tmp_path, dtype):
    store = make(tmp_path / "store", FORMATS["numpy"], f"T={dtype}", dataset=Weather(LARGE))
    told = json.loads((store.path / "iobench.json").read_text())["variables"][0]
    values = np.load(store.path / "shard-00001.T.npy", mmap_mode="r")
    if dtype == "int16":
        packed = told["packed"]
        values = (values * packed["scale"] + packed["offset"]).astype(packed["dtype"])
    np.testing.assert_array_equal(values, np.stack([store[n]["T"] for n in (3, 4, 5)]))


def test_tensorflow_reads_them(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="the other reader of TFRecords")
    store = make(tmp_path / "store", FORMATS["tfrecord"], ["T=float16", "p=int16"])
    packed = store.manifest.spec["p"].packed
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("T", "p")}
    records = tf.data.TFRecordDataset(str(store.path / "shard-00000.tfrecord"))
    for number, item in enumerate(records):
        parsed = tf.io.parse_single_example(item, features)
        found = tf.io.decode_raw(parsed["T"], tf.float16).numpy().reshape(SMALL)
        np.testing.assert_array_equal(found, store[number]["T"])
        pressure = tf.cast(tf.io.decode_raw(parsed["p"], tf.int16), tf.float64)
        found = (pressure * packed.scale + packed.offset).numpy().reshape(SMALL)
        np.testing.assert_allclose(found, store[number]["p"], rtol=1e-15)


def in_process(path, *arguments, **more):
    process = FORK.Process(target=make, args=(path, *arguments), kwargs=more)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", ["T=float16", "int16"])
def test_the_bytes_are_the_same_however_it_was_made(tmp_path, fmt, dtype):
    make(tmp_path / "alone", fmt, dtype, workers=1)
    expected = content(tmp_path / "alone")
    make(tmp_path / "many", fmt, dtype, workers=4)
    assert content(tmp_path / "many") == expected
    killed = tmp_path / "killed"
    first = Weather(n_reads=0 if dtype == "T=float16" else 1)  # ranges are learnt in a pass before
    assert in_process(killed, fmt, dtype, dataset=first, workers=1) == -signal.SIGKILL
    again = Weather()
    make(killed, fmt, dtype, dataset=again)
    assert len(again.reads) <= N  # ranges are known
    assert content(killed) == expected
    for part in (1, 2):
        assert in_process(tmp_path / "parts", fmt, dtype, part=(part, 2)) == 0
    assert content(tmp_path / "parts") == expected


def test_what_was_learnt_and_finished_is_not_made_again(tmp_path, fmt):
    path = tmp_path / "store"
    make(path, fmt, "int16")
    again = Weather()
    make(path, fmt, "int16", dataset=again)
    assert again.reads == []
    for dtype in ("float16", None):
        with pytest.raises(StoreError, match="made from something else"):
            make(path, fmt, dtype)
