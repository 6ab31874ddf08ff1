"""Files of a store that are damaged, cut, missing, swapped or changed meanwhile: not in silence."""

from __future__ import annotations

import os

import numpy as np
import pytest

from iobench.errors import StoreError
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.store_source import StoreSource
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import CHECKSUMS_NAME
from iobench.stores.tfrecord import FRAME_NBYTES

SPEC = SampleSpec(
    (Variable("T", (20, 30), "<f4", ("y", "x")), Variable("q", (20, 30), "<f4", ("y", "x")))
)
ALL = [
    ("numpy", {}), ("tfrecord", {}), ("zarr", {}), ("zarr", {"codec": "blosc-lz4"}),
]  # fmt: skip
PLAIN = ALL[:3]


@pytest.fixture(params=[True, False])
def cached(request, monkeypatch):
    """Have extents read from mappings, and as where the page cache has them not."""
    monkeypatch.setattr("iobench.loaders.ring.store_source.is_cached", lambda *_: request.param)


def samples(n_samples):
    random = np.random.default_rng(3)
    return [
        {v.name: random.normal(size=v.shape).astype("f4") for v in SPEC} for _ in range(n_samples)
    ]


def rows_of(filler, chosen):
    rows = {v.name: np.empty((len(chosen), *v.shape), v.dtype) for v in SPEC}
    filler.fill(np.array(chosen), rows, BatchLog())
    return rows


def change(path, at):
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(("fmt", "options"), ALL)
def test_a_changed_bit_is_found_where_asked_for(make_store, fmt, options, cached):
    store = make_store(SPEC, samples(7), fmt, options=options, shards=[4, 3])
    extent = store.extents(5)[-1]
    filler = StoreSource(store, verify=True).filler()
    for chosen in ([0, 5, 1], [3, 2], [6]):
        for name, values in rows_of(filler, chosen).items():
            assert np.array_equal(values, [store[sample][name] for sample in chosen])
    change(extent.file, extent.offset + extent.nbytes - 20)
    assert rows_of(filler, [4, 6, 0])  # others are as they were
    with pytest.raises(StoreError, match=r"shard.*checksum of shard 1, sample 5, .*is wrong|c\.1"):
        rows_of(filler, [4, 5, 0])


@pytest.mark.parametrize(("fmt", "options"), PLAIN)
def test_swapped_shards_are_found_by_their_checksums(make_store, fmt, options, cached):
    store = make_store(SPEC, samples(6), fmt, options=options, shards=[3, 3])
    first, second = store.extents(0)[0].file, store.extents(3)[0].file
    assert first.stat().st_size == second.stat().st_size
    between = first.with_name("between")
    first.rename(between)
    second.rename(first)
    between.rename(second)
    with pytest.raises(StoreError, match="sample 4"):
        rows_of(StoreSource(store, verify=True).filler(), [4])


def test_stores_without_checksums_cannot_be_verified(make_store):
    store = make_store(SPEC, samples(2))
    (store.path / CHECKSUMS_NAME).unlink()
    with pytest.raises(StoreError, match=r"iobench\.crc32c is missing"):
        StoreSource(store, verify=True)


@pytest.mark.parametrize(("fmt", "options"), ALL)
def test_a_file_cut_short_is_an_error_and_never_zeros(make_store, fmt, options, cached):
    store = make_store(SPEC, samples(6), fmt, options=options, shards=[3, 3])
    filler = StoreSource(store).filler()
    rows_of(filler, [0, 5])
    file = store.extents(5)[0].file
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StoreError, match=r"its store was opened with|file ends at byte") as caught:
        rows_of(filler, [0, 5])
    assert str(file) in str(caught.value)


def test_a_record_with_other_tags_is_decoded_by_itself(make_store, cached):
    """The features of one record in another order: the same values all the same."""
    store = make_store(SPEC, samples(4), "tfrecord")
    expected = [store[sample] for sample in range(4)]
    extent = store.extents(2)[0]
    data = bytearray(extent.file.read_bytes())
    record = data[extent.offset : extent.offset + extent.nbytes]
    half = record.index(b"\n", len(record) // 2 - 30)
    head = len(record) - 2 * (len(record) - half)
    first, second = record[head:half], record[half:]
    assert len(first) == len(second)
    data[extent.offset + head : extent.offset + extent.nbytes] = second + first
    extent.file.write_bytes(data)
    rows = rows_of(StoreSource(store).filler(), [3, 2, 0])
    for name, values in rows.items():
        assert np.array_equal(values, [expected[sample][name] for sample in (3, 2, 0)])


def test_a_record_whose_tags_are_damaged_is_an_error(make_store, cached):
    store = make_store(SPEC, samples(4), "tfrecord")
    extent = store.extents(2)[0]
    change(extent.file, extent.offset + 10)
    filler = StoreSource(store).filler()
    assert rows_of(filler, [3, 0])
    with pytest.raises(StoreError, match="sample 2"):
        rows_of(filler, [3, 2, 0])
    assert FRAME_NBYTES == 16
