"""HDF5's filters are undone by our threads: every sample is equal to the NetCDF library's."""

import itertools
import tempfile
import tracemalloc
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.chunks.chunk_codecs import unshuffle
from iobench.datasets.user_files import user_files
from iobench.errors import FileFormatError

# Of netCDF4's wheel: Zstd and bzip2, which h5py does not have.
h5py.h5pl.append(str(Path(netCDF4.__file__).parent / "plugins").encode())

FILTERS = {
    "none": {},
    "zlib": {"compression": "gzip"},
    "shuffle, zlib": {"compression": "gzip", "shuffle": True},
    "zstd": {"compression": 32015, "compression_opts": (3,)},
    "shuffle, zstd": {"compression": 32015, "compression_opts": (3,), "shuffle": True},
    "shuffle, bz2": {"compression": 307, "compression_opts": (4,), "shuffle": True},
}
DTYPES = ["<f4", ">f4", "<f8", ">f8", "|i1", "|u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<i8", "<u8"]
PACKINGS = [
    {},
    {"_FillValue": 3},
    {"scale_factor": 0.5, "add_offset": np.float32(10)},
    {"scale_factor": np.float32(0.1), "missing_value": 4},
    {"_Unsigned": "true"},
]


def numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 50, size=shape).astype(dtype)
    if values.dtype.kind == "f" and values.size > 4:
        values.reshape(-1)[:4] = [np.nan, -0.0, 1e-40, np.inf]
    return values


def write(path, shape, dtype, *, chunks, packings, record=False, part=1.0, seed=0, **filters):
    """Write ``v0``, ``v1`` ... (d0, d1, ...), one for each packing: the first part of numbers."""
    values = numbers(shape, dtype, seed)
    written = tuple(slice(0, int(n * part)) for n in shape)
    maxshape = (None, *shape[1:]) if record else None
    with h5py.File(path, "w") as file:
        for axis, length in enumerate(shape):
            file.create_dataset(f"d{axis}", data=np.arange(length))
            file[f"d{axis}"].make_scale(f"d{axis}")
        for number, packing in enumerate(packings):
            variable = file.create_dataset(
                f"v{number}", shape, dtype, chunks=chunks, maxshape=maxshape,
                fillvalue=packing.get("_FillValue"), **filters,
            )  # fmt: skip
            for axis in range(len(shape)):
                variable.dims[axis].attach_scale(file[f"d{axis}"])
            for name, value in packing.items():
                stored = name in ("_FillValue", "missing_value")
                variable.attrs[name] = np.array([value], dtype) if stored else value
            variable[written] = values[written]
    return path


def check_equals_library(path, locator, axis=0):
    """Compare every sample, dtypes and bits, alone and in groups."""
    dataset = user_files([path], sample_dim=f"d{axis}")
    index = dataset.samples(dataset.files(locator), locator)
    assert dataset.fused == ()
    with xarray.open_dataset(path, decode_times=False, engine="netcdf4") as opened:
        expected = opened.load()
    ours = [dataset.decode(dataset.read(each), each) for each in index.where]
    read = dataset.read_group(index.where)
    grouped = dataset.decode_group(read, index.where, lambda jobs: [job() for job in jobs])
    for name in index.spec.names:
        for number in range(expected.sizes[f"d{axis}"]):
            theirs = expected[name].isel({f"d{axis}": number}).values
            for found in (ours[number][name], grouped[number][name]):
                assert found.dtype == theirs.dtype.newbyteorder("<")
                assert found.tobytes() == theirs.astype(found.dtype).tobytes(), (name, number)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_every_filter_of_every_dtype(tmp_path, locator, filters, dtype):
    packings = PACKINGS if np.dtype(dtype).kind in "iu" else PACKINGS[:-1]
    path = tmp_path / "file.nc"
    write(path, (5, 9), dtype, chunks=(2, 4), packings=packings, part=0.7, **filters)
    check_equals_library(path, locator)


@pytest.mark.parametrize("cname", ["lz", "lz4", "lz4hc", "zlib", "zstd"])
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_blosc(tmp_path, locator, cname, shuffle):
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("d0", None)
        file.createDimension("d1", 700)
        of_each_size = itertools.product(("i1", "u2", "f4", "f8"), (False, True))
        for number, (dtype, fletcher32) in enumerate(of_each_size):
            variable = file.createVariable(
                f"v{number}", dtype, ("d0", "d1"), compression=f"blosc_{cname}",
                chunksizes=(3, 500), blosc_shuffle=shuffle, fletcher32=fletcher32,
            )  # fmt: skip
            variable[:7] = np.sort(numbers((7, 700), dtype, number))  # Blosc refuses noise
    check_equals_library(path, locator)


@st.composite
def layouts(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "chunks": tuple(draw(st.integers(1, n)) for n in shape),
        "record": draw(st.booleans()),
        "part": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "packings": [draw(st.sampled_from(PACKINGS[:-1]))],
        "fletcher32": draw(st.booleans()),
        "seed": draw(st.integers(0, 9)),
        **draw(st.sampled_from(list(FILTERS.values()))),
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=layouts(), axis=st.integers(0, 2))
def test_any_chain_of_filters(locator, layout, axis):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "file.nc"), **layout)
        check_equals_library(path, locator, axis % len(layout["shape"]))


def framed_as_lz4(content, block):
    """Frame numbers as HDF5's filter 32004 does: blocks of LZ4, as they are where they grow."""
    from numcodecs.lz4 import compress

    parts = [len(content).to_bytes(8, "big"), block.to_bytes(4, "big")]
    for start in range(0, len(content), block):
        plain = content[start : start + block]
        shrunk = bytes(compress(plain))[4:]
        stored = shrunk if len(shrunk) < len(plain) else plain
        parts += [len(stored).to_bytes(4, "big"), stored]
    return b"".join(parts)


def write_chunk(path, compression, stored):
    """Write the one chunk of ``v``, of 64 x 64 singles, as it is to lie in the file."""
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("y", 64)
        file.createDimension("x", 64)
        if compression != "lz4":
            file.createVariable("v", "f4", ("y", "x"), compression=compression, chunksizes=(64, 64))
    with h5py.File(path, "r+") as file:
        if compression == "lz4":  # which no writer here has
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((64, 64))
            plist.set_filter(32004, h5py.h5z.FLAG_OPTIONAL, ())
            space = h5py.h5s.create_simple((64, 64))
            h5py.h5d.create(file.id, b"v", h5py.h5t.IEEE_F32LE, space, dcpl=plist)
            for axis, name in enumerate("yx"):
                file["v"].dims[axis].attach_scale(file[name])
        file["v"].id.write_direct_chunk((0, 0), stored)
    return path


def read_all(path, locator):
    dataset = user_files([path], sample_dim="y")
    index = dataset.samples(dataset.files(locator), locator)
    assert dataset.fused == ()
    return np.stack([dataset.decode(dataset.read(each), each)["v"] for each in index.where])


@pytest.mark.parametrize("block", [1 << 30, 4096, 1000])
@pytest.mark.parametrize("kind", ["smooth", "noise", "both"])
def test_lz4_in_hdf5s_frames(tmp_path, locator, block, kind):
    values = np.arange(64 * 64, dtype="<i4").view("<f4").reshape(64, 64)
    if kind != "smooth":
        values[32 * (kind == "both") :] = (
            np.random.default_rng(0).random((64, 64))[:32].repeat(2 - (kind == "both"), axis=0)
        )
    path = write_chunk(tmp_path / "file.nc", "lz4", framed_as_lz4(values.tobytes(), block))
    np.testing.assert_array_equal(read_all(path, locator), values, strict=True)


BOMB = {
    "bz2": ("bzip2", lambda m: m.bz2.BZ2(9).encode(bytes(1 << 26))),
    "zstd": ("zstd", lambda m: m.zstd.Zstd(1).encode(bytes(1 << 26))),
    "blosc": ("blosc_lz4", lambda m: m.blosc.Blosc().encode(bytes(1 << 26))),
    "lz4": ("lz4", lambda m: framed_as_lz4(bytes(1 << 26), 1 << 26)),
}


@pytest.mark.parametrize("codec", BOMB)
def test_a_chunk_is_decoded_no_further_than_it_may_be_long(tmp_path, locator, codec):
    import numcodecs

    compression, encode = BOMB[codec]
    path = write_chunk(tmp_path / "file.nc", compression, bytes(encode(numcodecs)))
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=r"'v': chunk \(0, 0\) is damaged: it decodes"):
            read_all(path, locator)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", BOMB)
def test_a_chunk_cut_short_or_changed_is_named(tmp_path, locator, codec):
    import numcodecs

    values = np.random.default_rng(1).integers(0, 9, (64, 64)).astype("<f4").tobytes()
    compression = BOMB[codec][0]
    encode = {
        "bz2": numcodecs.bz2.BZ2(9).encode, "zstd": numcodecs.zstd.Zstd(1).encode,
        "blosc": numcodecs.blosc.Blosc().encode, "lz4": lambda plain: framed_as_lz4(plain, 4096),
    }[codec]  # fmt: skip
    whole = bytes(encode(values))
    for stored in (whole[:-5], whole[: len(whole) // 2], whole[:10], b"\xff" * 40):
        path = write_chunk(tmp_path / "file.nc", compression, stored)
        with pytest.raises(FileFormatError, match=r"'v': chunk \(0, 0\) is damaged"):
            read_all(path, locator)


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
