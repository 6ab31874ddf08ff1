"""What happens to logs when a run ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from iobench.storage.darshan_setup import gather_logs
from iobench.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

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
    lines = gather_logs(tmp_path, tmp_path, pids, clock=clock, patience_ns=10**9)
    assert 10**9 <= clock.now_ns() < 2 * 10**9
    one, missing, alive = lines
    assert one == f"darshan: 1 log in {tmp_path}"
    assert f"of processes {GONE + 1}: left no log" in missing
    assert f"of processes {os.getpid()}: still running" in alive
    # Nobody is waited for who is gone or has a log.
    _log(tmp_path, os.getpid())
    clock = FakeClock()
    assert len(gather_logs(tmp_path, tmp_path, pids, clock=clock)) == 2
    assert clock.now_ns() == 0


def test_logs_in_folders_by_date_come_into_one_and_what_was_in_memory_goes(tmp_path: Path) -> None:
    folder, mmap = tmp_path / "run", tmp_path / "node"
    day, other = folder / "2026" / "11" / "22", folder / "2026" / "11" / "23"
    path = _log(day, GONE)
    _log(mmap, GONE + 1)
    other.mkdir(parents=True)
    (other / "being-written.darshan_partial").touch()
    gather_logs(folder, mmap, [GONE], clock=FakeClock())
    assert (folder / path.name).read_bytes() == b"log"
    assert [day.exists(), other.exists(), mmap.exists()] == [False, True, False]
