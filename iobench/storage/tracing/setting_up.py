"""The folder, the configuration and the variables with which a run is traced."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import StorageError
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.spool import choose_spool
from iobench.storage.traces.of_run import LOGS_FOLDER
from iobench.storage.tracing.config_file import config_text, hidden_folders
from iobench.storage.tracing.gathering import make_dated
from iobench.storage.tracing.probing import runtime_variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iobench.storage.tracing.probing import ProbedRuntime

__all__ = ["JOB", "DarshanSetup", "job_number", "set_up"]

CONFIG: Final = "darshan.config"
JOB: Final = "IOBENCH_DARSHAN_JOB"
"""Environment: the number that all logs of a run have in common; spawned workers tell no parent."""
MEMORY: Final = Path("/dev/shm")
ENOUGH_MEMORY: Final = 1 << 30
"""What must be free there: a mapping that finds no room ends its process."""
DAYS: Final = 8
"""For so many days processes of a run may be started."""
DROPPED: Final = ("DARSHAN_LOGFILE",)


@dataclass(frozen=True, slots=True)
class DarshanSetup:
    """How the processes of a run are traced.

    Parameters
    ----------
    probed : ProbedRuntime
    folder : Path
        Of the logs, in the run directory.
    mmap : Path
        Where what a process counts lies until it ends, so that a killed one leaves it. It is
        written through a mapping: in memory if there is enough, else on this node.
    variables : mapping of str to str
        What is set for them.
    dropped : tuple of str
        Variables of the user's that would make logs of several processes one file.
    replaced : tuple of str
        Variables of the user's that have another value for these processes.
    """

    probed: ProbedRuntime
    folder: Path
    mmap: Path
    variables: Mapping[str, str]
    dropped: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which processes are traced."""
        kept = {name: value for name, value in base.items() if name not in self.dropped}
        return kept | dict(self.variables)

    def document(self, run: Path) -> dict[str, Any]:
        """Return what ``run.json`` says of it; the folder of logs as seen from the run."""
        return {
            "state": "on",
            "reason": f"found through {self.probed.runtime.found}",
            "runtime": str(self.probed.runtime.path),
            "version": self.probed.version,
            "logs": os.path.relpath(self.folder, run),
            "set": dict(self.variables),
            "dropped": list(self.dropped),
        }

    def lines(self) -> list[str]:
        """Return what a user should know of it."""
        runtime = self.probed.runtime
        version = f" {self.probed.version}" if self.probed.version else ""
        lines = [
            f"darshan: traced by Darshan{version}, {runtime.path} ({runtime.found}), set through "
            f"{', '.join(sorted(self.variables))}; run.json tells their values"
        ]
        lines += [f"darshan: {name} is not passed on: one log a process" for name in self.dropped]
        if self.replaced:
            lines.append(f"darshan: your own {', '.join(self.replaced)} do not count in this run")
        if not self.probed.forks_seen:
            lines.append(
                "darshan: this runtime leaves no log of workers that are forked; load 3.4.5 or "
                "newer, built with its exit wrapper, to see them"
            )
        return lines


def job_number(token: str) -> int:
    """Return the number of a run, the same for all launchers of a job; fits a signed 32-bit one."""
    return int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "big") >> 1


def set_up(
    run: Path,
    probed: ProbedRuntime,
    environment: Mapping[str, str],
    *,
    job: int,
    data: Iterable[Path] = (),
) -> DarshanSetup:
    """Make what tracing needs in a run directory, and return how processes are to be started.

    Parameters
    ----------
    run : Path
        The run directory; is there already.
    probed : ProbedRuntime
        Without a problem.
    environment : mapping
        Of the processes, besides what is added.
    job : int
        The number that all logs will have.
    data : iterable of Path
        Files and folders to see even where Darshan by itself does not look, as below ``/var``.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    folder, config = run.absolute() / LOGS_FOLDER, run.absolute() / CONFIG
    text = config_text(
        interpreter=probed.python,
        prefixes=probed.prefixes,
        packages=probed.packages,
        hidden=(run.absolute(),),
        data=hidden_folders((path.absolute() for path in data), probed.prefixes),
    )
    part = config.with_name(f".{config.name}.{os.getpid()}.part")
    try:
        folder.mkdir(exist_ok=True)
        if probed.dated:
            make_dated(folder, SYSTEM_CLOCK.wall_ns(), n_days=DAYS)
        part.write_text(text, "utf-8", "surrogateescape")
        part.replace(config)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made ({error.strerror or error})") from error
    mmap = _in_memory() or choose_spool(folder, None) or folder
    variables = runtime_variables(
        probed.runtime, environment, config=config, logs=folder, mmap=mmap
    )
    variables |= {"DARSHAN_JOBID": JOB, JOB: str(job)}
    dropped = tuple(name for name in DROPPED if name in environment)
    replaced = tuple(
        name
        for name, text in variables.items()
        if name != "LD_PRELOAD" and environment.get(name, text) != text
    )
    return DarshanSetup(probed, folder, mmap, variables, dropped, replaced)


def _in_memory() -> Path | None:
    """Make a folder in memory; None where there is little of it.

    On a disk a process starts 9 to 20 ms later, by which its clock is told wrongly too, and its
    counters are written there all the while.
    """
    try:
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize < ENOUGH_MEMORY:
            return None
        return Path(tempfile.mkdtemp(prefix="iobench-darshan-", dir=MEMORY))
    except OSError:
        return None
