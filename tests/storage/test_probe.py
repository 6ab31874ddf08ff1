"""A probe reads as a run does, keeps to its bounds, and leaves the page cache as it was."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from iobench.errors import MissingFileError, OptionError
from iobench.storage import page_cache
from iobench.storage.page_cache import evict, pages_of, warm_up
from iobench.storage.probe import (
    probe_run,
)
from iobench.storage.probe_figures import read_limits
from iobench.testing import FakeClock

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(os.urandom(MIB + 100 * number))
    found = sorted(folder.iterdir())
    evict(found)
    if page_cache.residency(found) != 0.0:
        pytest.skip("this file system keeps what is dropped, or does not tell")
    return found


def pages(files: list[Path]) -> list[int]:
    """Return of each page of the files whether the page cache holds it."""
    found = []
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        starts = range(0, file.stat().st_size, mmap.PAGESIZE)
        found += [pages_of(fd, start, 1)[0] for start in starts]
        os.close(fd)
    return found


def touch(file: Path, offset: int, nbytes: int) -> None:
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, nbytes, offset)
    os.close(fd)


def by_way(found):
    return {each.way: each for each in found.reads}


@pytest.mark.long
@settings(deadline=None, max_examples=8)
@given(
    request_nbytes=st.integers(1, 700 * KIB),
    readers=st.integers(1, 4),
    warm=st.lists(st.tuples(st.integers(0, 2), st.integers(0, MIB)), max_size=5),
)
def test_the_page_cache_is_left_as_it_was(files, request_nbytes, readers, warm):
    evict(files)
    for number, offset in warm:
        touch(files[number], offset, 40 * KIB)
    before = pages(files)
    found = probe_run(files, request_nbytes, readers, duration_s=5.0)
    after = pages(files)
    assert sum(each.nbytes for each in found.reads) > 0
    assert all(was <= now for was, now in zip(before, after, strict=True))
    assert sum(after) - sum(before) <= 4  # the kernel may hold one that it moves just then


def test_what_is_in_the_page_cache_stays_and_is_read_out_of_it(files):
    for _ in range(3):  # the kernel may take a page of its own accord; a probe takes them each time
        warm_up(files)
        found = probe_run(files, 64 * KIB, 2, duration_s=5.0)
        if set(pages(files)) == {1}:
            break
    assert set(pages(files)) == {1}
    assert by_way(found)["cached"].served_by in ("page cache", "memory")
    assert {each.threads for each in found.reads} == {2}
    assert read_limits([to_builtins(found), {"path": 1}, None]) == [found]


def test_cold_files_are_served_by_what_holds_them(files):
    evict(files)
    found = probe_run(files, 64 * KIB, 1, duration_s=5.0)
    direct, cached = found.reads
    if found.file_system not in ("ext4", "xfs") or direct.refused:
        pytest.skip("this file system does not count what its device delivers")
    assert (direct.served_by, cached.served_by) == ("device", "page cache")


class Storage:
    """In place of ``preadv``: storage of known latency and bandwidth, on a clock of ours."""

    def __init__(self, monkeypatch, latency_ns: int, bytes_per_s: float) -> None:
        self.clock, self.true = FakeClock(start_ns=1), os.preadv
        self.latency_ns, self.bytes_per_s = latency_ns, bytes_per_s
        monkeypatch.setattr(os, "preadv", self)

    def ns(self, nbytes: int) -> int:
        return self.latency_ns + round(nbytes / self.bytes_per_s * 1e9)

    def __call__(self, fd, buffers, offset, *flags):
        got = self.true(fd, buffers, offset, *flags)
        self.clock.advance(self.ns(got))
        return got


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("latency_ns", [0, 100_000, 8_000_000])
@pytest.mark.parametrize("bytes_per_s", [1e8, 7e9])
@pytest.mark.parametrize("request_nbytes", [4 * KIB, 256 * KIB, MIB])
def test_figures_are_those_of_the_storage(
    files, monkeypatch, latency_ns, bytes_per_s, request_nbytes
):
    evict(files)
    storage = Storage(monkeypatch, latency_ns, bytes_per_s)
    found = probe_run(files, request_nbytes, 1, duration_s=1.0, clock=storage.clock)
    known = [each for each in found.reads if not each.refused]
    assert known
    for each in known:
        mean = each.nbytes / each.n_reads
        assert each.bytes_per_s == pytest.approx(mean / storage.ns(round(mean)) * 1e9, rel=0.01)
        assert request_nbytes <= mean <= request_nbytes + 2 * mmap.PAGESIZE
    # It ends as soon as its figures stand; a read that was begun is waited for, in each turn.
    assert found.spent_ns <= 1e9 + storage.ns(request_nbytes + 2 * mmap.PAGESIZE)


@settings(deadline=None, max_examples=20)
@given(
    request_nbytes=st.integers(1, 300 * KIB),
    duration_s=st.floats(1e-7, 1e-2),
    readers=st.integers(1, 3),
    step_ns=st.integers(1, 50_000),
)
def test_never_more_time_than_allowed(files, request_nbytes, duration_s, readers, step_ns):
    begun: list[int] = []
    clock = FakeClock(step_ns=step_ns)
    true_preadv = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        begun.append(clock._now_ns)
        return true_preadv(fd, buffers, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        probe_run(files, request_nbytes, readers, duration_s=duration_s, clock=clock)
    # The clock moves with each look at it: each thread may have looked once more by then.
    assert all(when <= duration_s * 1e9 + (readers + 3) * 3 * step_ns for when in begun)


def test_what_is_read_is_neither_changed_nor_marked_as_read(files):
    before = [(path.stat().st_mtime_ns, path.stat().st_atime_ns) for path in files]
    probe_run(files, 16 * KIB, 1, duration_s=2.0)
    assert sorted(files[0].parent.iterdir()) == files
    assert [(path.stat().st_mtime_ns, path.stat().st_atime_ns) for path in files] == before


def test_files_in_memory_are_called_memory():
    path = Path(f"/dev/shm/iobench-test-limits-{os.getpid()}")
    try:
        path.write_bytes(bytes(MIB))
        found = probe_run([path], 64 * KIB, 1, duration_s=2.0)
        assert {each.served_by for each in found.reads if not each.refused} == {"memory"}
    finally:
        path.unlink()


def test_a_refusal_of_direct_reads_is_named(files, monkeypatch):
    true_open = os.open

    def refuse(path, flags, *rest, **named):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return true_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    found = by_way(probe_run(files, 64 * KIB, 1, duration_s=2.0))
    assert found["direct"].refused.endswith("refuses O_DIRECT")
    assert found["cached"].n_reads


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        (None, OptionError, "which files are read is unknown"),
        ("none", MissingFileError, "no such file or folder"),
        ("empty", MissingFileError, "reads existing files and writes none"),
        ("pipe", MissingFileError, "holds no file to read"),
        ("s3://bucket/data", OptionError, "mounted folder"),
    ],
)
def test_what_cannot_be_probed_is_said(tmp_path, files, path, error, words):
    from iobench.files.urls import as_path

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "link").symlink_to(files[0].parent)
    (tmp_path / "empty" / ".hidden").write_bytes(b"data")
    os.mkfifo(tmp_path / "pipe")
    where = [] if path is None else [as_path(path) if "://" in path else tmp_path / path]
    with pytest.raises(error, match=words):
        probe_run(where, 64 * KIB, 1, duration_s=1.0)
