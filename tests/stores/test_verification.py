"""A store against its checksums, and its samples against the source they were made of."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest
from msgspec.structs import replace

from iobench.datasets.contract import SampleIndex
from iobench.datasets.sample_windows import samples_in_order
from iobench.errors import MissingFileError, StoreError
from iobench.files.crc32c import PIECE_NBYTES as CRC_NBYTES
from iobench.files.crc32c import crc32c, crc32c_of_file
from iobench.samples import SampleSpec, Variable
from iobench.stores.encoding import Encoding
from iobench.stores.finished_store import CHECKSUMS_NAME, open_store, read_checksums
from iobench.stores.manifest import write_manifest
from iobench.stores.verification import verify_against, verify_store
from iobench.testing import flip_bit, random_sample, write_store
from iobench_converters import numpy_records, tfrecord
from tests.support.made_up_dataset import MadeUpDataset

NUMPY, TFRECORD = numpy_records.FORMAT, tfrecord.FORMAT
LARGE = SampleSpec(
    tuple(Variable(name, (160, 161), "f4", ("y", "x"), "K") for name in ("T", "u", "v"))
)
pytestmark = pytest.mark.timeout(60)


def written(path, spec, n_samples, fmt=NUMPY):
    samples = [random_sample(spec, seed) for seed in range(n_samples)]
    return write_store(path, fmt, spec, samples, shard_n_samples=4)


@pytest.fixture
def large(tmp_path):
    return written(tmp_path / "store", LARGE, 9)


# ---- checksums


def damage(store, sample, number):
    extent = store.extents(sample)[number]
    flip_bit(extent.file, extent.offset + extent.nbytes // 3)
    return extent


@pytest.mark.parametrize("fmt", [NUMPY, TFRECORD], ids=["numpy", "tfrecord"])
@pytest.mark.parametrize("workers", [1, 4])
def test_all_bytes_are_read_once_and_told(tmp_path, fmt, workers):
    store, told = written(tmp_path / "store", LARGE, 9, fmt), []
    nbytes = verify_store(store, workers=workers, progress=lambda *done: told.append(done))
    assert nbytes == sum(file.nbytes for file in store.manifest.files)
    assert told[-1] == (nbytes, nbytes)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) == len(store.manifest.files)


@pytest.mark.parametrize("workers", [1, 4])
def test_file_shard_and_sample_of_the_first_failure_are_named(large, workers):
    for sample, number in [(8, 0), (7, 0), (6, 2), (6, 1)]:
        extent = damage(large, sample, number)
        with pytest.raises(StoreError) as caught:
            verify_store(large, workers=workers)
        assert str(caught.value) == (
            f"{extent.file}: checksum of shard {sample // 4}, sample {sample}, is wrong "
            f"({extent.nbytes} bytes from byte {extent.offset}); convert to a new folder"
        )


def test_what_is_beside_the_samples_is_checked_as_well(large):
    file = large.extents(8)[1].file
    flip_bit(large.path / CHECKSUMS_NAME, 4 * 3 * 5)
    with pytest.raises(StoreError, match=f"{CHECKSUMS_NAME}: checksum of the file is wrong"):
        verify_store(large)
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(StoreError, match=rf"{file.name}: .*bytes"):
        verify_store(large)
    file.unlink()
    with pytest.raises(StoreError, match=f"{file.name} is missing"):
        verify_store(large)
    one, *others = large.manifest.shards
    swapped = replace(large.manifest, shards=(replace(one, files=one.files[:2]), *others))
    large.manifest = swapped
    with pytest.raises(StoreError, match=r"\.v\.npy: its store's manifest does not list it"):
        verify_store(large)


def test_metadata_files_are_checked(large):
    (large.path / "about.json").write_bytes(b"{}")
    file = replace(large.manifest.shards[0].files[0], name="about.json", nbytes=2, crc32c=7)
    write_manifest(large.path, replace(large.manifest, metadata=(*large.manifest.metadata, file)))
    with pytest.raises(StoreError, match=r"about.json: checksum of the file is wrong"):
        verify_store(open_store(large.path))


def test_memory_does_not_grow_with_the_samples(tmp_path):
    spec = SampleSpec((Variable("x", (2 * CRC_NBYTES,), "u1", ("n",)),))
    store = write_store(tmp_path / "store", NUMPY, spec, [random_sample(spec, 1)] * 4)
    verify_store(store, workers=2)
    tracemalloc.start()
    try:
        verify_store(store, workers=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * CRC_NBYTES


def test_checksums_are_castagnolis_and_as_many_as_there_are_extents(tmp_path):
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, and every catalogue of CRCs
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    data = bytes(range(256)) * (CRC_NBYTES // 256) + b"more"
    (tmp_path / "a").write_bytes(data)
    assert crc32c_of_file(tmp_path / "a") == crc32c(data)
    with pytest.raises(StoreError, match=r"iobench\.crc32c is missing"):
        read_checksums(tmp_path, 2)
    for nbytes in (0, 7, 12):
        (tmp_path / CHECKSUMS_NAME).write_bytes(bytes(nbytes))
        with pytest.raises(StoreError, match=f"{nbytes} bytes, expected 8"):
            read_checksums(tmp_path, 2)


# ---- samples against their source


SPEC = SampleSpec(
    (
        Variable("T", (3, 5), "f4", ("y", "x"), "K"),
        Variable("mask", (4,), "u1", ("x",)),
        Variable("z", (), "c8", (), role="target"),
    )
)
DATASET = MadeUpDataset(SPEC)
INDEX = replace(DATASET.index(10), coordinate=[f"2020-01-{day:02}" for day in range(1, 11)])


def make(numbers):
    return samples_in_order(DATASET, INDEX, numbers)


def given(*samples):
    yield from samples


def changed(number, **values):
    """A way to make samples that gives one of them other values: ``T=(index, value)``."""

    def made(numbers):
        for one, sample in zip(numbers, make(numbers), strict=True):
            arrays = {name: array.copy() for name, array in sample.items()}
            for name, (index, value) in values.items() if one == number else ():
                arrays[name][index] = value
            yield arrays

    return made


@pytest.fixture(params=[NUMPY, TFRECORD], ids=["numpy", "tfrecord"])
def store(request, tmp_path):
    return written(tmp_path / "store", SPEC, 10, request.param)


def manifest_of(store, **changes):
    """Open the store again with another manifest."""
    write_manifest(store.path, replace(store.manifest, **changes))
    return open_store(store.path)


def refused(store, index, make):
    """Return what is said of the first difference, behind the store's path."""
    with pytest.raises(StoreError) as caught:
        verify_against(store, index, make)
    return str(caught.value).removeprefix(f"{store.path}: not as its source: ")


def test_a_store_of_its_source_is_the_same(store):
    told = []
    verify_against(store, INDEX, make, progress=lambda *done: told.append(done))
    assert told == [(done, 10) for done in range(1, 11)]


def test_the_first_difference_is_named(store):
    before = random_sample(SPEC, 6)["T"][2, 3]
    assert refused(store, INDEX, changed(6, T=((2, 3), 7.5))) == (
        f"shard 1, sample 6, which is 6 of the source (2020-01-07): T[2, 3] is {before!s}, in the "
        "source 7.5"
    )


QUIET, OTHER = (np.array(bits, "<u4").view("<f4") for bits in (0x7FC00000, 0x7FC00001))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[(0.0, -0.0), (np.nan, -np.nan), (1e-45, 0.0), (np.inf, np.nan), (np.inf, -np.inf)],
        (QUIET, OTHER),
    ],
)
def test_lossless_is_every_bit(tmp_path, one, other):
    spec = SampleSpec((Variable("x", (3,), "f4", ("x",)),))
    stored = {"x": np.array([1, one, 2], "f4")}
    source = {"x": np.array([1, other, 2], "f4")}
    store = write_store(tmp_path / "store", NUMPY, spec, [stored])
    index = SampleIndex(spec, [0])
    verify_against(store, index, lambda _: given(stored))
    said = refused(store, index, lambda _: given(source))
    assert said.startswith("shard 0, sample 0, which is 0 of the source: x[1] is ")
    if one is QUIET:
        assert said.endswith("nan (bytes 0000c07f), in the source nan (bytes 0100c07f)")


def test_samples_are_those_the_store_says_it_holds(tmp_path):
    chosen = [7, 2, 5]
    samples = [random_sample(SPEC, number) for number in chosen]
    store = write_store(tmp_path / "store", NUMPY, SPEC, samples)
    store = manifest_of(store, samples=tuple(chosen))
    verify_against(store, INDEX, make)
    said = refused(store, INDEX, changed(5, T=((0, 0), 1.0)))
    assert said.startswith("shard 1, sample 2, which is 5 of the source")


def test_another_source_is_refused(store):
    mask, z = SPEC["mask"], SPEC["z"]
    for index, said in [
        (replace(INDEX, spec=SampleSpec((SPEC["T"],))), "holds arrays T, mask, z, the source"),
        (replace(INDEX, spec=SampleSpec((replace(SPEC["T"], shape=(3, 6)), mask, z))), "T is <f4"),
        (replace(INDEX, spec=SampleSpec((replace(SPEC["T"], dtype="f8"), mask, z))), "makes <f8"),
        (DATASET.index(9), "holds sample 9 of its source, which has 9 now"),
    ]:
        with pytest.raises(StoreError, match=said):
            verify_against(store, index, make)
    for lossy in ({"T": 5}, {"T": {"max_absolute_error": "x"}}):
        with pytest.raises(StoreError, match="are damaged"):
            verify_against(manifest_of(store, lossy=lossy), INDEX, make)


def test_what_making_a_sample_raises_is_raised_and_the_maker_is_closed(store):
    closed = []

    def failing(numbers):
        try:
            yield random_sample(SPEC, 0)
            raise MissingFileError("a.nc is gone")
        finally:
            closed.append(True)

    with pytest.raises(MissingFileError, match=r"a\.nc"):
        verify_against(store, INDEX, failing)
    assert closed


FLOATS = SampleSpec((Variable("T", (6,), "f4", ("x",)), Variable("p", (6,), "f8", ("x",))))


def values_of(seed):
    random = np.random.default_rng(seed)
    return {"T": random.normal(280, 10, 6).astype("f4"), "p": random.normal(1e5, 10, 6)}


@pytest.mark.parametrize("dtype", ["float16", "int16"])
def test_a_lossy_store_is_within_its_errors_or_that_is_said(tmp_path, dtype):
    samples, index = [values_of(seed) for seed in range(4)], SampleIndex(FLOATS, range(4))
    rows = {name: np.stack([each[name] for each in samples]) for name in FLOATS.names}
    encoding = Encoding.parse(dtype=f"T={dtype}").learn(FLOATS, [(rows, str)])
    encoded, _ = encoding.encoder(FLOATS).encode(rows, str)
    stored = [{name: each[number] for name, each in encoded.items()} for number in range(4)]
    store = write_store(tmp_path, NUMPY, encoding.stored_spec(FLOATS), stored)
    off = [np.abs(store[n]["T"].astype("f8") - one["T"]).max() for n, one in enumerate(samples)]
    allowed = float(max(off))
    store = manifest_of(store, lossy={"T": {"max_absolute_error": allowed}})
    verify_against(store, index, lambda numbers: given(*map(values_of, numbers)))
    samples[3]["T"][4] += 2.5 * allowed
    said = refused(store, index, lambda _: given(*samples))
    assert "sample 3, which is 3 of the source: T[4] is " in said
    samples[3]["T"][4] = values_of(3)["T"][4]
    samples[3]["p"][2] = np.nextafter(samples[3]["p"][2], 0)
    assert "sample 3, which is 3 of the source: p[2] is " in refused(
        store, index, lambda _: given(*samples)
    )
