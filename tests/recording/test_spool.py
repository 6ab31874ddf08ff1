import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.errors import StorageError
from iobench.recording.kinds import Kind
from iobench.recording.recorder import Recorder
from iobench.recording.run_directory import RunDirectory
from iobench.recording.span_reader import read_span_file
from iobench.recording.spool import choose_spool, file_system_type, gather, is_shared

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
mds@tcp:/scratch /p/scratch lustre rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local xfs rw 0 0
beegfs /with\\040space beegfs rw 0 0
/dev/sdc /twice ext4 rw 0 0
/dev/sdd /twice gpfs rw 0 0
host: /mnt/fuse fuse.sshfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data", "ext4"),
        ("/p/scratch/user/run", "lustre"),
        ("/p/scratchy", "ext4"),
        ("/home/user", "nfs4"),
        ("/home/local/run", "xfs"),
        ("/with space/run", "beegfs"),
        ("/twice/run", "gpfs"),
        ("/mnt/fuse", "fuse.sshfs"),
    ],
)
def test_the_deepest_and_last_mount_tells_the_type(path, expected):
    assert file_system_type(Path(path), MOUNTS) == expected


def test_no_mounts_tell_nothing(tmp_path):
    assert file_system_type(tmp_path, "") == "unknown"


def test_network_and_parallel_file_systems_are_shared():
    shared = "nfs nfs4 lustre gpfs beegfs cifs smb3 9p ceph fuse.sshfs afs pvfs2 wekafs panfs"
    assert all(is_shared(name) for name in [*shared.split(), "glusterfs"])
    assert not any(is_shared(name) for name in ["ext4", "xfs", "tmpfs", "unknown", "fuseblk"])


def on(monkeypatch, shared):
    """Let every path under ``shared`` lie on a parallel file system."""
    monkeypatch.setattr(
        "iobench.recording.spool.file_system_type",
        lambda path: "lustre" if Path(path).is_relative_to(shared) else "ext4",
    )


def test_a_local_run_needs_no_spool(tmp_path, monkeypatch):
    on(monkeypatch, tmp_path / "elsewhere")
    assert choose_spool(tmp_path, None) is None


def test_a_shared_run_is_spooled_where_the_scheduler_says(tmp_path, monkeypatch):
    on(monkeypatch, tmp_path / "run")
    (tmp_path / "job").mkdir()
    spool = choose_spool(tmp_path / "run", None, {"SLURM_TMPDIR": str(tmp_path / "job")})
    assert spool is not None
    assert spool.parent == tmp_path / "job"


def test_a_spool_on_the_same_shared_file_system_is_passed_over(tmp_path, monkeypatch):
    on(monkeypatch, tmp_path)
    (tmp_path / "job").mkdir()
    spool = choose_spool(tmp_path / "run", None, {"SLURM_TMPDIR": str(tmp_path / "job")})
    assert spool is None or not spool.is_relative_to(tmp_path)
    if spool is not None:
        spool.rmdir()


def test_a_spool_asked_for_is_taken(tmp_path):
    spool = choose_spool(tmp_path, tmp_path / "new" / "spool")
    assert spool is not None
    assert spool.parent == tmp_path / "new" / "spool"


def test_a_spool_asked_for_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/x: cannot hold the spool"):
        choose_spool(tmp_path, tmp_path / "file" / "x")


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", {}, spool=tmp_path / "spool")


def test_span_files_lie_in_the_spool_until_gathered(run):
    with run.recorder(role="worker", worker=0) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    assert run.span_files() == []
    assert RunDirectory.open(run.path).gather() == 1
    (path,) = run.span_files()
    assert len(read_span_file(path).spans) == 1
    assert not recorder.path.exists()
    assert not run.spool.exists()


def test_a_living_file_is_copied_and_brought_again(run):
    with run.recorder(role="worker", worker=0) as recorder:
        recorder.emit(Kind.READ, 1, 2)
        assert run.gather() == 1
        assert [len(read_span_file(path).spans) for path in run.span_files()] == [1]
        recorder.emit(Kind.READ, 3, 4)
        assert recorder.path.exists()
    assert run.gather() == 1
    assert [len(read_span_file(path).spans) for path in run.span_files()] == [2]
    assert run.gather() == 0
    assert [len(read_span_file(path).spans) for path in run.span_files()] == [2]


def test_recording_goes_on_after_the_spool_was_emptied(run):
    for worker in range(2):
        with run.recorder(role="worker", worker=worker) as recorder:
            recorder.emit(Kind.READ, 1, 2)
        run.gather()
    assert [read_span_file(path).worker for path in run.span_files()] == [0, 1]


def test_a_run_takes_no_files_from_the_spool_of_another(run, tmp_path):
    with run.recorder(role="worker", worker=0) as recorder:
        recorder.emit(Kind.READ, 1, 2)
    other = RunDirectory.create(tmp_path / "other", {})
    other.update(spool={"path": str(run.spool), "host": "here"})
    RunDirectory.open(other.path).gather()
    assert recorder.path.exists()
    assert RunDirectory.open(run.path).gather() == 1
    assert len(run.span_files()) == 1


DIES = """
import os, signal, sys
from pathlib import Path
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
recorder = RunDirectory.open(Path(sys.argv[1])).recorder(role="worker", worker=1)
recorder.emit(Kind.READ, 1, 2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(60)
def test_a_run_that_died_is_gathered_later(run):
    ended = subprocess.run([sys.executable, "-c", DIES, str(run.path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert RunDirectory.open(run.path).gather() == 1
    (path,) = run.span_files()
    assert len(read_span_file(path).spans) == 1
    assert not run.spool.exists()


def test_a_copy_that_fails_loses_nothing(run, monkeypatch):
    with run.recorder(role="worker", worker=0) as recorder:
        recorder.emit(Kind.READ, 1, 2)

    def full(source, target, nbytes):
        target.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(StorageError, match=r"\.spans: cannot be copied .*No space left"):
            run.gather()
    assert list(run.spans_path.iterdir()) == []
    assert run.gather() == 1


def test_a_file_that_cannot_be_read_stays_in_the_spool_as_well(tmp_path):
    (tmp_path / "spool").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "spool" / "a.spans").write_bytes(b"garbage")
    gather(tmp_path / "spool", tmp_path / "home")
    assert (tmp_path / "home" / "a.spans").read_bytes() == b"garbage"
    assert (tmp_path / "spool" / "a.spans").exists()


def test_a_spool_of_another_machine_is_left_alone(tmp_path):
    assert gather(tmp_path / "not here", tmp_path) == 0


def test_a_name_taken_at_home_is_not_used_again(tmp_path):
    recorders = []
    for _ in range(2):
        recorders.append(Recorder(tmp_path / "home", role="x", spool=tmp_path / "spool"))
        recorders[-1].close()
        gather(tmp_path / "spool", tmp_path / "home")
    assert len(list((tmp_path / "home").iterdir())) == 2
