"""A command as an arm: run to its end, with its time, its CPU time and its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from iobench.errors import OptionError, TrialError
from iobench.recording import SYSTEM_CLOCK, Clock

__all__ = ["CommandArm", "CommandCost", "recorded_command", "run_command"]

IOBENCH: Final = "import sys; from iobench.cli import main; sys.exit(main())"
TAIL_NBYTES: Final = 4096
TAIL_LINES: Final = 3
GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CommandCost:
    """What one run of a command took.

    Parameters
    ----------
    wall_ns : int
        From its start to its end.
    cpu_ns : int
        On CPUs, by itself and by every process that it or its children waited for.
    peak_nbytes : int
        Resident memory of the largest of these processes, at its largest.
    """

    wall_ns: int
    cpu_ns: int
    peak_nbytes: int


@dataclass(slots=True)
class CommandArm:
    """A command that `interleave` can call: returns its seconds, and keeps what each run took.

    Parameters
    ----------
    command : sequence of str
    by_cpu : bool
        Return CPU seconds instead of those of the wall.
    recorded : callable, optional
        Takes the number of the round and returns the run directory that it is recorded in
        (`recorded_command`); None, the default, records nothing.
    environment : mapping, optional
        By default that of this process.
    clock : Clock

    Attributes
    ----------
    costs : list of CommandCost
        By round.
    """

    command: Sequence[str]
    by_cpu: bool = False
    recorded: Callable[[int], Path] | None = None
    environment: Mapping[str, str] | None = None
    clock: Clock = SYSTEM_CLOCK
    costs: list[CommandCost] = field(default_factory=list)

    def __call__(self, round: int) -> float:
        """Run the command once; raises as `run_command` does."""
        words: Sequence[str] = self.command
        if self.recorded is not None:
            words = recorded_command(self.command, self.recorded(round))
        cost = run_command(words, environment=self.environment, clock=self.clock)
        self.costs.append(cost)
        return (cost.cpu_ns if self.by_cpu else cost.wall_ns) / 1e9


def recorded_command(command: Sequence[str], out: Path, *, detail: str = "auto") -> list[str]:
    """Return the command that runs another one under ``iobench run``, into a run directory."""
    own = ["run", "--no-report", "--out", str(out), "--detail", detail, "--"]
    return [sys.executable, "-c", IOBENCH, *own, *command]


def run_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> CommandCost:
    """Run a command to its end, in a process group of its own; nothing of it stays behind.

    It reads nothing from the terminal, and its output is shown only if it fails. An interrupt
    ends the whole group before it is passed on.

    Raises
    ------
    OptionError
        If there is no such program.
    TrialError
        If it ends with another exit code than 0; says how, with the last lines it wrote.
    """
    with tempfile.TemporaryFile() as output:
        start_ns = clock.now_ns()
        try:
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                process_group=0,
            )
        except OSError as error:
            raise OptionError(
                f"{command[0]}: cannot be started ({error.strerror}); expected a program"
            ) from error
        try:
            # Its number stays its own until it is waited for without WNOWAIT: so does its group's.
            os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
            end_ns = clock.now_ns()
        except BaseException:
            _end(started)
            raise
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode != 0:
            raise TrialError(_failure(command, started.returncode, output))
    return CommandCost(
        wall_ns=end_ns - start_ns,
        cpu_ns=round((usage.ru_utime + usage.ru_stime) * 1e9),
        peak_nbytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    )


def _end(started: subprocess.Popen[bytes]) -> None:
    """End a command and all it started: politely first, for it may have files to finish."""
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        with suppress(subprocess.TimeoutExpired):
            started.wait(patience)
            break
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)


def _failure(command: Sequence[str], code: int, output: IO[bytes]) -> str:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    output.seek(max(output.seek(0, os.SEEK_END) - TAIL_NBYTES, 0))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    said = " | ".join([line for line in lines if line][-TAIL_LINES:])
    return f"{' '.join(command[:4])}: ended with {how}, expected 0" + (f"; {said}" if said else "")
