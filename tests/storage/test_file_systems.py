"""Which file system a path lies on, and what that means."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from iobench.recording.mounts import FileSystem, file_system_at
from iobench.storage import file_systems
from iobench.storage.file_systems import counts_device_reads, file_system_of

MOUNTS = (
    ("/", "ext4"),
    ("/scratch", "autofs"),
    ("/scratch", "lustre"),
    ("/scratch/my disk", "xfs"),
    ("/home/u/météo", "fuse.sshfs"),
)


def test_the_nearest_mount_counts_and_the_last_at_a_place(monkeypatch):
    listed = [SimpleNamespace(mountpoint=point, fstype=each) for point, each in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: listed)
    for file, kind in (
        ("/home/a", "ext4"), ("/scratch/a", "lustre"), ("/scratch/my disk/a", "xfs"),
        ("/scratchy/a", "ext4"), ("/home/u/météo/a", "fuse.sshfs"),
    ):  # fmt: skip
        assert file_system_of(Path(file)).name == kind


@pytest.mark.parametrize(
    ("name", "reach", "counts", "in_page_cache"),
    [
        ("ext4", "local", True, True),
        ("tmpfs", "memory", False, True),
        ("overlay", "unknown", False, True),
        ("lustre", "network", False, True),
        ("gpfs", "network", False, False),
        ("fuse.sshfs", "unknown", False, True),
        ("zfs", "local", True, False),
        ("dvs", "network", False, True),
    ],
)
def test_what_a_type_means(name, reach, counts, in_page_cache):
    found = file_system_at("/data", name)
    assert (found.name, found.reach) == (name, reach)
    assert (found.counts_device_reads, found.in_page_cache) == (counts, in_page_cache)


def test_paths_lie_where_their_folders_do(monkeypatch, tmp_path):
    (tmp_path / "data").write_bytes(b"x")
    here = file_system_of(tmp_path)
    assert here.name != "unknown"
    assert tmp_path.is_relative_to(here.mount)
    assert file_system_of(tmp_path / "none" / "yet") == here == file_system_of(tmp_path / "data")
    assert counts_device_reads([tmp_path / "data", tmp_path]) == here.counts_device_reads
    shm = file_system_of(Path("/dev/shm"))
    assert (shm.name, shm.reach, shm.counts_device_reads) == ("tmpfs", "memory", False)
    assert file_system_of("s3://bucket/a").reach == "network"
    assert not counts_device_reads(["s3://bucket/a"])
    assert not counts_device_reads([])
    monkeypatch.setattr(file_systems, "read_mounts", list)
    assert file_system_of(tmp_path) == FileSystem()
    assert not counts_device_reads([tmp_path])
