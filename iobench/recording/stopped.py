"""What a process leaves whose recording stopped, where there may be no room for a single byte.

An empty file, whose name says all: host, process, rank, number of the error, spans lost.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

import msgspec

from iobench.recording.this_process import name_in_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAME: Final = re.compile(
    r"(?P<host>.+)-(?P<pid>\d{1,18})-rank(?P<rank>\d{1,9})-error(?P<error>\d{1,6})"
    r"-lost(?P<lost>\d{1,18})\.stopped"
)


class StoppedRecording(msgspec.Struct, frozen=True):
    """A process that could not go on recording.

    Parameters
    ----------
    host : str
        As names of files have it.
    reason : str
        The system's, such as ``"No space left on device"``.
    lost : int
        Spans lost, those before a process was killed not counted.
    """

    host: str
    pid: int
    rank: int
    reason: str
    lost: int


def leave_mark(folders: Iterable[Path], host: str, rank: int, error: OSError) -> Path | None:
    """Leave the mark of this process in the first folder that takes it; None where none does."""
    name = f"{name_in_files(host)}-{os.getpid()}-rank{rank}-error{error.errno or 0}-lost0.stopped"
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
            return folder / name
    return None


def mark_losses(mark: Path, lost: int) -> None:
    """Say in the name of a mark how many spans were lost, as far as it can be changed."""
    name = re.sub(r"-lost\d+\.stopped$", f"-lost{lost}.stopped", mark.name)
    with contextlib.suppress(OSError):
        mark.rename(mark.with_name(name))


def read_stopped(folders: Iterable[Path]) -> tuple[StoppedRecording, ...]:
    """Return whose recording stopped, by the marks in these folders."""
    found = set()
    for folder in folders:
        for path in folder.glob("*.stopped"):
            told = NAME.fullmatch(path.name)
            if told is not None:
                reason = os.strerror(int(told["error"]))
                found.add(
                    StoppedRecording(
                        told["host"], int(told["pid"]), int(told["rank"]), reason, int(told["lost"])
                    )
                )
    return tuple(sorted(found, key=lambda each: (each.rank, each.pid, each.host)))
