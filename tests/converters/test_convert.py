"""The converter called as others call it: what a store holds, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np
import pytest
from converting import FORMATS, N_SAMPLES, SPEC, Acting, convert, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.datasets.sample_windows import samples_in_order
from iobench.errors import OptionError, SampleError, StoreError
from iobench.recording import clocks
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store
from iobench.stores.plan import StoreRequest
from iobench.stores.shard_writer import ShardPlan
from iobench.stores.verification import verify_against, verify_store
from iobench.testing import random_sample
from iobench_converters import numpy_records, tfrecord, zarr_groups
from tests.support.made_up_dataset import MadeUpDataset

FACTS = {"dates": ["1998-01-01"], "normalisation": {"epsilon": 0.1}}
pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("fmt", FORMATS)
def test_store_holds_the_dataset(tmp_path, fmt):
    path, dataset = tmp_path / "store", Acting()
    store = run(path, fmt, samples=[7, 0, 3], index=dataset.index(N_SAMPLES, **FACTS))
    expected = list(samples_in_order(dataset, dataset.index(N_SAMPLES), [7, 0, 3]))
    for position, sample in enumerate(expected):
        found = store[position]
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in sample.items()
        }
    manifest = store.manifest
    assert manifest.samples.tolist() == [7, 0, 3]
    assert (manifest.dataset, len(manifest.shards)) == ("made-up", 2)
    assert manifest.normalisation == {"epsilon": 0.1}
    assert manifest.provenance == {
        "dates": ["1998-01-01"], "versions": {"iobench": version("iobench")},
    }  # fmt: skip
    assert verify_store(store) > 0
    text = (path / "iobench.json").read_text()  # knows no time, host or process
    assert socket.gethostname() not in text
    assert str(tmp_path) not in text
    assert not [key for key in json.loads(text) if "time" in key or "pid" in key]
    assert json.loads((path / ".iobench-item.json").read_text())["kind"] == "probe"
    again = Acting()
    run(path, fmt, samples=[7, 0, 3], index=dataset.index(N_SAMPLES, **FACTS), dataset=again)
    assert again.reads == []  # what is finished is opened


@pytest.mark.parametrize(
    "change",
    [
        {"samples": [1]},
        {"options": {"encoding": "bytes"}},
        {"index": Acting().index(N_SAMPLES, dates=["1999-01-01"])},
        {"shard_nbytes": 1 << 20},
        {"limit_s": 60.0},
        {"encoding": Encoding.parse(dtype="float16")},
        {"fmt": numpy_records.FORMAT},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_plan_is_refused_and_has_another_name(tmp_path, change):
    dataset = Acting()
    run(tmp_path / "store")
    with pytest.raises(StoreError, match="made from something else"):
        run(tmp_path / "store", **change)
    index = dataset.index(N_SAMPLES)
    here = StoreRequest(dataset, index, tfrecord.FORMAT, tmp_path, shard_nbytes=2 * SPEC.nbytes)
    assert replace(here, **change).plan().name != here.plan().name


class Wrong(Acting):
    def preprocess(self, arrays, where):
        return {**arrays, "x": arrays["x"][:2]}


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"samples": []}, OptionError, "samples from 0 to 9"),
        ({"samples": [10]}, OptionError, "samples from 0 to 9"),
        ({"samples": [-1]}, OptionError, "samples from 0 to 9"),
        ({"dataset": Wrong()}, SampleError, "made-up sample 0: array 'x'"),
    ],
)
def test_what_cannot_be_converted(tmp_path, more, error, said):
    with pytest.raises(error, match=said):
        run(tmp_path / "store", **more)


def test_progress_counts_to_the_end(tmp_path):
    seen = []
    run(tmp_path / "store", progress=lambda *now: seen.append(now))
    assert seen == sorted(set(seen))
    assert seen[-1] == (10, 10)
    assert len(seen) >= 5  # once a shard at least


def test_dataset_that_does_not_say_it_may_is_not_used_by_two_threads(tmp_path):
    class Alone(Acting):
        thread_safe = False

        def read(self, where):
            threads.add(threading.get_ident())
            return super().read(where)

    threads = set()
    run(tmp_path / "store", dataset=Alone(), workers=4)
    assert len(threads) == 1


def test_store_of_a_later_version_is_refused(tmp_path):
    run(tmp_path / "later", fmt=dataclasses.replace(tfrecord.FORMAT, version=2))
    with pytest.raises(StoreError, match="layout version 2 of tfrecord"):
        open_store(tmp_path / "later")


@pytest.mark.parametrize("case", ["zarr", "zarr of chunks", "numpy"])
@pytest.mark.parametrize("last", [0, 1, 3, 4])
def test_a_probe_that_ends_early_has_the_shape_of_what_it_holds(tmp_path, monkeypatch, last, case):
    zarr = pytest.importorskip("zarr", minversion="3", reason="needs pip install 'iobench[zarr]'")
    clock = {"ns": 0}
    monkeypatch.setattr(clocks, "now_ns", lambda: clock["ns"])
    dataset = Acting(last, lambda: clock.update(ns=100_000_000_000))
    store = run(tmp_path / "store", case, dataset=dataset, limit_s=60)
    held = len(store)
    assert 1 <= held < N_SAMPLES
    assert store.manifest.samples == range(held)
    samples = list(samples_in_order(Acting(), Acting().index(N_SAMPLES), range(held)))
    expected = np.stack([sample["x"] for sample in samples])
    np.testing.assert_array_equal(np.stack([store[n]["x"] for n in range(held)]), expected)
    if case != "numpy":
        read = zarr.open_group(store.path, mode="r")["x"][:]
        assert read.tobytes() == expected.tobytes()
    verify_store(store)


# ---- every bit, in every format


DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16"]
SPECIAL = [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 5e-324]
SHAPES = st.lists(st.integers(1, 6), max_size=3).map(tuple) | st.just((3, 80, 81))
SPECS = st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1, max_size=4).map(
    lambda given: SampleSpec(
        tuple(
            Variable(f"v{number}", shape, dtype, tuple(f"d{axis}" for axis in range(len(shape))))
            for number, (shape, dtype) in enumerate(given)
        )
    )
)


class Special(MadeUpDataset):
    """Random bits, and among them what is easily lost."""

    def decode(self, raw, where):
        arrays = random_sample(self.spec, int.from_bytes(raw[0], "little"))
        for array in arrays.values():
            if array.dtype.kind == "f":
                flat = array.reshape(-1)
                with np.errstate(under="ignore"):
                    flat[: len(SPECIAL)] = np.array(SPECIAL[: flat.size], array.dtype)
        return arrays


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fmt=st.sampled_from(list(FORMATS)), spec=SPECS, n_samples=st.integers(1, 5),
    shard_n_samples=st.integers(1, 3),
)  # fmt: skip
def test_every_bit_comes_back(tmp_path, fmt, spec, n_samples, shard_n_samples):
    path = tmp_path / "store"
    shutil.rmtree(path, ignore_errors=True)
    dataset = Special(spec)
    index, nbytes = dataset.index(n_samples), shard_n_samples * spec.nbytes
    store = convert(dataset, index, FORMATS[fmt], path, shard_nbytes=nbytes, workers=2)
    assert (len(store), store.spec) == (n_samples, spec)
    assert store.manifest.lossy == {}
    made = list(samples_in_order(dataset, index, range(n_samples)))
    for number, sample in enumerate(made):
        found = store[number]
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in sample.items()
        }
    verify_store(store, workers=2)
    verify_against(store, index, lambda numbers: (made[n] for n in numbers))
    store.close()


# ---- what small samples cost: calls are counted, no time is taken


COLUMNS = SampleSpec(
    (
        Variable("levels", (40, 5), "f4", ("level", "quantity")),
        Variable("halves", (41, 2), "f4", ("half_level", "quantity")),
        Variable("scalars", (7,), "f4", ("quantity",)),
    )
)


@contextmanager
def counted():
    """Count calls of all functions, and those of others than Python's by name."""
    calls = Counter()

    def count(frame, event, called):
        if event == "call":
            calls["all"] += 1
        elif event == "c_call":
            calls["all"] += 1
            calls[called.__name__] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_of_writing(folder, fmt, options, n_samples):
    samples = [random_sample(COLUMNS, seed % 4) for seed in range(500)]
    rows = {name: np.stack([each[name] for each in samples]) for name in COLUMNS.names}
    folder.mkdir()
    with counted() as calls:
        writer = fmt.writer(folder, COLUMNS, ShardPlan(0, n_samples, n_samples), options)
        encode = fmt.encoder(COLUMNS, options)
        for _ in range(n_samples // 500):
            writer.append(encode(rows))
        writer.close()
    return calls


@pytest.mark.parametrize(
    ("fmt", "options"),
    [
        (numpy_records.FORMAT, {}),
        (tfrecord.FORMAT, {}),
        (tfrecord.FORMAT, {"encoding": "bytes"}),
        (zarr_groups.FORMAT, {}),
        (zarr_groups.FORMAT, {"inner-chunk": "level=16"}),
    ],
    ids=str,
)
def test_calls_of_a_sample_do_not_grow_with_their_number(tmp_path, fmt, options):
    few = calls_of_writing(tmp_path / "few", fmt, options, 1000)
    many = calls_of_writing(tmp_path / "many", fmt, options, 4000)
    assert many["all"] <= 4.05 * few["all"]
    assert many["all"] <= 20 * 4000  # a check, and for each array its copy and its checksum
    assert many["write"] <= 4 * few["write"] <= 40


# ---- on the workers of a dask.distributed cluster


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # the library's own, of ports and processes that end
@pytest.mark.parametrize("happens", ["", "worker dies", "driver fails"])
def test_workers_of_a_cluster_write_the_same_store(tmp_path, happens):
    distributed = pytest.importorskip("distributed", reason="needs dask.distributed")
    path, seen = tmp_path / "store", []
    dataset = MadeUpDataset(SPEC)
    common = {"dataset": dataset, "index": dataset.index(100)}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:

        def progress(done, total):
            if happens == "worker dies" and not seen:
                os.kill(cluster.workers[0].pid, 9)
            seen.append((done, total))
            if happens == "driver fails":
                raise RuntimeError

        try:
            run(path, scheduler=cluster.scheduler_address, progress=progress, **common)
        except RuntimeError:
            assert happens == "driver fails"
    store, alone = run(path, **common), run(tmp_path / "alone", **common)
    assert store.manifest == alone.manifest
    assert seen[-1] == (100, 100) or happens == "driver fails"


def test_an_address_where_nothing_answers_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="needs dask.distributed")
    monkeypatch.setattr("iobench_converters.on_dask.CONNECT_S", 0.5)
    with pytest.raises(OptionError, match="no dask scheduler answers"):
        run(tmp_path / "store", scheduler="tcp://127.0.0.1:9")
