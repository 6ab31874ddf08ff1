"""What the name of a Darshan log tells: the process's id stands nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["LogName", "is_log_name", "parse_log_name"]

# USER_EXE_id<job>-<pid>_<month>-<day>-<second of the day>-<hash>[_<seconds>].darshan; user and
# program may hold any of these marks themselves, so the last match counts.
_FINISHED: Final = re.compile(
    r".*_id(?P<job>\d+)(?:-(?P<pid>\d+))?_\d+-\d+-\d+-\d+(?:_\d+)?\.darshan(?P<partial>_partial)?"
)
_MAPPED: Final = re.compile(r".*_id(?P<job>\d+)_mmap-log-\d+-(?P<rank>\d+)\.darshan")


@dataclass(frozen=True, slots=True)
class LogName:
    """What the name of a log tells; -1 is unknown.

    Parameters
    ----------
    job_id, pid : int
        In logs of MPI jobs the process is that of rank 0.
    unfinished : bool
        Darshan is writing it, or died while it did: ``.darshan_partial``.
    leftover : bool
        The memory-mapped log of a process that never ended well: killed, or still alive.
    """

    job_id: int = -1
    pid: int = -1
    unfinished: bool = False
    leftover: bool = False


def is_log_name(name: str) -> bool:
    """Return whether a file is called like a Darshan log, finished or not, gzipped or not."""
    return name.removesuffix(".gz").endswith((".darshan", ".darshan_partial"))


def parse_log_name(name: str) -> LogName:
    """Return what the name of a log tells, compressed by gzip or not.

    The runtime composes it in ``darshan-runtime/lib/darshan-core.c``; ``DARSHAN_LOGFILE`` and users
    give others, which tell nothing.
    """
    name = name.removesuffix(".gz")
    if mapped := _MAPPED.fullmatch(name):
        return LogName(job_id=int(mapped["job"]), leftover=True)
    if finished := _FINISHED.fullmatch(name):
        return LogName(int(finished["job"]), int(finished["pid"] or -1), bool(finished["partial"]))
    return LogName(unfinished=name.endswith(".darshan_partial"), leftover="_mmap-log-" in name)
