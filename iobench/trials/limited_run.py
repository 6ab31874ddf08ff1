"""A command in a process of its own, with a limit and a log: nothing of it stays behind."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class Ended(msgspec.Struct, frozen=True):
    """How a command ended."""

    code: int | None  # or minus the signal; None where it took longer than its limit
    lines: tuple[str, ...]  # what it wrote, without empty ones

    @property
    def how(self) -> str:
        """The same in words, with its last line."""
        if self.code is None:
            return "took longer than its limit"
        how = f"ended with {self.code}"
        if self.code < 0:
            how = f"killed by {signal.Signals(-self.code).name}"
        return f"{how}: {self.lines[-1]}" if self.lines else how


def run_limited(
    command: Sequence[str],
    log: Path,
    limit_s: float = math.inf,
    started: Callable[[int], None] = lambda pid: None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command to its end, or to that of its limit; what it says goes into the log."""
    with log.open("w") as file:
        # A session of its own: what it starts ends with it, and no terminal interrupts it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=environment,
        )
    code = None
    try:
        started(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Never without a limit: an interrupt as the system's wait begins would not end it.
            code = process.wait(limit_s)
    finally:
        end_group(process.pid)
        process.wait()
    lines = (line.strip() for line in log.read_text(errors="replace").splitlines())
    return Ended(code, tuple(line for line in lines if line))


def end_group(pid: int) -> None:
    """End a process that leads a group, and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
