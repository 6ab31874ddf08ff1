"""Three means of asking the page cache agree, and are asked only where they tell the truth."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.storage import page_cache
from iobench.storage.page_cache import (
    Pages,
    _by_cachestat,
    _by_mincore,
    _by_trying,
    pages_of,
    residency,
    warm_up,
)

MEANS = (_by_cachestat, _by_mincore, _by_trying)
NBYTES = 40 * mmap.PAGESIZE - 7


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    path = tmp_path_factory.mktemp("residency") / "data"
    path.write_bytes(bytes(NBYTES))
    warm_up([path])
    return path


@pytest.fixture(scope="module")
def fd(warm):
    fd = os.open(warm, os.O_RDONLY)
    yield fd
    os.close(fd)


@given(offset=st.integers(0, NBYTES + 9000), nbytes=st.integers(0, NBYTES + 9000))
def test_all_that_was_just_read_is_there_whatever_the_range(fd, offset, nbytes):
    found = pages_of(fd, offset, nbytes)
    end = min(NBYTES, offset + nbytes)
    first = offset // mmap.PAGESIZE
    pages = -(-end // mmap.PAGESIZE) - first if end > first * mmap.PAGESIZE else 0
    assert found is not None
    assert (found.resident, found.n) == (pages, pages)


@pytest.mark.parametrize("means", MEANS)
def test_each_means_tells_what_the_others_do(fd, means):
    found = means(fd, 0, NBYTES)
    if found is None:
        pytest.skip("this kernel or file system has no such means")
    n = 2 if means is _by_trying else 40
    assert (found.resident, found.n) == (n, n)


def _needs_storage_that_refuses(folder: Path) -> None:
    """Skip where reads that may not wait get cold data: the storage is as fast as the refusal."""
    path = folder / "probe"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        found = 0
        for offset in range(0, 1 << 20, 1 << 16):
            try:
                found += os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            except OSError:
                return  # cannot refuse at all: then nothing is told
    finally:
        os.close(fd)
        path.unlink()
    if found > 1:
        pytest.skip(f"this storage gave {found} of 16 cold pages to reads that may not wait")


@pytest.mark.parametrize("means", MEANS)
def test_each_means_sees_what_was_dropped(tmp_path, means):
    if means is _by_trying:
        _needs_storage_that_refuses(tmp_path)
    path = tmp_path / "cold"
    path.write_bytes(bytes(1 << 20))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if pages_of(fd).resident:
            pytest.skip("this file system keeps its files in memory")
        found = means(fd, 0, 1 << 20)
    finally:
        os.close(fd)
    if means is _by_trying and found is not None and found.resident > found.n // 10:
        _needs_storage_that_refuses(tmp_path)  # it may have been slow a moment ago
    assert found is None or found.resident <= found.n // 10


def test_pages_of_another_layer_are_found_by_a_mapping(monkeypatch, fd):
    monkeypatch.setattr(page_cache, "_by_cachestat", lambda fd, offset, nbytes: Pages(0, 40, "x"))
    found = pages_of(fd)
    assert found == Pages(40, 40, "mincore") or found == Pages(0, 40, "x")
    monkeypatch.setattr(page_cache, "_by_mincore", lambda fd, offset, nbytes: Pages(0, 40, "y"))
    assert pages_of(fd) == Pages(0, 40, "x")


def test_mincore_is_not_asked_of_a_file_of_others(monkeypatch, fd):
    monkeypatch.setattr(os, "geteuid", lambda: os.fstat(fd).st_uid + 1)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "supports_effective_ids", set())
    assert _by_mincore(fd, 0, NBYTES) is None


def test_what_only_trying_tells_is_tried_on_few_pages(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(bytes(2000 * mmap.PAGESIZE))
    fd = os.open(path, os.O_RDONLY)
    try:
        found = [_by_trying(fd, 0, n * mmap.PAGESIZE) for n in (1, 15, 100, 2000)]
    finally:
        os.close(fd)
    if None not in found:
        assert found == [Pages(n, n, "preadv2") for n in (1, 1, 6, 64)]


def test_files_in_memory_are_all_there():
    path = Path(f"/dev/shm/iobench-test-{os.getpid()}")
    try:
        path.write_bytes(bytes(1 << 16))
        assert residency([path]).fraction == 1.0
    finally:
        path.unlink()


def test_trying_again_does_not_find_what_trying_loaded(tmp_path):
    _needs_storage_that_refuses(tmp_path)
    path = tmp_path / "cold"
    path.write_bytes(bytes(1 << 22))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if pages_of(fd).resident:
            pytest.skip("this file system keeps its files in memory")
        found = [_by_trying(fd, 0, 1 << 22) for _ in range(2)]
    finally:
        os.close(fd)
    if None not in found:
        if found[1].resident > found[1].n // 2:
            _needs_storage_that_refuses(tmp_path)
        assert found[1].resident <= found[1].n // 2
