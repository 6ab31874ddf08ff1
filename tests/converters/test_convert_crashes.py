"""Killed, full, closed, interrupted: the same call goes on and ends with the same bytes."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
from typing import Any, NamedTuple

import pytest
from converting import content, convert

from iobench.errors import StorageError, StoreError
from iobench.files.atomic import AtomicFile
from iobench.files.locks import JOURNAL_NAME
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.testing import MadeUpDataset
from iobench_converters import numpy_records, tfrecord, zarr_groups

SPEC = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x"), "K"), Variable("t", (), "i4", ())))
FORK = multiprocessing.get_context("fork")

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


class Case(NamedTuple):
    """A container and its options."""

    container: Any
    options: dict[str, str]

    @property
    def name(self):
        return self.container.name


CASES = {
    "tfrecord": Case(tfrecord.FORMAT, {}),
    "numpy": Case(numpy_records.FORMAT, {}),
    "zarr": Case(zarr_groups.FORMAT, {}),
    "zarr of chunks": Case(zarr_groups.FORMAT, {"chunk-samples": "2", "codec": "shuffle,zstd"}),
}


@pytest.fixture(params=list(CASES))
def fmt(request):
    return CASES[request.param]


class Acting(MadeUpDataset):
    """Does something, once, before the sample of one number is read."""

    def __init__(self, number=-1, action=None):
        super().__init__(SPEC)
        self.number, self.action, self.reads = number, action, []

    def read(self, where):
        self.reads.append(where)
        if where == self.number:
            self.number = -1
            self.action()
        return super().read(where)


def run(path, fmt, *, dataset=None, **more):
    dataset = dataset or Acting()
    arguments = {"shard_nbytes": 2 * SPEC.nbytes, "workers": 2} | more
    index = dataset.index(10)
    return convert(dataset, index, fmt.container, path, options=fmt.options, **arguments)


def in_a_child(function, *args):
    """Run a function in a process of its own; return its exit code."""
    process = FORK.Process(target=function, args=args)
    process.start()
    process.join()
    return process.exitcode


def count_calls(path, fmt, counter):
    """Convert, and count the calls of functions on the way."""
    run_killed(path, fmt, -1, counter)


def run_killed(path, fmt, moment, counter=None):
    """Convert, and be killed as the given call of a function, in any thread, begins."""
    calls = itertools.count()

    def watch(frame, kind, argument):
        if kind == "call" and next(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(watch)
    sys.setprofile(watch)
    run(path, fmt)
    sys.setprofile(None)
    if counter is not None:
        counter.value = next(calls)


def kill_at_random_moments(tmp_path, fmt, n_kills):
    counter = FORK.Value("q", 0)
    run(tmp_path / "first", fmt)  # what the first of a process imports
    assert in_a_child(count_calls, tmp_path / "whole", fmt, counter) == 0
    whole = content(tmp_path / "whole")
    chance = random.Random(fmt.name)
    n_killed = 0
    for number in range(n_kills):
        path = tmp_path / f"store-{number}"
        for _ in range(2):  # the second one hits a conversion that goes on
            moment = chance.randrange(counter.value)
            code = in_a_child(run_killed, path, fmt, moment)
            assert code in (0, -signal.SIGKILL)
            n_killed += code != 0
            if code and not (path / "iobench.json").exists():
                with pytest.raises(StoreError, match="not a finished store"):
                    open_store(path)
        run(path, fmt)
        assert content(path) == whole, f"kill number {number}"
    assert n_killed >= n_kills


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_at_fifty_random_moments_it_ends_the_same(tmp_path, fmt):
    kill_at_random_moments(tmp_path, fmt, 50)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_leaves_whole_shards_and_nothing_else(tmp_path, fmt, number):
    class InterruptedRun(BaseException):
        pass

    def interrupt(*_):
        raise InterruptedRun

    before = signal.signal(number, interrupt)
    path = tmp_path / "store"
    try:
        dataset = Acting(5, lambda: os.kill(os.getpid(), number))
        with pytest.raises(InterruptedRun):
            run(path, fmt, dataset=dataset)
    finally:
        signal.signal(number, before)
    assert not [name for name in content(path) if "lock" in name or name.endswith("-tmp")]
    assert not list((path / JOURNAL_NAME).glob("part-1/*/"))
    run(path, fmt)
    run(tmp_path / "whole", fmt)
    assert content(path) == content(tmp_path / "whole")


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("part", ["shard-00002", "shard-00002.json", "plan", "iobench.json"])
def test_a_disk_that_refuses_leaves_a_resumable_store(tmp_path, fmt, code, part, monkeypatch):
    path, writing = tmp_path / "store", AtomicFile.write
    if part == "shard-00002" and fmt.name == "zarr":
        part = "/c.2."

    def refuse(self, data):
        is_journal = self.path.name.startswith("shard-") and self.path.suffix == ".json"
        if part in self.path.as_posix() and is_journal == part.endswith("2.json"):
            raise StorageError(f"{self.path}: {os.strerror(code)}")
        writing(self, data)

    monkeypatch.setattr(AtomicFile, "write", refuse)
    with pytest.raises(StorageError) as caught:
        run(path, fmt)
    assert caught.value.exit_code == 75
    monkeypatch.undo()
    run(path, fmt)
    run(tmp_path / "whole", fmt)
    assert content(path) == content(tmp_path / "whole")


def run_with_little_room(path, fmt, told):
    """Convert where no file may become larger than the system's limit says."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Python leaves half a file where it can write no more: here, and in what is started meanwhile.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    spec = SampleSpec((Variable("x", (1 << 16,), "f4", ("x",)),))
    try:
        dataset = MadeUpDataset(spec)
        index = dataset.index(2)
        convert(dataset, index, fmt.container, path, shard_nbytes=spec.nbytes, options=fmt.options)
    except StorageError as error:
        told.send((str(error), error.exit_code))


def test_a_file_the_system_refuses_to_grow_is_one_line(tmp_path, fmt):
    ours, theirs = FORK.Pipe()
    assert in_a_child(run_with_little_room, tmp_path / "store", fmt, theirs) == 0
    line, code = ours.recv()
    assert "File too large; what is finished is kept, the same command continues" in line
    assert code == 75
    assert not [name for name in content(tmp_path / "store") if name.endswith("-tmp")]


def test_a_source_modified_since_the_first_part_is_noticed(tmp_path, fmt):
    source, path = tmp_path / "source.nc", tmp_path / "store"
    source.write_bytes(b"x" * 100)

    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(path, fmt, dataset=Acting(5, fail), files=[source])
    os.utime(source, ns=(0, 0))
    with pytest.raises(StoreError, match=r"source\.nc was modified since the first part"):
        run(path, fmt, files=[source])


def test_a_source_modified_while_it_is_converted_is_noticed(tmp_path, fmt):
    source, path = tmp_path / "source.nc", tmp_path / "store"
    source.write_bytes(b"x" * 100)
    dataset = Acting(9, lambda: os.utime(source, ns=(0, 0)))
    with pytest.raises(StoreError, match=r"source\.nc was modified since the first part"):
        run(path, fmt, dataset=dataset, files=[source])
    assert not (path / "iobench.json").exists()


def test_a_finished_shard_is_read_again_only_if_it_was_touched(tmp_path, fmt, monkeypatch):
    def fail():
        raise RuntimeError

    for name in ("one", "two"):
        with pytest.raises(RuntimeError):
            run(tmp_path / name, fmt, dataset=Acting(5, fail))
    read = []
    monkeypatch.setattr(
        "iobench_converters.journal.crc32c_of_file", lambda path: read.append(path) or 0
    )
    run(tmp_path / "one", fmt)
    assert read == []
    for file in content(tmp_path / "two"):
        if JOURNAL_NAME not in file:
            os.utime(tmp_path / "two" / file, ns=(0, 0))
    again = Acting()
    run(tmp_path / "two", fmt, dataset=again)
    assert read
    assert len(again.reads) == 10  # their checksums, as the test has them, are wrong


def test_a_lock_left_in_the_middle_of_being_taken_over_goes(tmp_path, fmt):
    path = tmp_path / "store"
    run(path, fmt)
    whole = content(path)
    ended = FORK.Process()
    ended.start()
    ended.join()
    (path / f"iobench.lock.break.{ended.pid}.0a").touch()
    run(path, fmt)
    assert content(path) == whole
