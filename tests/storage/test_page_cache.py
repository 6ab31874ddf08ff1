"""Evicting, warming and counting pages of the page cache."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import StorageError
from iobench.recording.mounts import file_system_at
from iobench.storage import page_cache
from iobench.storage.page_cache import evict, pages_of, residency, warm_up

NBYTES = 40 * mmap.PAGESIZE - 7


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    path = tmp_path_factory.mktemp("residency") / "data"
    path.write_bytes(bytes(NBYTES))
    warm_up([path])
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))
    return path


def test_files_and_those_below_a_folder_are_warmed_and_evicted(file, tmp_path):
    below = tmp_path / "store" / "v" / "0"
    below.mkdir(parents=True)
    (below / "0").write_bytes(bytes(3 << 20))
    both = [tmp_path / "store", file]
    warm_up(both)
    assert residency(both) == 1.0
    evict(both)
    assert 0.0 <= residency(both) <= 1.0
    assert file.read_bytes() == bytes(1 << 20)
    (tmp_path / "empty").mkdir()
    assert residency([tmp_path / "empty"]) is None
    for function in (evict, warm_up, residency):
        with pytest.raises(StorageError, match="gone"):
            function([tmp_path / "gone"])


def test_where_nothing_tells_it_is_unknown(monkeypatch, file):
    assert residency(["s3://bucket/data"]) is None
    for kind in ("zfs", "gpfs", "beegfs"):  # with a cache of their own
        own = file_system_at(str(file.parent), kind)
        monkeypatch.setattr(page_cache, "file_system_of", lambda path, own=own: own)
        assert residency([file]) is None
    monkeypatch.undo()
    monkeypatch.setattr(page_cache, "pages_of", lambda fd: None)
    assert residency([file]) is None


@given(offset=st.integers(0, NBYTES + 9000), nbytes=st.integers(0, NBYTES + 9000))
def test_all_that_was_just_read_is_there_whatever_the_range(warm, offset, nbytes):
    found = pages_of(warm, offset, nbytes)
    end = min(NBYTES, offset + nbytes)
    first = offset // mmap.PAGESIZE
    pages = -(-end // mmap.PAGESIZE) - first if end > first * mmap.PAGESIZE else 0
    assert found == (pages, pages)


def test_files_in_memory_are_all_there():
    path = Path(f"/dev/shm/iobench-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(1 << 16))
        assert residency([path]) == 1.0
    finally:
        path.unlink()
