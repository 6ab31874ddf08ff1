"""How a run is traced by Darshan: the option, the environment of its processes, their start."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import msgspec

from iobench.errors import OptionError, StorageError
from iobench.recording.clock_marker import mark_clock
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.recording.spool import choose_spool
from iobench.storage.darshan_gathering import LOGS_FOLDER, make_dated
from iobench.storage.darshan_runtime import (
    DarshanRuntime,
    ProbedRuntime,
    config_text,
    hidden_folders,
    preloaded,
    runtime_variables,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


NOT_ASKED = "not requested; --darshan auto traces the reads of a run, if a runtime is found"
OWN_LOGS = "the logs are of a Darshan that iobench did not set up"


class DarshanChoice(msgspec.Struct, frozen=True):
    """Whether a run is to be traced by us, or has logs of the user's own set-up.

    Parameters
    ----------
    auto : bool
        Trace it, where there is a runtime that works.
    logs : tuple of Path
        Files, or folders of them, absolute; what lies there when a report is made is read.
    """

    auto: bool = False
    logs: tuple[Path, ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Return what the words of the option mean: ``auto``, ``off``, or paths of logs.

        Raises
        ------
        OptionError
            If a path is not there, or ``auto`` or ``off`` stands beside something else.
        """
        if list(words) in ([], ["off"]):
            return cls()
        if list(words) == ["auto"]:
            return cls(auto=True)
        if {"auto", "off"} & set(words):
            raise OptionError(
                f"--darshan {' '.join(words)}: expected auto, off, or paths of logs, not several"
            )
        for word in words:
            if not Path(word).exists():
                raise OptionError(
                    f"--darshan {word}: no such file or folder; expected auto, off, a log, or the "
                    "folder that your Darshan writes its logs to"
                )
        return cls(logs=tuple(Path(word).absolute() for word in words))

    def document(self) -> dict[str, Any]:
        """Return what ``run.json`` says of a run that is not traced by us."""
        if self.logs:
            return {
                "state": "on",
                "reason": OWN_LOGS,
                "runtime": "",
                "logs": [str(path) for path in self.logs],
                "set": {},
            }
        return {"state": "off", "reason": NOT_ASKED}


CONFIG: Final = "darshan.config"
MEMORY: Final = Path("/dev/shm")
ENOUGH_MEMORY: Final = 1 << 30
"""What must be free there: a mapping that finds no room ends its process."""
DAYS: Final = 8
"""For so many days processes of a run may be started: most runtimes write into folders by date."""
DROPPED: Final = ("DARSHAN_LOGFILE",)


class DarshanSetup(msgspec.Struct, frozen=True):
    """How the processes of a run are traced.

    Parameters
    ----------
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
            f"{', '.join(sorted(self.variables))}; run.json has their values"
        ]
        lines += [f"darshan: {name} is not passed on: one log a process" for name in self.dropped]
        if self.replaced:
            lines.append(f"darshan: your own {', '.join(self.replaced)} do not count in this run")
        return lines


def set_up(
    run: Path,
    probed: ProbedRuntime,
    environment: Mapping[str, str],
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
        make_dated(folder, SYSTEM_CLOCK.wall_ns(), n_days=DAYS)
        part.write_text(text, "utf-8", "surrogateescape")
        part.replace(config)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made ({error.strerror or error})") from error
    mmap = _in_memory() or choose_spool(folder, None) or folder
    variables = runtime_variables(
        probed.runtime, environment, config=config, logs=folder, mmap=mmap
    )
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


PROBED: Final = "IOBENCH_DARSHAN_PROBED"
"""Environment: what the process that started this one again found out about the runtime."""


def restart_under(probed: ProbedRuntime, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Replace this process by one of the same command, with the runtime waiting in it."""
    told = msgspec.structs.asdict(probed) | {
        "runtime": [str(probed.runtime.path), probed.runtime.found]
    }
    words = [str(probed.runtime.path)]
    words += [word for word in preloaded(environment) if word not in words]
    # Set, it would trace from the first line on.
    kept = {name: text for name, text in environment.items() if name != "DARSHAN_ENABLE_NONMPI"}
    inside = kept | {"LD_PRELOAD": ":".join(words), PROBED: json.dumps(told)}
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, sys.orig_argv, inside)


def probed_before(environment: MutableMapping[str, str] = os.environ) -> ProbedRuntime | None:
    """Return what `restart_under` was given; None in a process that it did not start."""
    text = environment.pop(PROBED, None)
    if text is None:
        return None
    told: dict[str, Any] = json.loads(text)
    path, found = told.pop("runtime")
    told |= {name: tuple(told[name]) for name in ("prefixes", "packages")}
    return ProbedRuntime(DarshanRuntime(Path(path), found), **told)


@contextlib.contextmanager
def tracing(
    setup: DarshanSetup, environment: MutableMapping[str, str] = os.environ
) -> Iterator[None]:
    """Trace this process, which has the runtime, and those that it starts meanwhile.

    Its log is there afterwards. What is open already is not seen.
    """
    before = {name: environment.get(name) for name in (*setup.variables, *setup.dropped)}
    for name in setup.dropped:
        environment.pop(name, None)
    environment.update(setup.variables)
    runtime = ctypes.CDLL(None)
    runtime.darshan_core_initialize(0, None)
    mark_clock(setup.folder, SYSTEM_CLOCK)
    try:
        yield
    finally:
        runtime.darshan_core_shutdown(1)
        for name, text in before.items():
            if text is None:
                environment.pop(name, None)
            else:
                environment[name] = text
