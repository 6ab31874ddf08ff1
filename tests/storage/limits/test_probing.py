"""A probe keeps to its bounds, reads only, and calls what it measured what it was."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.errors import MissingFileError, OptionError, StorageError
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.storage.file_systems import Mount, file_system_on
from iobench.storage.limit_figures import StorageLimits, served_by
from iobench.storage.limit_probe import probe_run
from iobench.storage.page_cache import evict, warm_up
from iobench.storage.probe_reads import (
    aligned,
    choose_files,
    latency_figures,
    open_quietly,
    random_requests,
)
from iobench.testing import FakeClock

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits") / "data"
    for number in range(4):
        (folder / f"day={number}").mkdir(parents=True)
        (folder / f"day={number}" / "field.bin").write_bytes(os.urandom(MIB))
    (folder / "manifest.json").write_text("{}")
    return folder


def _arms(found: StorageLimits, *ways: str):
    return [each for each in found.reads if each.way in ways]


def probe(path, request_nbytes=64 * KIB, readers=1, duration_s=2.0, **more):
    return probe_run([path], request_nbytes, readers, like="", duration_s=duration_s, **more)


@settings(deadline=None, max_examples=20)
@given(
    request_nbytes=st.integers(1, 300 * KIB),
    duration_s=st.floats(1e-7, 1e-2),
    readers=st.integers(1, 3),
    step_ns=st.integers(1, 50_000),
)
def test_never_more_time_than_allowed(data, request_nbytes, duration_s, readers, step_ns):
    calls: list[tuple[int, int]] = []
    clock = FakeClock(step_ns=step_ns)
    true_preadv = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        got = true_preadv(fd, buffers, offset, *flags)
        if not flags:
            calls.append((clock._now_ns, got))
        return got

    patch = pytest.MonkeyPatch()
    with patch.context() as within:
        within.setattr(os, "preadv", preadv)
        try:
            found = probe(data, request_nbytes, readers, duration_s, clock=clock)
        except MissingFileError:  # the time was over before a file was found
            assert calls == []
            return
    n_bytes = sum(got for _, got in calls)
    assert n_bytes == found.read_nbytes == sum(each.nbytes for each in found.reads)
    # The clock moves with each look at it: each thread may have looked once more by then.
    slack_ns = (readers + 3) * 3 * step_ns
    assert all(when <= duration_s * 1e9 + slack_ns for when, _ in calls)


def test_what_is_read_is_neither_changed_nor_marked_as_read(data):
    files = sorted(data.rglob("*"))
    before = [(path.stat().st_mtime_ns, path.stat().st_atime_ns) for path in files]
    names = [path.name for path in files]
    probe(data, 16 * KIB)
    assert [path.name for path in sorted(data.rglob("*"))] == names
    after = [(path.stat().st_mtime_ns, path.stat().st_atime_ns) for path in files]
    told = [path.is_file() for path in files]
    assert [b for b, is_file in zip(before, told, strict=True) if is_file] == [
        a for a, is_file in zip(after, told, strict=True) if is_file
    ]


def test_what_the_cache_served_is_called_the_cache(data):
    warm_up([data])
    found = probe(data, readers=2)
    cached = _arms(found, "buffered", "again")
    assert {each.served_by for each in cached} <= {"page cache", "memory", "unknown"}
    if found.file_system in ("ext4", "xfs"):
        assert {each.served_by for each in cached} == {"page cache"}
        direct = [each for each in _arms(found, "direct") if not each.refused]
        assert {each.served_by for each in direct} <= {"device"}
    assert found.threads == (2,)
    assert StorageLimits.from_dict(found.to_dict()) == found


def test_cold_files_are_served_by_what_holds_them(tmp_path):
    (tmp_path / "cold").write_bytes(os.urandom(8 * MIB))
    evict([tmp_path])
    found = probe(tmp_path)
    first = _arms(found, "direct")[0]
    if found.file_system not in ("ext4", "xfs") or first.refused:
        pytest.skip("this file system does not count what its device delivers")
    assert first.served_by == "device"
    assert "page cache" not in {each.served_by for each in _arms(found, "buffered")[:1]}
    assert {each.served_by for each in _arms(found, "again")} == {"page cache"}


def test_files_in_memory_are_called_memory():
    path = Path(f"/dev/shm/iobench-test-limits-{os.getpid()}")
    try:
        path.write_bytes(bytes(MIB))
        found = probe(path)
        assert {each.served_by for each in found.reads if not each.refused} == {"memory"}
    finally:
        path.unlink()


def test_a_refusal_of_direct_reads_is_named(data, monkeypatch):
    true_open = os.open

    def refuse(path, flags, *rest, **named):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return true_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    found = probe(data)
    direct = _arms(found, "direct")
    assert all(each.refused.endswith("refuses O_DIRECT") for each in direct)
    assert all(each.n_reads for each in _arms(found, "buffered"))


def test_a_file_that_fails_is_told_and_ends_the_probe(data, monkeypatch):
    def fail(fd, buffers, offset, *flags):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        probe(data)


class TestChoosingFiles:
    def test_files_are_spread_and_small_ones_beside_the_data_left_out(self, data):
        chosen = choose_files(data, 64 * KIB, clock=SYSTEM_CLOCK, deadline_ns=1 << 62)
        assert [file.path.parent.name for file in chosen.files] == [f"day={n}" for n in range(4)]
        assert chosen.notes == ()

    def test_a_large_folder_is_not_walked(self, tmp_path, monkeypatch):
        for number in range(3):
            (tmp_path / f"part{number}").mkdir()
            for name in range(20):
                (tmp_path / f"part{number}" / f"{name:02}").write_bytes(b"data")
        monkeypatch.setattr("iobench.storage.probe_reads.MAX_ENTRIES", 30)
        monkeypatch.setattr("iobench.storage.probe_reads.MAX_ENTRIES_OF_A_FOLDER", 20)
        chosen = choose_files(tmp_path, 4, clock=SYSTEM_CLOCK, deadline_ns=1 << 62)
        assert len(chosen.files) == 27
        assert "not looked into" in " ".join(chosen.notes)
        late = choose_files(tmp_path, 4, clock=FakeClock(start_ns=0, step_ns=1), deadline_ns=2)
        assert len(late.files) == 20

    def test_links_to_folders_and_hidden_files_are_left_out(self, data, tmp_path):
        (tmp_path / "link").symlink_to(data)
        (tmp_path / ".hidden").write_bytes(b"data")
        with pytest.raises(MissingFileError, match="reads existing files and writes none"):
            choose_files(tmp_path, 4, clock=SYSTEM_CLOCK, deadline_ns=1 << 62)

    @pytest.mark.parametrize(
        ("path", "error", "told"),
        [
            ("none", MissingFileError, "no such file or folder"),
            ("empty", MissingFileError, "holds no file to read"),
            ("pipe", OptionError, "neither a file nor a folder"),
            ("s3://bucket/data", OptionError, "mounted folder"),
        ],
    )
    def test_what_cannot_be_probed_is_told(self, tmp_path, path, error, told):
        (tmp_path / "empty").mkdir()
        os.mkfifo(tmp_path / "pipe")
        where = path if "://" in path else tmp_path / path
        with pytest.raises(error, match=told):
            choose_files(where, 4, clock=SYSTEM_CLOCK, deadline_ns=1 << 62)

    def test_a_folder_that_is_closed_is_told(self, tmp_path, monkeypatch):
        def closed(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(os, "scandir", closed)
        with pytest.raises(StorageError, match="Permission denied"):
            choose_files(tmp_path, 4, clock=SYSTEM_CLOCK, deadline_ns=1 << 62)


@given(
    st.lists(st.integers(1, 5_000), min_size=1, max_size=8),
    st.integers(1, 2_000),
    st.integers(0, 200),
)
def test_requests_lie_in_the_files_and_none_is_there_twice(sizes, request_nbytes, n):
    requests = random_requests(sizes, request_nbytes, n, np.random.default_rng(0))
    assert len(requests) <= n
    places = [(int(row["file"]), int(row["offset"])) for row in requests]
    assert len(set(places)) == len(places)
    for row in requests.tolist():
        assert row[1] % request_nbytes == 0
        assert 0 < row[2] <= request_nbytes
        assert row[1] + row[2] <= sizes[row[0]]


def test_of_huge_files_some_ranges_are_drawn():
    requests = random_requests([1 << 50, 1 << 50], 4096, 1000, np.random.default_rng(0))
    assert 900 < len(requests) <= 1000
    assert set(requests["file"].tolist()) == {0, 1}


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_direct_reads_are_widened_to_whole_sectors(offset, nbytes):
    requests = random_requests([1], 1, 1, np.random.default_rng(0))
    requests["offset"], requests["nbytes"] = offset, nbytes
    (wide,) = aligned(requests)
    assert wide["offset"] % 4096 == wide["nbytes"] % 4096 == 0
    assert wide["offset"] <= offset
    assert wide["offset"] + wide["nbytes"] >= offset + nbytes
    assert wide["nbytes"] <= nbytes + 2 * 4096


@given(st.lists(st.integers(1, 10**12), max_size=300))
def test_latencies_are_such_as_were_measured(latencies):
    told = latency_figures(latencies)
    assert len(told) == (4 if latencies else 0)
    assert set(told) <= set(latencies)
    assert list(told) == sorted(told)
    if latencies:
        assert told[-1] == max(latencies)
        assert sum(each <= told[0] for each in latencies) * 2 >= len(latencies)


@pytest.mark.parametrize(
    ("kind", "way", "resident", "device", "told"),
    [
        ("ext4", "direct", 1.0, 100, "device"),
        ("ext4", "direct", 1.0, 0, "page cache"),  # a file system that quietly reads buffered
        ("ext4", "direct", 0.0, 0, "unknown"),
        ("ext4", "buffered", 0.0, 140, "device"),
        ("ext4", "buffered", 0.4, 140, "mixed"),  # read ahead in vain, and partly cached
        ("ext4", "buffered", 1.0, 0, "page cache"),
        ("ext4", "buffered", 0.0, 0, "unknown"),  # neither accounts for it
        ("ext4", "buffered", 0.5, 50, "mixed"),
        ("ext4", "buffered", None, None, "unknown"),
        ("zfs", "buffered", None, 0, "the file system's cache"),
        ("zfs", "buffered", None, 100, "device"),
        ("tmpfs", "buffered", 1.0, 0, "memory"),
        ("nfs4", "buffered", 1.0, 0, "page cache"),
        ("nfs4", "buffered", 0.0, 0, "server"),
        ("nfs4", "buffered", 0.5, 0, "mixed"),
        ("lustre", "direct", 0.0, 0, "server"),
        ("lustre", "buffered", None, 0, "unknown"),
        ("gpfs", "buffered", None, 0, "unknown"),
        ("beegfs", "direct", None, 0, "unknown"),
        ("fuse.sshfs", "direct", 0.0, 0, "unknown"),
        ("overlay", "buffered", 0.0, 100, "storage"),
        ("overlay", "buffered", 0.0, 0, "unknown"),
        ("overlay", "buffered", 1.0, 0, "page cache"),
        ("dvs", "buffered", 0.0, 0, "unknown"),
    ],
)
def test_reads_are_called_what_the_evidence_allows(kind, way, resident, device, told):
    file_system = file_system_on(Mount(Path("/data"), kind))
    found = served_by(
        file_system, way, nbytes=100, resident_fraction=resident, device_nbytes=device
    )
    assert found == told


def test_files_of_others_are_opened_without_a_mark_of_our_choice(data, monkeypatch):
    flags = []
    true_open = os.open

    def open_(path, flag, *rest, **named):
        flags.append(flag)
        if flag & os.O_NOATIME:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return true_open(path, flag, *rest, **named)

    monkeypatch.setattr(os, "open", open_)
    fd = open_quietly(data / "manifest.json")
    assert stat.S_ISREG(os.fstat(fd).st_mode)
    os.close(fd)
    assert [bool(flag & os.O_NOATIME) for flag in flags] == [True, False]
    assert not any(flag & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flag in flags)
