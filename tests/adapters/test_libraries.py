"""Each adapter with the real library: kinds, bytes, nesting, and objects as they were."""

from __future__ import annotations

import io
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from iobench.adapters.installed import unseen
from iobench.adapters.zarr_arrays import laid_out
from iobench.recording.kinds import Kind

pytestmark = pytest.mark.usefixtures("installed")
VALUES = np.arange(6000.0).reshape(60, 100)
ALL, ROW, CHUNK = VALUES.nbytes, VALUES[0].nbytes, 10 * VALUES[0].nbytes
OPEN, READ, FUSED = ("open", -1), ("read", ALL), "fused:read+decode"
CASES = {}
"""By name: modules, and a function of a folder that returns work, spans (stage, bytes), files."""


def library(*modules):
    def add(make):
        CASES[make.__name__] = (modules, make)
        return make

    return add


def equal(found, expected=VALUES):
    assert_array_equal(np.asarray(found).ravel(), np.asarray(expected).ravel())


# -- NumPy --------------------------------------------------------------------------------


@library()
def numpy_files(folder):
    path = folder / "a.npy"
    np.save(path, VALUES)

    def work():
        with open(path, "rb") as file:  # noqa: PTH123
            equal(np.load(file))
        equal(np.load(str(path)))
        assert isinstance(np.load(path, mmap_mode="r"), np.memmap)
        equal(np.fromfile(path, "<f8", offset=128))
        equal(np.memmap(path, "<f8", "r", offset=128))

    return work, [OPEN, READ, READ, OPEN, READ, OPEN], {str(path)}


@library()
def numpy_in_memory(folder):
    archive, array = io.BytesIO(), io.BytesIO()
    np.savez_compressed(archive, x=VALUES)
    np.save(array, VALUES)
    path = folder / "a.npy"
    path.write_bytes(array.getvalue())

    def work():
        equal(np.load(io.BytesIO(path.read_bytes())))
        archive.seek(0)
        equal(np.load(archive)["x"])

    read = ("read", path.stat().st_size)
    return work, [OPEN, read, ("decode", ALL), OPEN, ("decode", ALL)], {str(path), ""}


@library()
def numpy_archives(folder):
    names = [folder / "plain.npz", folder / "packed.npz"]
    np.savez(names[0], x=VALUES)
    np.savez_compressed(names[1], x=VALUES)

    def work():
        for name in names:
            with np.load(name) as archive:
                equal(archive["x"])
                with pytest.raises(KeyError, match="y is not a file in the archive"):
                    archive["y"]

    failed = ("read", -1)
    return work, [OPEN, READ, failed, OPEN, (FUSED, ALL), failed], {"", *map(str, names)}


# -- HDF5 and NetCDF ----------------------------------------------------------------------


@library("h5py")
def h5py_datasets(folder):
    import h5py

    path = folder / "h.h5"
    with h5py.File(path, "w") as file:
        file["plain"] = VALUES
        file.create_dataset("packed", data=VALUES, compression="gzip", chunks=(10, 100))
        file["text"] = "some text"
        layout = h5py.VirtualLayout(VALUES.shape, "f8")
        layout[:] = h5py.VirtualSource(file["plain"])
        file.create_virtual_dataset("virtual", layout)

    def work():
        with h5py.File(path) as file:
            equal(file["plain"][2:4], VALUES[2:4])
            equal(file["packed"][...])
            equal(file["virtual"][0], VALUES[0])
            assert file["text"][()] == b"some text"
            target = np.empty_like(VALUES)
            file["plain"].read_direct(target)
            equal(np.asarray(file["packed"]), target)
            assert file["plain"].file == file  # opens nothing
            with pytest.raises(IndexError):
                file["plain"][100]

    whole = (FUSED, ALL)
    spans = [OPEN, ("read", 1600), whole, (FUSED, 800), ("read", 9), READ, whole, ("read", -1)]
    names = {"plain", "packed", "virtual", "text"}
    return work, spans, {str(path), *(f"{path}:/{name}" for name in names), ""}


def netcdf_file(folder):
    import netCDF4

    path = folder / "n.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, size in zip("yx", VALUES.shape, strict=True):
            file.createDimension(name, size)
        file.createVariable("plain", "f8", ("y", "x"))[:] = VALUES
        chunks = {"compression": "zlib", "chunksizes": (10, 100)}
        file.createVariable("packed", "f8", ("y", "x"), **chunks)[:] = VALUES
        scaled = file.createVariable("scaled", "i2", ("y", "x"))
        scaled.scale_factor = 0.5
        scaled[:] = VALUES
    return path


@library("netCDF4")
def netcdf_variables(folder):
    import netCDF4

    path = netcdf_file(folder)
    if "netCDF4" in unseen():
        pytest.skip(f"built with classes nobody can change: {unseen()['netCDF4']}")

    def work():
        with netCDF4.Dataset(path) as file:
            equal(file["scaled"][:])
            file.set_auto_maskandscale(False)
            equal(file["plain"][:2], VALUES[:2])
            equal(file.variables["packed"][:])
            with pytest.raises(ValueError, match="exceeds the number of dimensions"):
                file["plain"][:, 200, 3]

    spans = [OPEN, (FUSED, ALL), ("read", 1600), (FUSED, ALL), ("read", -1)]
    return work, spans, {str(path), "", *(f"{path}:{e}" for e in ("scaled", "plain", "packed"))}


# -- GRIB ---------------------------------------------------------------------------------


@library("eccodes")
def grib_messages(folder):
    import eccodes

    path = folder / "g.grib"
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    with path.open("wb") as file:
        for step in range(2):
            eccodes.codes_set(handle, "step", step)
            eccodes.codes_set_values(handle, np.full(496, 3.0 + step))
            eccodes.codes_write(handle, file)
    eccodes.codes_release(handle)
    size = path.stat().st_size // 2

    def work():
        with path.open("rb") as file:
            handle = eccodes.codes_grib_new_from_file(file)
            values = eccodes.codes_get_values(handle)
            equal(eccodes.codes_get_array(handle, "values"), values)
            eccodes.codes_release(handle)
            eccodes.codes_release(eccodes.codes_new_from_file(file, eccodes.CODES_PRODUCT_GRIB))
            assert eccodes.codes_grib_new_from_file(file) is None
        assert float(values.sum()) == 496 * 3.0

    read, decode = ("read", size), ("decode", 496 * 8)
    return work, [OPEN, read, decode, decode, read, ("read", -1)], {str(path), ""}


# -- what reads and decodes in one call ---------------------------------------------------


@library()
def numpy_texts(folder):
    np.savetxt(folder / "a", VALUES[:3])
    return lambda: equal(np.loadtxt(folder / "a"), VALUES[:3]), [(FUSED, 3 * ROW)], {""}


@library("torch")
def tensors(folder):
    import torch

    path = folder / "a"
    torch.save({"x": torch.arange(10.0)}, path)
    return (
        lambda: equal(torch.load(path)["x"], range(10)), [(FUSED, path.stat().st_size)],
        {str(path)},
    )  # fmt: skip


@library("pandas")
def tables(folder):
    import pandas

    path = folder / "a"
    pandas.DataFrame({"a": range(10)}).to_csv(path, index=False)
    return (
        lambda: equal(pandas.read_csv(path), range(10)), [(FUSED, path.stat().st_size)],
        {str(path)},
    )  # fmt: skip


@library("pyarrow")
def parquet_files(folder):
    import pyarrow
    from pyarrow import parquet

    path = folder / "a"
    parquet.write_table(pyarrow.table({"a": [1, 2, 3]}), path)

    def work():
        assert parquet.read_table(path).num_rows == 3
        assert parquet.ParquetFile(path).read().num_rows == 3

    return work, [(FUSED, path.stat().st_size), (FUSED, -1)], {str(path), ""}


# -- fsspec -------------------------------------------------------------------------------


@library("fsspec")
def fsspec_files(folder):
    import fsspec

    path = folder / "some"
    path.write_bytes(b"0123456789")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/some", b"abcdef")

    def work():
        with fsspec.open(str(path), "rb") as file:
            assert file.read(4) == b"0123"
        assert fsspec.filesystem("file").cat_file(str(path), 2, 5) == b"234"
        assert memory.cat_file("/some") == b"abcdef"
        assert memory.cat_ranges(["/some"], [1], [3]) == [b"bc"]
        memory.rm("/some")

    # To the first read the buffer was filled.
    return work, [OPEN, ("read", 10), ("read", 3), ("read", 2)], None


@library("fsspec")
def fsspec_in_an_event_loop(folder):
    from fsspec import asyn

    class Remote(asyn.AsyncFileSystem):
        cachable = False

        async def _cat_file(self, path, *args, **kwargs):
            with open(__file__, "rb") as file:  # noqa: PTH123
                file.read(1)  # in the loop's thread: part of what is waited for
            return path.encode()

        async def _info(self, path, **kwargs):
            return {"name": path, "size": 4, "type": "file"}

    remote = Remote()

    def work():
        assert remote.cat_file("abcd") == b"abcd"
        assert remote.cat(["ab", "cd"]) == {"ab": b"ab", "cd": b"cd"}
        assert remote.info("abcd")["size"] == 4

    return work, [("read", 4), ("read", 4)], {"abcd", ""}


@pytest.mark.parametrize("name", CASES)
def test_what_a_library_reads_and_decodes_has_its_kinds_bytes_and_files(watch, tmp_path, name):
    modules, make = CASES[name]
    for module in modules:
        pytest.importorskip(module, reason="the library that is timed")
    work, spans, files = make(tmp_path)
    watch(work)
    assert watch.bytes_of == spans
    assert files is None or {span.detail for span in watch.spans} <= files
    fused = [span for span in watch.spans if span.stage == FUSED]
    assert all(span.cpu_ns >= 0 or span.detail.endswith(".npz") for span in fused)


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_loading_a_lazy_array_is_the_read(watch, tmp_path, engine):
    xarray = pytest.importorskip("xarray", reason="loads lazy arrays")
    pytest.importorskip(engine.replace("netcdf4", "netCDF4"), reason="xarray's engine")
    path = netcdf_file(tmp_path)

    def work():
        with xarray.open_dataset(path, engine=engine) as file:
            assert len(file.variables) == 3
            equal(file["scaled"][2:4].values, VALUES[2:4])
            file["scaled"][0].load()

    watch(work)
    first = watch.spans[0]
    assert (first.stage, first.detail) == ("open", str(path))
    spans = [span for span in watch.spans[1:] if span.stage != "lock"]
    assert [span.stage for span in spans] == 2 * ["read", "preprocess:xarray", "decode"]
    inner, load, decode = spans[:3]
    assert inner.is_inside(load)
    assert load.is_inside(decode)
    assert (inner.nbytes, load.nbytes, decode.nbytes) == (400, -1, 1600)
    assert load.detail.endswith(":scaled")


# -- chunks that are decoded --------------------------------------------------------------


def test_h5py_counts_the_chunks_that_its_cache_has_not(watch, tmp_path):
    h5py = pytest.importorskip("h5py", reason="reads HDF5")
    path = tmp_path / "h.h5"
    with h5py.File(path, "w") as file:
        # One chunk of the other is larger than the cache of a dataset opened so.
        for name, n in (("packed", 10), ("other", 20)):
            file.create_dataset(name, data=VALUES, compression="gzip", chunks=(n, 100))

    def work():
        with h5py.File(path, rdcc_nbytes=CHUNK) as file:
            packed, other = file["packed"], file["other"]
            for key in (0, 1, -1, slice(8, 12), (..., 3), [0, 11, 59], ([True] * 60, 0)):
                packed[key]
            for at in range(2):
                other[at]
                file["packed"][at : at + 1]  # opened anew, while the other one is open

    watch(work)
    assert [(each.nbytes // CHUNK, each.cpu_ns / ROW) for each in watch.counters] == [
        (1, 1), (0, 1), (1, 1), (2, 4), (6, 0.6), (3, 3), (6, 0.6),
        (2, 1), (1, 1), (2, 1), (1, 1),
    ]  # fmt: skip
    dims = {(each.label, each.kind) for each in watch.counters}
    assert dims == {("phony_dim_0", "decode"), ("phony_dim_1", "decode")}
    assert {each.detail for each in watch.counters} == {f"{path}:/packed", f"{path}:/other"}


def test_netcdf_counts_chunks_anew_when_a_file_is_opened_again(watch, tmp_path):
    netcdf = pytest.importorskip("netCDF4", reason="reads NetCDF")
    path = netcdf_file(tmp_path)

    def work():
        for _ in range(2):
            with netcdf.Dataset(path) as file:
                file["packed"].set_var_chunk_cache(CHUNK)
                for key in (0, slice(1, 3), 59, 0):
                    file["packed"][key]

    watch(work)
    once = [(1, 1), (0, 2), (1, 1), (1, 1)]
    assert [(e.nbytes // CHUNK, 10 * e.cpu_ns / CHUNK) for e in watch.counters] == 2 * once
    assert {(each.label, each.detail) for each in watch.counters} == {("y", f"{path}:packed")}


# -- Zarr: gets and codecs of other threads, on the time line of the call that waits -------

pieces = st.lists(
    st.tuples(
        st.sampled_from([int(Kind.READ), int(Kind.DECODE)]),
        *(st.integers(0, 60), st.integers(0, 20), st.integers(0, 9)),
    ).map(lambda piece: (piece[0], piece[1], piece[1] + piece[2], piece[3])),
    max_size=12,
)


@given(pieces)
def test_pieces_are_laid_out_as_instant_by_instant(pieces):
    def instants(laid, kind):
        return {at for k, start, end, _ in laid if k == kind for at in range(start, end)}

    laid = laid_out(pieces)
    decoding = instants(pieces, Kind.DECODE)
    assert instants(laid, Kind.DECODE) == decoding
    assert instants(laid, Kind.READ) == instants(pieces, Kind.READ) - decoding
    assert all(one[2] <= other[1] for one, other in pairwise(laid))
    told = sum(nbytes for kind, _, _, nbytes in pieces if kind == Kind.READ)
    if any(kind == Kind.READ for kind, *_ in laid):
        assert sum(nbytes for kind, _, _, nbytes in laid if kind == Kind.READ) == told


@pytest.fixture
def zarr():
    return pytest.importorskip("zarr", reason="reads Zarr")


@pytest.fixture
def array(zarr, tmp_path):
    """Return what makes an array of `VALUES` and opens it to read."""

    def make(**shards):
        target, options = tmp_path / "a.zarr", {"shape": VALUES.shape, "dtype": "f8"}
        if zarr.__version__.startswith("2."):
            zarr.open(str(target), "w", chunks=(10, 50), **options)[:] = VALUES
        else:
            chunks = {"chunks": (10, 50)} | shards
            zarr.create_array(target, overwrite=True, **options, **chunks)[:] = VALUES
        return zarr.open(str(target), mode="r")

    return make


def split(watch):
    """Return what a selection read, and its own span, which it is laid in."""
    *inner, outer = watch.spans
    assert outer.stage == FUSED
    assert {span.kind for span in inner} == {"read", "decode"}
    assert all(span.is_inside(outer) for span in inner)
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(inner))
    assert {span.thread for span in watch.spans} == {"MainThread"}
    return sum(span.nbytes for span in inner if span.kind == "read"), outer


def test_a_selection_is_split_into_gets_and_codecs_and_counts_chunks(watch, zarr, array, tmp_path):
    opened, path = array(), tmp_path / "a.zarr"
    watch(lambda: zarr.open(str(path), mode="r"))
    assert [(span.stage, span.detail) for span in watch.spans] == [("open", str(path))]
    names = {"zarr.json", ".zarray", ".zattrs"}
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in names]
    equal(watch(lambda: opened[:]))
    n_read, outer = split(watch)
    assert n_read == sum(file.stat().st_size for file in files)
    assert (outer.nbytes, outer.cpu_ns > 0) == (ALL, True)
    with pytest.raises(IndexError) as plain:
        opened[100]
    with pytest.raises(type(plain.value), match=re.escape(str(plain.value))):
        watch(lambda: opened[100])
    watch(lambda: (opened[0], opened[0], opened[:]))
    first, again, whole = watch.counters
    assert first.nbytes == again.nbytes == CHUNK
    assert (first.cpu_ns, first.detail) == (ROW, f"{path}:")
    assert (whole.cpu_ns, whole.label) == (ALL, "")


SELECTIONS = {
    "row": lambda array: array[3],
    "orthogonal": lambda array: array.oindex[[1, 30], :],
    "points": lambda array: array.vindex[[1, 30], [2, 3]],
    "mask": lambda array: array.get_mask_selection(VALUES > 3000),
    "part": lambda array: array[5:25, :7],
}


@pytest.mark.parametrize("shards", [{}, {"chunks": (10, 10), "shards": (20, 50)}])
def test_every_selection_is_one(watch, zarr, array, shards):
    if shards and zarr.__version__.startswith("2."):
        pytest.skip("version 2 of the library has no shards")
    opened = array(**shards)
    for name, select in SELECTIONS.items():
        plain = select(opened)
        assert np.array_equal(watch(lambda select=select: select(opened)), plain), name
        split(watch)
