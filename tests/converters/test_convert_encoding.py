from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from converting import content, convert

from iobench.errors import SampleError, StoreError
from iobench.files.locks import JOURNAL_NAME
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.stores.manifest import read_manifest
from iobench.stores.tally import Tally
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord

SPEC = SampleSpec((Variable("x", (40,), "f4", ("x",), "K"), Variable("t", (), "i4", ())))
FORK = multiprocessing.get_context("fork")

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class Fields(MadeUpDataset):
    """Samples of which the values are known."""

    def __init__(self, number=-1, action=None):
        super().__init__(SPEC)
        self.number, self.action, self.reads = number, action, []

    def read(self, where):
        self.reads.append(where)
        if where == self.number:
            self.action()
        return super().read(where)

    def decode(self, raw, where):
        return values_of(int.from_bytes(raw[0], "little"))


def values_of(number):
    x = np.random.default_rng(number).normal(280 + number, 5, 40).astype("f4")
    return {"x": x, "t": np.array(number, "i4")}


@pytest.fixture(params=[tfrecord.FORMAT, numpy_records.FORMAT], ids=["tfrecord", "numpy"])
def fmt(request):
    return request.param


def run(path, fmt, *, dataset=None, **more):
    dataset = dataset or Fields()
    arguments = {"shard_nbytes": 200, "workers": 2, "encoding": Encoding.parse(dtype="float16")}
    return convert(dataset, dataset.index(9), fmt, path, **(arguments | more))


def test_what_is_stored_is_encoded_and_its_errors_are_in_the_manifest(tmp_path, fmt):
    tally = Tally()
    store = run(tmp_path / "store", fmt, tally=tally)
    largest = 0.0
    for number in range(9):
        x, kept = values_of(number)["x"], store[number]["x"]
        np.testing.assert_array_equal(kept.astype("f4"), x.astype("f2").astype("f4"))
        largest = max(largest, np.abs(x.astype("f8") - x.astype("f2").astype("f8")).max())
    assert store.manifest.lossy["x"]["max_absolute_error"] == largest
    assert set(store.manifest.lossy) == {"x"}
    assert store.manifest.spec["x"].dtype == "<f2"
    assert tally.nbytes["encode"] == 9 * store.manifest.spec.nbytes
    assert read_manifest(store.path) == store.manifest


def test_without_an_encoding_nothing_is_said_of_loss(tmp_path, fmt):
    run(tmp_path / "store", fmt, encoding=None)
    assert open_store(tmp_path / "store").manifest.lossy == {}


def test_shards_hold_the_bytes_asked_for_as_stored(tmp_path, fmt):
    half = run(tmp_path / "half", fmt, shard_nbytes=2 * 84)
    assert [shard.n_samples for shard in half.manifest.shards] == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_interrupted_it_ends_with_the_same_errors(tmp_path, fmt, dtype):
    encoding = Encoding.parse(dtype=dtype)

    def fail():
        dataset.reads.append("failed")
        if dataset.reads.count(5) == (2 if dtype == "int16" else 1):  # after the pass for ranges
            raise RuntimeError

    dataset = Fields(5, fail)
    with pytest.raises(RuntimeError):
        run(tmp_path / "store", fmt, dataset=dataset, encoding=encoding)
    again = Fields()
    run(tmp_path / "store", fmt, dataset=again, encoding=encoding)
    assert len(again.reads) < 9  # neither the ranges nor finished shards are made again
    run(tmp_path / "whole", fmt, encoding=encoding)
    assert content(tmp_path / "store") == content(tmp_path / "whole")


@pytest.mark.quick_cases(1)
def test_ranges_are_found_once_for_all_processes(tmp_path, fmt):
    encoding, barrier = Encoding.parse(dtype="int16"), FORK.Barrier(3)
    learnt = FORK.Value("i", 0)

    def note(line):
        with learnt:
            learnt.value += "read once" in line

    def at_once():
        barrier.wait()
        run(tmp_path / "store", fmt, encoding=encoding, notice=note)

    processes = [FORK.Process(target=at_once) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert learnt.value == 1
    run(tmp_path / "whole", fmt, encoding=encoding)
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_a_finished_store_with_ranges_is_opened_without_a_pass(tmp_path, fmt):
    encoding = Encoding.parse(dtype="int16")
    run(tmp_path / "store", fmt, encoding=encoding)
    again = Fields()
    run(tmp_path / "store", fmt, dataset=again, encoding=encoding)
    assert again.reads == []


def test_another_encoding_is_another_plan(tmp_path, fmt):
    run(tmp_path / "store", fmt)
    for encoding in (None, Encoding.parse(dtype="int16")):
        with pytest.raises(StoreError, match="made from something else"):
            run(tmp_path / "store", fmt, encoding=encoding)


def test_a_value_that_does_not_fit_names_the_sample_and_leaves_what_is_finished(tmp_path, fmt):
    class Large(Fields):
        def preprocess(self, arrays, where):
            return {**arrays, "x": arrays["x"] * (1e6 if arrays["t"] == 7 else 1)}

    with pytest.raises(SampleError, match=r"made-up sample 7.*x"):
        run(tmp_path / "store", fmt, dataset=Large(), workers=1)
    journal = tmp_path / "store" / JOURNAL_NAME
    assert (journal / "shard-00002.json").exists()
    assert not (tmp_path / "store" / "iobench.json").exists()
