"""Which file system a path lies on, and what that means."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from iobench.storage import file_systems
from iobench.storage.file_systems import (
    MAGIC,
    FileSystem,
    Mount,
    counts_device_reads,
    file_system_of,
    known_by,
    mount_of,
    nfs_mount,
    read_mounts,
)

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
29 22 0:24 / /scratch rw - autofs auto.scratch rw
30 29 0:25 / /scratch rw - lustre mds@tcp:/scratch rw
31 30 8:2 / /scratch/my\040disk rw shared:9 - xfs /dev/sdb rw
32 22 0:44 / /home/u/météo rw - fuse.sshfs u@host:/data rw
a line cut sho
"""


@pytest.fixture
def mounts(tmp_path):
    (tmp_path / "mountinfo").write_text(MOUNTS)
    return read_mounts(tmp_path / "mountinfo")


@pytest.mark.parametrize(
    ("file", "kind", "source"),
    [
        ("/home/a", "ext4", "/dev/sda1"),
        ("/scratch/a", "lustre", "mds@tcp:/scratch"),
        ("/scratch/my disk/a", "xfs", "/dev/sdb"),
        ("/scratchy/a", "ext4", "/dev/sda1"),
        ("/home/u/météo/a", "fuse.sshfs", "u@host:/data"),
    ],
)
def test_the_nearest_mount_counts_and_the_last_at_a_place(mounts, file, kind, source):
    mount = mount_of(Path(file), mounts)
    assert (mount.kind, mount.source) == (kind, source)


def test_without_mounts_nothing_is_known(tmp_path):
    assert read_mounts(tmp_path / "missing") == []
    assert mount_of(Path("/a"), []) is None


@pytest.mark.parametrize(
    ("magic", "listed", "name", "reach", "counts", "in_page_cache"),
    [
        (0xEF53, "ext4", "ext4", "local", True, True),
        (0xEF53, "", "ext2/3/4", "local", True, True),
        (0x58465342, "xfs", "xfs", "local", True, True),
        (0x01021994, "tmpfs", "tmpfs", "memory", False, True),
        (0x794C7630, "overlay", "overlay", "unknown", False, True),
        (0x6969, "nfs4", "nfs4", "network", False, True),
        (0x0BD00BD0, "lustre", "lustre", "network", False, True),
        (0x47504653, "gpfs", "gpfs", "network", False, False),
        (0x19830326, "beegfs", "beegfs", "network", False, False),
        (0xFE534D42, "cifs", "cifs", "network", False, True),
        (0x65735546, "fuse.sshfs", "fuse.sshfs", "unknown", False, True),
        (0x65735546, "fuseblk", "fuseblk", "local", False, True),
        (0x65735546, "virtiofs", "virtiofs", "network", False, True),
        (0x2FC12FC1, "zfs", "zfs", "local", True, False),
        (0x73717368, "squashfs", "squashfs", "local", False, True),
        (0x12345, "dvs", "dvs", "unknown", False, True),
        (-1, "ext4", "ext4", "local", True, True),
        (-1, "", "unknown", "unknown", False, True),
    ],
)
def test_numbers_and_names_are_told_together(magic, listed, name, reach, counts, in_page_cache):
    mount = Mount(Path("/data"), listed) if listed else None
    found = known_by(magic, mount)
    assert (found.name, found.reach) == (name, reach)
    assert (found.counts_device_reads, found.in_page_cache) == (counts, in_page_cache)
    assert found.doubt == ""


def test_where_the_two_disagree_statfs_is_believed_and_nothing_counted():
    found = known_by(0x6969, Mount(Path("/data"), "ext4"))
    assert (found.name, found.reach, found.counts_device_reads) == ("nfs", "network", False)
    assert found.doubt == "statfs tells nfs, the list of mounts ext4"


def test_each_says_in_a_sentence_or_two_what_cold_can_mean():
    for name in itertools.chain(*MAGIC.values()):
        cold = known_by(-1, Mount(Path("/"), name)).cold
        assert cold.endswith(".")
        assert cold.count(". ") <= 1


def test_a_url_lies_on_none():
    assert file_system_of("s3://bucket/a").reach == "network"
    assert not counts_device_reads(["s3://bucket/a"])
    assert not counts_device_reads([])


def test_what_is_not_there_yet_lies_where_its_folder_does(tmp_path):
    (tmp_path / "data").write_bytes(b"x")
    here = file_system_of(tmp_path)
    assert here.name != "unknown"
    assert file_systems.statfs_magic(tmp_path) in MAGIC
    assert here.doubt == ""
    assert tmp_path.is_relative_to(here.mount)
    assert file_system_of(tmp_path / "none" / "yet") == here == file_system_of(tmp_path / "data")
    assert counts_device_reads([tmp_path / "data", tmp_path]) == here.counts_device_reads


def test_memory_is_told_from_disks():
    shm = file_system_of(Path("/dev/shm"))
    assert (shm.name, shm.reach, shm.counts_device_reads) == ("tmpfs", "memory", False)


def test_other_systems_tell_nothing_and_do_not_crash(monkeypatch, tmp_path):
    monkeypatch.setattr(file_systems, "_statfs", lambda: None)
    monkeypatch.setattr(file_systems, "read_mounts", list)
    assert file_system_of(tmp_path) == FileSystem()
    assert not counts_device_reads([tmp_path])


# As the kernel prints it; the second mount is a user's (a note on NFS statistics), shortened.
MOUNTSTATS = r"""device proc mounted on /proc with fstype proc
device /dev/sda1 mounted on / with fstype ext4
device server:/data mounted on /mnt/my\040data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1,rsize=1048576,wsize=1048576,namlen=255,hard,noresvport,proto=tcp,timeo=600
\tage:\t9503
\tcaps:\tcaps=0x3ffd7,wtmult=512,dtsize=32768,bsize=0,namlen=255
\tbytes:\t1048576000 1048576000 0 1048576000 1048576000 2097152000 256000 256000
\tRPC iostats version: 1.0  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 1 0 0 12755 12754 0 51500 0 32 101086 25994
\txprt:\ttcp 0 0 1 0 0 12755 12754 0 51500 0 32 101086 25994
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t        READ: 1000 1000 0 220000 1048680000 1689 503927 505677
\t       WRITE: 2000 2000 0 2097616000 288000 5178088 48850 5230077

device server:/new mounted on /new with fstype nfs statvers=1.1
\topts:\tro,vers=3,rsize=65536,proto=rdma
\tper-op statistics
\t        READ: 0 0 0 0 0 0 0 0 0
""".replace("\\t", "\t")


def test_an_nfs_mount_tells_how_its_server_is_spoken_to(tmp_path):
    file = tmp_path / "mountstats"
    file.write_text(MOUNTSTATS)
    told = nfs_mount(Path("/mnt/my data"), file)
    assert (told.version, told.protocol, told.connections) == ("4.1", "tcp", 2)
    assert (told.read_nbytes, told.n_reads, told.read_mean_ns) == (1048576, 1000, 505_677_000)
    new = nfs_mount(Path("/new"), file)
    assert (new.version, new.protocol, new.read_nbytes) == ("3", "rdma", 65536)
    assert (new.connections, new.n_reads, new.read_mean_ns) == (1, 0, None)
    assert nfs_mount(Path("/"), file) is None
    assert nfs_mount(None, file) is None
    assert nfs_mount(Path("/new"), tmp_path / "missing") is None


def test_a_file_system_that_hangs_is_told_by_the_list_of_mounts(slow_storage, monkeypatch):
    """Its server answers after ten minutes, and is waited for no longer than is allowed."""
    folder = slow_storage()
    slow_storage.change(folder, latency_s=600)
    monkeypatch.setattr(file_systems, "TIMEOUT_S", 0.3)
    found = file_system_of(folder / "unknown")
    assert (found.name, found.mount) == ("fuse.slow", folder)
    assert found.doubt == "it did not answer within 0.3 s"
