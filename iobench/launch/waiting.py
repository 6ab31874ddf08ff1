"""Running a command as a shell does: its terminal, its signals, its end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from iobench.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FORWARDED: Final = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
AWAITED: Final = FORWARDED | {signal.SIGCHLD}
# Python ignores these for itself; what it starts must not find them ignored.
RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
FROM_KERNEL: Final = 0x80
LOOK_AGAIN_S: Final = 1.0


def run_and_wait(
    command: Sequence[str], environment: Mapping[str, str], look: Callable[[], None] | None = None
) -> int:
    """Run a command and return its exit code, or minus the signal that ended it.

    Meanwhile ``look`` is called about once a second.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    try:
        try:
            pid = os.posix_spawnp(
                command[0], tuple(command), environment, setsigmask=before, setsigdef=RESTORED
            )
        except OSError as error:
            raise OptionError(
                f"{command[0]}: cannot be started ({error.strerror}); expected a program"
            ) from error
        return _wait(pid, look)
    finally:
        # Those that were meant for the command, as Ctrl-C that ended it.
        while signal.sigtimedwait(AWAITED, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, look: Callable[[], None] | None) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        # A thread that somebody else started in this process may take SIGCHLD away: look again.
        known = signal.sigtimedwait(AWAITED, LOOK_AGAIN_S)
        if known is not None and known.si_signo in FORWARDED and not _reached_all(known):
            os.kill(pid, known.si_signo)
        if look is not None:
            look()


def _reached_all(received: signal.struct_siginfo) -> bool:
    """Return whether whoever sent a signal sent it to the command as well."""
    if received.si_code == FROM_KERNEL:
        return True
    try:
        sender = Path(f"/proc/{received.si_pid}/comm").read_text("utf-8", "replace")
    except OSError:
        return False
    return sender.strip() == "slurmstepd"


def default_signals() -> None:
    """Let Ctrl-C and the like end this process: no more is left of it than a report."""
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)


def end_like(code: int) -> NoReturn:
    """End this process as the command ended: with its exit code, or by the same signal."""
    if code >= 0:
        sys.exit(code)
    import resource

    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own
    number = signal.Signals(-code)
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    sys.exit(128 - code)
