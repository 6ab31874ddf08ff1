"""HDF5's filters that no strategy writes: Blosc of every kind, shuffle."""

import netCDF4
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.boxes import index_box
from iobench.chunks.chunk_codecs import unshuffle
from iobench.chunks.chunk_reading import read_box
from iobench.chunks.netcdf.file import inspect_netcdf


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
