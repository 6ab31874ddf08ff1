"""Files of all containers, layouts, codecs and packings: what is read is what xarray reads."""

import tempfile
import warnings
from pathlib import Path

import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from iobench.chunks.boxes import Box, index_box, read_box
from iobench.chunks.netcdf.file import inspect_netcdf, read_through_library
from iobench.chunks.zarr_store import inspect_zarr

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
CONTAINERS = ["NETCDF4", "HDF5", "zarr 2", "zarr 3", *CLASSIC]


@st.composite
def stored_files(draw):
    """How an array ``v`` is stored, and which box of it is read."""
    container = draw(st.sampled_from(CONTAINERS))
    is_zarr, is_classic = container.startswith("zarr"), container in CLASSIC
    rank = draw(st.integers(1, 4))
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
        "is_unlimited": draw(st.booleans()), "is_contiguous": draw(st.booleans()),
    }  # fmt: skip
    if is_zarr:
        case["layout"] = dict(draw(st.sampled_from(ZARR_2 if container == "zarr 2" else ZARR_3)))
        if container == "zarr 2":
            case["layout"]["order"] = draw(st.sampled_from("CF"))
            if isinstance(case["layout"].get("compressors"), numcodecs.Zlib):  # whole numbers only
                case["layout"]["filters"] = [numcodecs.Shuffle(dtype.itemsize)]
        elif draw(st.booleans()):
            case["layout"]["shards"] = tuple(n * draw(st.integers(1, 3)) for n in chunk)
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
            packed["_FillValue"] = fill.item()
        packed = {name: np.asarray(each).tolist() for name, each in packed.items()}
        group = zarr.open_group(path, mode="w", zarr_format=version)
        array = group.create_array(
            "v", shape=shape, dtype=dtype, chunks=chunk, attributes=packed,
            fill_value=3 if fill is None else fill, **case["layout"], **named,
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
        "is_unlimited": True, "is_contiguous": False, "layout": {"compression": "zlib"},
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
        start, stop = zip(*case["box"], strict=True)
        if variable.only_library:
            found = read_through_library(
                file, variable, dict(zip(variable.dims, slices, strict=True))
            )
            np.testing.assert_array_equal(found, expected.values[slices], strict=True)
            return
        found = read_box(Box(str(path), variable, start, stop))
        np.testing.assert_array_equal(found, expected.values[slices], strict=True)
        for axis, length in enumerate(variable.shape):
            for index in {0, length // 2, length - 1}:
                found = read_box(index_box(str(path), variable, (axis,), (index,)))
                one = expected.isel({expected.dims[axis]: index}).values
                np.testing.assert_array_equal(found, one, strict=True)
                assert found.flags.writeable
