"""Which process it is that holds a claim, and whether it certainly ended."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Holder"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a claim: host, process, when that process began, and a number of its own.

    ``job`` is the SLURM job it belongs to, if any.
    """

    host: str
    pid: int
    process_started: str
    pid_namespace: str
    token: str
    job: str = ""

    @classmethod
    def here(cls) -> Holder:
        """Return this process as a holder."""
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=_process_started(os.getpid()),
            pid_namespace=_pid_namespace(),
            token=secrets.token_hex(8),
            job=os.environ.get("SLURM_JOB_ID", ""),
        )

    def is_gone(self) -> bool:
        """Whether the process certainly ended; False where it cannot be seen from here."""
        if (self.host, self.pid_namespace) != (socket.gethostname(), _pid_namespace()):
            return False
        try:
            ended = psutil.Process(self.pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False
        # Another process may have got the number since.
        return ended or _process_started(self.pid) != self.process_started

    def __str__(self) -> str:
        job = f" (job {self.job})" if self.job else ""
        return f"process {self.pid} on {self.host}{job}"


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path, an identity
    except OSError:
        return ""


def _process_started(pid: int) -> str:
    """Return when a process began, in the kernel's own ticks; "" where it does not tell.

    Not psutil's create_time: that moves when the wall clock is set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
