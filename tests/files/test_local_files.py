"""Files of this machine: kept open, read by ranges, written by one; memory that is used again."""

from __future__ import annotations

import errno
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import FileFormatError, MissingFileError, StoreClaimedError, StoreError
from iobench.files import locks, memory
from iobench.files import open_files as module
from iobench.files.locks import JOURNAL_NAME, LOCK_NAME, find_writer, lock_holder, locked
from iobench.files.memory import (
    LENT_NBYTES,
    MOST_IDLE_NBYTES,
    OWN_NBYTES,
    array_for_one_sample,
    for_one_sample,
    is_bounded,
    pages_used_again,
)
from iobench.files.open_files import (
    FileSet,
    close_files,
    expect_files,
    expected_files,
    forget_files,
    open_file,
)
from iobench.files.ranges import FileRange, read_extents

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]
LIMIT = 8


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(module, "_opened", functools.lru_cache(LIMIT)(module._open))
    found = [tmp_path / str(number) for number in range(30)]
    for number, path in enumerate(found):
        path.write_bytes(bytes([number]) * 10)
    return found


def read(path: Path) -> bytes:
    return open_file(str(path)).read_at(0, 100)


def test_as_many_files_stay_open_as_there_is_room_for(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = n_descriptors()
    for _ in range(2):
        assert [read(path)[0] for path in paths] == list(range(30))
    assert n_descriptors() - before == LIMIT
    opened, has_others = module.open_regular, [True]

    def refused(path: str) -> int:
        if has_others.pop():
            has_others.append(False)
            raise OSError(errno.EMFILE, "too many open files")
        return opened(path)

    monkeypatch.setattr(module, "open_regular", refused)
    assert read(paths[0])[0] == 0
    assert n_descriptors() - before == 1
    forget_files()
    assert n_descriptors() == before


def test_nothing_is_closed_under_who_reads_it(paths: list[Path]) -> None:
    files = FileSet(paths, {})

    def work(seed: int) -> None:
        for turn in range(300):
            number = (turn * seed) % 30
            if turn % 3:
                buffer = memoryview(bytearray(10))
                files.opened(number).fill(buffer, 0)
                assert bytes(buffer) == bytes([number]) * 10
            else:
                assert files.mapped(number)[:] == bytes([number]) * 10

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (1, 7, 11, 13)))


def grow(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"x")


def shrink(path: Path) -> None:
    os.truncate(path, 5)


def rewrite(path: Path) -> None:
    path.write_bytes(b"y" * 10)
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"y" * 10)
    os.utime(new, ns=(1, 1))
    new.replace(path)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("change", [grow, shrink, rewrite, replace])
def test_a_file_that_is_another_one_now_is_named(
    paths: list[Path], change: Callable[[Path], None], is_closed: bool
) -> None:
    read(paths[0])
    if is_closed:  # for want of room
        close_files()
    change(paths[0])
    for _ in range(2):
        with pytest.raises(FileFormatError, match=rf"^{paths[0]}:? .* again$"):
            read(paths[0])
    forget_files([str(paths[0].parent)])
    status = paths[0].stat()
    expect_files({str(paths[0]): (status.st_size, status.st_mtime_ns)})  # it was looked into again
    assert read(paths[0]) == paths[0].read_bytes()


def test_what_was_learnt_before_the_first_read_holds(paths: list[Path]) -> None:
    status = paths[0].stat()
    expect_files({str(paths[0]): (status.st_size, status.st_mtime_ns)})
    identities = expected_files()
    rewrite(paths[0])
    for _ in range(2):
        with pytest.raises(FileFormatError, match="was modified after its dataset was opened"):
            read(paths[0])
        forget_files()
        expect_files(identities)  # as in a worker process
    with pytest.raises(MissingFileError, match="none: no such file"):
        read(paths[0].with_name("none"))


def test_a_store_made_anew_at_the_same_place_is_another_one(paths: list[Path]) -> None:
    old = FileSet(paths, {paths[0]: 10})
    assert old.opened(0).read_at(0, 1) == b"\0"
    replace(paths[0])
    new = FileSet(paths, {paths[0]: 10})
    assert new.opened(0).read_at(0, 1) == b"y"
    with pytest.raises(StoreError, match="was replaced after its store was opened; open it again"):
        old.opened(0)
    old.close()
    assert old.opened(0).read_at(0, 1) == b"y"


def test_a_short_file_says_where_it_ends(paths: list[Path]) -> None:
    files = FileSet(paths, {})
    with pytest.raises(StoreError, match=r"0: the file ends at byte 10, 3 bytes more"):
        read_extents([FileRange(paths[0], 5, 8)], files.at)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    contents = {}
    for n in range(2):
        path = tmp_path_factory.mktemp("extents") / f"{n}.bin"
        path.write_bytes(os.urandom(20_000))
        contents[str(path)] = path.read_bytes()
    return contents


@given(wanted=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 15_000), st.integers(0, 5_000))))
def test_any_extents_in_any_order(files, wanted):
    paths = list(files)
    extents = [(paths[n], offset, length) for n, offset, length in wanted]
    expected = [files[path][offset : offset + length] for path, offset, length in extents]
    assert [bytes(buffer) for buffer in read_extents(extents)] == expected


def test_neighbours_are_read_at_once(files, monkeypatch):
    path, reads = next(iter(files)), []
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: reads.append(args) or real(*args))
    read_extents([(path, 200, 100), (path, 0, 100), (path, 108, 92), (path, 15_000, 10)])
    assert len(reads) == 2


def test_scattered_stretches_are_announced_before_the_first_is_read(files, monkeypatch):
    (path, other), done = files, []
    advise, read = os.posix_fadvise, os.preadv
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: done.append(args[1:]) or advise(*args))
    monkeypatch.setattr(os, "preadv", lambda *args: done.append("read") or read(*args))
    read_extents([(path, 0, 100), (path, 15_000, 10), (path, 50, 100), (other, 5, 7)])
    announced = {(start, length, os.POSIX_FADV_WILLNEED) for start, length in [(0, 150), (5, 7)]}
    assert set(done[:3]) == announced | {(15_000, 10, os.POSIX_FADV_WILLNEED)}
    assert done[3:] == ["read"] * 3
    done.clear()
    read_extents([(path, 0, 100)])
    assert done == ["read"]


def test_short_reads_are_continued(files, monkeypatch):
    path, content = next(iter(files.items()))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: real(fd, [into[0][:777]], at))
    assert bytes(read_extents([(path, 10, 5000)])[0]) == content[10:5010]


def test_end_of_file_and_missing_file(files, tmp_path):
    with pytest.raises(FileFormatError, match=r"ends at byte 20000, 5 bytes more were expected"):
        read_extents([(next(iter(files)), 19_000, 1005)])
    with pytest.raises(MissingFileError, match="none"):
        read_extents([(str(tmp_path / "none"), 0, 1)])


@pytest.mark.parametrize("n_threads", [1, 3])
def test_samples_are_made_in_the_memory_of_those_before(
    n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_lent", memory._LentMemory())  # other tests left some in it

    def sample() -> list[int]:
        raw = [for_one_sample(LENT_NBYTES + 1000 * n) for n in range(3)]
        arrays = [array_for_one_sample((each.size // 8, 2), "<f4") for each in raw]
        assert all(each.flags.c_contiguous and each.flags.writeable for each in arrays)
        return sorted({each.ctypes.data for each in (*raw, *arrays)})

    pools = [ThreadPoolExecutor(1) for _ in range(n_threads)]  # one thread after the other
    first, *others = [pools[n % n_threads].submit(sample).result(60) for n in range(4)]
    for pool in pools:
        pool.shutdown()
    assert len(first) == 6
    assert all(each == first for each in others)


def test_what_is_held_of_a_sample_is_not_written_over() -> None:
    for part_of in (
        lambda pages: pages[5:6],
        lambda pages: pages[:16].view("<f4").reshape(2, 2)[1:, ...],
        lambda pages: pages.data[3:4],
        lambda pages: np.frombuffer(pages[:8].data, dtype="<f8"),
    ):
        held = part_of(for_one_sample(LENT_NBYTES))
        before = bytes(held)
        for _ in range(3):
            for_one_sample(LENT_NBYTES)[:] = 255
            array_for_one_sample((LENT_NBYTES // 4,), "<i4")[:] = -1
        assert bytes(held) == before


@pytest.mark.long
@pytest.mark.parametrize("limit_nbytes", [0, 8 * 4 * OWN_NBYTES])
def test_of_samples_no_more_is_kept_than_the_limit(
    limit_nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_lent", memory._LentMemory())
    with pages_used_again(limit_nbytes) if limit_nbytes else nullcontext():
        assert is_bounded() == bool(limit_nbytes)
        most = limit_nbytes // 4 or MOST_IDLE_NBYTES
        held = [for_one_sample(OWN_NBYTES) for _ in range(3 * most // OWN_NBYTES)]
        for number, each in enumerate(held):
            each[:] = number % 251
        assert all((each == number % 251).all() for number, each in enumerate(held))
        del each
        held.clear()
        assert 0 < memory._lent.idle_nbytes <= most
        for_one_sample(most)[:] = 1
        assert memory._lent.idle_nbytes == most  # the others' went


FORK = multiprocessing.get_context("fork")


def hold(folder, pipe):
    with locked(folder):
        pipe.send("held")
        pipe.poll(30)


@pytest.fixture
def holder(tmp_path):
    """Return a process that holds the folder, and what ends it."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=hold, args=(tmp_path, theirs))
    process.start()
    assert ours.recv() == "held"
    yield process, lambda: ours.send("end")
    process.kill()
    process.join(30)


def test_a_second_writer_is_told_who_the_first_one_is(tmp_path, holder) -> None:
    process, _ = holder
    who = f"process {process.pid} on "
    with (
        pytest.raises(StoreClaimedError, match=f"is being written by {who}"),
        locked(tmp_path, wait_s=0),
    ):
        pass
    assert find_writer(tmp_path).startswith(who)


def test_a_second_writer_waits_says_so_once_and_goes_on(tmp_path, holder) -> None:
    process, end = holder
    notes = []

    def note(line):
        notes.append(line)
        end()

    with locked(tmp_path, notice=note):
        process.join(30)
    assert notes == [f"waiting for process {process.pid} on {os.uname().nodename}, which is "
                     f"writing {tmp_path}"]  # fmt: skip
    assert not (tmp_path / LOCK_NAME).exists()


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path, holder) -> None:
    process, _ = holder
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert (tmp_path / LOCK_NAME).exists()
    assert find_writer(tmp_path) == ""
    with locked(tmp_path, wait_s=5) as lock:
        lock.check()


def test_the_lock_of_a_process_killed_as_it_made_it_is_taken_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(locks, "EMPTY_S", 0.05)
    (tmp_path / LOCK_NAME).touch()  # and not written yet
    with locked(tmp_path, wait_s=20) as lock:
        lock.check()
    assert not any(tmp_path.iterdir())


def test_a_lock_that_was_lost_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(locks, "BEAT_S", 0.05)
    with locked(tmp_path) as lock:
        lock.check()
        (tmp_path / LOCK_NAME).write_text("of another host")
        lost: list[str] = []
        while not lost:  # until the next heartbeat
            try:
                lock.check()
            except StoreClaimedError as error:
                lost.append(str(error))
    assert "took over; run the command again" in lost[0]


def test_writers_of_parts_are_found(tmp_path) -> None:
    journal = tmp_path / JOURNAL_NAME
    journal.mkdir()
    assert find_writer(tmp_path) == ""
    with locked(journal, name="part-2.lock"):
        assert find_writer(tmp_path).startswith(f"process {os.getpid()} on ")
    assert lock_holder(journal / "part-2.lock") == ""
