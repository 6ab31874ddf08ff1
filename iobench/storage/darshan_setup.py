"""Darshan around the processes of a run: its runtime, the start, and the logs afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from iobench.errors import OptionError, StorageError
from iobench.recording.clocks import MARKER_NAME, SYSTEM_CLOCK, Clock, mark_clock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence

PATIENCE_NS: Final = 10_000_000_000
LOOK_NS: Final = 50_000_000
LOGS_FOLDER: Final = "darshan"
"""Where in a run directory ``--darshan auto`` has the logs put."""
# USER_EXE_id<job>-<pid>_<month>-<day>-<second of the day>-<hash>[_<seconds>].darshan; user and
# program may hold any of these marks themselves, so the last match counts.
_OF_PROCESS: Final = re.compile(r".*_id-?\d+-(\d+)_\d+-\d+-\d+-\d+(?:_\d+)?\.darshan")
LIBRARY: Final = "libdarshan.so"
DAYS: Final = 8
"""For so many days processes of a run may be started: most runtimes write into folders by date."""
PROBE_S: Final = 60.0
READY: Final = "IOBENCH_DARSHAN_READY"
"""Environment: the runtime of a process that was started again under it."""


def read_choice(words: Sequence[str]) -> tuple[bool, dict[str, Any]]:
    """Return whether ``--darshan`` has us trace a run, and what ``run.json`` says until we do.

    Its words are ``auto``, ``off``, or logs and folders of logs of the user's own Darshan.
    """
    if list(words) in ([], ["off"], ["auto"]):
        reason = "not requested; --darshan auto traces the reads of a run"
        return list(words) == ["auto"], {"state": "off", "reason": reason}
    for word in words:
        if not Path(word).exists():
            raise OptionError(
                f"--darshan {word}: no such file or folder; expected auto, off, a log, or the "
                "folder that your Darshan writes its logs to"
            )
    return False, {"state": "on", "logs": [str(Path(word).absolute()) for word in words]}


def find_runtime(environment: Mapping[str, str]) -> Path | None:
    """Return the ``libdarshan.so`` that an environment leads to; None if it leads to none.

    ``$DARSHAN_LIB`` (the library, or a folder of it) comes first, then ``$LD_PRELOAD``,
    ``$LD_LIBRARY_PATH``, and the folder of ``darshan-config`` on the ``$PATH``.
    """
    places = [Path(environment["DARSHAN_LIB"])] if environment.get("DARSHAN_LIB") else []
    places += [place / name for place in places for name in (LIBRARY, f"lib/{LIBRARY}")]
    places += map(Path, preloaded(environment))
    searched = environment.get("LD_LIBRARY_PATH", "").split(":")
    places += [Path(folder, LIBRARY) for folder in searched if folder]
    if script := shutil.which("darshan-config", path=environment.get("PATH")):
        prefix = Path(script).resolve().parent.parent
        places += [prefix / name / LIBRARY for name in ("lib", "lib64")]
    result = (path for path in places if path.name.startswith(LIBRARY) and path.is_file())
    path = next(result, None)
    return None if path is None else path.absolute()


def preloaded(environment: Mapping[str, str]) -> list[str]:
    """Return what ``$LD_PRELOAD`` lists; spaces and colons part its words."""
    return [word for word in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")) if word]


MODULES: Final = "POSIX,STDIO,DXT_POSIX"
CODE: Final = (
    r"\.py[ci]?$", r"\.so(\.[0-9]+)*$", r"/pymp-[^/]*/", r"/lib(64)?/python[0-9.]+/",
    "/(site|dist)-packages/",
)  # fmt: skip
OF_PREFIX: Final = "(bin|etc|include|lib|lib32|lib64|libexec|share)/"
CONFIG: Final = f"""\
# Made by iobench for one run.
MOD_ENABLE DXT_POSIX
MAX_RECORDS 16384 POSIX,STDIO
# By 1024 B, 32 B a segment, taken as it is needed.
MAX_RECORDS 32768 DXT_POSIX
# For the counters of so many files: about 0.9 KB each in POSIX and STDIO together.
MODMEM 32
NAMEMEM 8
# Every uname, git and gcc that a script starts would leave a log as well.
APP_EXCLUDE .
APP_INCLUDE (^|/)(python|pypy)[^/]*$
NAME_INCLUDE /{MARKER_NAME}$ {MODULES}
"""


def config_text(python: str, hidden: Iterable[Path] = (), data: Iterable[Path] = ()) -> str:
    """Return the text of a configuration file for an interpreter, which is left out.

    So are folders that are ``hidden``; ``data`` are seen wherever they lie, as below ``/var``.
    """
    prefix = Path(python).absolute().parent.parent
    excluded = [
        *CODE,
        f"{_literal(prefix)}/{OF_PREFIX}",
        *(f"{_literal(each)}/" for each in hidden),
    ]
    # Of its name the runtime knows what stands before the first space.
    lines = [f"APP_INCLUDE {_literal(python.split(maxsplit=1)[0])}$"]
    lines += [f"NAME_EXCLUDE {pattern} {MODULES}" for pattern in excluded]
    lines += [f"NAME_INCLUDE {_literal(path)}(/|$) {MODULES}" for path in data]
    return CONFIG + "\n".join(lines) + "\n"


def _literal(path: Path | str) -> str:
    """Return an extended regular expression for a path; spaces and commas would end it."""
    special = re.sub(r"[\\.\[\]*^$+?(){}|]", r"\\\g<0>", str(path).rstrip("/"))
    return "^" + re.sub(r"[\s,]", ".", special)


class DarshanSetup(msgspec.Struct, frozen=True):
    """How the processes of a run are traced."""

    runtime: Path
    folder: Path  # of the logs, in the run directory
    mmap: Path  # a temporary folder; what a process counts lies there until it ends
    variables: Mapping[str, str]  # set for them

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which processes are traced, each into a log of its own."""
        return {name: base[name] for name in base if name != "DARSHAN_LOGFILE"} | dict(
            self.variables
        )

    def document(self, run: Path) -> dict[str, Any]:
        """Return what ``run.json`` says of it; the folder of logs as seen from the run."""
        logs = os.path.relpath(self.folder, run)
        set_for = dict(self.variables)
        return {"state": "on", "runtime": str(self.runtime), "logs": logs, "set": set_for}

    def line(self) -> str:
        """Return what a user should know of it."""
        names = ", ".join(sorted(self.variables))
        return f"darshan: traced by {self.runtime}, set through {names}; run.json has their values"


def set_up(
    run: Path,
    runtime: Path,
    python: str,
    environment: Mapping[str, str],
    data: Iterable[Path] = (),
) -> DarshanSetup:
    """Make what tracing needs in a run directory, and return how processes are to be started.

    It is a `StorageError` if it cannot be written. ``data`` are files and folders to see even where
    Darshan by itself does not look, as below ``/var``.
    """
    run = run.absolute()
    folder, config = run / LOGS_FOLDER, run / "darshan.config"
    part = config.with_name(f".{config.name}.{os.getpid()}.part")
    text = config_text(python, [run], [path.absolute() for path in data])
    try:
        folder.mkdir(exist_ok=True)
        make_dated(folder, SYSTEM_CLOCK.wall_ns(), n_days=DAYS)
        part.write_text(text, "utf-8", "surrogateescape")
        part.replace(config)
        mmap = Path(tempfile.mkdtemp(prefix="iobench-darshan-"))
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made ({error.strerror or error})") from error
    return DarshanSetup(
        runtime, folder, mmap, _variables(runtime, environment, config, folder, mmap)
    )


def _variables(
    runtime: Path, environment: Mapping[str, str], config: Path, logs: Path, mmap: Path
) -> dict[str, str]:
    """Return what is set for processes that a runtime is to trace.

    Whichever way it was built to find its folder, by date or not, it is told this one.
    """
    others = [each for each in preloaded(environment) if not Path(each).name.startswith(LIBRARY)]
    return {
        "LD_PRELOAD": ":".join([str(runtime), *others]),
        "DARSHAN_ENABLE_NONMPI": "1",
        "DARSHAN_CONFIG_PATH": str(config),
        "DARSHAN_LOGPATH": str(logs),
        "DARSHAN_LOG_DIR_PATH": str(logs),
        "DARSHAN_MMAP_LOGPATH": str(mmap),
        # Stands even where $DARSHAN_MOD_ENABLE replaces what the configuration file enables.
        "DXT_ENABLE_IO_TRACE": "1",
    }


CHILD: Final = """\
import sys
sys.path[:] = [each for each in sys.path if each]  # nothing of the working folder
import os
def path(name):
    return os.path.join(sys.argv[1], name)
for name, write in (
    ("numpy", lambda numpy: numpy.save(path("array.npy"), numpy.zeros(8))),
    ("h5py", lambda h5py: h5py.File(path("file.h5"), "w").close()),
    ("netCDF4", lambda netcdf: netcdf.Dataset(path("file.nc"), "w").close()),
):
    try:
        module = __import__(name)
    except ImportError:
        continue
    write(module)
"""
"""A runtime that was built with HDF5 may end Python where a file is opened, not before."""


def ready_runtime(
    environment: Mapping[str, str], python: str, *, timeout_s: float = PROBE_S
) -> Path:
    """Return the runtime of an environment, after a small program ran under it with a Python."""
    runtime = find_runtime(environment)
    if runtime is None:
        raise StorageError(
            "no libdarshan.so was found through $DARSHAN_LIB, $LD_PRELOAD, $LD_LIBRARY_PATH or "
            "darshan-config"
        )
    plain = {
        name: text
        for name, text in environment.items()
        if not name.startswith("IOBENCH_RUN") and name != "DARSHAN_LOGFILE"
    }
    with tempfile.TemporaryDirectory(prefix="iobench-probe-") as name:
        folder = Path(name)
        logs, config = folder / "logs", folder / "darshan.config"
        make_dated(logs, SYSTEM_CLOCK.wall_ns(), n_days=1)
        config.write_text(config_text(python), "utf-8", "surrogateescape")
        try:
            done = subprocess.run(
                [python, "-c", CHILD, name],
                env=plain | _variables(runtime, plain, config, logs, folder),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            problem = f"did not end within {timeout_s:g} s"
        except OSError as error:
            raise StorageError(f"{python} cannot be started ({error.strerror})") from None
        else:
            problem = f"ended with {done.returncode}" if done.returncode else ""
            if not problem and not any(logs.rglob("*.darshan")):
                problem = "left no log"
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            problem = f"{problem}: {lines[-1]}" if problem and lines else problem
    if problem:
        raise StorageError(f"{runtime}: a small program under it {problem}")
    return runtime


def restart_under(runtime: Path, environment: Mapping[str, str] = os.environ) -> NoReturn:
    """Replace this process by one of the same command, with the runtime waiting in it."""
    others = [each for each in preloaded(environment) if each != str(runtime)]
    # Set, it would trace from the first line on.
    remaining = {
        name: text for name, text in environment.items() if name != "DARSHAN_ENABLE_NONMPI"
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    preload = ":".join([str(runtime), *others])
    os.execve(
        sys.executable, sys.orig_argv, {**remaining, "LD_PRELOAD": preload, READY: str(runtime)}
    )


def waiting_runtime(environment: MutableMapping[str, str] = os.environ) -> Path | None:
    """Return the runtime that `restart_under` started this process with; None without."""
    text = environment.pop(READY, None)
    return None if text is None else Path(text)


@contextlib.contextmanager
def tracing(
    setup: DarshanSetup, environment: MutableMapping[str, str] = os.environ
) -> Iterator[None]:
    """Trace this process, which has the runtime, and those that it starts meanwhile.

    Its log is there afterwards. What is open already is not seen.
    """
    before = dict(environment)
    environment.pop("DARSHAN_LOGFILE", None)
    environment.update(setup.variables)
    runtime = ctypes.CDLL(None)
    runtime.darshan_core_initialize(0, None)
    mark_clock(setup.folder, SYSTEM_CLOCK)
    try:
        yield
    finally:
        runtime.darshan_core_shutdown(1)
        for name in (*setup.variables, "DARSHAN_LOGFILE"):
            environment.pop(name, None)
            if name in before:
                environment[name] = before[name]


def pid_of_log(name: str) -> int:
    """Return the process of a finished log by its name; -1 if unknown."""
    match = _OF_PROCESS.fullmatch(name)
    return int(match[1]) if match else -1


def gather_logs(
    folder: Path,
    mmap: Path,
    pids: Collection[int],
    *,
    clock: Clock = SYSTEM_CLOCK,
    patience_ns: int = PATIENCE_NS,
) -> list[str]:
    """Wait until the processes of this machine have written their logs; say what there is.

    All logs come into ``folder`` itself; ``mmap`` has what processes count until they end. A
    process has written its log before it is gone, so one that is gone is not waited for; those that
    go on are for ``patience_ns``.
    """
    import psutil

    last_ns = clock.now_ns() + patience_ns
    while True:
        alive = {pid for pid in pids if psutil.pid_exists(pid)}  # asked before looking
        logs = {pid_of_log(path.name) for path in folder.rglob("*.darshan")} - {-1}
        now_ns = clock.now_ns()
        if not alive - logs or now_ns >= last_ns:
            break
        clock.wait_until_ns(now_ns + LOOK_NS)
    _flatten(folder)
    if not alive - logs:
        shutil.rmtree(mmap, ignore_errors=True)
    lines = [f"darshan: {'1 log' if len(logs) == 1 else f'{len(logs)} logs'} in {folder}"]
    for these, why in (
        ({*pids} - logs - alive, "left no log: killed, or ended by a signal"),
        (alive - logs, "still running; a log is written at the end"),
    ):
        if these:
            lines.append(f"darshan: of processes {', '.join(map(str, sorted(these)))}: {why}")
    return lines


def make_dated(folder: Path, wall_ns: int, *, n_days: int) -> None:
    """Make ``YEAR/MONTH/DAY`` for processes that start on these days, and in other time zones."""
    first = datetime.fromtimestamp(wall_ns / 1e9).astimezone()
    for number in range(-1, n_days + 1):
        day = first + timedelta(days=number)
        (folder / str(day.year) / str(day.month) / str(day.day)).mkdir(parents=True, exist_ok=True)


def _flatten(folder: Path) -> None:
    """Move whole logs out of the folders by date, and remove those that are empty then."""
    for path in sorted(folder.glob("*/*/*/*.darshan")):
        with contextlib.suppress(FileNotFoundError):  # another launcher of the job was first
            path.rename(folder / path.name)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.name.isdecimal():
            with contextlib.suppress(OSError):  # not empty: something is being written
                path.rmdir()
