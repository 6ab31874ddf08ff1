"""Files that are damaged, or made to do harm: refused in one line, or read; and at no cost.

One mutator for all containers. What is not mutated: the metadata of HDF5, which its library reads.
"""

import bz2
import gzip
import json
import lzma
import tracemalloc
import zlib
from random import Random
from types import SimpleNamespace

import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest

from iobench.chunks.chunk_codecs import CRC32C, DamagedChunkError, decode_bytes
from iobench.datasets.contract import make_sample
from iobench.datasets.user_files import UserFiles
from iobench.errors import IobenchError
from iobench.files.crc32c import crc32c

zarr = pytest.importorskip("zarr", minversion="3", reason="writes the stores")

VALUES = np.random.default_rng(0).integers(0, 9, (4, 6, 5)).astype("<f4")
CLASSIC = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA")
CONTAINERS = (
    *CLASSIC, "NETCDF4", "zarr 2", "zarr 3", "zarr 3 shards", "GRIB 1", "GRIB 2", "references",
    "npz", "Parquet", "Arrow",
)  # fmt: skip
SUFFIXES = {"G": ".grib", "z": ".zarr", "r": ".json", "n": ".npz", "P": ".parquet", "A": ".arrow"}
PEAK_NBYTES = 1 << 25
WORDS = (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4), b"\0\0\0\x01", b"\0\0\0\x0b")
NASTY = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, -(2**70), 1.5, 1e308, float("nan"), float("inf"), "",
    "x", "<i2", "|O", "<U9", "<M8[ns]", "NaN", "0x7fc0", "../v", "/", "\0", "\x1b[31m",
    [], {}, [[]], [3, 4], [3, 4, 5], [0, 0], [-1, 4], [10**9, 1, 1], {"id": "pickle"},
    {"id": "zlib"}, {"name": "gzip"}, [{"name": "bytes"}],
    [{"id": "shuffle", "elementsize": 2**31}], "x" * 5000,
)  # fmt: skip


def write(path, container):
    """Write ``v`` along y, z and x; return the files that are damaged, and from which byte on."""
    if container.startswith("GRIB"):
        eccodes = pytest.importorskip("eccodes", reason="writes the messages")
        content = b""
        for day in range(1, 4):
            handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{container[-1]}")
            eccodes.codes_set(handle, "dataDate", 20200100 + day)
            eccodes.codes_set(handle, "bitsPerValue", 16)
            eccodes.codes_set_values(handle, np.linspace(0, day, 496))
            content += eccodes.codes_get_message(handle)
            eccodes.codes_release(handle)
        path.write_bytes(content)
        return [(path, 0)]
    if container == "references":
        raw = path.with_name("raw")
        raw.write_bytes(VALUES.tobytes())
        array = {"zarr_format": 2, "shape": [4, 6, 5], "chunks": [2, 6, 5], "dtype": "<f4",
                 "order": "C", "compressor": None, "fill_value": None, "filters": None}  # fmt: skip
        chunks = {"v/0.0.0": ["raw", 0, 240], "v/1.0.0": ["raw", 240, 240]}
        dims = {"_ARRAY_DIMENSIONS": ["y", "z", "x"]}
        own = {".zgroup": {"zarr_format": 2}, "v/.zarray": array, "v/.zattrs": dims}
        path.write_text(json.dumps({"version": 1, "refs": own | chunks}))
        return [(path, 0)]
    if container == "npz":
        np.savez_compressed(path, v=VALUES)
        return [(path, 0)]
    if container in ("Parquet", "Arrow"):
        pa = pytest.importorskip("pyarrow", reason="writes tables")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(VALUES.reshape(-1)), 30)
        if container == "Arrow":
            pytest.importorskip("pyarrow.feather").write_feather(pa.table({"v": lists}), path)
        else:
            pytest.importorskip("pyarrow.parquet").write_table(pa.table({"v": lists}), path)
        return [(path, 0)]
    if container.startswith("zarr"):
        group = zarr.open_group(path, mode="w", zarr_format=int(container[5]))
        layout = {"chunks": (2, 3, 5)} | (
            {"compressors": numcodecs.Zlib(1), "attributes": {"_ARRAY_DIMENSIONS": ["y", "z", "x"]}}
            if container == "zarr 2"
            else {"compressors": zarr.codecs.GzipCodec(level=1), "dimension_names": "yzx"}
        )
        if container == "zarr 3 shards":
            layout["shards"] = (4, 6, 5)
        group.create_array("v", shape=VALUES.shape, dtype="f4", **layout)[...] = VALUES
        return [(each, 0) for each in sorted(path.rglob("*")) if each.is_file()]
    with netCDF4.Dataset(path, "w", format=container) as file:
        for dim, length in (("y", None), ("z", 6), ("x", 5)):
            file.createDimension(dim, length)
        file.setncatts({"title": "hello", "numbers": np.arange(3, dtype="i4")})
        layout = {"zlib": True, "chunksizes": (2, 3, 5)} if container == "NETCDF4" else {}
        file.createVariable("v", "f4", ("y", "z", "x"), **layout)[:] = VALUES
        file.createVariable("s", "i2", ("z", "x"))[:] = 1
        file.createVariable("b", "i1", ("y", "x"))[:] = 1
    if container != "NETCDF4":
        return [(path, 0)]
    with h5py.File(path) as file:
        return [(path, file["v"].id.get_chunk_info(0).byte_offset)]


def all_samples(path, folder):
    """Make all samples of a user's file, as a profile does."""
    dims = {".grib": "time", ".npz": "dim_0", ".parquet": "row", ".arrow": "row"}
    dim = dims.get(path.suffix, "y")
    dataset = UserFiles([path], sample_dim=dim)
    locator = SimpleNamespace(cache_dir=folder, stand_in=False, progress=lambda *_: None)
    for where in dataset.samples(dataset.files(locator), locator).where:
        make_sample(dataset, where)


def places(value, path=()):
    """Every place of a document, its own among them."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def damaged(content, first, random):
    """The content with a value of a document, a word or a bit another, or cut short."""
    if content.startswith(b"{") and len(content) > 2 and random.random() < 0.8:
        document = json.loads(content)
        place = random.choice(list(places(document))[1:])
        holder = document
        for key in place[:-1]:
            holder = holder[key]
        if isinstance(holder, dict) and random.random() < 0.2:
            del holder[place[-1]]
        else:
            holder[place[-1]] = random.choice(NASTY)
        return json.dumps(document).encode()
    changed = bytearray(content)
    at = first + random.randrange(max(1, len(content) - first - 4))
    how = random.randrange(4)
    if how == 0:
        return bytes(changed[:at])
    if how == 1:
        changed[at] ^= 1 << random.randrange(8)
    elif how == 2:
        changed[at : at + 4] = random.choice(WORDS)
    else:
        changed[at : at + 40] = random.randbytes(40)
    return bytes(changed)


@pytest.mark.quick_cases(6)
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("seed", "n"), [(0, 25), *(pytest.param(s, 1500, marks=pytest.mark.long) for s in (1, 2, 3))]
)
@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_damaged_is_refused_in_one_line_or_read(tmp_path, container, seed, n):
    path = tmp_path / f"file{SUFFIXES.get(container[0], '.nc')}"
    files = write(path, container)
    all_samples(path, tmp_path / "cache")  # imports what it needs
    random, n_refused = Random(f"{container} {seed}"), 0
    for number in range(n):
        file, first = random.choice(files)
        before = file.read_bytes()
        wrong = damaged(before, first, random)
        file.write_bytes(wrong)
        tracemalloc.start()
        said = ""
        try:
            all_samples(path, tmp_path / f"cache{number}")
        except IobenchError as error:
            said, n_refused = str(error), n_refused + 1
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            file.write_bytes(before)
        assert said.isprintable(), wrong
        assert not said or path.name in said or container.startswith("GRIB"), wrong
        assert peak < PEAK_NBYTES, wrong
    assert n_refused > n // 10


ENCODE = {
    '{"id": "zlib"}': zlib.compress,
    '{"id": "gzip"}': gzip.compress,
    '{"id": "bz2"}': bz2.compress,
    '{"id": "lzma"}': lzma.compress,
    '{"id": "zstd"}': numcodecs.Zstd(1).encode,
    '{"id": "lz4"}': numcodecs.LZ4().encode,
    '{"id": "blosc"}': numcodecs.Blosc().encode,
    CRC32C: lambda plain: plain + crc32c(plain).to_bytes(4, "little"),
}
NUMBERS = np.random.default_rng(1).integers(0, 9, 5000).astype("<f4").tobytes()


@pytest.mark.parametrize("codec", [each for each in ENCODE if each != CRC32C])
@pytest.mark.parametrize("before", [(), ('{"id": "shuffle", "elementsize": 4}',)])
def test_a_chunk_is_decoded_no_further_than_it_may_be_long(codec, before):
    bomb = bytes(ENCODE[codec](bytes(1 << 24)))
    for more in ((), ('{"id": "delta", "dtype": "<i4"}',)):  # then its size is not known before
        tracemalloc.start()
        try:
            with pytest.raises(DamagedChunkError, match="decodes to"):
                decode_bytes(memoryview(bomb), (*more, *before, codec), 1 << 10)
            assert tracemalloc.get_traced_memory()[1] < 12 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("codec", ENCODE)
def test_a_chunk_cut_short_changed_or_of_another_length_is_damaged(codec):
    whole = bytes(ENCODE[codec](NUMBERS))
    assert decode_bytes(memoryview(whole), (codec,), len(NUMBERS)).tobytes() == NUMBERS
    out = np.zeros(len(NUMBERS), np.uint8)
    found = decode_bytes(memoryview(whole), (codec,), len(NUMBERS), out=out)
    assert found.tobytes() == NUMBERS
    for stored in (whole[:-5], whole[: len(whole) // 2], whole[:10], b"", b"\xff" * 40):
        with pytest.raises(DamagedChunkError):
            decode_bytes(memoryview(stored), (codec,), len(NUMBERS))
    for nbytes in (len(NUMBERS) - 4, len(NUMBERS) + 4):
        with pytest.raises(DamagedChunkError, match="expected"):
            decode_bytes(memoryview(whole), (codec,), nbytes)
