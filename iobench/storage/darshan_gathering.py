"""The logs of a run: the folders they are written to, and how long they are waited for."""

from __future__ import annotations

import contextlib
import re
import shutil
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from iobench.recording.clocks import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

PATIENCE_NS: Final = 10_000_000_000
LOOK_NS: Final = 50_000_000
LOGS_FOLDER: Final = "darshan"
"""Where in a run directory ``--darshan auto`` has the logs put."""
# USER_EXE_id<job>-<pid>_<month>-<day>-<second of the day>-<hash>[_<seconds>].darshan; user and
# program may hold any of these marks themselves, so the last match counts.
_OF_PROCESS: Final = re.compile(r".*_id-?\d+-(\d+)_\d+-\d+-\d+-\d+(?:_\d+)?\.darshan")


def pid_of_log(name: str) -> int:
    """Return the process of a finished log by its name; -1 if unknown."""
    match = _OF_PROCESS.fullmatch(name)
    return int(match[1]) if match else -1


def gather_logs(
    folder: Path,
    mmap: Path,
    pids: Collection[int],
    *,
    clock: Clock = SYSTEM_CLOCK,
    patience_ns: int = PATIENCE_NS,
) -> list[str]:
    """Wait until the processes of this machine have written their logs; say what there is.

    All logs come into ``folder`` itself; ``mmap`` has what processes count until they end. A
    process has written its log before it is gone, so one that is gone is not waited for; those that
    go on are for ``patience_ns``.
    """
    import psutil

    last_ns = clock.now_ns() + patience_ns
    while True:
        alive = {pid for pid in pids if psutil.pid_exists(pid)}  # asked before looking
        logs = {pid_of_log(path.name) for path in folder.rglob("*.darshan")} - {-1}
        now_ns = clock.now_ns()
        if not alive - logs or now_ns >= last_ns:
            break
        clock.wait_until_ns(now_ns + LOOK_NS)
    _flatten(folder)
    if mmap != folder and not alive - logs:
        shutil.rmtree(mmap, ignore_errors=True)
    lines = [f"darshan: {'1 log' if len(logs) == 1 else f'{len(logs)} logs'} in {folder}"]
    for these, why in (
        ({*pids} - logs - alive, "left no log: killed, or ended by a signal"),
        (alive - logs, "still running; a log is written at the end"),
    ):
        if these:
            lines.append(f"darshan: of processes {', '.join(map(str, sorted(these)))}: {why}")
    return lines


def make_dated(folder: Path, wall_ns: int, *, n_days: int) -> None:
    """Make ``YEAR/MONTH/DAY`` for processes that start on these days, and in other time zones."""
    first = datetime.fromtimestamp(wall_ns / 1e9).astimezone()
    for number in range(-1, n_days + 1):
        day = first + timedelta(days=number)
        (folder / str(day.year) / str(day.month) / str(day.day)).mkdir(parents=True, exist_ok=True)


def _flatten(folder: Path) -> None:
    """Move whole logs out of the folders by date, and remove those that are empty then."""
    for path in sorted(folder.glob("*/*/*/*.darshan")):
        with contextlib.suppress(FileNotFoundError):  # another launcher of the job was first
            path.rename(folder / path.name)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name.isdecimal():
            with contextlib.suppress(OSError):  # not empty: something is being written
                path.rmdir()
