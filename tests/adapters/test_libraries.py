"""Each adapter with the real library: kinds, bytes, nesting, and objects as they were."""

from __future__ import annotations

import io

import numpy as np
import pytest

from iobench.adapters.installed import unseen

pytestmark = pytest.mark.usefixtures("installed")
VALUES = np.arange(6000.0).reshape(60, 100)


def inside(inner, outer):
    return bool(outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns)


# -- NumPy --------------------------------------------------------------------------------


def test_numpy_loads_are_reads_and_mappings_are_opened(watch, tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, VALUES)

    def work():
        with open(path, "rb") as file:  # noqa: PTH123
            np.load(file)
        return [
            np.load(str(path)),
            np.load(path, mmap_mode="r"),
            np.fromfile(path, "<f8", offset=128),
            np.memmap(path, "<f8", "r", offset=128),
        ]

    answers = watch(work)
    assert isinstance(answers[1], np.memmap)
    assert all(np.array_equal(answer.ravel(), VALUES.ravel()) for answer in answers)
    assert [(span.kind, span.nbytes) for span in watch.spans] == [
        ("open", -1),
        ("read", VALUES.nbytes),
        ("read", VALUES.nbytes),
        ("open", -1),
        ("read", VALUES.nbytes),
        ("open", -1),
    ]
    assert {span.detail for span in watch.spans} == {str(path)}


def test_what_lies_in_memory_is_decoded_and_not_read_again(watch, tmp_path):
    archive, array = io.BytesIO(), io.BytesIO()
    np.savez_compressed(archive, x=VALUES)
    np.save(array, VALUES)
    (tmp_path / "a.npy").write_bytes(array.getvalue())

    def work():
        np.load(io.BytesIO((tmp_path / "a.npy").read_bytes()))
        archive.seek(0)
        assert np.array_equal(np.load(archive)["x"], VALUES)

    watch(work)
    assert watch.stages == ["open", "read", "decode", "open", "decode"]
    assert [span.nbytes for span in watch.spans if span.kind == "decode"] == 2 * [VALUES.nbytes]


def test_members_of_an_archive_are_read_when_they_are_asked_for(watch, tmp_path):
    np.savez(tmp_path / "plain.npz", x=VALUES)
    np.savez_compressed(tmp_path / "packed.npz", x=VALUES)

    def work():
        for name in ("plain.npz", "packed.npz"):
            with np.load(tmp_path / name) as archive:
                assert np.array_equal(archive["x"], VALUES)
                with pytest.raises(KeyError, match="y is not a file in the archive"):
                    archive["y"]

    watch(work)
    assert watch.stages == ["open", "read", "read", "open", "fused:read+decode", "read"]
    assert watch.spans[1].nbytes == watch.spans[4].nbytes == VALUES.nbytes


# -- HDF5 and NetCDF ----------------------------------------------------------------------


@pytest.fixture
def hdf5(tmp_path):
    h5py = pytest.importorskip("h5py", reason="reads HDF5")
    path = tmp_path / "h.h5"
    with h5py.File(path, "w") as file:
        file["plain"] = VALUES
        file.create_dataset("packed", data=VALUES, compression="gzip", chunks=(10, 100))
        file["text"] = "some text"
        layout = h5py.VirtualLayout(VALUES.shape, "f8")
        layout[:] = h5py.VirtualSource(file["plain"])
        file.create_virtual_dataset("virtual", layout)
    return path


def test_h5py_counts_the_chunks_that_its_cache_has_not(watch, hdf5):
    import h5py

    row, chunk = VALUES[0].nbytes, 10 * VALUES[0].nbytes
    with h5py.File(hdf5, "a") as file:
        # One chunk is larger than the cache of a dataset opened so.
        file.create_dataset("other", data=VALUES, compression="gzip", chunks=(20, 100))

    def work():
        with h5py.File(hdf5, rdcc_nbytes=chunk) as file:
            packed, other = file["packed"], file["other"]
            for key in (0, 1, -1, slice(8, 12), (..., 3), [0, 11, 59], ([True] * 60, 0)):
                packed[key]
            for at in range(2):
                other[at]
                file["packed"][at : at + 1]  # opened anew, while the other one is open

    watch(work)
    assert [(each.nbytes // chunk, each.cpu_ns / row) for each in watch.counters] == [
        (1, 1), (0, 1), (1, 1), (2, 4), (6, 0.6), (3, 3), (6, 0.6),
        (2, 1), (1, 1), (2, 1), (1, 1),
    ]  # fmt: skip
    assert {(each.label, each.kind) for each in watch.counters} == {
        ("phony_dim_0", "decode"), ("phony_dim_1", "decode")
    }  # fmt: skip
    assert {each.detail for each in watch.counters} == {f"{hdf5}:/packed", f"{hdf5}:/other"}


def test_h5py_reads_are_fused_where_filters_are_set(watch, hdf5):
    import h5py

    def work():
        with h5py.File(hdf5) as file:
            assert np.array_equal(file["plain"][2:4], VALUES[2:4])
            assert np.array_equal(file["packed"][...], VALUES)
            assert np.array_equal(file["virtual"][0], VALUES[0])
            assert file["text"][()] == b"some text"
            target = np.empty_like(VALUES)
            file["plain"].read_direct(target)
            assert np.array_equal(np.asarray(file["packed"]), target)
            assert file["plain"].file == file  # opens nothing
            with pytest.raises(IndexError):
                file["plain"][100]

    watch(work)
    assert [(span.stage, span.nbytes) for span in watch.spans] == [
        ("open", -1),
        ("read", 1600),
        ("fused:read+decode", VALUES.nbytes),
        ("fused:read+decode", 800),
        ("read", 9),
        ("read", VALUES.nbytes),
        ("fused:read+decode", VALUES.nbytes),
        ("read", -1),
    ]
    assert watch.spans[0].detail == str(hdf5)
    assert watch.spans[2].detail == f"{hdf5}:/packed"
    assert all(span.cpu_ns >= 0 for span in watch.spans[1:])


@pytest.fixture
def netcdf(tmp_path):
    netCDF4 = pytest.importorskip("netCDF4", reason="reads NetCDF")
    path = tmp_path / "n.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, size in zip("yx", VALUES.shape, strict=True):
            file.createDimension(name, size)
        file.createVariable("plain", "f8", ("y", "x"))[:] = VALUES
        file.createVariable("packed", "f8", ("y", "x"), compression="zlib")[:] = VALUES
        scaled = file.createVariable("scaled", "i2", ("y", "x"))
        scaled.scale_factor = 0.5
        scaled[:] = VALUES
    return path


def test_netcdf_counts_chunks_anew_when_a_file_is_opened_again(watch, tmp_path):
    netcdf = pytest.importorskip("netCDF4", reason="reads NetCDF")
    path, chunk = str(tmp_path / "n.nc"), 10 * VALUES[0].nbytes
    with netcdf.Dataset(path, "w") as file:
        file.createDimension("time", 60)
        file.createDimension("x", 100)
        packed = file.createVariable("v", "f8", ("time", "x"), zlib=True, chunksizes=(10, 100))
        packed[:] = VALUES

    def work():
        for _ in range(2):
            with netcdf.Dataset(path) as file:
                file["v"].set_var_chunk_cache(chunk)
                for key in (0, slice(1, 3), 59, 0):
                    file["v"][key]

    watch(work)
    once = [(1, 1), (0, 2), (1, 1), (1, 1)]
    counters = watch.counters
    assert [(each.nbytes // chunk, 10 * each.cpu_ns / chunk) for each in counters] == 2 * once
    assert {(each.label, each.detail) for each in counters} == {("time", f"{path}:v")}


def test_netcdf_variables_are_fused_where_they_are_decoded(watch, netcdf):
    import netCDF4

    if "netCDF4" in unseen():
        pytest.skip(f"built with classes nobody can change: {unseen()['netCDF4']}")

    def work():
        with netCDF4.Dataset(netcdf) as file:
            assert np.array_equal(file["scaled"][:], VALUES)
            file.set_auto_maskandscale(False)
            assert np.array_equal(file["plain"][:2], VALUES[:2])
            assert np.array_equal(file.variables["packed"][:], VALUES)
            with pytest.raises(ValueError, match="exceeds the number of dimensions"):
                file["plain"][:, 200, 3]

    watch(work)
    assert [(span.stage, span.nbytes) for span in watch.spans] == [
        ("open", -1),
        ("fused:read+decode", VALUES.nbytes),
        ("read", 1600),
        ("fused:read+decode", VALUES.nbytes),
        ("read", -1),
    ]
    assert watch.spans[1].detail == f"{netcdf}:scaled"


# -- xarray -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_loading_a_lazy_array_is_the_read(watch, netcdf, engine):
    xarray = pytest.importorskip("xarray", reason="loads lazy arrays")
    pytest.importorskip(engine.replace("netcdf4", "netCDF4"), reason="xarray's engine")

    def work():
        with xarray.open_dataset(netcdf, engine=engine) as file:
            opened = len(file.variables)
            values = file["scaled"][2:4].values
            file["scaled"][0].load()
            assert opened == 3
            return values

    assert np.array_equal(watch(work), VALUES[2:4])
    assert watch.stages[0] == "open"
    assert watch.spans[0].detail == str(netcdf)
    assert watch.stages[1:] == 2 * ["read", "preprocess:xarray", "decode"]
    library, load, decode = watch.spans[1:4]
    assert inside(library, load)
    assert inside(load, decode)
    assert (library.nbytes, load.nbytes, decode.nbytes) == (400, -1, 1600)
    assert load.detail.endswith(":scaled")


# -- GRIB ---------------------------------------------------------------------------------


@pytest.fixture
def grib(tmp_path):
    eccodes = pytest.importorskip("eccodes", reason="reads GRIB")
    path = tmp_path / "g.grib"
    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    with path.open("wb") as file:
        for step in range(2):
            eccodes.codes_set(handle, "step", step)
            eccodes.codes_set_values(handle, np.full(496, 3.0 + step))
            eccodes.codes_write(handle, file)
    eccodes.codes_release(handle)
    return path


def test_messages_are_read_and_values_decoded(watch, grib):
    import eccodes

    def work():
        with grib.open("rb") as file:
            handle = eccodes.codes_grib_new_from_file(file)
            values = eccodes.codes_get_values(handle)
            assert np.array_equal(eccodes.codes_get_array(handle, "values"), values)
            eccodes.codes_release(handle)
            second = eccodes.codes_new_from_file(file, eccodes.CODES_PRODUCT_GRIB)
            eccodes.codes_release(second)
            assert eccodes.codes_grib_new_from_file(file) is None
        return float(values.sum())

    assert watch(work) == 496 * 3.0
    size = grib.stat().st_size // 2
    assert [(span.kind, span.nbytes) for span in watch.spans] == [
        ("open", -1),
        ("read", size),
        ("decode", 496 * 8),
        ("decode", 496 * 8),
        ("read", size),
        ("read", -1),
    ]
    assert watch.spans[1].detail == str(grib)


# -- what reads and decodes in one call ---------------------------------------------------


def text(path):
    np.savetxt(path, VALUES[:3])
    return [lambda: len(np.loadtxt(path))], 3


def tensors(path):
    torch = pytest.importorskip("torch", reason="loads tensors")
    torch.save({"x": torch.arange(10.0)}, path)
    return [lambda: len(torch.load(path)["x"])], 10


def table(path):
    pandas = pytest.importorskip("pandas", reason="reads tables")
    pandas.DataFrame({"a": range(10)}).to_csv(path, index=False)
    return [lambda: len(pandas.read_csv(path))], 10


def parquet(path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="reads Parquet")
    pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet")
    parquet.write_table(pyarrow.table({"a": [1, 2, 3]}), path)
    whole = lambda: parquet.ParquetFile(path).read().num_rows  # noqa: E731
    return [lambda: parquet.read_table(path).num_rows, whole], 3


@pytest.mark.parametrize("make", [text, tensors, table, parquet])
def test_what_reads_and_decodes_at_once_is_fused(watch, tmp_path, make):
    path = tmp_path / "data"
    calls, length = make(path)
    for call in calls:
        assert watch(call) == length
        (span,) = watch.spans
        assert (span.stage, span.cpu_ns > 0) == ("fused:read+decode", True)
        if make in (tensors, table):
            assert (span.nbytes, span.detail) == (path.stat().st_size, str(path))


# -- fsspec -------------------------------------------------------------------------------


def test_files_of_fsspec_are_opened_and_read(watch, tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="file systems behind URLs")
    path = tmp_path / "some"
    path.write_bytes(b"0123456789")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/some", b"abcdef")

    def work():
        with fsspec.open(str(path), "rb") as file:
            assert file.read(4) == b"0123"
        assert fsspec.filesystem("file").cat_file(str(path), 2, 5) == b"234"
        assert memory.cat_file("/some") == b"abcdef"
        assert memory.cat_ranges(["/some"], [1], [3]) == [b"bc"]

    watch(work)
    memory.rm("/some")
    kinds = [(span.kind, span.nbytes) for span in watch.spans]
    assert kinds[0] == ("open", -1)
    assert ("read", 10) in kinds  # the buffer was filled
    assert ("read", 3) in kinds
    assert ("read", 2) in kinds


def test_what_an_event_loop_fetches_is_read_by_who_waits(watch):
    fsspec = pytest.importorskip("fsspec", reason="file systems behind URLs")
    asyn = pytest.importorskip("fsspec.asyn", reason="file systems behind URLs")

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

    watch(work)
    assert [(span.kind, span.nbytes, span.detail) for span in watch.spans] == [
        ("read", 4, "abcd"),
        ("read", 4, ""),
    ]
    assert fsspec.__name__ == "fsspec"
