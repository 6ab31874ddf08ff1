"""Chunks that many samples share, with less memory than they take: each is decoded once.

Such groups are decoded in bands and put aside; what comes out has the bytes of a conversion that
holds all of it in memory.
"""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from converting import content, convert
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.chunks import chunk_pieces
from iobench.conversion.memory_bound import Making, memory_bound
from iobench.datasets.contract import no_progress
from iobench.datasets.user_files import user_files
from iobench.errors import IobenchError, StorageError
from iobench.files.spill import SpillFile
from iobench.stores.encoding import Encoding
from iobench.stores.tally import Tally
from iobench_converters import numpy_records, tfrecord

FORK = multiprocessing.get_context("fork")
ROOM = 1 << 30

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def zarr_format():
    pytest.importorskip("numcodecs", reason="Zarr stores need it")
    from iobench_converters import zarr_groups

    return zarr_groups.FORMAT


def write_netcdf(path, shapes, chunks, *, axis=0, seed=0):
    """Write variables ``v0``, ``v1``, ...; the sample dimension is their given axis."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        n_times = shapes[0][axis]
        time = file.create_dataset("time", data=np.arange(float(n_times)))
        time.make_scale("time")
        for number, (shape, chunk) in enumerate(zip(shapes, chunks, strict=True)):
            values = rng.integers(0, 50, shape).astype("<f4")
            options = {} if chunk is None else {"chunks": chunk, "compression": "gzip"}
            made = file.create_dataset(f"v{number}", data=values, **options)
            for place, length in enumerate(shape):
                if place == axis:
                    made.dims[place].attach_scale(time)
                    continue
                name = f"d{number}_{place}"
                scale = file.create_dataset(name, data=np.arange(float(length)))
                scale.make_scale(name)
                made.dims[place].attach_scale(scale)
    return path


def opened(*paths, cache=None):
    places = SimpleNamespace(
        stand_in=False,
        progress=no_progress,
        cache_dir=Path(cache or tempfile.mkdtemp(dir=paths[0].parent)),
    )
    dataset = user_files(paths, sample_dim="time")
    files = dataset.files(places)
    return dataset, dataset.samples(files, places), files


@st.composite
def conversions(draw):
    n_times = draw(st.integers(1, 20))
    axis = draw(st.integers(0, 2))
    shapes, chunks = [], []
    for _ in range(draw(st.integers(1, 2))):
        lengths = draw(st.lists(st.integers(1, 9), min_size=2, max_size=2))
        lengths.insert(axis, n_times)
        shapes.append(tuple(lengths))
        cut = tuple(draw(st.integers(1, n)) for n in lengths)
        chunks.append(draw(st.sampled_from([cut, cut, cut, None])))
    sample = sum(4 * int(np.prod(shape)) // n_times for shape in shapes)
    return SimpleNamespace(
        axis=axis,
        shapes=shapes,
        chunks=chunks,
        shard_nbytes=draw(st.integers(1, n_times)) * sample,
        samples=draw(
            st.one_of(
                st.none(),
                st.lists(st.integers(0, n_times - 1), min_size=1, max_size=20, unique=True),
            )
        ),
        fmt=draw(
            st.sampled_from(
                [
                    (numpy_records.FORMAT, {}),
                    (tfrecord.FORMAT, {}),
                    (tfrecord.FORMAT, {"encoding": "bytes"}),
                    ("zarr", {}),
                    ("zarr", {"codec": "blosc-lz4", "inner-chunk": "d0_2=2"}),
                ]
            )
        ),
        encoding=draw(st.sampled_from([None, None, Encoding(dtypes={"": "float16"})])),
        spare=draw(st.integers(0, 3000)),
    )


@pytest.mark.thorough
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(case=conversions())
def test_the_bytes_are_those_of_one_group_and_each_chunk_is_decoded_once(decoded, case):
    decoded.clear()
    with tempfile.TemporaryDirectory() as folder:
        source = write_netcdf(Path(folder) / "own.nc", case.shapes, case.chunks, axis=case.axis)
        dataset, index, files = opened(source)
        fmt, options = case.fmt
        fmt = zarr_format() if fmt == "zarr" else fmt
        if "inner-chunk" in options and not any("d0_2" in v.dims for v in index.spec):
            options = {"codec": "blosc-lz4"}
        more = {
            "samples": case.samples,
            "options": options,
            "files": files,
            "encoding": case.encoding,
            "workers": 2,
        }
        large, small = Path(folder) / "large", Path(folder) / "small"
        shard_nbytes = case.shard_nbytes // (2 if case.encoding else 1)
        convert(
            dataset, index, fmt, large, shard_nbytes=shard_nbytes, memory_nbytes=ROOM, **more
        ).close()
        decoded.clear()
        memory_nbytes = dataset.band_nbytes() + case.spare
        tally = Tally()
        convert(
            dataset, index, fmt, small,
            shard_nbytes=shard_nbytes, memory_nbytes=memory_nbytes, tally=tally, **more,
        ).close()  # fmt: skip
        assert content(small) == content(large)
        in_chunks = {f"v{n}" for n, chunk in enumerate(case.chunks) if chunk is not None}
        assert {name for _, name, _ in decoded} <= in_chunks
        numbers = range(len(index)) if case.samples is None else case.samples
        where = [index.where[number] for number in numbers]
        making = Making(
            dataset, max(1, shard_nbytes // sum(v.nbytes for v in index.spec)), spill_nbytes=ROOM
        )
        told = [dataset.group_nbytes(group)[0] for group, _ in making.groups(where, memory_nbytes)]
        if None not in case.chunks:  # of numbers that lie as they are, some more is read
            assert tally.nbytes.get("read", 0) == sum(told)
        if list(numbers) == sorted(numbers):  # else some may lie between those that share a chunk
            assert sum(told) == dataset.group_nbytes(where)[0]
            assert set(decoded.values()) <= {1}


def columns(path, *, n_times=64, cells=(6, 8)):
    """Write a variable in chunks that hold all times of one place."""
    return write_netcdf(path, [(n_times, *cells)], [(n_times, 1, 1)])


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_chunks_that_all_shards_share_are_decoded_once(tmp_path, decoded, together):
    dataset, index, files = opened(columns(tmp_path / "own.nc"))
    tally, notes = Tally(), []
    convert(
        dataset, index, numpy_records.FORMAT, tmp_path / "store",
        shard_nbytes=10 * index.spec.nbytes, memory_nbytes=1 << 20, files=files,
        together=together, tally=tally, notice=notes.append,
    ).close()  # fmt: skip
    assert tally.n_written == 7
    assert len(decoded) == 48
    assert set(decoded.values()) == {1}
    assert tally.nbytes["read"] == dataset.group_nbytes(index.where)[0]
    assert notes == []


def test_a_plan_knows_what_shards_that_are_made_apart_decode_again(tmp_path):
    dataset, index, _ = opened(columns(tmp_path / "own.nc"))
    arguments = {"asked": 1 << 20, "shard_n_samples": 16}
    samples = range(len(index))
    once = memory_bound(dataset, index, samples, spill_nbytes=ROOM, **arguments)
    assert (once.times, once.warning) == (1, "")
    apart = memory_bound(dataset, index, samples, spill_nbytes=ROOM, is_apart=True, **arguments)
    assert (apart.times, apart.once_nbytes) == (4, None)
    assert "shards are made one by one" in apart.warning
    assert "4.0 times" in apart.warning
    little = memory_bound(dataset, index, samples, spill_nbytes=1_000, **arguments)
    assert little.times > 1
    assert little.lacking_nbytes > 0
    assert "2MiB more room where the store is, each once" in little.warning
    spill_nbytes = 1_000 + little.lacking_nbytes
    assert memory_bound(
        dataset, index, samples, spill_nbytes=spill_nbytes, **arguments
    ).times == 1  # fmt: skip
    less_than_none = memory_bound(dataset, index, samples, spill_nbytes=-3_000_000, **arguments)
    assert "are decoded 4.0 times on average; with 5MiB more room" in less_than_none.warning
    no_room = memory_bound(dataset, index, samples, **arguments)
    assert (no_room.times, no_room.once_nbytes) == (4, None)


def test_less_memory_than_a_band_takes_is_said_with_what_ends_it(tmp_path, decoded):
    chunk = (12, 20, 5)
    source = write_netcdf(tmp_path / "own.nc", [(24, 20, 10)], [chunk])
    dataset, index, _ = opened(source)
    asked = dataset.band_nbytes() - 1
    bound = memory_bound(
        dataset, index, range(24), asked=asked, shard_n_samples=24, spill_nbytes=ROOM
    )
    assert bound.times > 1
    assert bound.once_nbytes == dataset.band_nbytes()
    convert(dataset, index, numpy_records.FORMAT, tmp_path / "less", memory_nbytes=asked).close()
    assert max(decoded.values()) > 1
    decoded.clear()
    convert(
        dataset, index, numpy_records.FORMAT, tmp_path / "enough", memory_nbytes=bound.once_nbytes
    ).close()
    assert set(decoded.values()) == {1}


SHAPE, CHUNK = (24, 20, 10), (8, 5, 10)


def run(path, source, *, together=False, cache=None, **more):
    """Convert with little memory, the last chunks of a shard being those of the next one."""
    dataset, index, files = opened(source, cache=cache)
    arguments = {
        "shard_nbytes": 5 * index.spec.nbytes,
        "memory_nbytes": dataset.band_nbytes(),
        "workers": 2,
    } | more
    return convert(
        dataset, index, numpy_records.FORMAT, path, files=files, together=together, **arguments
    )


def in_a_child(function, *args):
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode


def run_killed(path, source, cache, moment, counter=None, together=False):
    """Convert, and be killed as the given call of a function, in any thread, begins."""
    calls = itertools.count()

    def watch(frame, kind, argument):
        if kind == "call" and next(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(watch)
    sys.setprofile(watch)
    run(path, source, together=together, cache=cache)
    sys.setprofile(None)
    if counter is not None:
        counter.value = next(calls)


def kill_at_random_moments(tmp_path, n_kills, *, together):
    source = write_netcdf(tmp_path / "own.nc", [SHAPE], [CHUNK])
    cache = tmp_path / "cache"
    cache.mkdir()
    run(tmp_path / "whole", source, memory_nbytes=ROOM, cache=cache).close()
    whole = content(tmp_path / "whole")
    counter = FORK.Value("q", 0)
    assert in_a_child(run_killed, tmp_path / "counted", source, cache, -1, counter, together) == 0
    assert content(tmp_path / "counted") == whole
    chance = random.Random(f"bands {together}")
    n_killed = 0
    for number in range(n_kills):
        path = tmp_path / f"store-{number}"
        moment = chance.randrange(counter.value)
        code = in_a_child(run_killed, path, source, cache, moment, None, together)
        assert code in (0, -signal.SIGKILL)
        n_killed += code != 0
        run(path, source, together=together, cache=cache).close()
        assert content(path) == whole, f"kill number {number}, call {moment}"
    assert n_killed >= n_kills // 2


@pytest.mark.long
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_killed_at_random_moments_it_ends_the_same(tmp_path, together):
    kill_at_random_moments(tmp_path, 3, together=together)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_killed_at_fifty_random_moments_it_ends_the_same(tmp_path, together):
    kill_at_random_moments(tmp_path, 50, together=together)


@pytest.mark.parametrize("band", [0, 2, 5])
def test_a_disk_that_is_full_in_the_middle_of_a_band_is_one_line(tmp_path, band, monkeypatch):
    source = write_netcdf(tmp_path / "own.nc", [SHAPE], [CHUNK])
    write, bands = os.pwrite, itertools.count()

    def refuse(descriptor, data, offset):
        if next(bands) == band:
            write(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    path = tmp_path / "store"
    with pytest.raises(StorageError, match="the disk is full") as caught:
        run(path, source)
    assert caught.value.exit_code == 75
    assert "the same command continues" in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    run(path, source).close()
    run(tmp_path / "whole", source, memory_nbytes=ROOM).close()
    assert content(path) == content(tmp_path / "whole")


def test_a_source_that_ends_early_in_the_middle_of_a_band_is_one_line(tmp_path, monkeypatch):
    source = write_netcdf(tmp_path / "own.nc", [SHAPE], [CHUNK])
    whole, times = source.read_bytes(), source.stat()
    with h5py.File(source) as file:
        last = file["v0"].id.get_chunk_info(9)  # of the third row of chunks
    read, calls = chunk_pieces.read_chunks, itertools.count()

    def cut(wanted, **more):
        if next(calls) == 9:
            os.truncate(source, last.byte_offset + 1)
        return read(wanted, **more)

    monkeypatch.setattr(chunk_pieces, "read_chunks", cut)
    monkeypatch.setattr("iobench.chunks.bands.JOB_NBYTES", 1)
    path = tmp_path / "store"
    with pytest.raises(IobenchError, match=r"own\.nc") as caught:
        run(path, source)
    assert "\n" not in str(caught.value)
    assert not (path / "iobench.json").exists()
    monkeypatch.undo()
    source.write_bytes(whole)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    run(path, source).close()
    run(tmp_path / "whole", source, memory_nbytes=ROOM).close()
    assert content(path) == content(tmp_path / "whole")


def test_what_is_put_aside_comes_back_and_no_folder_lists_it(tmp_path):
    spill = SpillFile(tmp_path)
    assert not list(tmp_path.iterdir())
    pieces = [bytes([n % 256]) * n for n in (3, 0, 2000)]
    places = [spill.write(memoryview(piece)) for piece in pieces]
    rooms = [bytearray(1) for _ in range(1500)] + [bytearray(500)]
    spill.read([memoryview(room) for room in rooms], places[2])
    assert b"".join(rooms) == pieces[2]
    with pytest.raises(StorageError, match="is gone"):
        spill.read([memoryview(bytearray(4))], places[2] + 2000)
    spill.clear()
    assert spill.write(memoryview(b"again")) == 0
    spill.close()


@pytest.mark.long
def test_what_is_resident_is_what_memory_says(tmp_path):
    shape = (60, 8, 180, 360)  # 124 MB
    source = write_netcdf(tmp_path / "own.nc", [shape], [(60, 1, 45, 360)])
    asked = 48 << 20
    command = [sys.executable, "-m", "iobench", "convert", str(source), str(tmp_path / "store")]
    command += ["--to", "numpy", "--sample-dim", "time", "--memory", str(asked), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=100, cwd=tmp_path
    )
    told = json.loads(done.stdout)
    assert "spill" in told["stages_s"]
    if told["peak_rss_nbytes"] is None:
        pytest.skip("the system does not tell what is resident")
    # Libraries that are imported on the way count, too.
    assert told["peak_rss_nbytes"] - told["idle_rss_nbytes"] <= 1.3 * asked + (16 << 20)


def test_a_disk_that_has_room_for_the_store_alone_is_enough(tmp_path, decoded, monkeypatch):
    dataset, index, _ = opened(columns(tmp_path / "own.nc"))
    more = {"shard_nbytes": 10 * index.spec.nbytes, "memory_nbytes": 1 << 20}
    convert(dataset, index, numpy_records.FORMAT, tmp_path / "roomy", **more).close()
    decoded.clear()
    monkeypatch.setattr(os, "pwrite", None)  # nothing is put aside
    free = 64 * index.spec.nbytes + 1000
    for name in ("iobench_converters.shards", "iobench.stores.places"):
        monkeypatch.setattr(f"{name}.free_nbytes", lambda _: free)
    convert(dataset, index, numpy_records.FORMAT, tmp_path / "tight", **more).close()
    assert set(decoded.values()) == {7}
    assert content(tmp_path / "tight") == content(tmp_path / "roomy")
