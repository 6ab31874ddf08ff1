"""What happens to logs when a run ends, and to files that were open before tracing began."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtimes_in_c import LEAVES_LOGS, made_runtime

from iobench.storage.darshan_gathering import gather_logs
from iobench.storage.darshan_setup import follow, reopen
from iobench.testing import FakeClock

GONE = 2**22 + 1
"""No process of Linux has a number above 2**22."""


def _log(folder: Path, pid: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"me_python3.11_id7-{pid}_11-22-18475-238893_1.darshan"
    path.write_bytes(b"log")
    return path


def test_processes_that_go_on_are_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    clock = FakeClock()
    _log(tmp_path, GONE)
    pids = [GONE, GONE + 1, os.getpid()]
    gathered = gather_logs(tmp_path, tmp_path, pids, clock=clock, patience_ns=10**9)
    assert gathered.pids == {GONE}
    assert gathered.missing == (GONE + 1,)
    assert gathered.alive == (os.getpid(),)
    assert 10**9 <= clock.now_ns() < 2 * 10**9
    told = "\n".join(gathered.lines(tmp_path))
    assert f"no log of process {GONE + 1}" in told
    assert f"process {os.getpid()} is still running" in told


def test_nobody_is_waited_for_who_is_gone_or_has_a_log(tmp_path: Path) -> None:
    clock = FakeClock()
    _log(tmp_path, os.getpid())
    gathered = gather_logs(tmp_path, tmp_path, [os.getpid(), GONE], clock=clock)
    assert (gathered.alive, gathered.missing, clock.now_ns()) == ((), (GONE,), 0)


def test_logs_in_folders_by_date_come_into_one(tmp_path: Path) -> None:
    day, other = tmp_path / "2026" / "11" / "22", tmp_path / "2026" / "11" / "23"
    path = _log(day, GONE)
    other.mkdir(parents=True)
    (other / "being-written.darshan_partial").touch()
    assert gather_logs(tmp_path, tmp_path, [GONE], clock=FakeClock()).pids == {GONE}
    assert (tmp_path / path.name).read_bytes() == b"log"
    assert not day.exists()
    assert other.exists()


def test_what_a_killed_process_left_is_brought_with_its_holes(tmp_path: Path) -> None:
    folder, mmap = tmp_path / "run", tmp_path / "node"
    folder.mkdir()
    mmap.mkdir()
    left = mmap / "me_python_id7_mmap-log-123-0.darshan"
    with left.open("wb") as file:
        file.write(b"head")
        file.seek(8 << 20)
        file.write(b"middle")
        file.truncate(16 << 20)
    whole = left.read_bytes()
    gathered = gather_logs(folder, mmap, [GONE], clock=FakeClock())
    assert (gathered.n_leftovers, gathered.missing) == (1, (GONE,))
    assert (folder / left.name).read_bytes() == whole
    assert not mmap.exists()
    if left.parent.parent == folder.parent:
        assert (folder / left.name).stat().st_blocks * 512 < 1 << 20


# -- open files ---------------------------------------------------------------------------


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    follow(())


def test_a_file_is_opened_again_at_the_same_place(followed: Path) -> None:
    (followed / "data").write_bytes(b"0123456789")
    number = os.open(followed / "data", os.O_RDONLY)
    shared = os.dup(number)  # has one place with it, until it is opened again
    try:
        os.lseek(number, 4, os.SEEK_SET)
        follow([followed])
        os.lseek(shared, 0, os.SEEK_SET)
        assert os.read(number, 2) == b"45"
        assert not os.get_inheritable(number)
    finally:
        os.close(number)
        os.close(shared)


def test_what_is_written_or_gone_or_elsewhere_is_left_alone(followed: Path, tmp_path: Path) -> None:
    (followed / "gone").write_bytes(b"old")
    gone = os.open(followed / "gone", os.O_RDONLY)
    (followed / "gone").unlink()
    written = os.open(followed / "new", os.O_RDWR | os.O_CREAT)
    elsewhere = os.open(__file__, os.O_RDONLY)
    try:
        follow([followed])
        assert reopen() == 0
        assert os.read(gone, 3) == b"old"
    finally:
        for number in (gone, written, elsewhere):
            os.close(number)


def test_a_fork_opens_what_it_inherits_and_nothing_after_the_end(followed: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from iobench.storage.darshan_setup import follow
folder = Path(sys.argv[1])
number = os.open(folder / "data", os.O_RDONLY)
follow([folder])
def in_fork():
    if os.fork() == 0:
        os.lseek(number, 5, os.SEEK_SET)  # the parent's place too, where they share one
        os._exit(0)
    os.wait()
    return os.lseek(number, 0, os.SEEK_CUR)
print(in_fork())
follow([])
print(in_fork())
"""
    (followed / "data").write_bytes(b"0123456789")
    done = subprocess.run(
        [sys.executable, "-c", code, followed], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "5"]


def test_a_process_started_again_is_traced_from_where_it_says(tmp_path: Path) -> None:
    library = made_runtime(tmp_path, LEAVES_LOGS)
    code = """
import os, sys
from pathlib import Path
from iobench.storage.darshan_setup import attached, probed_before, restart_under
from iobench.storage.darshan_runtime import ProbedRuntime
from iobench.storage.darshan_runtime import DarshanRuntime
from iobench.storage.darshan_setup import set_up
folder, library = map(Path, sys.argv[1:])
probed = probed_before()
if probed is None:
    runtime = DarshanRuntime(library, "a test")
    restart_under(ProbedRuntime(runtime, sys.executable, packages=("/p",)))
assert probed.packages == ("/p",) and probed_before() is None
setup = set_up(folder, probed, os.environ, job=11)
before = dict(os.environ)
with attached(setup, [folder]):
    assert os.environ["DARSHAN_ENABLE_NONMPI"] == "1"
assert dict(os.environ) == before
if setup.mmap != setup.folder:
    setup.mmap.rmdir()
print(os.getpid(), *sorted(path.name for path in setup.folder.iterdir()))
"""
    started = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path, library],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DARSHAN_ENABLE_NONMPI": "1"},
    )
    told, _ = started.communicate(timeout=60)
    pid, marker, name = sorted(told.split(), key=len)
    assert marker == "iobench-clock-marker"
    assert started.returncode == 0
    assert int(pid) == started.pid
    assert f"_id11-{pid}_" in name
