"""Batches filled from a store are its samples, whatever the format and however they are read."""

from __future__ import annotations

import pickle
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.errors import StoreError
from iobench.files.open_files import FileSet
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.store_source import PlainReader, StoreSource, source_of_store
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding

LARGE, SMALL = (137, 160), (5, 7)
CONTAINERS: list[tuple[str, dict[str, str]]] = [
    ("numpy", {}),
    ("tfrecord", {}),
    ("tfrecord", {"encoding": "bytes"}),
    ("zarr", {}),
    ("zarr", {"inner-chunk": "y=3"}),
    ("zarr", {"codec": "shuffle,zstd"}),
    ("zarr", {"codec": "blosc-lz4", "inner-chunk": "y=4"}),
    ("zarr", {"chunk-samples": "4"}),
    ("zarr", {"chunk-samples": "2", "codec": "lz4", "inner-chunk": "y=3"}),
]
CASES = list(product(CONTAINERS, (LARGE, SMALL)))


def spec_of(shape):
    return SampleSpec(
        (
            Variable("T", shape, "<f4", ("y", "x"), "K"),
            Variable("q", shape, "<f4", ("y", "x")),
            Variable("p", shape, "<f8", ("y", "x"), role="target"),
            Variable("flag", shape, "|b1", ("y", "x")),
        )
    )


def samples_of(spec, n_samples):
    """Return samples of random bits: NaN of all kinds, -0.0 and subnormal numbers too."""
    random = np.random.default_rng(1)
    samples = []
    for _ in range(n_samples):
        sample = {}
        for variable in spec:
            data = random.integers(0, 256, variable.nbytes, dtype=np.uint8)
            if variable.dtype == "|b1":
                data &= 1
            sample[variable.name] = data.view(variable.dtype).reshape(variable.shape)
        samples.append(sample)
    return samples


def filled(source, chosen, log=None):
    rows = {v.name: np.full((len(chosen), *v.shape), 77, v.dtype) for v in source.spec}
    filler = source.filler()
    for _ in range(2):  # with memory that is used again, too
        filler.fill(np.array(chosen, dtype=np.int64), rows, log or BatchLog())
    filler.close()
    return rows


def assert_same(rows, store, chosen):
    for row, sample in enumerate(chosen):
        expected = store[sample]
        assert rows.keys() == expected.keys()
        for name, values in rows.items():
            assert values.dtype == expected[name].dtype
            assert values[row].tobytes() == expected[name].tobytes(), (name, row)


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize(("container", "shape"), CASES)
def test_rows_are_the_samples(make_store, monkeypatch, container, shape, is_cached):
    """Whether a file system evicts on request differs."""
    fmt, options = container
    spec = spec_of(shape)
    store = make_store(spec, samples_of(spec, 9), fmt, options=options, shards=[4, 4, 1])
    monkeypatch.setattr("iobench.loaders.ring.store_source.is_cached", lambda *_: is_cached)
    for chosen in ([8, 0, 5, 5, 3, 4, 1], [2]):
        assert_same(filled(source_of_store(store, verify=not is_cached), chosen), store, chosen)


@pytest.mark.parametrize(("container", "shape"), CASES)
def test_packed_numbers_are_unpacked_into_the_rows(make_store, container, shape):
    fmt, options = container
    spec = spec_of(shape)
    samples = samples_of(spec, 4)
    for number, sample in enumerate(samples):
        sample["T"] = np.linspace(200, 300 + number, sample["T"].size, dtype="f4").reshape(shape)
        sample["q"] = np.linspace(-1, number, sample["q"].size, dtype="f4").reshape(shape)
        sample["p"] = np.nan_to_num(sample["p"])
    encoding = Encoding(dtypes={"T": "float16", "q": "int16"}, ranges={"q": (-1, 5)})
    store = make_store(spec, samples, fmt, options=options, encoding=encoding)
    assert_same(filled(source_of_store(store), [3, 1, 0]), store, [3, 1, 0])


@pytest.mark.parametrize("verify", [False, True])
def test_whole_numbers_of_any_length_in_tfrecords(make_store, verify):
    """Varints of the first sample's length, others that take as many bytes, and longer ones."""
    spec = SampleSpec(
        (
            Variable("time", (), "<i8", ()),
            Variable("pair", (2,), "<i2", ("x",)),
            Variable("T", SMALL, "<f4", ("y", "x")),
            Variable("flag", SMALL, "|b1", ("y", "x")),
        )
    )
    samples = samples_of(spec, 7)
    times = (1_700_000_000, 1_700_003_600, -5, 3, 1_600_000_000, 2**62, 1_700_000_001)
    pairs = ((1, 300), (300, 1), (-1, 0), (1, 1), (2, 400), (1, 300), (9, 999))
    for sample, time, pair in zip(samples, times, pairs, strict=True):
        sample["time"] = np.array(time)
        sample["pair"] = np.array(pair, dtype="<i2")
    store = make_store(spec, samples, "tfrecord", shards=[4, 3])
    source = source_of_store(store, verify=verify)
    for chosen in ([6, 2, 0, 1, 3, 5, 4], [2, 5], [1, 4, 0]):
        assert_same(filled(source, chosen), store, chosen)
    assert isinstance(source.filler(), PlainReader)  # extents are read to rows


class NotedLog(BatchLog):
    """Keeps what would be recorded."""

    def __init__(self):
        super().__init__()
        self.recorder: Any = object()
        self.spans: list[tuple[Kind, int, int, int]] = []

    def add(self, kind, start_ns, end_ns, **more):
        self.spans.append((kind, start_ns, end_ns, more["nbytes"]))


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("container", CONTAINERS[:-2])
def test_a_batch_has_one_span_of_each_kind_of_work(make_store, container, shape):
    fmt, options = container
    spec = spec_of(shape)
    store = make_store(spec, samples_of(spec, 6), fmt, options=options, shards=[4, 2])
    source, log = source_of_store(store, verify=True), NotedLog()
    filler = source.filler()
    rows = {v.name: np.empty((3, *v.shape), v.dtype) for v in spec}
    filler.fill(np.array([5, 0, 2]), rows, log)
    kinds = [kind for kind, *_ in log.spans]
    decodes = not isinstance(filler, PlainReader) or container == ("tfrecord", {})
    assert sorted(kinds) == [Kind.READ, *([Kind.DECODE] if decodes else []), Kind.VERIFY]
    nbytes = sum(extent.nbytes for sample in (5, 0, 2) for extent in store.extents(sample))
    end_of_last = log.spans[0][1]
    for kind, start_ns, end_ns, found in log.spans:
        are_flags = kind is Kind.DECODE and container == ("tfrecord", {})  # the rest lies there
        assert found == (3 * spec["flag"].nbytes if are_flags else nbytes), kind
        assert end_of_last == start_ns <= end_ns
        end_of_last = end_ns


DTYPES = ["<f4", "<f8", "<f2", "<i8", "<i4", "<u2", "|u1", "|b1", "<c8"]
SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
SPECS = st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=4).map(
    lambda pairs: SampleSpec(
        tuple(
            Variable(f"v{number}", shape, dtype, tuple("xyz"[: len(shape)]))
            for number, (dtype, shape) in enumerate(pairs)
        )
    )
)
FORMATS = [("numpy", {}), ("tfrecord", {}), ("tfrecord", {"encoding": "bytes"}), ("zarr", {})]


@pytest.mark.parametrize(("fmt", "options"), FORMATS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=SPECS, chosen=st.lists(st.integers(0, 5), min_size=1, max_size=9), seed=st.integers(0))
def test_rows_are_the_samples_of_any_spec(store_writer, fmt, options, spec, chosen, seed):
    random = np.random.default_rng(seed)
    samples: list[dict[str, Any]] = []
    for _ in range(6):
        data = {v.name: random.integers(0, 256, v.nbytes, dtype=np.uint8) for v in spec}
        for variable in spec:
            if variable.dtype == "|b1":
                data[variable.name] &= 1
        samples.append({v.name: data[v.name].view(v.dtype).reshape(v.shape) for v in spec})
    with tempfile.TemporaryDirectory() as folder:
        store = store_writer(
            Path(folder), spec, samples, fmt, options=options, shards=[4, 2], encoding=None
        )
        source = pickle.loads(pickle.dumps(StoreSource(store, verify=True)))
        rows = {v.name: np.full((len(chosen), *v.shape), 7, v.dtype) for v in spec}
        filler = source.filler()
        filler.fill(np.array(chosen), rows, BatchLog())
        filler.close()
        for row, sample in enumerate(chosen):
            for name, values in rows.items():
                assert values[row].tobytes() == samples[sample][name].tobytes()
        store.close()


def test_thousands_of_views_are_filled_though_a_call_takes_fewer(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data := np.random.default_rng(0).bytes(5000))
    files, memory = FileSet([path], {}), bytearray(4990)
    views = [memoryview(memory)[at : at + 2] for at in range(0, 4990, 2)]
    files.opened(0).fill_views(views, 7, 4997)
    assert bytes(memory) == data[7:4997]
    with pytest.raises(StoreError, match="the file ends at byte 5000, 3 bytes more"):
        files.opened(0).fill(memoryview(bytearray(10)), 4993)
