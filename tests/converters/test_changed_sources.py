"""A conversion that goes on notices sources that were rewritten, also where nothing shows it."""

import json
import os

import h5netcdf
import numpy as np
import pytest
from converting import convert

from iobench.chunks.decoded_chunks import reopen_files
from iobench.datasets.contract import no_progress
from iobench.datasets.user_files import user_files
from iobench.errors import StoreError
from iobench.files.claims import JOURNAL_NAME
from iobench.files.source_ranges import read_extents
from iobench.files.used_bytes import UsedBytes, first_changed
from iobench_converters import numpy_records

N_SAMPLES, SHARDS = 16, 8
VALUES = 1 << 16  # 256 KiB a sample


class Places:
    stand_in = False
    progress = staticmethod(no_progress)

    def __init__(self, folder):
        self.cache_dir = folder


class StoppedError(Exception):
    pass


def netcdf(path, *, first=0.0, chunks=None):
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"time": N_SAMPLES, "x": VALUES}
        file.create_variable("time", ("time",), data=first + np.arange(float(N_SAMPLES)))
        values = np.random.default_rng(0).normal(size=(N_SAMPLES, VALUES)).astype("f4")
        file.create_variable("t", ("time", "x"), data=values, chunks=chunks)
    return path


def zarr_store(path):
    zarr = pytest.importorskip("zarr", reason="zarr writes the store")
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    array = group.create_array("t", shape=(N_SAMPLES, VALUES), chunks=(1, VALUES), dtype="f4")
    array.attrs["_ARRAY_DIMENSIONS"] = ["time", "x"]
    array[:] = np.random.default_rng(0).normal(size=(N_SAMPLES, VALUES))
    return path


def go(paths, store, *, stop_after=None, **more):
    """Convert; stop where told, as Ctrl-C or a full disk would."""
    dataset = user_files(paths, sample_dim="time")
    places = Places(store.parent / "cache")
    files = dataset.files(places)
    index = dataset.samples(files, places)

    def progress(done, total):
        if stop_after is not None and done >= stop_after:
            raise StoppedError

    nbytes = len(index) * index.spec.nbytes // SHARDS
    options = {"files": files, "progress": progress, "shard_nbytes": nbytes, **more}
    return convert(dataset, index, numpy_records.FORMAT, store, **options)


def rewrite(path, offset, keep_time=True):
    """Change some bytes in place; size and time stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(4096)
        file.seek(offset)
        file.write(bytes(255 - byte for byte in old))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    reopen_files()


def place_in(path, sample):
    """Return where the numbers of a sample lie, between the stretches that a plan knows."""
    values = np.random.default_rng(0).normal(size=(N_SAMPLES, VALUES)).astype("f4")
    return path.read_bytes().index(values[sample].tobytes()[:64])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("chunks", [None, (1, VALUES)])
def test_a_source_rewritten_in_place_is_refused_and_named(tmp_path, chunks, together):
    path, store = netcdf(tmp_path / "a.nc", chunks=chunks), tmp_path / "store"
    with pytest.raises(StoppedError):
        go([path], store, stop_after=10, together=together)
    rewrite(path, place_in(path, 2))
    with pytest.raises(StoreError, match=rf"{path}: its bytes at offset \d+ are not those"):
        go([path], store, together=together)


def test_of_several_files_the_one_is_named(tmp_path):
    paths = [netcdf(tmp_path / f"{n}.nc", first=100.0 * n) for n in range(2)]
    store = tmp_path / "store"
    with pytest.raises(StoppedError):
        go(paths, store, stop_after=28)
    rewrite(paths[1], place_in(paths[1], 4))
    with pytest.raises(StoreError, match=rf"{paths[1]}: its bytes"):
        go(paths, store)


def test_a_chunk_of_a_store_that_was_rewritten(tmp_path):
    path, store = zarr_store(tmp_path / "a.zarr"), tmp_path / "store"
    with pytest.raises(StoppedError):
        go([path], store, stop_after=10)
    chunk = path / "t" / "2.0"
    rewrite(chunk, chunk.stat().st_size - 8192)  # beyond what is noted of it
    rewrite(path / "t" / "4.0", 100)
    with pytest.raises(StoreError, match=r"a\.zarr/t/4\.0: its bytes at offset 0 "):
        go([path], store)


def test_an_untouched_source_goes_on_to_the_same_bytes(tmp_path):
    path, store, whole = netcdf(tmp_path / "a.nc"), tmp_path / "store", tmp_path / "whole"
    with pytest.raises(StoppedError):
        go([path], store, stop_after=10)
    go([path], store)
    go([path], whole)
    names = sorted(file.name for file in whole.iterdir() if file.is_file())
    assert names == sorted(file.name for file in store.iterdir() if file.is_file())
    for name in names:
        if not name.startswith("."):
            assert (store / name).read_bytes() == (whole / name).read_bytes()


def test_what_is_noted_is_little_and_of_every_file(tmp_path):
    paths = [netcdf(tmp_path / f"{n}.nc", first=100.0 * n) for n in range(2)]
    store = tmp_path / "store"
    with pytest.raises(StoppedError):
        go(paths, store, stop_after=28)
    entries = [json.loads(p.read_bytes()) for p in (store / JOURNAL_NAME).glob("shard-*.json")]
    noted = [each for entry in entries for each in entry["sources"]]
    assert {source for source, *_ in noted} == {0, 1}
    assert sum(nbytes for _, _, _, nbytes, _ in noted) <= len(entries) * 2 * 4 * 65536


def test_notes(tmp_path):
    path, other = tmp_path / "x.bin", tmp_path / "other.bin"
    for each in (path, other):
        each.write_bytes(bytes(range(256)) * 1024)
    used = UsedBytes([path])
    read_extents([(str(path), 0, 10)])
    used.start()
    for n in range(100):
        read_extents([(str(path), 1000 * n, 100), (str(other), 0, 5)])
    used.stop()
    read_extents([(str(path), 0, 10)])
    assert [offset for _, _, offset, _, _ in used.noted] == [0, 1000, 4000, 16000, 64000]
    assert first_changed([path], used.noted) is None
    path.write_bytes(path.read_bytes()[:64050])
    assert first_changed([path], used.noted) == (path, 64000)
    path.unlink()
    assert first_changed([path], used.noted) == (path, 0)
