"""HDF5's filters that no strategy writes: Blosc of every kind, LZ4 as HDF5 frames it, shuffle."""

import h5py
import netCDF4
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.boxes import index_box
from iobench.chunks.chunk_codecs import unshuffle
from iobench.chunks.chunk_reading import read_box
from iobench.chunks.netcdf.file import inspect_netcdf
from tests.chunks.test_damage import framed_as_lz4


def whole(path, name="v"):
    return read_box(index_box(str(path), inspect_netcdf(path).variables[name]))


@pytest.mark.parametrize("cname", ["lz", "lz4", "lz4hc", "zlib", "zstd"])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_blosc(tmp_path, cname, shuffle):
    path = tmp_path / "file.nc"
    expected = {}
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("d0", None)
        file.createDimension("d1", 700)
        for dtype in ("i1", "u2", "f4", "f8"):
            variable = file.createVariable(
                dtype, dtype, ("d0", "d1"), compression=f"blosc_{cname}", chunksizes=(3, 500),
                blosc_shuffle=shuffle, fletcher32=dtype == "f4",
            )  # fmt: skip
            values = np.random.default_rng(0).integers(0, 50, (7, 700)).astype(dtype)
            expected[dtype] = variable[:7] = np.sort(values)  # Blosc refuses noise
    for name, values in expected.items():
        np.testing.assert_array_equal(whole(path, name), values, strict=True)


@pytest.mark.parametrize("block", [1 << 30, 4096, 1000])
@pytest.mark.parametrize("n_noisy", [0, 32, 64])
def test_lz4_in_hdf5s_frames(tmp_path, block, n_noisy):
    values = np.arange(64 * 64, dtype="<i4").view("<f4").reshape(64, 64)
    values[:n_noisy] = np.random.default_rng(0).random((n_noisy, 64))
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("y", 64)
        file.createDimension("x", 64)
    with h5py.File(path, "r+") as file:  # no writer here has it
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((64, 64))
        plist.set_filter(32004, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((64, 64))
        h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F32LE, space, dcpl=plist)
        for axis, name in enumerate("yx"):
            file["v"].dims[axis].attach_scale(file[name])
        file["v"].id.write_direct_chunk((0, 0), framed_as_lz4(values.tobytes(), block))
    np.testing.assert_array_equal(whole(path), values, strict=True)


@given(
    itemsize=st.sampled_from([1, 2, 3, 4, 8, 16, 256]),
    nbytes=st.integers(0, 300) | st.integers(0, 1 << 20),
    seed=st.integers(0, 9),
)
def test_shuffled_bytes_are_put_back_whatever_their_number(itemsize, nbytes, seed):
    content = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    whole = nbytes // itemsize * itemsize
    shuffled = np.concatenate((content[:whole].reshape(-1, itemsize).T.ravel(), content[whole:]))
    assert unshuffle(shuffled.tobytes(), itemsize).tobytes() == content.tobytes()
