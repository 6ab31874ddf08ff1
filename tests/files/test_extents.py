import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.chunks.decoded_chunks import reopen_files
from iobench.errors import FileFormatError, MissingFileError
from iobench.files.ranges import read_extents


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


def test_replaced_files_are_seen_after_reopening(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    read_extents([(str(path), 0, 3)])
    path.with_suffix(".new").write_bytes(b"new")
    path.with_suffix(".new").replace(path)
    reopen_files()
    assert bytes(read_extents([(str(path), 0, 3)])[0]) == b"new"


def test_threads_that_open_a_file_at_once_both_read_it(tmp_path, monkeypatch) -> None:
    path = tmp_path / "shared"
    path.write_bytes(b"abcd")
    reopen_files()
    opened, both = os.open, threading.Barrier(2, timeout=30)

    def open_together(*arguments):
        descriptor = opened(*arguments)
        both.wait()
        return descriptor

    monkeypatch.setattr(os, "open", open_together)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(read_extents, [(str(path), 1, 2)]) for _ in range(2)]
        assert [bytes(job.result()[0]) for job in jobs] == [b"bc", b"bc"]
