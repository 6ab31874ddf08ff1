"""Stores of objects in the ring: ranges straight to the batch, joined, and few at a time."""

from __future__ import annotations

import numpy as np
import pytest
from number_stores import write_numbers

import iobench
from iobench.errors import StoreError
from iobench.files import ranges as file_ranges
from iobench.files.urls import as_path
from iobench.loaders.ring.loader import RingLoader
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.order import BatchOrder
from iobench.loaders.ring.store_source import StoreSource
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import open_store

pytestmark = pytest.mark.timeout(120)


def uploaded(store, url):
    """Put a store's files into the bucket and open it there."""
    place = as_path(url)
    for path in sorted(store.path.rglob("*")):
        if path.is_file():
            (place / str(path.relative_to(store.path))).write_bytes(path.read_bytes())
    return open_store(url)


@pytest.fixture
def asked(monkeypatch):
    """Name, offset and length of every range that fillers ask for."""
    found: list[tuple[str, int, int]] = []

    def listening(ranges):
        found.extend((file.name, start, len(buffer)) for file, start, buffer in ranges)
        fill(ranges)

    fill = file_ranges.fill_remote
    monkeypatch.setattr(file_ranges, "fill_remote", listening)
    return found


def batches(source, **order):
    loader = RingLoader(source, BatchOrder(len(source), 7, **order), threads=2)
    found = [{name: array.copy() for name, array in batch.items()} for batch in loader]
    loader.close()
    return found


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("fmt", "options", "packed"),
    [
        ("numpy", {}, ""),
        ("zarr", {"codec": "blosc-lz4"}, "int16"),
        ("tfrecord", {}, ""),
        ("zarr", {}, ""),
    ],
)
def test_batches_are_those_of_the_local_store(make_store, bucket, fmt, options, packed, verify):
    names = ("plain", "more") if fmt == "tfrecord" else ("plain",)
    spec = SampleSpec(tuple(Variable(name, (5, 40), "<f4", ("y", "x")) for name in names))
    random = np.random.default_rng(1)
    samples = [{name: random.random((5, 40), "f4") for name in names} for _ in range(9)]
    ranges = dict.fromkeys(names, (0.0, 1.0))
    encoding = Encoding(dtypes={"": packed}, ranges=ranges) if packed else None
    local = make_store(spec, samples, fmt, options=options, shards=(5, 4), encoding=encoding)
    source = StoreSource(uploaded(local, f"s3://{bucket}/store"), verify=verify)
    expected = batches(StoreSource(local), shuffle=True, seed=1)
    for one, other in zip(batches(source, shuffle=True, seed=1), expected, strict=True):
        for name, array in one.items():
            assert np.array_equal(array, other[name])


def test_neighbours_are_asked_for_as_one(tmp_path, bucket, asked):
    local = write_numbers(tmp_path / "store", n_samples=16)
    store = uploaded(local, f"s3://{bucket}/store")
    source = StoreSource(store)
    asked.clear()
    batches(source)
    pitch = local.extents(1)[0].offset - local.extents(0)[0].offset
    assert len(asked) == 3  # one a batch, whatever lies between records with it
    assert sum(nbytes for _, _, nbytes in asked) <= 16 * pitch
    asked.clear()
    rows = {v.name: np.empty((3, *v.shape), v.dtype) for v in store.spec}
    source.filler().fill(np.array([5, 5, 6]), rows, BatchLog())
    assert rows["number"].tolist() == [5, 5, 6]


@pytest.mark.parametrize("options", [{}, {"inner-chunk": "y=2", "codec": "blosc-lz4"}])
def test_a_patch_is_all_that_is_asked_for(make_store, bucket, asked, options):
    shape = (2, 16, 1 << 17)  # a row is half a MiB, as much as a request is worth
    spec = SampleSpec((Variable("field", shape, "<f4", ("channel", "y", "x")),))
    samples = [{"field": np.random.default_rng(k).random(shape, "f4")} for k in range(2)]
    store = uploaded(make_store(spec, samples, "zarr", options=options), f"s3://{bucket}/store")
    loader = iobench.loader(store, 1, patch={"y": 2, "x": 1 << 16}, threads=1)
    asked.clear()
    assert len(loader) == len(samples)
    for batch in loader:
        where = loader.coordinates()
        y, x = int(where["y_start"][0]), int(where["x_start"][0])
        whole = samples[int(where["sample"][0])]["field"]
        assert np.array_equal(batch["field"][0], whole[:, y : y + 2, x : x + (1 << 16)])
    assert sum(nbytes for _, _, nbytes in asked) < spec.nbytes * (2 if options else 1) // 2
    loader.close()


def test_more_buffers_than_threads_wait_for_a_server_and_what_is_wrong_is_named(tmp_path, bucket):
    local = write_numbers(tmp_path / "store", n_samples=9)
    store = uploaded(local, f"s3://{bucket}/store")
    loader = iobench.loader(store, 4)
    assert (loader.threads, loader.depth) == (4, 6)
    assert sum(len(batch["number"]) for batch in loader) == 9
    loader.close()
    file = store.extents(0)[0].file
    data = file.read_bytes()
    end = store.extents(8)[0].offset + 4
    source = StoreSource(store)
    verified = StoreSource(store, verify=True)

    file.write_bytes(data[: end - 2] + b"??" + data[end:])
    with pytest.raises(StoreError, match="checksum of shard 0, sample 8"):
        batches(verified)
    file.write_bytes(data[:end])
    with pytest.raises(StoreError, match=f"{file.name}: ends before offset"):
        batches(source)
    file.unlink()
    with pytest.raises(StoreError, match=f"{file.name}: no such file any more"):
        batches(source)
