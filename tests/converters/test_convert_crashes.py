"""Killed, full, closed, interrupted: the same call goes on and ends with the same bytes."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import signal
import sys
import threading
from functools import cache

import pytest
from converting import (
    CASES,
    FORK,
    N_SAMPLES,
    Acting,
    content,
    convert,
    fail,
    in_a_child,
    run,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iobench.errors import StorageError, StoreClaimedError, StoreError
from iobench.files.atomic import AtomicFile, storage_errors
from iobench.files.locks import JOURNAL_NAME, LOCK_NAME, locked
from iobench.samples import SampleSpec, Variable
from iobench.stores.finished_store import open_store
from iobench.stores.verification import verify_store
from tests.support.made_up_dataset import MadeUpDataset

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
RESUMABLE = 75


# ---- whatever ends it


class InterruptedRun(BaseException):
    """What a signal raises."""


def watched(path, case, part, moment, action, counter=None):
    """Convert, and do something as the given call of a function, in any thread, begins."""
    calls = itertools.count()

    def watch(frame, kind, argument):
        if kind == "call" and next(calls) == moment:
            action()

    threading.setprofile(watch)
    sys.setprofile(watch)
    run(path, case, part=part)
    sys.setprofile(None)
    if counter is not None:
        counter.value = next(calls)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def killed(path, case, part, share):
    watched(path, case, part, int(share * n_calls(case)), kill)


def refused(path, case, part, share):
    """Convert where the disk refuses what is written from a moment on."""
    writing, left = AtomicFile.write, itertools.count(-int(share * 40))
    code = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)[int(share * 1000) % 3]

    def write(self, data):
        with storage_errors(self.path, resumable=self._resumable):
            if next(left) >= 0:
                raise OSError(code, os.strerror(code))
        writing(self, data)

    AtomicFile.write = write
    try:
        run(path, case, part=part)
    except StorageError as error:
        sys.exit(error.exit_code)


def interrupted(path, case, part, share):
    """Convert, and be sent a signal while a sample is read."""
    number = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)[int(share * 1000) % 3]
    signal.signal(number, lambda *_: fail(InterruptedRun())())
    at = int(share * N_SAMPLES)
    try:
        run(path, case, part=part, dataset=Acting(at, lambda: os.kill(os.getpid(), number)))
    except InterruptedRun:
        sys.exit(RESUMABLE)


def failed(path, case, part, share):
    """Convert samples of which one cannot be read."""
    try:
        run(path, case, part=part, dataset=Acting(int(share * N_SAMPLES), fail()))
    except RuntimeError:
        sys.exit(RESUMABLE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for stores; nothing here cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield tmp_path_factory.mktemp("crashes")


_WHOLE = {}


def whole(folder, case):
    """Return the bytes of a store that nothing disturbed."""
    if case not in _WHOLE:
        run(folder / f"whole {case}", case)
        _WHOLE[case] = content(folder / f"whole {case}"), folder
    return _WHOLE[case][0]


@cache
def n_calls(case):
    """Return how many calls of functions a conversion makes."""
    counter, path = FORK.Value("q", 0), _WHOLE[case][1] / "counted"
    shutil.rmtree(path, ignore_errors=True)
    assert in_a_child(watched, path, case, (1, 1), -1, None, counter) == 0
    return counter.value


ENDS = st.tuples(
    st.sampled_from([killed, killed, refused, interrupted, failed]),
    st.floats(0, 1, exclude_max=True),
)


def ends_the_same(folder, case, n_parts, ends):
    path, expected = folder / "store", whole(folder, case)
    n_calls(case)
    shutil.rmtree(path, ignore_errors=True)
    parts = [(number, n_parts) for number in range(1, n_parts + 1)]
    for place, (end, share) in enumerate(ends):
        code = in_a_child(end, path, case, parts[place % n_parts], share)
        assert code in (0, RESUMABLE, -signal.SIGKILL)
        if not (path / "iobench.json").exists():
            with pytest.raises(StoreError, match="not a finished store"):
                open_store(path)
        if code == RESUMABLE and end is failed and killed not in dict(ends):
            # Whole shards are left and nothing else.
            assert not [name for name in content(path) if "lock" in name or "-tmp" in name]
            assert not list((path / JOURNAL_NAME).glob("part-*/*/"))
    for part in parts:
        store = run(path, case, part=part)
    assert len(store) == N_SAMPLES
    assert content(path) == expected


@settings(max_examples=6)
@example(case="tfrecord", n_parts=1, ends=[(refused, 0.0)])
@given(st.sampled_from(list(CASES)), st.integers(1, 3), st.lists(ENDS, min_size=1, max_size=3))
def test_whatever_ends_it_the_same_call_ends_the_same(folder, case, n_parts, ends):
    ends_the_same(folder, case, n_parts, ends)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=50)
@given(share=st.floats(0, 1, exclude_max=True), again=st.floats(0, 1, exclude_max=True))
def test_killed_at_fifty_random_moments_it_ends_the_same(folder, case, share, again):
    ends_the_same(folder, case, 1, [(killed, share), (killed, again)])


# ---- what is noticed


def run_with_little_room(path, case, told):
    """Convert where no file may become larger than the system's limit says."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Python leaves half a file where it can write no more: here, and in what is started meanwhile.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    dataset = MadeUpDataset(SampleSpec((Variable("x", (1 << 16,), "f4", ("x",)),)))
    try:
        convert(dataset, dataset.index(2), CASES[case].container, path, options=CASES[case].options)
    except StorageError as error:
        told.send((str(error), error.exit_code))


@pytest.mark.parametrize("case", ["tfrecord", "zarr"])
def test_a_file_the_system_refuses_to_grow_is_one_line(tmp_path, case):
    ours, theirs = FORK.Pipe()
    assert in_a_child(run_with_little_room, tmp_path / "store", case, theirs) == 0
    line, code = ours.recv()
    assert "File too large; what is finished is kept, the same command continues" in line
    assert code == RESUMABLE
    assert not [name for name in content(tmp_path / "store") if name.endswith("-tmp")]


def test_a_source_modified_since_the_first_part_is_noticed(tmp_path):
    source, path = tmp_path / "source.nc", tmp_path / "store"
    source.write_bytes(b"x" * 100)
    with pytest.raises(RuntimeError):
        run(path, dataset=Acting(5, fail()), files=[source])
    os.utime(source, ns=(0, 0))
    with pytest.raises(StoreError, match=r"source\.nc was modified since the first part"):
        run(path, files=[source])
    meanwhile = Acting(9, lambda: os.utime(source, ns=(1, 1)))
    with pytest.raises(StoreError, match=r"source\.nc was modified since the first part"):
        run(tmp_path / "other", dataset=meanwhile, files=[source])
    assert not (tmp_path / "other/iobench.json").exists()


def test_a_finished_shard_is_made_again_only_if_it_was_touched(tmp_path):
    path = tmp_path / "store"
    with pytest.raises(RuntimeError):
        run(path, dataset=Acting(5, fail()))
    os.utime(path / "shard-00001.tfrecord", ns=(0, 0))
    again, notes = Acting(), []
    verify_store(run(path, dataset=again, notice=notes.append))
    assert sorted(again.reads) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert "1 of 5 shards done" in notes[0]


def test_an_unfinished_store_of_something_else_is_refused(tmp_path):
    path = tmp_path / "store"
    with pytest.raises(RuntimeError):
        run(path, dataset=Acting(5, fail()))
    with pytest.raises(StoreError, match="unfinished store of something else"):
        run(path, samples=[1])
    plan = path / JOURNAL_NAME / "plan"
    plan.write_text(plan.read_text().replace('"n_parts": 1,', ""))
    with pytest.raises(StoreError, match=r"no plan of this version.*run the same command again"):
        run(path)


# ---- several processes


class Logging(Acting):
    """Notes each read in a file shared by processes."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def read(self, where):
        with self.log.open("a") as stream:
            stream.write(f"{where}\n")
        return super().read(where)


def at_once(function, arguments):
    """Run a function in processes that begin together; return their exit codes."""
    barrier = FORK.Barrier(len(arguments))

    def begin(*some):
        barrier.wait()
        function(*some)

    processes = [FORK.Process(target=begin, args=some) for some in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("stale", [False, True])
def test_of_processes_at_once_exactly_one_writes_and_all_succeed(tmp_path, stale):
    path, log = tmp_path / "store", tmp_path / "log"
    if stale:
        ended = FORK.Process()
        ended.start()
        ended.join()
        assert in_a_child(run_killed_at, path, 5) == -signal.SIGKILL
        assert (path / LOCK_NAME).exists()
        (path / f"iobench.lock.break.{ended.pid}.0a").touch()  # left while it was taken over
    codes = at_once(lambda: run(path, dataset=Logging(log)), [()] * 3)
    assert codes == [0, 0, 0]
    reads = log.read_text().split()
    assert len(reads) == len(set(reads))
    assert verify_store(open_store(path)) > 0
    assert not [name for name in content(path) if "lock" in name]


def run_killed_at(path, number):
    run(path, dataset=Acting(number, kill))


def test_parts_at_once_make_the_same(tmp_path, folder):
    path = tmp_path / "store"
    codes = at_once(lambda part: run(path, "numpy", part=(part, 4)), [(n,) for n in (1, 2, 3, 4)])
    assert codes == [0] * 4
    assert content(path) == whole(folder, "numpy")


def test_a_part_makes_its_own_shards(tmp_path):
    path = tmp_path / "store"
    part, other = Acting(), Acting()
    assert run(path, dataset=part, part=(2, 3)) is None
    assert set(part.reads) == {number for number in range(N_SAMPLES) if number // 2 % 3 == 1}
    for wrong in ((1, 2), (1, 1)):
        with pytest.raises(StoreError, match=r"was begun in 3 parts, not .: continue with --part"):
            run(path, part=wrong)
    assert run(path, part=(3, 3)) is None
    assert len(run(path, dataset=other, part=(1, 3))) == N_SAMPLES
    assert set(other.reads).isdisjoint(part.reads)
    assert len(run(path, part=(2, 3))) == N_SAMPLES


def test_store_that_is_being_written_names_who_writes_it(tmp_path):
    path = tmp_path / "store"
    with pytest.raises(RuntimeError):
        run(path, dataset=Acting(5, fail()))
    with locked(path), pytest.raises(StoreClaimedError) as caught:
        run(path, notice=lambda note: fail(StoreClaimedError(note))())
    assert f"waiting for process {os.getpid()} on " in str(caught.value)
    assert len(run(path)) == N_SAMPLES
