"""Files of all containers, layouts, codecs and packings: what is read is what xarray reads.

Then what is of NetCDF alone; of Zarr see `test_zarr`.
"""

import os
import tempfile
import tracemalloc
import warnings
import zlib
from pathlib import Path

import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xarray.backends.zarr import FillValueCoder

import iobench
from iobench.chunks import boxes
from iobench.chunks.boxes import Box, box_ranges, index_box, index_row, read_box
from iobench.chunks.chunk_codecs import unshuffle
from iobench.chunks.netcdf.file import inspect_netcdf
from iobench.chunks.packing import unpack
from iobench.chunks.zarr_store import inspect_zarr
from iobench.errors import FileFormatError, StorageError

zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")

CLASSIC = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]
HDF5_FILTERS = [
    {},
    {"fletcher32": True},
    *(
        {"compression": name, "shuffle": shuffle}
        for name in ("zlib", "zstd", "bzip2")
        for shuffle in (False, True)
    ),
]
ZARR_2 = [
    {"compressors": None},
    {"compressors": None, "filters": [numcodecs.Fletcher32()]},
    {"compressors": numcodecs.Zlib()},
    {"compressors": numcodecs.Blosc("zstd", shuffle=2)},
    *(
        {"compressors": codec()}
        for codec in (numcodecs.LZ4, numcodecs.GZip, numcodecs.BZ2, numcodecs.LZMA, numcodecs.Zstd)
    ),
]
ZARR_3 = [
    {"compressors": None},
    {"compressors": None, "serializer": zarr.codecs.BytesCodec(endian="big")},
    {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
    {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
    {"compressors": zarr.codecs.GzipCodec()},
]
PACKINGS = [
    {},
    {"missing_value": 7},
    {"missing_value": 7, "_FillValue": 12},
    {"scale_factor": np.float32(0.01)},
    {"scale_factor": np.float32(0.01), "add_offset": np.float32(273.15)},
    {"scale_factor": np.float64(0.01), "add_offset": np.float64(273.15), "_FillValue": 12},
    {"scale_factor": np.float64(0.5), "missing_value": 7},
    {"add_offset": np.float32(100)},
    {"_Unsigned": "true"},
    {"_Unsigned": "true", "scale_factor": np.float32(0.1), "_FillValue": 12},
]
FILLS = [3, np.nan, np.inf, -np.inf, 0.1]
CONTAINERS = ["NETCDF4", "HDF5", "zarr 2", "zarr 3", *CLASSIC]


@st.composite
def stored_files(draw):
    """How an array ``v`` is stored, and which box of it is read."""
    container = draw(st.sampled_from(CONTAINERS))
    is_zarr, is_classic = container.startswith("zarr"), container in CLASSIC
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.integers(1, 7)) for _ in range(rank))
    dtypes = ["i1", "i2", "i4", "f4", "f8"] + ([] if is_classic else ["u1", "u2", "i8", "u8"])
    order = "=" if is_classic else draw(st.sampled_from("=<>"))
    dtype = np.dtype(draw(st.sampled_from(dtypes))).newbyteorder(order)
    chunk = tuple(draw(st.integers(1, n + is_zarr)) for n in shape)
    ends = [sorted((draw(st.integers(0, n - 1)), draw(st.integers(1, n)))) for n in shape]
    box = tuple((a, max(b, a + 1)) for a, b in ends)
    # Of big-endian numbers xarray takes a fill value of signed ones as if it were little-endian.
    is_signed = dtype.kind == "i" and dtype.isnative
    packings = [each for each in PACKINGS if is_signed or "_Unsigned" not in each]
    part = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    case = {
        "container": container, "shape": shape, "dtype": dtype, "chunk": chunk, "box": box,
        "packing": draw(st.sampled_from(packings)), "seed": draw(st.integers(0, 9)),
        "part": tuple(slice(*each) for each in part) if draw(st.booleans()) else ...,
        "fill": draw(st.sampled_from(FILLS if dtype.kind == "f" else [3])),
        "is_unlimited": draw(st.booleans()) and rank > 0,
        "is_contiguous": draw(st.booleans()) or not rank,
    }  # fmt: skip
    if is_zarr:
        case["layout"] = dict(draw(st.sampled_from(ZARR_2 if container == "zarr 2" else ZARR_3)))
        if container == "zarr 2":
            case["layout"]["order"] = draw(st.sampled_from("CF"))
            if isinstance(case["layout"].get("compressors"), numcodecs.Zlib):  # whole numbers only
                case["layout"]["filters"] = [numcodecs.Shuffle(dtype.itemsize)]
        elif rank and draw(st.booleans()):  # zarr fails at shards of a scalar
            case["layout"]["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunk)
        elif rank and draw(st.booleans()):
            index = [zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec()][: draw(st.integers(1, 2))]
            case["layout"] = {
                "compressors": None,
                "serializer": zarr.codecs.ShardingCodec(
                    chunk_shape=chunk, index_codecs=index,
                    index_location=draw(st.sampled_from(["start", "end"])),
                ),
            }  # fmt: skip
            case["chunk"] = tuple(n * draw(st.integers(1, 3)) for n in chunk)
        elif draw(st.booleans()):
            axes = zarr.codecs.TransposeCodec(order=draw(st.permutations(range(rank))))
            case["layout"]["filters"] = [axes]
        if draw(st.booleans()):
            case["layout"]["chunk_key_encoding"] = {
                "name": "v2" if container == "zarr 2" else "default", "separator": "/",
            }  # fmt: skip
    else:
        case["layout"] = draw(st.sampled_from(HDF5_FILTERS)) if container == "NETCDF4" else {}
    return case


def numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 50, size=shape).astype(dtype)
    if values.dtype.kind == "f" and values.size > 4:
        values.reshape(-1)[:4] = [np.nan, -0.0, 1e-40, np.inf]
    return values


def attributes(packing, dtype):
    """The attributes, missing values as numbers of what is stored."""
    return {
        name: dtype.type(value) if name in ("missing_value", "_FillValue") else value
        for name, value in packing.items()
    }


def write(path, case):
    """Write ``v`` along d0, d1 ..., of a part of it only."""
    shape, dtype, chunk, part = (case[key] for key in ("shape", "dtype", "chunk", "part"))
    values, packed = numbers(shape, dtype, case["seed"]), attributes(case["packing"], dtype)
    dims = [f"d{axis}" for axis in range(len(shape))]
    fill = packed.pop("_FillValue", None)
    if case["container"].startswith("zarr"):
        version = int(case["container"][-1])
        named = {"dimension_names": dims} if version == 3 else {}
        if version == 2:
            packed["_ARRAY_DIMENSIONS"] = dims
        elif fill is not None:
            packed["_FillValue"] = FillValueCoder.encode(fill, dtype)
        packed = {name: np.asarray(each).tolist() for name, each in packed.items()}
        group = zarr.open_group(path, mode="w", zarr_format=version)
        fill = dtype.type(case["fill"] if fill is None else fill)
        array = group.create_array(
            "v", shape=shape, dtype=dtype, chunks=chunk, attributes=packed, fill_value=fill,
            **case["layout"], **named,
        )  # fmt: skip
        array[part] = values[part]
    elif case["container"] == "HDF5":
        layout = {} if case["is_contiguous"] else {"chunks": chunk, "shuffle": True}
        with h5py.File(path, "w") as file:
            for dim, length in zip(dims, shape, strict=True):
                file.create_dataset(dim, data=np.arange(length)).make_scale(dim)
            array = file.create_dataset("v", shape, dtype, fillvalue=fill, **layout)
            for axis, dim in enumerate(dims):
                array.dims[axis].attach_scale(file[dim])
            if fill is not None:
                packed["_FillValue"] = np.array([fill])
            array.attrs.update(packed)
            array[part] = values[part]
    else:
        is_classic = case["container"] in CLASSIC
        unlimited = case["is_unlimited"] and not case["is_contiguous"]
        layout = dict(case["layout"])
        if not is_classic and case["is_contiguous"] and not layout:
            layout["contiguous"] = True
        elif not is_classic:
            layout["chunksizes"] = chunk
        with netCDF4.Dataset(path, "w", format=case["container"]) as file:
            for axis, (dim, length) in enumerate(zip(dims, shape, strict=True)):
                file.createDimension(dim, None if unlimited and not axis else length)
            if unlimited:  # others, whose records need padding
                file.createVariable("before", "i1", dims[:1])
            variable = file.createVariable("v", dtype, dims, fill_value=fill, **layout)
            variable.set_auto_maskandscale(False)
            variable.setncatts(packed)
            variable[part] = values[part]
            if unlimited:  # of another variable there are as many, and more
                other = file.createVariable("other", "i2", dims[:1])
                other[:] = np.arange(shape[0] + case["seed"] % 2)


@settings(
    deadline=None, max_examples=3 * settings().max_examples,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@example(
    {
        "container": "NETCDF4", "shape": (5,), "dtype": np.dtype("i2"), "chunk": (2,),
        "box": ((1, 4),), "packing": {"_FillValue": 12}, "seed": 1, "part": (slice(2, 3),),
        "is_unlimited": True, "is_contiguous": False, "layout": {"compression": "zlib"}, "fill": 3,
    }
)  # fmt: skip
@example(
    {
        "container": "NETCDF3_CLASSIC", "shape": (7, 7, 7), "dtype": np.dtype("i2"), "seed": 0,
        "chunk": (), "box": ((0, 7),) * 3, "packing": {"missing_value": 7, "_FillValue": 12},
        "part": ..., "is_unlimited": True, "is_contiguous": False, "layout": {}, "fill": 3,
    }
)  # fmt: skip
@example(
    {
        "container": "NETCDF3_CLASSIC", "shape": (1, 5, 3), "dtype": np.dtype("f4"), "seed": 0,
        "chunk": (), "box": ((0, 1), (1, 3), (0, 2)), "packing": {}, "part": ..., "fill": 3,
        "is_unlimited": False, "is_contiguous": True, "layout": {},
    }
)  # fmt: skip
@given(stored_files())
def test_what_is_read_is_what_xarray_reads(case):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two fill values, of codecs
        path = Path(folder) / "file.nc"
        write(path, case)
        is_zarr = case["container"].startswith("zarr")
        how = {"engine": "zarr", "consolidated": False} if is_zarr else {"engine": "netcdf4"}
        with xarray.open_dataset(path, decode_times=False, **how) as opened:
            expected = opened["v"].load()
        file = inspect_zarr(path) if is_zarr else inspect_netcdf(path)
        variable = file.variables["v"]
        assert (variable.dims, variable.shape) == (expected.dims, expected.shape)
        slices = tuple(slice(*ends) for ends in case["box"])
        start, stop = zip(*case["box"], strict=True) if case["box"] else ((), ())
        found = read_box(Box(str(path), variable, start, stop))
        np.testing.assert_array_equal(found, expected.values[slices], strict=True)
        for axis, length in enumerate(variable.shape):
            for index in {0, length // 2, length - 1}:
                found = read_box(index_box(str(path), variable, (axis,), (index,)))
                one = expected.isel({expected.dims[axis]: index}).values
                np.testing.assert_array_equal(found, one, strict=True)
                assert found.flags.writeable
                if row := index_row(variable, (axis,)):
                    _, offset, nbytes = row.at(str(path), (index,))
                    stored = row.array(memoryview(path.read_bytes())[offset : offset + nbytes])
                    found = unpack(stored, variable.packing)
                    np.testing.assert_array_equal(found, one, strict=True)


# -- NetCDF ----------------------------------------------------------------------------------------

VALUES = np.arange(7 * 5 * 6).reshape(7, 5, 6)


def write_netcdf(path, dtype="f4", **layout):
    """Write one variable ``v`` (time, y, x)."""
    with netCDF4.Dataset(path, "w") as file:
        for dim, length in zip(("time", "y", "x"), VALUES.shape, strict=True):
            file.createDimension(dim, length)
        variable = file.createVariable("v", dtype, ("time", "y", "x"), **layout)
        variable.set_auto_maskandscale(False)
        variable[:] = VALUES
    return path


def whole(path, name="v"):
    return read_box(index_box(str(path), inspect_netcdf(path).variables[name]))


def test_integer_scale_beside_a_fill_value(tmp_path):
    path = write_netcdf(tmp_path / "file.nc", "i2", fill_value=12)
    with netCDF4.Dataset(path, "a") as file:
        file["v"].scale_factor = 2  # which xarray refuses
    np.testing.assert_array_equal(whole(path), np.where(VALUES == 12, np.nan, VALUES * 2.0))


def test_filter_left_out_for_one_chunk(tmp_path):
    path, values = tmp_path / "file.h5", np.arange(8, dtype="<i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("v", (8,), "<i4", chunks=(4,), compression="gzip")
        dataset.id.write_direct_chunk((0,), values[:4].tobytes(), filter_mask=1)
        dataset.id.write_direct_chunk((4,), zlib.compress(values[4:].tobytes()))
    np.testing.assert_array_equal(whole(path), values)


@pytest.mark.long
@pytest.mark.parametrize("shuffle", [0, 1, 2])
def test_blosc(tmp_path, shuffle):
    path, expected = tmp_path / "file.nc", {}
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("d0", None)
        file.createDimension("d1", 700)
        for cname in ("lz", "lz4", "lz4hc", "zlib", "zstd"):
            for dtype in ("i1", "u2", "f4", "f8"):
                variable = file.createVariable(
                    f"{cname}_{dtype}", dtype, ("d0", "d1"), compression=f"blosc_{cname}",
                    chunksizes=(3, 500), blosc_shuffle=shuffle, fletcher32=dtype == "f4",
                )  # fmt: skip
                values = np.random.default_rng(0).integers(0, 50, (7, 700)).astype(dtype)
                expected[variable.name] = variable[:7] = np.sort(values)  # Blosc refuses noise
    for name, values in expected.items():
        np.testing.assert_array_equal(whole(path, name), values, strict=True)


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


def test_groups_and_texts_are_listed_and_a_group_may_be_named(tmp_path):
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w") as ds:
        ds.createDimension("x", 2)
        ds.createGroup("more").createVariable("v", "f4", ("x",))[:] = (3, 4)
        ds.createVariable("names", str, ("x",))
        ds.createVariable("letters", "S1", ("x",))
    assert set(inspect_netcdf(path).skipped) == {"more/", "names", "letters"}
    found = inspect_netcdf(path, "more")
    assert list(found.variables) == ["v"]
    assert read_box(index_box(str(path), found.variables["v"])).tolist() == [3, 4]
    with pytest.raises(FileFormatError, match="no group 'weather'"):
        inspect_netcdf(path, "weather")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_root_is_one_line_and_no_traceback_behind_it(tmp_path):
    path = tmp_path / "x.nc"
    with h5py.File(path, "w", libver="latest") as file:
        file["v"] = np.arange(4)
    content = bytearray(path.read_bytes())
    content[content.index(b"OHDR") + 8] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"metadata checksum.*; fetch the file again"):
        inspect_netcdf(path)


def test_numbers_in_other_files_or_of_other_types_are_not_read(tmp_path):
    with h5py.File(tmp_path / "other.nc", "w") as file:
        file["g/v"] = np.arange(4.0)
    (tmp_path / "beside.bin").write_bytes(np.arange(4, dtype="<f4").tobytes())
    layout = h5py.VirtualLayout((4,), "<f4")
    layout[:] = h5py.VirtualSource(tmp_path / "x.nc", "time", (4,))
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale()
        external = [(str(tmp_path / "beside.bin"), 0, 16)]
        named = {
            "v": file.create_dataset("v", (4,), "<f4", external=external),
            "w": file.create_virtual_dataset("w", layout),
        }
        for each in named.values():
            each.dims[0].attach_scale(file["time"])
        named["linked"] = file["linked"] = h5py.ExternalLink("other.nc", "g/v")
        file["group"] = h5py.ExternalLink("other.nc", "g")
        file["empty"] = h5py.Empty("f4")
        half = h5py.h5t.IEEE_F32LE.copy()  # bfloat16, which h5py reads as float32
        half.set_fields(15, 7, 8, 0, 7)
        half.set_size(2)
        half.set_ebias(127)
        h5py.h5d.create(file.id, b"half", half, h5py.h5s.create_simple((4,)))
    file = inspect_netcdf(tmp_path / "x.nc")
    assert file.skipped == {
        **dict.fromkeys(named, "its numbers are in other files"),
        "group/": "a group, named as FILE#group",
        "empty": "it has no values",
        "half": "stored in a way that no dtype of NumPy has",
    }
    with pytest.raises(FileFormatError, match="'group' is in another file"):
        inspect_netcdf(tmp_path / "x.nc", "group")


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
def test_no_more_is_read_than_a_box_needs(tmp_path, name, start, stop, nbytes):
    path = tmp_path / "file.nc"
    with netCDF4.Dataset(path, "w") as new:
        for dim, length in zip("tyxpl", (3, 5, 70, 8, 3000), strict=True):
            new.createDimension(dim, length)
        new.createVariable("contiguous", "f4", tuple("tyxp"), contiguous=True)[:] = 1
        new.createVariable("chunked", "f4", tuple("tyxp"), chunksizes=(1, 2, 32, 8))[:] = 1
        new.createVariable("rows", "f4", ("y", "l"), contiguous=True)[:] = 0
    box = Box(str(path), inspect_netcdf(path).variables[name], start, stop)
    assert [each for _, _, each in box_ranges(box)] == nbytes


@pytest.mark.parametrize("dims", ["tyx", "ytx", "yxt"])
@pytest.mark.parametrize("order", "<>")
def test_numbers_that_lie_as_they_are_are_read_into_their_batch(tmp_path, monkeypatch, dims, order):
    monkeypatch.setattr(boxes, "IN_PLACE_NBYTES", 1)
    monkeypatch.setattr(boxes, "PICK_NBYTES", 1)
    lengths, path = dict(zip("tyx", (5, 4, 300), strict=True)), tmp_path / "a.nc"
    coding = {"scale_factor": np.float32(0.5), "_FillValue": np.float32(3)}
    whole = np.arange(6000, dtype="f4").reshape([lengths[dim] for dim in dims])
    with netCDF4.Dataset(path, "w") as file:
        for dim, length in lengths.items():
            file.createDimension(dim, length)
        for name, own in (("plain", {}), ("packed", coding)):
            fill = own.pop("_FillValue", None)
            endian = {"<": "little", ">": "big"}[order]
            how = {"fill_value": fill, "contiguous": True, "endian": endian}
            made = file.createVariable(name, f"{order}f4", tuple(dims), **how)
            made.set_auto_maskandscale(False)
            made.setncatts(own)
            made[:] = whole
    samples = iobench.open_dataset(path, sample_dim="t")
    moved = np.moveaxis(whole, dims.index("t"), 0)
    (batch,) = samples.loader(5, threads=2, processes=False)
    np.testing.assert_array_equal(batch["plain"], moved)
    np.testing.assert_array_equal(batch["packed"], np.where(moved == 3, np.nan, moved * 0.5))
    np.testing.assert_array_equal(batch["packed"][2], samples[2]["packed"])


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
