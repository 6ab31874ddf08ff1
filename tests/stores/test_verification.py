from __future__ import annotations

import os
import tracemalloc

import pytest
from msgspec.structs import replace

from iobench.errors import StoreError
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import CHECKSUMS_NAME, open_store
from iobench.stores.manifest import write_manifest
from iobench.stores.verification import PIECE_NBYTES, verify_store
from iobench.testing import flip_bit, random_sample, write_store
from iobench_converters import numpy_records, tfrecord

LARGE = SampleSpec(
    tuple(Variable(name, (160, 161), "f4", ("y", "x"), "K") for name in ("T", "u", "v"))
)
SMALL = SampleSpec((Variable("T", (3,), "f4", ("x",)), Variable("n", (), "i4", ())))
pytestmark = pytest.mark.timeout(60)


def make(path, spec=LARGE, fmt=numpy_records.FORMAT, n_samples=9, **more):
    samples = [random_sample(spec, seed) for seed in range(n_samples)]
    return write_store(path, fmt, spec, samples, shard_n_samples=4, **more)


def damage(store, sample, number):
    extent = store.extents(sample)[number]
    flip_bit(extent.file, extent.offset + extent.nbytes // 3)
    return extent


@pytest.mark.parametrize("fmt", [numpy_records.FORMAT, tfrecord.FORMAT], ids=["numpy", "tfrecord"])
@pytest.mark.parametrize("workers", [1, 4])
def test_all_bytes_are_read_once_and_told(tmp_path, fmt, workers):
    store = make(tmp_path / "store", fmt=fmt)
    told = []
    nbytes = verify_store(store, workers=workers, progress=lambda *done: told.append(done))
    assert nbytes == sum(file.nbytes for file in store.manifest.files)
    assert told[-1] == (nbytes, nbytes)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) >= nbytes / PIECE_NBYTES


@pytest.mark.parametrize("workers", [1, 4])
def test_shard_sample_and_array_of_the_first_failure_are_named(tmp_path, workers):
    store = make(tmp_path / "store")
    for sample, number in [(8, 0), (7, 0), (6, 2), (6, 1)]:
        extent = damage(store, sample, number)
        with pytest.raises(StoreError) as caught:
            verify_store(store, workers=workers)
        assert str(caught.value) == (
            f"{extent.file}: checksum of shard {sample // 4}, sample {sample}, array "
            f"{LARGE.names[number]!r} is wrong ({extent.nbytes} bytes from byte {extent.offset}); "
            "convert to a new folder"
        )


def test_arrays_of_one_stretch_are_all_named(tmp_path):
    store = make(tmp_path / "store", fmt=tfrecord.FORMAT)
    damage(store, 5, 0)
    with pytest.raises(StoreError, match="shard 1, sample 5, one of its arrays T, u, v"):
        verify_store(store)


def test_damaged_checksums_are_told_from_damaged_samples(tmp_path):
    store = make(tmp_path / "store")
    flip_bit(store.path / CHECKSUMS_NAME, 4 * 3 * 5)
    with pytest.raises(StoreError, match=f"{CHECKSUMS_NAME}: checksum of the file is wrong"):
        verify_store(store)


def test_a_file_that_is_gone_or_cut_since_is_named(tmp_path):
    store = make(tmp_path / "store")
    file = store.extents(8)[1].file
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(StoreError, match=rf"{file.name}: .*bytes"):
        verify_store(store)
    file.unlink()
    with pytest.raises(StoreError, match=f"{file.name} is missing"):
        verify_store(store)


def test_samples_in_a_file_of_another_shard_are_refused(tmp_path):
    store = make(tmp_path / "store")
    one, *others = store.manifest.shards
    swapped = replace(store.manifest, shards=(replace(one, files=one.files[:2]), *others))
    store.manifest = swapped
    with pytest.raises(StoreError, match=r"\.v\.npy: its store's manifest does not list it"):
        verify_store(store)


def test_metadata_files_are_checked(tmp_path):
    store = make(tmp_path / "store")
    (store.path / "about.json").write_bytes(b"{}")
    file = replace(store.manifest.shards[0].files[0], name="about.json", nbytes=2, crc32c=7)
    write_manifest(store.path, replace(store.manifest, metadata=(*store.manifest.metadata, file)))
    with pytest.raises(StoreError, match=r"about.json: checksum of the file is wrong"):
        verify_store(open_store(store.path))


def test_memory_does_not_grow_with_the_samples(tmp_path):
    spec = SampleSpec((Variable("x", (8 * PIECE_NBYTES,), "u1", ("n",)),))
    store = write_store(
        tmp_path / "store", numpy_records.FORMAT, spec, [random_sample(spec, 1)] * 4
    )
    verify_store(store, workers=2)
    tracemalloc.start()
    try:
        verify_store(store, workers=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * PIECE_NBYTES
