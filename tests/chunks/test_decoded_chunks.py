"""Chunks that samples share are read and decoded once while they are kept, and kept by plan."""

import pickle
import sys
import threading
import tracemalloc

import h5py
import numpy as np
import pytest
import xarray

import iobench
from iobench.chunks.decoded_chunks import (
    CHUNK_CACHE,
    ChunkRow,
    DecodedChunks,
    chunk_cache_nbytes,
    share_chunk_cache,
    take_decode_counts,
)
from iobench.errors import OptionError
from iobench.testing.stores import answer_of_fork
from tests.support.decode_counting import with_decodes

N_TIMES, CHUNK = 24, 6
CHUNK_NBYTES = CHUNK * 8 * 10 * 4
KEY = ChunkRow(0, "a", (1,), (0,)), (0,)


@pytest.fixture(autouse=True)
def _counts_of_this_test():
    take_decode_counts()
    yield
    share_chunk_cache(1)


def values(name):
    rng = np.random.default_rng(len(name))
    return rng.integers(0, 999, (N_TIMES, 8, 10)).astype("f4")


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes two variables of 24 times and opens them."""

    def open_new(kind="netcdf", chunk=(CHUNK, 8, 10)):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.{kind}"
        named = {name: (("time", "y", "x"), values(name)) for name in ("a", "bb")}
        data = xarray.Dataset(named, coords={"time": np.arange(N_TIMES)})
        if kind == "netcdf":
            coding = {"zlib": True, "shuffle": True, "chunksizes": chunk}
            data.to_netcdf(path, engine="h5netcdf", encoding=dict.fromkeys(named, coding))
        else:
            pytest.importorskip("zarr", reason="writes the store")
            encoding, version = {name: {"chunks": chunk} for name in named}, int(kind[-1])
            data.to_zarr(path, zarr_format=version, consolidated=False, encoding=encoding)
        return iobench.open_dataset(str(path), sample_dim="time")

    return open_new


def made(samples, numbers):
    """Make samples, compare them, and return how many chunks were needed and how many decoded."""
    for number in numbers:
        sample = samples[number]
        for name in ("a", "bb"):
            np.testing.assert_array_equal(sample[name], values(name)[number])
            assert sample[name].flags.writeable
            sample[name][...] = -1  # nobody else has it
    counts = take_decode_counts()
    assert counts.decoded_nbytes == counts.n_decoded * CHUNK_NBYTES
    assert counts.used_nbytes == len(numbers) * 2 * CHUNK_NBYTES // CHUNK
    return counts.n_hits + counts.n_decoded, counts.n_decoded


def expect(samples, order, *, follows=False):
    where = [samples.index.where[number] for number in order]
    samples.dataset.chunk_cache.expect(where, follows=follows)


@pytest.mark.parametrize("kind", ["netcdf", "zarr2", "zarr3"])
def test_each_chunk_is_read_and_decoded_once(opened, kind):
    samples = opened(kind)
    assert made(samples, range(N_TIMES)) == (2 * N_TIMES, 2 * N_TIMES // CHUNK)
    assert made(samples, range(N_TIMES)) == (2 * N_TIMES, 0)
    dataset, where = samples.dataset, samples.index.where
    assert sum(len(each) for each in dataset.read(where[0])) == 0  # nothing of what is kept


def test_nothing_is_kept_beyond_the_bound(opened, monkeypatch):
    monkeypatch.setenv(CHUNK_CACHE, "0")
    assert made(opened(), range(N_TIMES)) == (48, 48)
    # In order, room for the chunks of one sample is as good as room for all.
    monkeypatch.setenv(CHUNK_CACHE, str(2 * CHUNK_NBYTES))
    samples = opened()
    expect(samples, range(N_TIMES))
    assert made(samples, range(N_TIMES)) == (48, 8)
    assert made(samples, range(N_TIMES)) == (48, 8)  # the pass is over, and this another one


def test_the_bound_is_shared_out(monkeypatch):
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


@pytest.mark.parametrize("n_parts", [1, 3])
def test_a_pass_in_any_order_keeps_what_is_needed_next(opened, monkeypatch, n_parts):
    """Belady's rule against what it is in a plain simulation, that looks at the whole future."""
    room = 2
    monkeypatch.setenv(CHUNK_CACHE, str(2 * room * CHUNK_NBYTES))
    samples, kept = opened(), set()
    for seed in range(6):  # each pass begins with what the one before kept
        order = np.random.default_rng(seed).permutation(N_TIMES)
        for number, part in enumerate(np.array_split(order, n_parts)):
            expect(samples, part.tolist(), follows=number > 0)
        _, n_made = made(samples, order.tolist())
        assert n_made == 2 * fewest_misses([n // CHUNK for n in order.tolist()], room, kept), seed


def fewest_misses(rows, room, kept):
    """Return how often a row has to be made if the one needed last is let go, new ones included."""
    misses = 0
    for place, row in enumerate(rows):
        if row in kept:
            continue
        misses += 1
        later = rows[place + 1 :]
        next_use = {
            each: later.index(each) if each in later else N_TIMES + rows.index(each)
            for each in {*kept, row}
        }
        kept.add(row)
        if len(kept) > room:
            kept.remove(max(kept, key=next_use.__getitem__))
    return misses


def taken(cache, sample):
    """Take a sample from a cache; return what that held when each chunk was decoded for it."""
    held = []

    def decode(place, stored, out):
        held.append(cache.nbytes)
        return np.zeros(CHUNK, dtype=np.uint8)

    key = ChunkRow(0, "a", (CHUNK,), (sample // CHUNK,)), ()
    (chunk,), _ = cache.take([key], (0, sample), lambda wanted: [[memoryview(b"1")]])
    chunk.values(decode)
    return held


def test_threads_decode_chunks_side_by_side_and_begin_with_those_that_are_kept():
    cache = DecodedChunks((CHUNK,))
    taken(cache, 2 * CHUNK)
    first, second = (cache.by_chunk(range(4 * CHUNK)) for _ in range(2))

    def rows(positions, n_rows):
        return [next(positions) // CHUNK for _ in range(n_rows * CHUNK)][::CHUNK]

    assert rows(first, 1) == rows(second, 1) == [2]
    assert next(first) == 0  # under way
    assert rows(second, 1) == [1]
    assert next(second) == 3 * CHUNK
    assert [*first] == [*range(1, 2 * CHUNK), *range(3 * CHUNK, 4 * CHUNK)]
    assert [*second] == [*range(3 * CHUNK + 1, 4 * CHUNK), *range(CHUNK)]


def test_what_a_chunk_takes_the_place_of_goes_before_it_is_decoded(monkeypatch):
    monkeypatch.setenv(CHUNK_CACHE, str(2 * CHUNK))
    cache = DecodedChunks((CHUNK,))
    held = [taken(cache, n * CHUNK) for n in (0, 1, 2, 2, 1, 3)]
    assert held == [[0], [CHUNK], [CHUNK], [], [], [CHUNK]]


def test_batches_in_order_of_chunks_decode_hardly_more_than_they_must(monkeypatch):
    """Against Belady's rule from batch to batch: what was used of one is not needed any more."""
    room, n_batch, n_made, fewest = 4, 12, 0, 0
    monkeypatch.setenv(CHUNK_CACHE, str(room * CHUNK))
    cache, order = DecodedChunks((CHUNK,)), np.random.default_rng(0).permutation(20 * CHUNK)
    cache.expect(order.tolist(), follows=False)
    for batch in order.reshape(-1, n_batch):
        n_made += sum(len(taken(cache, batch[n])) for n in cache.by_chunk(batch.tolist()))
    needed, stay = [{*batch} for batch in (order.reshape(-1, n_batch) // CHUNK).tolist()], set()
    for number, rows in enumerate(needed):
        fewest += len(rows - stay)
        later = needed[number + 1 :]
        stay = {*sorted(rows | stay, key=lambda row: [row not in each for each in later])[:room]}
    assert 0 < n_made <= 1.05 * fewest


def test_columns_of_all_times_that_do_not_fit_are_kept_in_part(opened, monkeypatch):
    monkeypatch.setenv(CHUNK_CACHE, str(6 * N_TIMES * 4 * 5 * 4))
    samples = opened(chunk=(N_TIMES, 4, 5))  # 4 chunks of each variable
    for number in range(N_TIMES):
        samples[number]
    assert take_decode_counts().n_decoded == 8 + 2 * (N_TIMES - 1)


def test_two_threads_that_want_a_chunk_decode_it_once():
    cache, entered, go_on = DecodedChunks(), threading.Event(), threading.Event()
    reads, decodes, found = [], [], []

    def read(wanted):
        reads.append(len(wanted))
        entered.set()
        assert go_on.wait(10)
        return [[memoryview(b"12"), None, memoryview(b"34")]]

    def decode(place, stored, out):
        decodes.append(place)
        return np.frombuffer(b"".join(each for each in stored if each), dtype=np.uint8)

    def work():
        chunks, own = cache.take([KEY], (0, 0), read)
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


def test_who_decodes_into_a_row_has_the_bytes_though_another_decodes_them_meanwhile(monkeypatch):
    cache = DecodedChunks()

    def decode(place, stored, out):
        if not stored:
            return None  # as of a chunk that was never written
        out = np.empty(4, dtype=np.uint8) if out is None else out
        out[...] = np.frombuffer(stored[0], dtype=np.uint8)
        return out

    (chunk,), _ = cache.take([KEY], (0, 0), lambda wanted: [[memoryview(b"1234")]])

    def is_passing(row, nbytes):
        other = threading.Thread(target=chunk.values, args=(decode,))
        other.start()
        other.join(10)
        return True

    monkeypatch.setattr(cache, "is_passing", is_passing)
    assert chunk.values(decode, np.zeros(4, dtype=np.uint8)).tobytes() == b"1234"
    assert chunk.values(decode).tobytes() == b"1234"


def test_who_waited_for_a_read_that_failed_reads_for_itself():
    cache = DecodedChunks()

    def fails(wanted):
        raise OSError("gone")

    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            cache.take([KEY], (0, 0), fails)
    chunks, own = cache.take([KEY], (0, 0), lambda wanted: [[memoryview(b"12")]])
    assert (len(chunks), own) == (1, [b"12"])


@pytest.mark.timeout(60)
def test_what_is_sent_to_a_process_or_forked_keeps_nothing(opened):
    samples = opened()
    made(samples, [0])

    def n_decoded(dataset):
        dataset.decode(dataset.read(samples.index.where[0]), samples.index.where[0])
        return take_decode_counts().n_decoded

    assert n_decoded(pickle.loads(pickle.dumps(samples.dataset))) == 2
    assert answer_of_fork(lambda: n_decoded(samples.dataset)) == 2
    assert made(samples, [0])[1] == 0


def test_a_batch_decodes_a_chunk_once_though_none_is_kept(opened, monkeypatch):
    monkeypatch.setenv(CHUNK_CACHE, "0")
    loader = opened().loader(12, shuffle=True, seed=3, threads=1, transform=with_decodes)
    batches = [(batch["a"].copy(), int(batch["made"].sum())) for batch in loader]
    position = {each.tobytes(): n // CHUNK for n, each in enumerate(values("a"))}
    for fields, n_made in batches:
        assert n_made == 2 * len({position[each.tobytes()] for each in fields}) < 2 * 12


@pytest.mark.timeout(120)
def test_a_process_of_the_ring_hears_the_order_of_a_pass(opened, monkeypatch):
    monkeypatch.setenv(CHUNK_CACHE, str(2 * 2 * CHUNK_NBYTES))
    loader = opened().loader(4, transform=with_decodes, processes=True, threads=1)
    passes = []
    for _ in range(3):
        batches = [(batch["a"].copy(), int(batch["made"].sum())) for batch in loader]
        np.testing.assert_array_equal(np.concatenate([a for a, _ in batches]), values("a"))
        passes.append(sum(n_made for _, n_made in batches))
    loader.close()
    # By last use each pass would decode all anew: what is kept is needed last.
    assert max(passes[1:]) < 2 * N_TIMES // CHUNK


@pytest.mark.parametrize("chunk", [(CHUNK, 3, 4), (1, 1, 10), (N_TIMES, 8, 1), (5, 8, 10)])
def test_neighbours_of_small_chunks_are_kept_as_one(opened, chunk):
    """By twos, threes and whole rows of them, the last ones reaching beyond the edge."""
    grid = np.prod([-(-n // length) for n, length in zip((N_TIMES, 8, 10), chunk, strict=True)])
    for together in (1, 2, 7, 100):
        samples = opened(chunk=chunk)
        samples.dataset._chunks.bundle_nbytes = lambda n=together: n * 4 * np.prod(chunk)
        for n_decoded in (2 * grid, 0):
            for number in range(N_TIMES):
                for name in ("a", "bb"):
                    np.testing.assert_array_equal(samples[number][name], values(name)[number])
            counts = take_decode_counts()
            assert counts.decoded_nbytes == counts.n_decoded * np.prod(chunk) * 4
            assert counts.n_decoded == n_decoded


def test_chunks_never_written_are_filled_in_a_bundle(tmp_path):
    whole = np.full((N_TIMES, 8, 10), -7, "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        coding = {"chunks": (CHUNK, 2, 5), "fillvalue": -7, "compression": "gzip"}
        array = file.create_dataset("a", whole.shape, "f4", **coding)
        whole[:CHUNK, 3, 2:9] = array[:CHUNK, 3, 2:9] = 5
    samples = iobench.open_dataset(str(tmp_path / "a.h5"), sample_dim="phony_dim_0")
    for number in range(N_TIMES):
        np.testing.assert_array_equal(samples[number]["a"], whole[number])
    assert take_decode_counts().n_decoded == 2


@pytest.mark.parametrize("room", ["0", "10KB", "1GiB"])
def test_pages_that_samples_share_are_kept(tmp_path, monkeypatch, room):
    """Of a contiguous variable, time last, a sample takes four bytes of each page, and so on."""
    monkeypatch.setenv(CHUNK_CACHE, room)
    whole = np.random.default_rng(0).normal(size=(3, 401, 7, 50)).astype("f4")
    named = {"a": (("z", "y", "x", "time"), whole), "b": (("time", "x"), whole[0, 0].T)}
    xarray.Dataset(named).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    samples = iobench.open_dataset(str(tmp_path / "a.nc"), sample_dim="time")
    assert samples.dataset.shared_chunks is None
    for number in (3, 49, 0):
        where = samples.index.where[number]
        read = samples.dataset.read(where)
        kept_nbytes = {"0": 0, "10KB": 0, "1GiB": whole.nbytes}[room] if number != 3 else 0
        assert sum(map(len, read.buffers)) == whole.nbytes + 7 * 4 - kept_nbytes
        sample = samples.dataset.decode(read, where)
        np.testing.assert_array_equal(sample["a"], whole[..., number])
        np.testing.assert_array_equal(sample["b"], whole[0, 0].T[number])
    assert take_decode_counts() is None  # nothing is decoded there


def test_a_chunk_that_is_kept_keeps_no_bytes_of_others(tmp_path, monkeypatch):
    """Chunks side by side that are not compressed are read at once, and are what was read."""
    n_nbytes = 1 << 16
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("a", (8, 32, 1 << 13), "f4", chunks=(2, 1, 1 << 13))
        array[...] = np.arange(1 << 13, dtype="f4")
    monkeypatch.setenv(CHUNK_CACHE, str(2 * n_nbytes))
    samples = iobench.open_dataset(str(tmp_path / "a.h5"), sample_dim="phony_dim_0")
    for number in range(8):
        samples[number]  # in memory that the others are made in as well
    tracemalloc.start()
    for number in range(8):
        samples[number]
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 5 * n_nbytes


def test_datasets_open_in_any_thread_while_others_load():
    cache, ended = DecodedChunks(), threading.Event()

    def open_others():
        others = [cache]
        while not ended.is_set():
            others[1:] = [DecodedChunks() for _ in range(500)]

    opener, interval = threading.Thread(target=open_others), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    opener.start()
    try:
        for _ in range(3000):  # looks how much all of them hold
            cache.is_passing(KEY[0], 1)
    finally:
        ended.set()
        opener.join()
        sys.setswitchinterval(interval)
