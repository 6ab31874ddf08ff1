"""Sources behind URLs: the same samples as of files here, by ranges, never whole."""

import json
import pickle

import eccodes
import h5netcdf
import netCDF4
import numpy as np
import pytest

import iobench
from iobench.datasets.sample_windows import samples_in_order
from iobench.datasets.source_files import index_grib
from iobench.errors import FileFormatError, MissingFileError, StorageError
from iobench.files.ranges import forget_source_files, open_source_file
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
    forget_source_files()


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


MAKERS = {
    "netcdf4": lambda folder, real: chunked(folder / "chunked.nc"),
    "zarr3": lambda folder, real: zarr_store(folder / "three.zarr", 3),
    "contiguous": lambda folder, real: real(YR),
    "classic": lambda folder, real: classic(folder / "classic.nc"),
    "zarr2": lambda folder, real: zarr_store(folder / "two.zarr", 2),
    "grib": lambda folder, real: real(MEMBERS),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", MAKERS)
def test_samples_are_those_of_the_file_here(kind, tmp_path, real, put_files, open_user_files):
    path = MAKERS[kind](tmp_path, real)
    here, there = (
        open_user_files(each, sample_dim="leadtime" if kind == "contiguous" else "time")
        for each in (path, put_files(path))
    )
    assert here.index.provenance == there.index.provenance
    assert list(here.index.coordinate) == list(there.index.coordinate)
    assert len(here.index) == len(there.index) > 0
    produced = samples_in_order(there.dataset, there.index, range(len(there.index)))
    for i, sample in enumerate(produced):
        expected, found = here.sample(i), there.sample(i)
        assert list(expected) == list(found)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, strict=True)
            np.testing.assert_array_equal(sample[name], values)


@pytest.mark.long
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
    with path.open("wb") as file:
        for number, length in enumerate(lengths):
            handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
            own = {"Ni": length, "Nj": 10, "bitsPerValue": 16, "dataDate": 20200101 + number}
            for key, value in own.items():
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, np.random.default_rng(number).random(10 * length))
            eccodes.codes_write(handle, file)
            eccodes.codes_release(handle)
    return path


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("cycle", [[100], [4000, 2000, 3000]])
def test_grib_is_indexed_by_headers(tmp_path, put_files, counted, locator, cycle):
    path = grib_of(tmp_path / "many.grib", [cycle[n % len(cycle)] for n in range(90)])
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


@pytest.mark.long
def test_a_remote_file_cut_short(tmp_path, real, put_files, open_user_files):
    short = tmp_path / "short.grib"
    short.write_bytes(real(MEMBERS).read_bytes()[:-100])
    with pytest.raises(FileFormatError, match="cut short"):
        open_user_files(put_files(short), sample_dim="time")


def test_what_is_no_source(put_files, tmp_path, open_user_files, bucket):
    other = tmp_path / "note.txt"
    other.write_text("nothing")
    for url, error, said in (
        (put_files(other), FileFormatError, "neither GRIB nor NetCDF"),
        (f"s3://{bucket}", FileFormatError, "without Zarr metadata"),
        (f"s3://{bucket}/none.nc", MissingFileError, r"s3://.*/none\.nc"),
    ):
        with pytest.raises(error, match=said):
            open_user_files(url, sample_dim="time")


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


@pytest.mark.long
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


def test_an_object_that_changes_or_goes_in_the_middle(tmp_path, put_files):
    path = chunked(tmp_path / "x.nc", chunks=None, compressed=False)  # nothing decoded is kept
    url = URL(put_files(path))
    opened = iobench.open_dataset(url.with_secrets(), sample_dim="time", store_dir=tmp_path)
    before = opened[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)  # as long as before
    url.write_bytes(content)
    sent = pickle.loads(pickle.dumps(opened))  # as to a process
    for each in (opened, sent):
        with pytest.raises(FileFormatError, match=r"x\.nc: was rewritten since"):
            each[0]
    url.unlink()
    with pytest.raises(MissingFileError, match=r"x\.nc: no such file any more"):
        opened[0]
    put_files(path)
    again = iobench.open_dataset(url.with_secrets(), sample_dim="time", store_dir=tmp_path)
    np.testing.assert_array_equal(again[0]["t2m"], before["t2m"])


def test_a_server_that_is_too_busy_at_first(tmp_path, put_files, monkeypatch):
    from moto.s3.responses import S3Response

    from iobench.files import objects

    # The libraries try what failed three times, not ten with long waits between.
    monkeypatch.setitem(objects.TRIES, "bucket", 2)
    path = chunked(tmp_path / "x.nc")
    here, there = (
        iobench.open_dataset(each, sample_dim="time", store_dir=tmp_path)
        for each in (path, put_files(path))
    )
    answer, refused = S3Response.get_object, []

    def busy(self, *arguments):
        if len(refused) < limit:
            refused.append(1)
            body = "<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"
            return 503, {}, body
        return answer(self, *arguments)

    limit = 2
    monkeypatch.setattr(S3Response, "get_object", busy)
    np.testing.assert_array_equal(there[0]["t2m"], here[0]["t2m"])
    assert len(refused) == limit
    limit = 10**6
    with pytest.raises(StorageError, match="Reduce your request rate") as told:
        there[23]
    assert "\n" not in str(told.value)


def test_fingerprint_is_that_of_the_same_bytes_here_and_a_change_is_seen(tmp_path, put_files):
    path, folder = tmp_path / "x.bin", zarr_store(tmp_path / "z.zarr", 3)
    path.write_bytes(np.random.default_rng(0).bytes(3 << 20))
    for each in (path, folder):
        assert fingerprint(as_path(put_files(each))) == fingerprint(each)
    url = URL(put_files(path))
    before = modified_ns(url)
    assert modified_ns(url) == before
    path.write_bytes(b"b" * 1000)  # within the same second
    put_files(path)
    assert modified_ns(url) != before


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["classic", "netcdf4", "grib"])
def test_a_file_behind_a_url_is_asked_for_its_state_twice_at_first_then_once(kind, tmp_path, real):
    path = MAKERS[kind](tmp_path, real)
    with serve(path.parent, "secret") as server:
        url = f"http://me:secret@127.0.0.1:{server.server_port}/{path.name}"
        for expected in (2, 1):  # again once it was indexed; then what was learnt is kept
            made = iobench.open_dataset(url, sample_dim="time", store_dir=tmp_path / "kept")
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
