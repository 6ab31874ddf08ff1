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
from iobench.storage.page_cache import evict, warm_up
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


@pytest.mark.parametrize("prepare", [evict, warm_up])
def test_the_page_cache_is_left_as_it_was_and_figures_are_read_back(files, prepare):
    prepare(files)
    before = page_cache.residency(files)
    found = probe_run(files, 64 * KIB, 2, duration_s=5.0)
    assert page_cache.residency(files) == before
    (direct,) = found.reads
    assert (direct.way, direct.threads) == ("direct", 2)
    assert sum(each.nbytes for each in found.reads) > 0 or direct.refused
    assert read_limits([to_builtins(found), {"path": 1}, None]) == [found]


def test_cold_files_are_served_by_what_holds_them(files):
    evict(files)
    found = probe_run(files, 64 * KIB, 1, duration_s=5.0)
    (direct,) = found.reads
    if found.file_system not in ("ext4", "xfs") or direct.refused:
        pytest.skip("this file system does not count what its device delivers")
    assert direct.served_by == "device"


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


@pytest.mark.long
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
    (direct,) = probe_run(files, 64 * KIB, 1, duration_s=2.0).reads
    assert direct.refused.endswith("refuses O_DIRECT")
    assert not direct.n_reads


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
