"""The logs of a run: the folders they are written to, waited for, and brought into one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.recording.clocks import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

PATIENCE_NS: Final = 10_000_000_000
LOGS_FOLDER: Final = "darshan"
"""Where in a run directory ``--darshan auto`` has the logs put."""
LOOK_NS: Final = 50_000_000


# USER_EXE_id<job>-<pid>_<month>-<day>-<second of the day>-<hash>[_<seconds>].darshan; user and
# program may hold any of these marks themselves, so the last match counts.
_OF_PROCESS: Final = re.compile(r".*_id-?\d+-(\d+)_\d+-\d+-\d+-\d+(?:_\d+)?\.darshan")


def pid_of_log(name: str) -> int:
    """Return the process of a finished log by its name; -1 if unknown."""
    match = _OF_PROCESS.fullmatch(name)
    return int(match[1]) if match else -1


class GatheredLogs(msgspec.Struct, frozen=True):
    """What is there of the logs of a run.

    Parameters
    ----------
    pids : frozenset of int
        Processes that left a whole log.
    alive : tuple of int
        Processes that go on, and write their log when they end.
    missing : tuple of int
        Processes that have ended and left no log.
    """

    pids: frozenset[int]
    alive: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()

    def lines(self, folder: Path) -> list[str]:
        """Return what a user should know of it."""
        many = "1 log" if len(self.pids) == 1 else f"{len(self.pids)} logs"
        lines = [f"darshan: {many} in {folder}"]
        if self.missing:
            lines.append(
                f"darshan: no log of {_processes(self.missing)}: killed, or ended by a signal"
            )
        if self.alive:
            lines.append(
                f"darshan: {_processes(self.alive)} is still running and writes its log when it "
                "ends"
            )
        return lines


def gather_logs(
    folder: Path,
    mmap: Path,
    pids: Collection[int],
    *,
    clock: Clock = SYSTEM_CLOCK,
    patience_ns: int = PATIENCE_NS,
) -> GatheredLogs:
    """Wait until the processes of this machine have written their logs; bring all into ``folder``.

    A process has written its log before it is gone, so one that is gone is not waited for.

    Parameters
    ----------
    folder, mmap : Path
        Of the logs, and of what processes leave that are killed.
    pids : collection of int
        Processes of this machine whose logs are expected.
    patience_ns : int
        How long those that go on are waited for.
    """
    last_ns = clock.now_ns() + patience_ns
    while True:
        alive = tuple(sorted(pid for pid in pids if _is_alive(pid)))  # asked before looking
        told = _pids(folder)
        waited_for = set(alive) - told
        now_ns = clock.now_ns()
        if not waited_for or now_ns >= last_ns:
            break
        clock.wait_until_ns(now_ns + LOOK_NS)
    flatten(folder)
    if mmap != folder and not waited_for:
        shutil.rmtree(mmap, ignore_errors=True)
    missing = tuple(sorted(set(pids) - told - waited_for))
    return GatheredLogs(told, tuple(sorted(waited_for)), missing)


def _pids(folder: Path) -> frozenset[int]:
    """Return the processes that have whole logs, in the folder or by date below it."""
    return frozenset(pid_of_log(path.name) for path in folder.rglob("*.darshan")) - {-1}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _processes(pids: tuple[int, ...]) -> str:
    return ("process " if len(pids) == 1 else "processes ") + ", ".join(map(str, pids))


def make_dated(folder: Path, wall_ns: int, *, n_days: int) -> None:
    """Make ``YEAR/MONTH/DAY`` for processes that start on these days, and in other time zones."""
    first = datetime.fromtimestamp(wall_ns / 1e9).astimezone()
    for number in range(-1, n_days + 1):
        day = first + timedelta(days=number)
        (folder / str(day.year) / str(day.month) / str(day.day)).mkdir(parents=True, exist_ok=True)


def flatten(folder: Path) -> None:
    """Move whole logs out of the folders by date, and remove those that are empty then."""
    for path in sorted(folder.glob("*/*/*/*.darshan")):
        with contextlib.suppress(FileNotFoundError):  # another launcher of the job was first
            path.rename(folder / path.name)
    for depth in ("*/*/*", "*/*", "*"):
        for path in sorted(folder.glob(depth)):
            if path.is_dir() and path.name.isdecimal():
                with contextlib.suppress(OSError):  # not empty: something is being written
                    path.rmdir()
