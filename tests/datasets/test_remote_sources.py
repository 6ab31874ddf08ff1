"""Sources behind URLs: the same samples as of files here, by ranges, never whole."""

import json

import eccodes
import h5netcdf
import netCDF4
import numpy as np
import pytest

import iobench
from iobench.chunks.decoded_chunks import reopen_files
from iobench.datasets.sample_windows import samples_in_order
from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.files.ranges import open_source_file
from iobench.files.urls import URL, as_path
from iobench.sources.opening import expand_sources
from iobench.stores.plan import fingerprint, modified_ns
from tests.support.asked_objects import counted_requests
from tests.support.http_files import serve

pytest.importorskip("obstore", reason="opens URLs")

MEMBERS = "era5/era5-levels-members.grib"
YR = "maelstrom-yr/air_temperature/5GB/20200301T03Z.nc"


@pytest.fixture(autouse=True)
def nothing_open():
    reopen_files()


@pytest.fixture
def counted():
    """Return what tells how often ranges were asked for, and their bytes, since it last told."""
    with counted_requests() as counts:

        def tell():
            found = counts["turns"], counts["nbytes"]
            counts.clear()
            return found

        yield tell


def chunked(path, *, shape=(24, 64, 96), chunks=(4, 64, 96), compressed=True):
    rng = np.random.default_rng(0)
    with h5netcdf.File(path, "w") as file:
        file.dimensions = dict(zip(("time", "y", "x"), shape, strict=True))
        file.create_variable("time", ("time",), data=np.arange(shape[0], dtype="f8"))
        more = {"compression": "gzip", "shuffle": True} if compressed else {}
        values = rng.normal(280, 5, shape).astype("f4")
        file.create_variable("t2m", ("time", "y", "x"), data=values, chunks=chunks, **more)
    return path


def classic(path):
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.createDimension("time", None)
        file.createDimension("x", 1000)
        time = file.createVariable("time", "f8", ("time",))
        values = file.createVariable("t", "f4", ("time", "x"))
        time[:] = np.arange(5)
        values[:] = np.random.default_rng(1).normal(size=(5, 1000))
    return path


def zarr_store(path, version):
    zarr = pytest.importorskip("zarr", reason="zarr writes the stores")
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    more = {"shards": (4, 50)} if version == 3 else {}
    dims = ["time", "x"]
    names = {"dimension_names": dims} if version == 3 else {}
    data = np.random.default_rng(2).normal(size=(8, 50)).astype("f4")
    array = group.create_array("t", shape=(8, 50), chunks=(2, 50), dtype="f4", **names, **more)
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = dims
    array[:4] = data[:4]  # the others were never written
    return path


def assert_same_samples(open_user_files, local, url, sample_dim):
    here = open_user_files(local, sample_dim=sample_dim)
    there = open_user_files(url, sample_dim=sample_dim)
    assert here.index.provenance == there.index.provenance
    assert list(here.index.coordinate) == list(there.index.coordinate)
    assert len(here.index) == len(there.index) > 0
    for i in range(len(here.index)):
        expected, found = here.sample(i), there.sample(i)
        assert list(expected) == list(found)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, strict=True)
    produced = list(samples_in_order(there.dataset, there.index, range(len(there.index))))
    for name, values in here.sample(len(produced) - 1).items():
        np.testing.assert_array_equal(produced[-1][name], values)


def source(kind, tmp_path, real):
    makers = {
        "grib": lambda: real(MEMBERS),
        "netcdf4": lambda: chunked(tmp_path / "chunked.nc"),
        "contiguous": lambda: real(YR),
        "classic": lambda: classic(tmp_path / "classic.nc"),
        "zarr2": lambda: zarr_store(tmp_path / "two.zarr", 2),
        "zarr3": lambda: zarr_store(tmp_path / "three.zarr", 3),
    }
    return makers[kind](), "leadtime" if kind == "contiguous" else "time"


KINDS = ["grib", "netcdf4", "contiguous", "classic", "zarr2", "zarr3"]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_the_file_here(kind, tmp_path, real, put_files, open_user_files):
    path, sample_dim = source(kind, tmp_path, real)
    assert_same_samples(open_user_files, path, put_files(path), sample_dim)


def test_metadata_of_a_large_hdf5_file_is_read_in_part(
    tmp_path, put_files, counted, open_user_files
):
    path = chunked(tmp_path / "large.nc", shape=(64, 256, 256), chunks=(1, 256, 256))
    size = path.stat().st_size
    assert size > 8 << 20
    url = put_files(path)
    counted()
    made = open_user_files(url, sample_dim="time")
    assert counted()[1] < size / 8
    made.sample(5)
    n_turns, nbytes = counted()
    assert n_turns == 1
    assert nbytes < size / 32


def grib_of(path, lengths):
    sample = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    with path.open("wb") as file:
        for number, length in enumerate(lengths):
            handle = eccodes.codes_clone(sample)
            eccodes.codes_set(handle, "Ni", length)
            eccodes.codes_set(handle, "Nj", 10)
            eccodes.codes_set(handle, "bitsPerValue", 16)
            eccodes.codes_set(handle, "dataDate", 20200101 + number)
            eccodes.codes_set_values(handle, np.random.default_rng(number).random(10 * length))
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    eccodes.codes_release(sample)
    return path


@pytest.mark.parametrize("cycle", [[4000, 2000, 3000], [100]])
def test_grib_is_indexed_by_headers(tmp_path, put_files, counted, locator, cycle):
    from iobench.datasets.source_files import index_grib

    lengths = [cycle[n % len(cycle)] for n in range(90)]
    path = grib_of(tmp_path / "many.grib", lengths)
    expected = index_grib([path], cache_dir=locator.cache_dir)
    url = URL(put_files(path))
    counted()
    found = index_grib([url], cache_dir=locator.cache_dir)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(found[name], column)
    _, nbytes = counted()
    if cycle[0] > 1000:
        assert nbytes < path.stat().st_size / 10
    index_grib([url], cache_dir=locator.cache_dir)
    assert counted() == (0, 0)  # its index was kept


def test_a_remote_file_cut_short(tmp_path, real, put_files, open_user_files):
    path = real(MEMBERS)
    short = tmp_path / "short.grib"
    short.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="cut short"):
        open_user_files(put_files(short), sample_dim="time")


def test_what_is_no_source(put_files, tmp_path, open_user_files, bucket):
    other = tmp_path / "note.txt"
    other.write_text("nothing")
    with pytest.raises(FileFormatError, match="neither GRIB nor NetCDF"):
        open_user_files(put_files(other), sample_dim="time")
    with pytest.raises(FileFormatError, match="without Zarr metadata"):
        open_user_files(f"s3://{bucket}", sample_dim="time")
    with pytest.raises(MissingFileError, match=r"s3://.*/none\.nc"):
        open_user_files(f"s3://{bucket}/none.nc", sample_dim="time")


def test_patterns(tmp_path, bucket, put_files):
    for name in ("b.nc", "a.nc", "c.grib"):
        (tmp_path / name).write_bytes(b"x")
        put_files(tmp_path / name, f"dir/{name}")
    found = [url.name for url in expand_sources([f"s3://{bucket}/d*/*.nc"])]
    assert found == ["a.nc", "b.nc"]
    found = expand_sources([f"s3://{bucket}/dir/[bc].*", "x.nc", 5])
    names = ("b.nc", "c.grib")
    assert found == (*(URL(f"s3://{bucket}/dir/{name}") for name in names), "x.nc", 5)
    with pytest.raises(MissingFileError, match="no file matches"):
        expand_sources([f"s3://{bucket}/none/*.nc"])
    with pytest.raises(StorageError, match="there is no such bucket"):
        expand_sources(["s3://iobench-no-such-bucket/*.nc"])
    signed = "https://host/x.nc?signature=abc"
    assert expand_sources([signed]) == (URL(signed),)


@pytest.mark.timeout(100)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_worker_processes_read_for_themselves(put_files, real, iobench_here):
    done = iobench_here(
        "profile", put_files(real(MEMBERS)), "--sample-dim", "time", "--batches", "4",
        "--batch-size", "1", "--workers", "2", "--framework", "workers", "--compute", "none",
        "--store-dir", "stores", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["runs"]
    assert report["batches"] == 4
    assert report["missing_workers"] == []


def test_fingerprint_is_that_of_the_same_bytes_here(tmp_path, put_files):
    path = tmp_path / "x.bin"
    path.write_bytes(np.random.default_rng(0).bytes(3 << 20))
    folder = zarr_store(tmp_path / "z.zarr", 3)
    for each in (path, folder):
        there = as_path(put_files(each))
        assert fingerprint(there) == fingerprint(each)


def test_a_change_on_s3_is_seen(tmp_path, put_files):
    path = tmp_path / "x.bin"
    path.write_bytes(b"a" * 1000)
    url = URL(put_files(path))
    before = modified_ns(url)
    assert modified_ns(url) == before
    path.write_bytes(b"b" * 1000)  # within the same second
    put_files(path)
    assert modified_ns(url) != before


@pytest.mark.parametrize("kind", ["grib", "netcdf4", "classic"])
def test_a_file_behind_a_url_is_asked_for_its_state_twice_at_first_then_once(kind, tmp_path, real):
    pytest.importorskip("obstore", reason="asks web servers")
    path, sample_dim = source(kind, tmp_path, real)
    with serve(path.parent, "secret") as server:
        url = f"http://me:secret@127.0.0.1:{server.server_port}/{path.name}"
        for expected in (2, 1):  # again once it was indexed; then what was learnt is kept
            made = iobench.open_dataset(url, sample_dim=sample_dim, store_dir=tmp_path / "kept")
            assert len(made[0])
            assert server.n_heads == expected
            server.n_heads = 0


def test_a_file_behind_a_url_that_changes_while_it_is_indexed(tmp_path, put_files):
    url = put_files(chunked(tmp_path / "x.nc"))
    looked_up = URL(url).looked_up()
    opened = open_source_file(looked_up)
    opened.check()
    put_files(chunked(tmp_path / "y.nc", shape=(4, 64, 96)), "x.nc")
    with pytest.raises(FileFormatError, match=r"x\.nc: changed while it was indexed"):
        opened.check()
