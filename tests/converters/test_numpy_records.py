from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import iobench
from iobench.errors import StoreError
from iobench.files.crc32c import crc32c
from iobench.samples import SampleSpec, Variable
from iobench.stores.manifest import read_manifest
from iobench.stores.shard_writer import ShardPlan
from iobench.testing import EVERY_DTYPE, StoreTests, random_sample, side_by_side, write_store
from iobench_converters.numpy_records import (
    FORMAT,
    file_dtypes,
    is_one_record,
    npy_header,
)

LARGE = SampleSpec(
    (Variable("x", (128, 128), "f4", ("y", "x")), Variable("t", (256, 256), "f2", ("y", "x")))
)


class TestNumpyStore(StoreTests):
    format = FORMAT


def test_small_variables_share_one_memory_mappable_file(tmp_path):
    samples = [random_sample(EVERY_DTYPE, seed) for seed in range(3)]
    write_store(tmp_path, FORMAT, EVERY_DTYPE, samples, shard_n_samples=3)
    mapped = np.load(tmp_path / "shard-00000.npy", mmap_mode="r")
    assert is_one_record(EVERY_DTYPE)
    assert (mapped.shape, mapped.dtype) == ((3,), file_dtypes(EVERY_DTYPE)[0])
    assert mapped.offset % 64 == 0
    for row, sample in zip(mapped, samples, strict=True):
        assert all(row[name].tobytes() == array.tobytes() for name, array in sample.items())


def test_large_variables_have_a_memory_mappable_file_each(tmp_path):
    samples = [random_sample(LARGE, seed) for seed in range(3)]
    write_store(tmp_path, FORMAT, LARGE, samples, shard_n_samples=3)
    for variable in LARGE:
        mapped = np.load(tmp_path / f"shard-00000.{variable.name}.npy", mmap_mode="r")
        assert mapped.offset % 64 == 0
        assert mapped.shape == (3, *variable.shape)
        for row, sample in zip(mapped, samples, strict=True):
            assert row.tobytes() == sample[variable.name].tobytes()


def test_samples_without_values_are_samples(tmp_path):
    spec = SampleSpec((Variable("a", (0, 3), "<f4", ("x", "y")),))
    store = write_store(tmp_path, FORMAT, spec, [{"a": np.zeros((0, 3), "<f4")}] * 3)
    assert [store[number]["a"].shape for number in range(3)] == [(0, 3)] * 3
    loader = iobench.loader(store, 2)
    assert [batch["a"].shape for batch in loader] == [(2, 0, 3), (1, 0, 3)]
    loader.close()


def test_variable_of_64_kib_has_a_file_of_its_own():
    at_limit = SampleSpec((Variable("x", (1 << 14,), "f4", ("x",)),))
    below = SampleSpec((Variable("x", ((1 << 14) - 1,), "f4", ("x",)),))
    assert (is_one_record(at_limit), is_one_record(below)) == (False, True)


def test_names_that_are_no_file_names_stay_inside_the_folder(tmp_path):
    shape, dims = (1 << 14,), ("x",)
    spec = SampleSpec(tuple(Variable(name, shape, "f4", dims) for name in ("../a", "T", "t", "u")))
    store = write_store(tmp_path, FORMAT, spec, [random_sample(spec, 0)])
    names = [file.name for file in store.manifest.shards[0].files]
    assert [name.removeprefix("shard-00000") for name in names] == [
        ".variable-0.npy",
        ".variable-1.npy",
        ".variable-2.npy",
        ".u.npy",
    ]


@pytest.mark.parametrize("n_samples", [1, 3, 7])
def test_header_says_how_many_came_whatever_was_announced(tmp_path, n_samples):
    writer = FORMAT.writer(tmp_path, EVERY_DTYPE, ShardPlan(0, n_samples, 7), {})
    rows = side_by_side(EVERY_DTYPE, [random_sample(EVERY_DTYPE, seed) for seed in range(3)])
    writer.append(FORMAT.encoder(EVERY_DTYPE, {})(rows))
    (file,) = writer.close().shard.files
    assert np.load(tmp_path / file.name, mmap_mode="r").shape == (3,)
    assert file.crc32c == crc32c((tmp_path / file.name).read_bytes())


@given(st.integers(0, 10**19), st.integers(0, 10**19))
def test_header_has_one_length_for_any_number_of_samples(few, many):
    dtype = file_dtypes(EVERY_DTYPE)[0]
    assert len(npy_header(dtype, few)) == len(npy_header(dtype, many))
    assert len(npy_header(dtype, few)) % 64 == 0


@pytest.mark.parametrize(
    ("fields", "version"), [([("t2m", "f4", (3,))], (1, 0)), ([("température", "f4")], (3, 0))]
)
def test_header_has_the_lowest_version_that_can_hold_it(tmp_path, fields, version):
    """DALI's reader knows version 1.0 alone; NumPy reads names beyond Latin-1 in 3.0 alone."""
    array = np.zeros(2, dtype=fields)
    file = tmp_path / "x.npy"
    file.write_bytes(npy_header(array.dtype, 2) + array.tobytes())
    with file.open("rb") as stream:
        assert np.lib.format.read_magic(stream) == version
    assert np.load(file).dtype == array.dtype


def replace_first_file(store, content):
    """Put other bytes of the same length where the first shard's file is."""
    file = store.path / store.manifest.shards[0].files[0].name
    nbytes = file.stat().st_size
    file.write_bytes(content.ljust(nbytes, b"\0")[:nbytes])


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Harmful()),
        b"\x93NUMPY\x01\x00\x76\x00" + pickle.dumps(Harmful()),
        npy_header(np.dtype("O"), 1) + pickle.dumps(Harmful()),
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff",
    ],
)
def test_a_header_is_compared_and_a_pickle_never_executed(tmp_path, content):
    store = write_store(tmp_path, FORMAT, LARGE, [random_sample(LARGE, 0)])
    replace_first_file(store, content)
    with pytest.raises(StoreError, match=r"x\.npy: not an \.npy file of 1 samples"):
        FORMAT.open(tmp_path, read_manifest(tmp_path))
