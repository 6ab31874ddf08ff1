"""Which file system a path lies on, where files could be staged, and the page cache."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from iobench.errors import StorageError
from iobench.recording.mounts import FileSystem, file_system_at
from iobench.storage import file_systems, page_cache
from iobench.storage.file_systems import counts_device_reads, file_system_of
from iobench.storage.page_cache import evict, residency, warm_up

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


@pytest.mark.parametrize(
    ("slurm", "temporary", "expected"),
    [
        (("xfs", "local"), ("ext4", "local"), ["slurm", "temporary"]),
        (("lustre", "network"), ("ext4", "local"), ["temporary"]),
        (("fuse.sshfs", "unknown"), ("tmpfs", "memory"), ["temporary"]),
        (("xfs", ""), ("ext4", "local"), ["temporary"]),
        (None, ("ext4", "local"), ["temporary"]),
        (("xfs", "local"), None, ["slurm"]),
    ],
)
def test_only_folders_of_this_machine_that_can_be_written_are_places(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slurm: tuple[str, str] | None,
    temporary: tuple[str, str] | None,
    expected: list[str],
) -> None:
    environ = {"SLURM_TMPDIR": str(tmp_path / "slurm"), "TMPDIR": str(tmp_path / "temporary")}
    known = {}
    for name, file_system in (("slurm", slurm), ("temporary", temporary)):
        if file_system is not None:  # else the environment names a folder that is not there
            (tmp_path / name).mkdir()
        name_of, reach = file_system or ("xfs", "local")
        known[tmp_path / name] = FileSystem(name_of, mount=str(tmp_path / name), reach=reach)
    real = file_systems.file_system_of
    monkeypatch.setattr(
        file_systems, "file_system_of", lambda path: known[path] if path in known else real(path)
    )
    places = file_systems.near_places(environ=environ)["near"]["places"]
    below = [each for each in places if each["path"].startswith(str(tmp_path))]
    assert [each["path"].rpartition("/")[2] for each in below] == expected
    assert all(each["free_nbytes"] > 0 for each in below)
    assert [each["in_memory"] for each in below] == [
        "tmpfs" in (each["file_system"]) for each in below
    ]


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
