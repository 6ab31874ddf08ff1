"""What happens to logs when a run ends, and how a process is traced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from runtimes_in_c import LEAVES_LOGS, made_runtime

from iobench.storage.darshan_gathering import gather_logs
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


def test_what_killed_processes_left_in_memory_goes(tmp_path: Path) -> None:
    folder, mmap = tmp_path / "run", tmp_path / "node"
    folder.mkdir()
    mmap.mkdir()
    (mmap / "me_python_id7_mmap-log-123-0.darshan").write_bytes(b"head")
    assert gather_logs(folder, mmap, [GONE], clock=FakeClock()).missing == (GONE,)
    assert not mmap.exists()


def test_a_process_started_again_is_traced_from_where_it_says(tmp_path: Path) -> None:
    library = made_runtime(tmp_path, LEAVES_LOGS)
    code = """
import os, sys
from pathlib import Path
from iobench.storage.darshan_setup import probed_before, restart_under, tracing
from iobench.storage.darshan_runtime import ProbedRuntime
from iobench.storage.darshan_runtime import DarshanRuntime
from iobench.storage.darshan_setup import set_up
folder, library = map(Path, sys.argv[1:])
probed = probed_before()
if probed is None:
    runtime = DarshanRuntime(library, "a test")
    restart_under(ProbedRuntime(runtime, sys.executable, packages=("/p",)))
assert probed.packages == ("/p",) and probed_before() is None
setup = set_up(folder, probed, os.environ)
before = dict(os.environ)
with tracing(setup):
    assert os.environ["DARSHAN_ENABLE_NONMPI"] == "1"
assert dict(os.environ) == before
if setup.mmap != setup.folder:
    setup.mmap.rmdir()
print(os.getpid(), *sorted(path.name for path in setup.folder.iterdir() if path.is_file()))
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
    assert f"-{pid}_" in name
