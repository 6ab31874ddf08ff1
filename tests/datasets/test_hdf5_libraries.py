"""Filters of HDF5 that are not undone here are h5py's: samples are equal to what it reads."""

import numpy as np
import pytest

import iobench
from iobench.cli import main
from iobench.errors import FileFormatError

h5py = pytest.importorskip("h5py", reason="writes the source files")

SHAPE, DIMS = (7, 5, 6), ("time", "y", "x")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(values, name="f.nc", **storage):
    with h5py.File(name, "w") as file:
        for dim, length in zip(DIMS, SHAPE, strict=True):
            file[dim] = np.arange(length) * 1.0
            file[dim].make_scale(dim)
        own = file.create_dataset("v", data=values, **storage)
        file["plain"] = values
        for axis, dim in enumerate(DIMS):
            own.dims[axis].attach_scale(file[dim])
            file["plain"].dims[axis].attach_scale(file[dim])
    return name


def samples(name, **options):
    found = iobench.open_dataset(name, sample_dim="time", **options).loader(batch_size=3)
    batches = [{key: np.array(each) for key, each in batch.items()} for batch in found]
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


STORAGES = (
    {"compression": "lzf"},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
    {"compression": "lzf", "chunks": (3, 2, 4)},
    {"scaleoffset": 2},
    {"compression": "szip"},
)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i2", "<f8", "<f2"])
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_samples_are_those_of_h5py(storage, dtype):
    if dtype == "<f2" and "scaleoffset" in storage:
        pytest.skip("HDF5 has no scale-offset of halves")
    values = np.random.default_rng(0).integers(-99, 99, SHAPE).astype(dtype)
    if storage.get("compression") == "szip" and not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("h5py was built without szip")
    name = write(values, **storage)
    with h5py.File(name) as file:
        right = file["v"][...]
    found = samples(name)
    np.testing.assert_array_equal(found["v"], right)
    np.testing.assert_array_equal(found["plain"], values)


def test_lzf_is_converted_and_verified():
    name = write(np.arange(210).reshape(SHAPE).astype("f4"), compression="lzf")
    assert main(["convert", name, "out", "--to", "zarr", "--sample-dim", "time"]) == 0
    assert main(["verify", "out", "--against", name]) == 0


def test_a_filter_that_nothing_undoes_is_named():
    name = write(np.ones(SHAPE, "f4"))
    with h5py.File(name, "r+") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(SHAPE)
        plist.set_filter(32013, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple(SHAPE)
        made = h5py.h5d.create(file.id, b"w", h5py.h5t.NATIVE_FLOAT, space, plist)
        made.write_direct_chunk((0, 0, 0), np.ones(SHAPE, "f4").tobytes())
        for axis, dim in enumerate(DIMS):
            file["w"].dims[axis].attach_scale(file[dim])
    with pytest.raises(FileFormatError, match=r"'w' .*HDF5 filter 32013.*--variables") as no:
        samples(name)
    assert "fetch" not in str(no.value)
    assert set(samples(name, variables=("v", "plain"))) == {"v", "plain"}  # what is said helps
