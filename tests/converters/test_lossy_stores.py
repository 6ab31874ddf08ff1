"""Stores with fewer bits, in every format: what readers get, with iobench and without."""

from __future__ import annotations

import json

import numpy as np
import pytest
from converting import FORMATS, convert

from iobench.datasets.sample_windows import samples_in_order
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_against, verify_store
from tests.support.made_up_dataset import MadeUpDataset

N = 7
SMALL, LARGE = (3, 4), (200, 201)
pytestmark = pytest.mark.timeout(90)


class Weather(MadeUpDataset):
    """Values as they are in the atmosphere, and ``bad`` ones of samples."""

    def __init__(self, shape=SMALL, bad=None):
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
        self.bad = bad or {}

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
    verify_against(store, index, lambda n: samples_in_order(dataset, index, n))


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
