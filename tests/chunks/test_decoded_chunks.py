"""Chunks that samples share are read and decoded once while they are kept, and kept by plan."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

import iobench
from iobench.chunks.decoded_chunks import (
    CHUNK_CACHE,
    ChunkRow,
    DecodedChunks,
    chunk_cache_nbytes,
    share_chunk_cache,
    take_decode_counts,
)
from iobench.cpus import available_cpus
from iobench.errors import OptionError
from iobench.loaders.ring.process_source import USUAL_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iobench.sources.opened_dataset import OpenDataset

N_TIMES, CHUNK = 24, 6
CHUNK_NBYTES = CHUNK * 8 * 10 * 4


@pytest.fixture(autouse=True)
def _counts_of_this_test() -> Iterator[None]:
    take_decode_counts()
    yield
    share_chunk_cache(1)


def values(name: str) -> np.ndarray:
    rng = np.random.default_rng(len(name))
    return rng.integers(0, 999, (N_TIMES, 8, 10)).astype("f4")


def written(folder: Path, kind: str, chunk: tuple[int, ...] = (CHUNK, 8, 10)) -> Path:
    """Write two variables of 24 times."""
    xarray = pytest.importorskip("xarray", reason="writes the files")
    named = {name: (("time", "y", "x"), values(name)) for name in ("a", "bb")}
    data = xarray.Dataset(named, coords={"time": np.arange(N_TIMES)})
    if kind == "netcdf":
        path = folder / "a.nc"
        coding = {"zlib": True, "shuffle": True, "chunksizes": chunk}
        data.to_netcdf(path, engine="h5netcdf", encoding=dict.fromkeys(named, coding))
    else:
        pytest.importorskip("zarr", reason="writes the store")
        path = folder / "a.zarr"
        coding = {"chunks": chunk}
        version = int(kind[-1])
        data.to_zarr(
            path, zarr_format=version, consolidated=False, encoding=dict.fromkeys(named, coding)
        )
    return path


def opened(path: Path) -> OpenDataset:
    return iobench.open_dataset(str(path), sample_dim="time")


def made(samples: OpenDataset, numbers: list[int]) -> tuple[int, int]:
    """Make samples, compare them, and return how many chunks were needed and how many decoded."""
    for number in numbers:
        sample = samples[number]
        for name in ("a", "bb"):
            np.testing.assert_array_equal(sample[name], values(name)[number])
            assert sample[name].flags.writeable
            sample[name][...] = -1  # nobody else has it
    counts = take_decode_counts()
    assert counts is not None
    assert counts.decoded_nbytes == counts.n_decoded * CHUNK_NBYTES
    assert counts.used_nbytes == len(numbers) * 2 * CHUNK_NBYTES // CHUNK
    return counts.n_hits + counts.n_decoded, counts.n_decoded


@pytest.mark.parametrize("kind", ["netcdf", "zarr2", "zarr3"])
def test_each_chunk_is_read_and_decoded_once(tmp_path: Path, kind: str) -> None:
    samples = opened(written(tmp_path, kind))
    assert made(samples, list(range(N_TIMES))) == (2 * N_TIMES, 2 * N_TIMES // CHUNK)
    assert made(samples, list(range(N_TIMES))) == (2 * N_TIMES, 0)
    dataset, where = samples.dataset, samples.index.where
    assert sum(len(each) for each in dataset.read(where[0])) == 0  # nothing of what is kept


def test_nothing_is_kept_beyond_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "netcdf")
    monkeypatch.setenv(CHUNK_CACHE, "0")
    assert made(opened(path), list(range(N_TIMES))) == (48, 48)
    # In order, room for the chunks of one sample is as good as room for all.
    monkeypatch.setenv(CHUNK_CACHE, str(2 * CHUNK_NBYTES))
    assert made(opened(path), list(range(N_TIMES))) == (48, 8)


def test_the_bound_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHUNK_CACHE, "1GiB")
    assert chunk_cache_nbytes() == 1 << 30
    share_chunk_cache(4)
    assert chunk_cache_nbytes() == 1 << 28
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert chunk_cache_nbytes() == 1 << 27
    monkeypatch.setenv(CHUNK_CACHE, "much")
    with pytest.raises(OptionError, match=f"{CHUNK_CACHE} much: expected a size"):
        chunk_cache_nbytes()
    monkeypatch.delenv(CHUNK_CACHE)
    assert 0 < chunk_cache_nbytes() <= 1 << 30


def test_a_pass_in_any_order_keeps_what_is_needed_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Belady's rule against what it is in a plain simulation, that looks at the whole future.
    path = written(tmp_path, "netcdf")
    room = 2
    monkeypatch.setenv(CHUNK_CACHE, str(2 * room * CHUNK_NBYTES))
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(N_TIMES).tolist()
        samples = opened(path)
        samples.dataset.chunk_cache.expect([samples.index.where[n] for n in order], follows=False)
        _, n_made = made(samples, order)
        assert (seed, n_made) == (seed, 2 * fewest_misses([n // CHUNK for n in order], room))


def test_samples_outside_of_the_order_are_kept_by_their_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "netcdf")
    monkeypatch.setenv(CHUNK_CACHE, str(2 * CHUNK_NBYTES))
    samples = opened(path)
    everything = list(range(N_TIMES))
    samples.dataset.chunk_cache.expect([samples.index.where[n] for n in everything], follows=False)
    assert made(samples, everything) == (48, 8)
    assert made(samples, everything) == (48, 8)  # the pass is over, and this another one


def fewest_misses(rows: list[int], room: int) -> int:
    """Return how often a row has to be made if the one needed last is let go, new ones included."""
    kept: set[int] = set()
    misses = 0
    for place, row in enumerate(rows):
        if row in kept:
            continue
        misses += 1
        later = rows[place + 1 :]

        def next_use(each: int, later: list[int] = later) -> int:
            return later.index(each) if each in later else N_TIMES + rows.index(each)

        kept.add(row)
        if len(kept) > room:
            kept.remove(max(kept, key=next_use))
    return misses


def test_columns_of_all_times_that_do_not_fit_are_kept_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "netcdf", chunk=(N_TIMES, 4, 5))  # 4 chunks of each variable
    monkeypatch.setenv(CHUNK_CACHE, str(6 * N_TIMES * 4 * 5 * 4))
    samples = opened(path)
    for number in range(N_TIMES):
        samples[number]
    counts = take_decode_counts()
    assert counts is not None
    assert counts.n_decoded == 8 + 2 * (N_TIMES - 1)


def test_two_threads_that_want_a_chunk_decode_it_once() -> None:
    kept = DecodedChunks()
    key = ChunkRow(0, "a", (1,), (0,)), (0,)
    entered, go_on = threading.Event(), threading.Event()
    reads, decodes, found = [], [], []

    def read(wanted: list[object]) -> list[list[memoryview | None]]:
        reads.append(len(wanted))
        entered.set()
        assert go_on.wait(10)
        return [[memoryview(b"12"), None, memoryview(b"34")]]

    def decode(place, stored, out) -> np.ndarray:
        decodes.append(place)
        return np.frombuffer(b"".join(each for each in stored if each), dtype=np.uint8)

    def work() -> None:
        chunks, own = kept.take([key], (0, 0), read)
        found.append((chunks[0].values(decode).tobytes(), sum(map(len, own))))
        assert chunks[0].n_chunks == 2
        assert chunks[0].is_absent

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    assert entered.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert (reads, decodes) == ([1], [(0,)])
    assert sorted(found) == [(b"1234", 0), (b"1234", 4)]


def test_who_decodes_into_a_row_has_the_bytes_though_another_decodes_them_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = DecodedChunks()
    key = ChunkRow(0, "a", (1,), (0,)), (0,)

    def decode(place, stored, out) -> np.ndarray | None:
        if not stored:
            return None  # as of a chunk that was never written
        values = np.frombuffer(stored[0], dtype=np.uint8).copy()
        if out is None:
            return values
        out[...] = values
        return out

    (chunk,), _ = kept.take([key], (0, 0), lambda wanted: [[memoryview(b"1234")]])

    def is_passing(row, nbytes) -> bool:
        other = threading.Thread(target=chunk.values, args=(decode,))
        other.start()
        other.join(10)
        return True

    monkeypatch.setattr(kept, "is_passing", is_passing)
    out = np.zeros(4, dtype=np.uint8)
    found = chunk.values(decode, out)
    assert found is not None
    assert found.tobytes() == b"1234"
    kept_values = chunk.values(decode)
    assert kept_values is not None
    assert kept_values.tobytes() == b"1234"


def test_who_waited_for_a_read_that_failed_reads_for_itself() -> None:
    kept = DecodedChunks()
    key = ChunkRow(0, "a", (1,), (0,)), (0,)

    def fails(wanted: list[object]) -> list[list[memoryview]]:
        raise OSError("gone")

    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            kept.take([key], (0, 0), fails)
    chunks, own = kept.take([key], (0, 0), lambda wanted: [[memoryview(b"12")]])
    assert len(chunks) == 1
    assert own == [b"12"]


def test_what_is_sent_to_a_process_or_forked_keeps_nothing(tmp_path: Path) -> None:
    samples = opened(written(tmp_path, "netcdf"))
    made(samples, [0])
    sent = pickle.loads(pickle.dumps(samples.dataset))
    sent.decode(sent.read(samples.index.where[0]), samples.index.where[0])
    counts = take_decode_counts()
    assert counts is not None
    assert counts.n_decoded == 2
    child = os.fork()
    if not child:
        status = 1
        try:
            samples.dataset.decode(
                samples.dataset.read(samples.index.where[0]), samples.index.where[0]
            )
            counts = take_decode_counts()
            status = 0 if counts is not None and counts.n_decoded == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made(samples, [0])[1] == 0


@pytest.mark.timeout(120)
def test_a_process_of_the_ring_hears_the_order_of_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.decode_counting import with_decodes

    path = written(tmp_path, "netcdf")
    n_shares = min(available_cpus(), USUAL_PROCESSES)
    monkeypatch.setenv(CHUNK_CACHE, str(n_shares * 2 * 2 * CHUNK_NBYTES))
    loader = opened(path).loader(4, transform=with_decodes, processes=True, threads=1)
    passes = []
    for _ in range(3):
        batches = [(batch["a"].copy(), int(batch["made"].sum())) for batch in loader]
        np.testing.assert_array_equal(np.concatenate([a for a, _ in batches]), values("a"))
        passes.append(sum(n_made for _, n_made in batches))
    loader.close()
    # By last use each pass would decode all anew: what is kept is needed last.
    assert max(passes[1:]) < 2 * N_TIMES // CHUNK


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["netcdf", "zarr2", "zarr3"])
@pytest.mark.parametrize("chunk", [(CHUNK, 3, 4), (1, 1, 10), (N_TIMES, 8, 1), (5, 8, 10)])
def test_neighbours_of_small_chunks_are_kept_as_one(
    tmp_path: Path, kind: str, chunk: tuple[int, ...]
) -> None:
    # By twos, threes and whole rows of them, the last ones reaching beyond the edge.
    for together in (1, 2, 7, 100):
        folder = tmp_path / str(together)
        folder.mkdir()
        samples = opened(written(folder, kind, chunk))
        samples.dataset._chunks.bundle_nbytes = lambda n=together: n * 4 * np.prod(chunk)
        n_made = []
        for _ in range(2):
            for number in range(N_TIMES):
                for name in ("a", "bb"):
                    np.testing.assert_array_equal(samples[number][name], values(name)[number])
            counts = take_decode_counts()
            assert counts is not None
            assert counts.decoded_nbytes == counts.n_decoded * np.prod(chunk) * 4
            n_made.append(counts.n_decoded)
        grid = np.prod([-(-n // length) for n, length in zip((N_TIMES, 8, 10), chunk, strict=True)])
        assert n_made == [2 * grid, 0]


def test_chunks_never_written_are_filled_in_a_bundle(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="writes the file")
    path = tmp_path / "a.h5"
    whole = np.full((N_TIMES, 8, 10), -7, "f4")
    with h5py.File(path, "w") as file:
        coding = {"chunks": (CHUNK, 2, 5), "fillvalue": -7, "compression": "gzip"}
        array = file.create_dataset("a", whole.shape, "f4", **coding)
        whole[:CHUNK, 3, 2:9] = array[:CHUNK, 3, 2:9] = 5
    samples = iobench.open_dataset(str(path), sample_dim="phony_dim_0")
    for number in range(N_TIMES):
        np.testing.assert_array_equal(samples[number]["a"], whole[number])
    counts = take_decode_counts()
    assert counts is not None
    assert counts.n_decoded == 2


@pytest.mark.parametrize("room", ["0", "10KB", "1GiB"])
def test_pages_that_samples_share_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    # Of a contiguous variable, time last, a sample takes four bytes of each page, and so on.
    xarray = pytest.importorskip("xarray", reason="writes the files")
    monkeypatch.setenv(CHUNK_CACHE, room)
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(3, 401, 7, 50)).astype("f4")
    path = tmp_path / "a.nc"
    data = xarray.Dataset(
        {"a": (("z", "y", "x", "time"), whole), "b": (("time", "x"), whole[0, 0].T)}
    )
    data.to_netcdf(path, engine="h5netcdf")
    samples = opened(path)
    assert samples.dataset.shared_chunks is None
    for number in (3, 49, 0):
        where = samples.index.where[number]
        read = samples.dataset.read(where)
        kept_nbytes = {"0": 0, "10KB": 0, "1GiB": whole.nbytes}[room] if number != 3 else 0
        assert sum(map(len, read.buffers)) == whole.nbytes + 7 * 4 - kept_nbytes
        made_now = samples.dataset.decode(read, where)
        np.testing.assert_array_equal(made_now["a"], whole[..., number])
        np.testing.assert_array_equal(made_now["b"], whole[0, 0].T[number])
    assert take_decode_counts() is None  # nothing is decoded there


def test_a_chunk_that_is_kept_keeps_no_bytes_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks side by side that are not compressed are read at once, and are what was read.
    h5py = pytest.importorskip("h5py", reason="writes the file")
    path, n_nbytes = tmp_path / "a.h5", 1 << 16
    with h5py.File(path, "w") as file:
        array = file.create_dataset("a", (8, 32, 1 << 13), "f4", chunks=(2, 1, 1 << 13))
        array[...] = np.arange(1 << 13, dtype="f4")
    monkeypatch.setenv(CHUNK_CACHE, str(2 * n_nbytes))
    samples = iobench.open_dataset(str(path), sample_dim="phony_dim_0")
    for number in range(8):
        samples[number]  # in memory that the others are made in as well
    tracemalloc.start()
    for number in range(8):
        samples[number]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 5 * n_nbytes


def test_datasets_open_in_any_thread_while_others_load() -> None:
    cache, ended = DecodedChunks(), threading.Event()

    def open_others() -> None:
        others = [cache]
        while not ended.is_set():
            others[1:] = [DecodedChunks() for _ in range(500)]

    opener, interval = threading.Thread(target=open_others), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    opener.start()
    try:
        for _ in range(3000):  # looks how much all of them hold
            cache.is_passing(ChunkRow(0, "a", (1,), (0,)), 1)
    finally:
        ended.set()
        opener.join()
        sys.setswitchinterval(interval)
