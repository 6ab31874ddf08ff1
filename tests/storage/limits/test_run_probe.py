"""A run's probe reads as the run does, leaves the page cache as it was, and finds what is true."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.errors import OptionError
from iobench.storage import page_cache
from iobench.storage.limit_probe import probe_run, probe_seconds
from iobench.storage.page_cache import evict, pages_of, warm_up
from iobench.testing import FakeClock

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed")
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(os.urandom(MIB + 100 * number))
    made = sorted(folder.iterdir())
    evict(made)
    if page_cache.residency(made) != 0.0:
        pytest.skip("this file system keeps what is dropped, or does not tell")
    return made


def pages(files: list[Path]) -> list[int]:
    """Return of each page of the files whether the page cache holds it."""
    found = []
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        try:
            starts = range(0, file.stat().st_size, mmap.PAGESIZE)
            found += [pages_of(fd, start, 1).resident for start in starts]
        finally:
            os.close(fd)
    return found


def touch(file: Path, offset: int, nbytes: int) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, nbytes, offset)
    finally:
        os.close(fd)


@pytest.mark.thorough
@settings(deadline=None, max_examples=8)
@given(
    request_nbytes=st.integers(1, 700 * KIB),
    readers=st.integers(1, 4),
    warm=st.lists(st.tuples(st.integers(0, 2), st.integers(0, MIB)), max_size=5),
    seed=st.integers(0, 3),
)
def test_the_page_cache_is_left_as_it_was_found(files, request_nbytes, readers, warm, seed):
    evict(files)
    for number, offset in warm:
        touch(files[number], offset, 40 * KIB)
    before = pages(files)
    found = probe_run(files, request_nbytes, readers, like="", duration_s=5.0, seed=seed)
    after = pages(files)
    assert found.read_nbytes > 0
    assert all(was <= now for was, now in zip(before, after, strict=True))
    stayed = [int(note.split()[0]) for note in found.notes if "stayed" in note]
    assert sum(after) - sum(before) <= sum(stayed)  # the kernel may hold one: it is said


def test_what_is_in_the_page_cache_stays_and_is_held_against_the_cache(files):
    for _ in range(3):  # the kernel may take a page of its own accord; a probe takes them each time
        warm_up(files)
        found = probe_run(files, 64 * KIB, 2, like="", duration_s=5.0)
        if set(pages(files)) == {1}:
            break
    assert set(pages(files)) == {1}
    through = [each for each in found.reads if each.way != "direct"]
    assert [each.served_by for each in through] in (["page cache"], ["memory"], ["unknown"])
    assert through[0].resident_fraction == 1.0
    assert len(through[0].turns_bytes_per_s) == 5


def test_files_whose_pages_nobody_tells_are_read_past_the_page_cache_only(files, monkeypatch):
    monkeypatch.setattr(page_cache, "_is_told_the_truth", lambda _: False)
    evict(files)
    found = probe_run(files, 64 * KIB, 2, like="", duration_s=5.0)
    monkeypatch.undo()
    assert set(pages(files)) == {0}
    told = {each.way: each.refused for each in found.reads}
    assert told["buffered"].startswith(
        "how much of these files the page cache holds cannot be queried"
    )


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
    found = probe_run(files, request_nbytes, 1, like="", duration_s=1.0, clock=storage.clock)
    known = [each for each in found.reads if not each.refused]
    assert known
    for each in known:
        mean = each.nbytes / each.n_reads
        assert each.bytes_per_s == pytest.approx(mean / storage.ns(round(mean)) * 1e9, rel=0.01)
        assert request_nbytes <= mean <= request_nbytes + 2 * mmap.PAGESIZE
    # A read that was begun is waited for, in each turn.
    assert found.spent_ns <= 1e9 + storage.ns(request_nbytes + 2 * mmap.PAGESIZE)


def test_it_ends_as_soon_as_its_figures_stand(files, monkeypatch):
    storage = Storage(monkeypatch, 1_000, 50e9)
    found = probe_run(files, 4 * KIB, 1, like="", duration_s=60.0, clock=storage.clock)
    assert {len(each.turns_bytes_per_s) for each in found.reads if each.n_reads} == {5}
    assert found.spent_ns < 1e8


@pytest.mark.parametrize("text", ["on", "0", "-1", "nan", "61"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(OptionError, match="--limits"):
        probe_seconds(text)
    with pytest.raises(OptionError, match="IOBENCH_LIMITS"):
        probe_seconds("auto", {"IOBENCH_LIMITS": text})


def test_the_time_is_as_asked_else_of_the_environment_else_two_seconds():
    assert probe_seconds("auto", {}) == 2.0
    assert probe_seconds("auto", {"IOBENCH_LIMITS": "off"}) is None
    assert probe_seconds("0.5", {"IOBENCH_LIMITS": "off"}) == 0.5
    assert probe_seconds("off", {}) is None


@pytest.mark.parametrize("names", [[], ["s3://bucket/a"]])
def test_what_cannot_be_probed_is_said(names):
    from iobench.files.urls import as_path

    with pytest.raises(OptionError, match=r"unknown|over the network"):
        probe_run([as_path(name) for name in names], KIB, 1, like="", duration_s=1.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("latency_s", "nbytes_per_s", "request_nbytes", "readers"),
    [
        (0.002, 200e6, 64 * KIB, 2),
        pytest.param(0.0, 20e6, 256 * KIB, 1, marks=pytest.mark.long),
        pytest.param(0.004, 1e9, 256 * KIB, 4, marks=pytest.mark.long),
    ],
)
def test_slow_storage_gives_what_it_is_made_to_give(
    slow_storage, latency_s, nbytes_per_s, request_nbytes, readers
):
    folder = slow_storage(latency_s=latency_s, nbytes_per_s=nbytes_per_s)
    (folder / "data.bin").write_bytes(os.urandom(8 * MIB))
    evict([folder / "data.bin"])
    found = probe_run([folder], request_nbytes, readers, like="", duration_s=1.5)
    alone = request_nbytes / (latency_s + request_nbytes / nbytes_per_s)
    rates = [each.bytes_per_s for each in found.reads if each.way != "again" and each.n_reads]
    # Never more than it can, but for edges of pages; on a busy machine less.
    assert 0 < min(rates) <= max(rates) <= 1.2 * min(nbytes_per_s, readers * alone)
    assert max(rates) >= min(nbytes_per_s, readers * alone) / 4
