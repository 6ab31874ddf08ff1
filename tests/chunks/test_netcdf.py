import os
import tracemalloc
import zlib

import h5py
import netCDF4
import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.boxes import Box, box_ranges, index_box, read_box
from iobench.chunks.chunk_codecs import unshuffle
from iobench.chunks.netcdf.file import inspect_netcdf, read_through_library
from iobench.errors import FileFormatError, StorageError

VALUES = np.arange(7 * 5 * 6).reshape(7, 5, 6)


def read(path, name, dim=None, index=0):
    return read_from(inspect_netcdf(path), name, dim, index)


def read_from(file, name, dim, index):
    variable = file.variables[name]
    return read_box(index_box(str(file.path), variable, (variable.axis(dim),), (index,)))


def check_equals_xarray(path, name="v"):
    """Compare the whole and every index along every dimension, dtypes included."""
    with xarray.open_dataset(path, decode_times=False, engine="netcdf4") as ds:
        expected = ds[name].load()
    file = inspect_netcdf(path)
    for dim in (None, *expected.dims):
        for index in range(expected.sizes[dim] if dim else 1):
            ours = read_from(file, name, dim, index)
            theirs = expected.isel({dim: index}).values if dim else expected.values
            np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.fixture
def write(tmp_path):
    """Write one variable ``v`` (time, y, x) with netCDF4; return the file."""

    def write_file(
        values=VALUES, dtype="f4", file_format="NETCDF4", attributes=(), fill_value=None, **storage
    ):
        path = tmp_path / "file.nc"
        with netCDF4.Dataset(path, "w", format=file_format) as ds:
            for dim, length in zip(("time", "y", "x"), values.shape, strict=True):
                unlimited = dim == "time" and storage.pop("unlimited", False)
                ds.createDimension(dim, None if unlimited else length)
            order = ">" if storage.get("endian") == "big" else "="
            variable = ds.createVariable(
                "v",
                np.dtype(dtype).newbyteorder(order),
                ("time", "y", "x"),
                fill_value=fill_value,
                **storage,
            )
            variable.setncatts(dict(attributes))
            variable.set_auto_maskandscale(False)
            variable[:] = values.astype(variable.dtype)
        return path

    return write_file


CLASSIC = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]


@pytest.mark.parametrize("file_format", [*CLASSIC, "NETCDF4"])
def test_classic_records_of_several_variables(tmp_path, file_format):
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w", format=file_format) as ds:
        ds.title = "records that need padding"
        ds.createDimension("time", None)
        ds.createDimension("x", 3)
        ds.createDimension("letters", 5)
        ds.createVariable("label", "S1", ("letters",))[:] = np.array(list("hello"), dtype="S1")
        for name, dtype in (("a", "i1"), ("b", "f8"), ("c", "i2")):
            ds.createVariable(name, dtype, ("time", "x"))[:] = np.arange(12).reshape(4, 3)
        ds.createVariable("scalar", "f4", ())[:] = 3.5
    for name in ("a", "b", "c", "scalar"):
        check_equals_xarray(path, name)
    assert "label" in inspect_netcdf(path).skipped


def test_integer_scale_beside_a_fill_value(write):
    found = read(write(dtype="i2", attributes={"scale_factor": 2}, fill_value=12), "v")
    np.testing.assert_array_equal(found, np.where(VALUES == 12, np.nan, VALUES * 2.0))


def test_filter_left_out_for_one_chunk(tmp_path):
    path, values = tmp_path / "file.h5", np.arange(8, dtype="<i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("v", (8,), "<i4", chunks=(4,), compression="gzip")
        dataset.id.write_direct_chunk((0,), values[:4].tobytes(), filter_mask=1)
        dataset.id.write_direct_chunk((4,), zlib.compress(values[4:].tobytes()))
    np.testing.assert_array_equal(read(path, "v"), values)


@pytest.mark.parametrize("n_records", [2**31, 2**32 - 2])
def test_records_that_the_file_cannot_hold(tmp_path, n_records):
    """Their places alone took 16 to 32 GiB."""
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as ds:
        ds.createDimension("time", None)
        ds.createVariable("time", "f8", ("time",))[:] = range(5)
    with path.open("rb+") as file:
        file.seek(4)
        file.write(n_records.to_bytes(4, "big"))
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="is cut short: variable 'time' ends at byte"):
            inspect_netcdf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "file.nc")
    with pytest.raises(StorageError, match=r"file\.nc: is a pipe or device, not a file"):
        inspect_netcdf(tmp_path / "file.nc")


def test_other_filters_go_through_the_library(write):
    path = write(compression="szip", chunksizes=(7, 5, 6))
    file = inspect_netcdf(path)
    variable = file.variables["v"]
    assert variable.only_library
    found = read_through_library(file, variable, {"y": 2})
    np.testing.assert_array_equal(found, VALUES[:, 2].astype("f4"), strict=True)


def test_groups_and_text_are_listed(tmp_path):
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w") as ds:
        ds.createGroup("more").createVariable("v", "f4")
        ds.createDimension("x", 2)
        ds.createVariable("names", str, ("x",))
    assert set(inspect_netcdf(path).skipped) == {"more/", "names"}


def test_variables_of_a_group_are_inspected_where_it_is_named(tmp_path):
    path = tmp_path / "grouped.h5"
    with h5py.File(path, "w") as file:
        file["climate/data"] = np.arange(12, dtype=np.float32).reshape(3, 4)
        file["other"] = np.zeros(2)
    found = inspect_netcdf(path, "climate")
    assert list(found.variables) == ["data"]
    read = read_box(index_box(str(path), found.variables["data"]))
    assert read.tolist() == np.arange(12).reshape(3, 4).tolist()
    with pytest.raises(FileFormatError, match="no group 'weather'"):
        inspect_netcdf(path, "weather")


@pytest.mark.parametrize(
    ("named", "allowed", "refused"),
    [
        ("{here}/beside.bin", "", False),
        ("{here}/../elsewhere.bin", "", True),
        ("{here}/link.bin", "", True),
        ("{here}/../elsewhere.bin", "1", False),
    ],
)
def test_numbers_in_files_outside_the_folder_are_refused_unless_asked(
    tmp_path, monkeypatch, named, allowed, refused
):
    here = tmp_path / "here"
    here.mkdir()
    for path in (here / "beside.bin", tmp_path / "elsewhere.bin"):
        path.write_bytes(np.arange(4, dtype="<f4").tobytes())
    (here / "link.bin").symlink_to(tmp_path / "elsewhere.bin")
    external = [(named.format(here=here), 0, 16)]
    with h5py.File(here / "x.nc", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale()
        file.create_dataset("v", (4,), "<f4", external=external).dims[0].attach_scale(file["time"])
    monkeypatch.setenv("IOBENCH_HDF5_EXTERNAL", allowed)
    if refused:
        with pytest.raises(FileFormatError, match=r"v is stored in .*; leave x.nc out, or set"):
            inspect_netcdf(here / "x.nc")
    else:
        assert "v" in inspect_netcdf(here / "x.nc").variables


WIDE = (3, 5, 70, 8)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    path = tmp_path_factory.mktemp("boxes") / "file.nc"
    with netCDF4.Dataset(path, "w") as new:
        for name, length in zip("tyxp", WIDE, strict=True):
            new.createDimension(name, length)
        new.createDimension("long", 3000)
        values = np.random.default_rng(0).normal(size=WIDE).astype("f4")
        new.createVariable("contiguous", "f4", tuple("tyxp"), contiguous=True)[:] = values
        layout = {"chunksizes": (1, 2, 32, 8)}
        new.createVariable("chunked", "f4", tuple("tyxp"), **layout)[:] = values
        new.createVariable("rows", "f4", ("y", "long"), contiguous=True)[:] = 0
        new.createVariable("other", "f4", tuple("tyxp"), compression="szip")[:] = values
    return inspect_netcdf(path)


@pytest.mark.parametrize(
    ("name", "start", "stop", "nbytes"),
    [
        ("contiguous", (1, 0, 0, 0), (2, 5, 70, 8), [5 * 70 * 8 * 4]),
        # short rows with what lies between them, long ones alone
        ("contiguous", (0, 1, 10, 0), (3, 4, 20, 8), [2 * 70 * 32 + 10 * 32] * 3),
        ("rows", (1, 500), (3, 1600), [4400, 4400]),
        ("chunked", (1, 2, 32, 0), (2, 4, 64, 8), [2 * 32 * 8 * 4]),
    ],
)
def test_no_more_is_read_than_a_box_needs(wide, name, start, stop, nbytes):
    box = Box(str(wide.path), wide.variables[name], start, stop)
    assert [each for _, _, each in box_ranges(box)] == nbytes


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
        np.testing.assert_array_equal(read(path, name), values, strict=True)


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
