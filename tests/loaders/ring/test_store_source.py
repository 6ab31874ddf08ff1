"""Batches filled from a store are its samples, however they are read; damage is not in silence."""

from __future__ import annotations

import os
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
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.store_source import PlainReader, StoreSource, source_of_store
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import CHECKSUMS_NAME
from iobench.testing.stores import flip_bit

LARGE, SMALL = (101, 163), (5, 7)
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
TWO = SampleSpec(
    (Variable("T", (20, 30), "<f4", ("y", "x")), Variable("q", (20, 30), "<f4", ("y", "x")))
)
CHECKED = [CONTAINERS[0], CONTAINERS[1], CONTAINERS[3], ("zarr", {"codec": "blosc-lz4"})]


@pytest.fixture(params=[True, False])
def cached(request, monkeypatch):
    """Have extents read from mappings, and as where the page cache has them not."""
    monkeypatch.setattr("iobench.loaders.ring.store_source.is_cached", lambda *_: request.param)
    return request.param


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


@pytest.mark.parametrize(("container", "shape"), CASES)
def test_rows_are_the_samples(make_store, container, shape, cached):
    fmt, options = container
    spec = spec_of(shape)
    store = make_store(spec, samples_of(spec, 9), fmt, options=options, shards=[4, 4, 1])
    for verify in (False, True):
        source = source_of_store(store, verify=verify)
        for chosen in ([8, 0, 5, 5, 3, 4, 1], [2], [0, 1, 2, 3]):
            assert_same(filled(source, chosen), store, chosen)


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


SPECS = st.lists(
    st.tuples(
        st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<i4", "<u2", "|u1", "|b1", "<c8"]),
        st.lists(st.integers(1, 5), max_size=3),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda pairs: SampleSpec(
        tuple(
            Variable(f"v{number}", tuple(shape), dtype, tuple("xyz"[: len(shape)]))
            for number, (dtype, shape) in enumerate(pairs)
        )
    )
)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("fmt", "options"), CONTAINERS[:4])
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=SPECS, chosen=st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_rows_are_the_samples_of_any_spec(store_writer, fmt, options, spec, chosen):
    samples = samples_of(spec, 6)
    with tempfile.TemporaryDirectory() as folder:
        store = store_writer(
            Path(folder), spec, samples, fmt, options=options, shards=[4, 2], encoding=None
        )
        source = pickle.loads(pickle.dumps(StoreSource(store, verify=True)))
        assert_same(filled(source, chosen), samples, chosen)
        store.close()


# -- damage ----------------------------------------------------------------------------------------


def two_rows(filler, chosen):
    rows = {v.name: np.empty((len(chosen), *v.shape), v.dtype) for v in TWO}
    filler.fill(np.array(chosen), rows, BatchLog())
    return rows


@pytest.mark.parametrize(("fmt", "options"), CHECKED)
def test_a_changed_bit_is_found_where_asked_for(make_store, fmt, options, cached):
    store = make_store(TWO, samples_of(TWO, 7), fmt, options=options, shards=[4, 3])
    extent = store.extents(5)[-1]
    filler = StoreSource(store, verify=True).filler()
    flip_bit(extent.file, extent.offset + extent.nbytes - 20)
    assert two_rows(filler, [4, 6, 0])  # others are as they were
    with pytest.raises(StoreError, match=r"shard.*checksum of shard 1, sample 5, .*is wrong|c\.1"):
        two_rows(filler, [4, 5, 0])


@pytest.mark.parametrize(("fmt", "options"), CHECKED[:3])
def test_swapped_shards_are_found_by_their_checksums(make_store, fmt, options, cached):
    store = make_store(TWO, samples_of(TWO, 6), fmt, options=options, shards=[3, 3])
    first, second = store.extents(0)[0].file, store.extents(3)[0].file
    assert first.stat().st_size == second.stat().st_size
    between = first.with_name("between")
    first.rename(between)
    second.rename(first)
    between.rename(second)
    with pytest.raises(StoreError, match="sample 4"):
        two_rows(StoreSource(store, verify=True).filler(), [4])


def test_stores_without_checksums_cannot_be_verified(make_store):
    store = make_store(TWO, samples_of(TWO, 2))
    (store.path / CHECKSUMS_NAME).unlink()
    with pytest.raises(StoreError, match=r"iobench\.crc32c is missing"):
        StoreSource(store, verify=True)


@pytest.mark.parametrize(("fmt", "options"), CHECKED)
def test_a_file_cut_short_is_an_error_and_never_zeros(make_store, fmt, options, cached):
    store = make_store(TWO, samples_of(TWO, 6), fmt, options=options, shards=[3, 3])
    filler = StoreSource(store).filler()
    two_rows(filler, [0, 5])
    file = store.extents(5)[0].file
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StoreError, match=r"its store was opened with|file ends at byte") as caught:
        two_rows(filler, [0, 5])
    assert str(file) in str(caught.value)


def test_a_record_with_other_tags_is_decoded_by_itself_and_a_damaged_one_refused(
    make_store, cached
):
    """The features of one record in another order: the same values all the same."""
    store = make_store(TWO, samples_of(TWO, 4), "tfrecord")
    expected = {sample: store[sample] for sample in (3, 2, 0)}
    extent = store.extents(2)[0]
    written = extent.file.read_bytes()
    data = bytearray(written)
    record = data[extent.offset : extent.offset + extent.nbytes]
    half = record.index(b"\n", len(record) // 2 - 30)
    head = len(record) - 2 * (len(record) - half)
    first, second = record[head:half], record[half:]
    assert len(first) == len(second)
    data[extent.offset + head : extent.offset + extent.nbytes] = second + first
    extent.file.write_bytes(data)
    filler = StoreSource(store).filler()
    for name, values in two_rows(filler, [3, 2, 0]).items():
        assert values.tobytes() == b"".join(each[name].tobytes() for each in expected.values())
    extent.file.write_bytes(written)
    flip_bit(extent.file, extent.offset + 10)
    assert two_rows(filler, [3, 0])
    with pytest.raises(StoreError, match="sample 2"):
        two_rows(filler, [3, 2, 0])
