"""A command as an arm: run to its end, with its time, its CPU time and its memory."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final

from iobench.errors import OptionError, TrialError
from iobench.frozen import frozen
from iobench.recording.clocks import SYSTEM_CLOCK, Clock

IOBENCH: Final = "import sys; from iobench.cli import main; sys.exit(main())"
TAIL_NBYTES: Final = 4096
TAIL_LINES: Final = 3
GRACE_NS: Final = 5_000_000_000
LOOK_NS: Final = 20_000_000


@frozen
class CommandCost:
    """What one run of a command took.

    Parameters
    ----------
    wall_ns : int
        From its start to its end.
    cpu_ns : int
        On CPUs, by itself and by every process that it or its children waited for.
    peak_nbytes : int
        Resident memory of the largest of these processes, at its largest; what starts the command
        counts as one of them.
    """

    wall_ns: int
    cpu_ns: int
    peak_nbytes: int


@dataclass(slots=True)
class CommandArm:
    """A command that `interleave` can call: returns its seconds, and keeps what each run took.

    Parameters
    ----------
    by_cpu : bool
        Return CPU seconds instead of those of the wall.
    recorded : callable, optional
        Takes the number of the round and returns the run directory that it is recorded in
        (`recorded_command`); None, the default, records nothing.
    environment : mapping, optional
        By default that of this process.

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
    pids: list[int] = []
    with tempfile.TemporaryFile() as output, Path(os.devnull).open("rb") as nothing:
        spawn = partial(
            os.posix_spawnp,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
            ],
            setpgroup=0,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # ignored by Python, for itself alone
        )
        told = os.environ if environment is None else environment
        start_ns = clock.now_ns()
        try:
            # One step of the interpreter: no interrupt comes between the start and its number.
            pids.extend(map(spawn, [command[0]], [tuple(command)], [told]))
            # The number stays its own, and its group's, until it is waited for without WNOWAIT.
            os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
            end_ns = clock.now_ns()
        except OSError as error:
            raise OptionError(
                f"{command[0]}: cannot be started ({error.strerror}); expected a program"
            ) from error
        except BaseException:
            for pid in pids:
                _end(pid)
            raise
        _signal(pids[0], signal.SIGKILL)
        _, status, usage = os.wait4(pids[0], 0)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            raise TrialError(_failure(command, code, output))
    return CommandCost(
        wall_ns=end_ns - start_ns,
        cpu_ns=round((usage.ru_utime + usage.ru_stime) * 1e9),
        peak_nbytes=usage.ru_maxrss * 1024,
    )


def _end(pid: int) -> None:
    """End a command and all it started: politely first, for it may have files to finish."""
    _signal(pid, signal.SIGTERM)
    last_ns = SYSTEM_CLOCK.now_ns() + GRACE_NS
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        now_ns = SYSTEM_CLOCK.now_ns()
        if now_ns >= last_ns:
            break
        SYSTEM_CLOCK.wait_until_ns(now_ns + LOOK_NS)
    _signal(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS: all of it has ended
        os.killpg(group, number)


def _failure(command: Sequence[str], code: int, output: IO[bytes]) -> str:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    output.seek(max(output.seek(0, os.SEEK_END) - TAIL_NBYTES, 0))
    lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines()]
    said = " | ".join([line for line in lines if line][-TAIL_LINES:])
    return f"{' '.join(command[:4])}: ended with {how}, expected 0" + (f"; {said}" if said else "")
