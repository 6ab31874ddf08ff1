"""Darshan's runtime, the site's own: where it lies, what it is told, and whether it works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.recording.clock_marker import MARKER_NAME
from iobench.recording.clocks import SYSTEM_CLOCK
from iobench.storage.darshan_gathering import make_dated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


LIBRARY: Final = "libdarshan.so"
FOLDERS: Final = ("", "lib", "lib64")


class DarshanRuntime(msgspec.Struct, frozen=True):
    """A ``libdarshan.so``.

    Parameters
    ----------
    path : Path
        Absolute.
    found : str
        What led to it: ``"$DARSHAN_LIB"``, ``"darshan-config"``.
    """

    path: Path
    found: str


def find_runtime(environment: Mapping[str, str]) -> DarshanRuntime | None:
    """Return the runtime that an environment leads to; None if it leads to none.

    ``$DARSHAN_LIB`` (the library, or a folder of it) comes first, then what ``$LD_PRELOAD`` holds
    already, then what a loaded module sets: variables with DARSHAN in their name,
    ``$LD_LIBRARY_PATH``, ``darshan-config`` on the ``$PATH``.
    """
    for found, path in _places(environment):
        if path.is_file() and path.name.startswith(LIBRARY):
            return DarshanRuntime(path.absolute(), found)
    return None


def preloaded(environment: Mapping[str, str]) -> list[str]:
    """Return what ``$LD_PRELOAD`` lists; spaces and colons part its words."""
    return [word for word in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")) if word]


def _places(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield where it may be, best first."""
    searched = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if told := environment.get("DARSHAN_LIB"):
        yield from _below("$DARSHAN_LIB", Path(told))
    for word in preloaded(environment):
        if Path(word).name.startswith(LIBRARY):
            # A word without a folder is looked for as any library is.
            at = [Path(word)] if "/" in word else [Path(folder, word) for folder in searched]
            yield from (("$LD_PRELOAD", path) for path in at)
    for name in sorted(environment):
        if "DARSHAN" in name and environment[name].startswith("/"):
            yield from _below(f"${name}", Path(environment[name]))
    for folder in searched:
        yield "$LD_LIBRARY_PATH", Path(folder, LIBRARY)
    if script := shutil.which("darshan-config", path=environment.get("PATH")):
        for path in (Path(script), Path(script).resolve()):
            yield from _below("darshan-config", path.parent.parent)


def _below(found: str, path: Path) -> Iterator[tuple[str, Path]]:
    yield found, path
    for folder in FOLDERS:
        yield found, path / folder / LIBRARY


def interpreter_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that a command will run, as far as its words tell.

    ``python`` itself, the one in the first line of a script such as ``torchrun``, also after
    ``srun`` or ``mpirun``; else the first on the ``$PATH``, else this one.
    """
    path = environment.get("PATH")
    for word in (*command, "python", "python3"):
        program = shutil.which(word, path=path)
        if program is None:
            continue
        if _is_python(program):
            return program
        if python := _of_script(program, path):
            return python
    return sys.executable


def _is_python(program: str) -> bool:
    return re.fullmatch(r"(python|pypy)[\d.]*", Path(program).name) is not None


def _of_script(program: str, path: str | None) -> str:
    """Return the Python that a script names in its first line; ``""`` for anything else."""
    try:
        with Path(program).open("rb") as file:
            first = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return ""
    if not first.startswith("#!"):
        return ""
    for word in first[2:].split():
        found = shutil.which(word, path=path)
        if found is not None and _is_python(found):
            return found
    return ""


MODULES: Final = "POSIX,STDIO,DXT_POSIX"
N_FILES: Final = 16384
N_SEGMENT_KIB: Final = 32768
"""What DXT may use, by 1024 B: 32 B a segment, taken as it is needed."""
MODULE_MIB: Final = 32
"""Room for the counters of so many files: about 0.9 KB each in POSIX and STDIO together."""
NAME_MIB: Final = 8
NEVER_SEEN: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var",
)  # fmt: skip
"""What the runtime itself leaves out, wherever no NAME_INCLUDE says otherwise."""
CODE: Final = (r"\.py[ci]?$", r"\.so(\.[0-9]+)*$", r"/pymp-[^/]*/")
OF_PREFIX: Final = "(bin|etc|include|lib|lib32|lib64|libexec|share)/"
SPECIAL: Final = re.compile(r"[\\.\[\]*^$+?(){}|]")


def config_text(
    *,
    interpreter: str,
    prefixes: Iterable[str],
    packages: Iterable[str],
    hidden: Iterable[Path],
    data: Iterable[Path] = (),
) -> str:
    """Return the text of a configuration file.

    Parameters
    ----------
    interpreter : str
        The Python that runs.
    prefixes, packages : iterable of str
        Where it and its environment are installed; folders of its packages.
    hidden : iterable of Path
        Folders to leave out besides: the run directory.
    data : iterable of Path
        Files and folders to see wherever they lie.
    """
    excluded = [*CODE]
    excluded += [_at(prefix) + OF_PREFIX for prefix in _unique(prefixes) if prefix.strip("/")]
    excluded += [_at(folder) for folder in _unique(packages) if folder.strip("/")]
    excluded += [_at(str(folder)) for folder in hidden]
    lines = [
        "# Made by iobench for one run.",
        "MOD_ENABLE DXT_POSIX",
        f"MAX_RECORDS {N_FILES} POSIX,STDIO",
        f"MAX_RECORDS {N_SEGMENT_KIB} DXT_POSIX",
        f"MODMEM {MODULE_MIB}",
        f"NAMEMEM {NAME_MIB}",
        # Every uname, git and gcc that a script starts would leave a log as well.
        "APP_EXCLUDE .",
        "APP_INCLUDE (^|/)(python|pypy)[^/]*$",
        # Of its name the runtime knows what stands before the first space.
        f"APP_INCLUDE ^{_literal(interpreter.split(maxsplit=1)[0])}$",
        *(f"NAME_EXCLUDE {pattern} {MODULES}" for pattern in excluded),
        # What is included is seen wherever it lies.
        f"NAME_INCLUDE /{MARKER_NAME}$ {MODULES}",
        *(f"NAME_INCLUDE ^{_literal(str(path))}(/|$) {MODULES}" for path in data),
    ]
    return "\n".join(lines) + "\n"


def hidden_folders(paths: Iterable[Path], leave_out: Sequence[str] = ()) -> list[Path]:
    """Return those of some paths that the runtime would not see unless it is told of them.

    ``leave_out`` are further folders that the configuration leaves out.
    """
    roots = [Path(root) for root in (*NEVER_SEEN, *leave_out)]
    return sorted({path for path in paths if any(path.is_relative_to(root) for root in roots)})


def _unique(words: Iterable[str]) -> list[str]:
    return sorted({word.rstrip("/") for word in words})


def _at(folder: str) -> str:
    return f"^{_literal(folder.rstrip('/'))}/"


def _literal(text: str) -> str:
    """Return an extended regular expression for a path; spaces and commas would end it."""
    return re.sub(r"[\s,]", ".", SPECIAL.sub(r"\\\g<0>", text))


PROBE_S: Final = 60.0
OLDEST: Final = (3, 4, 5)
"""The first runtime that writes the logs of forked workers."""
TOLD: Final = '{"prefixes": '
CHILD: Final = """\
import sys
sys.path[:] = [each for each in sys.path if each]  # nothing of the working folder
import json, os, site, sysconfig

folder = sys.argv[1]

def imported(name):
    print("opening a file with", name, flush=True)
    try:
        return __import__(name)
    except ImportError:
        return None

# A runtime that was built with HDF5 looks for the system's when a file is opened, not before.
numpy = imported("numpy")
if numpy is not None:
    numpy.save(os.path.join(folder, "array.npy"), numpy.zeros(8))
    numpy.load(os.path.join(folder, "array.npy"))
h5py = imported("h5py")
if h5py is not None:
    h5py.File(os.path.join(folder, "file.h5"), "w").close()
netcdf = imported("netCDF4")
if netcdf is not None:
    netcdf.Dataset(os.path.join(folder, "file.nc"), "w").close()
paths = sysconfig.get_paths()
packages = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
packages += getattr(site, "getsitepackages", list)()
if hasattr(site, "getusersitepackages"):
    packages.append(site.getusersitepackages())
prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix]
print(json.dumps({"prefixes": prefixes, "packages": packages}), flush=True)
"""


class ProbedRuntime(msgspec.Struct, frozen=True):
    """What came of trying a runtime.

    Parameters
    ----------
    python : str
        The interpreter it was tried with.
    problem : str
        Why it cannot be used, and what to do; ``""`` if it can.
    version : str
        As its logs have it; ``""`` if they do not.
    prefixes, packages : tuple of str
        Where that Python and its packages are installed.
    """

    runtime: DarshanRuntime
    python: str
    problem: str = ""
    version: str = ""
    prefixes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def runtime_variables(
    runtime: DarshanRuntime, environment: Mapping[str, str], *, config: Path, logs: Path, mmap: Path
) -> dict[str, str]:
    """Return what is set for processes that a runtime is to trace.

    Whichever way it was built to find its folder, by date or not, it is told this one.
    """
    words = preloaded(environment)
    if str(runtime.path) not in words:
        others = [word for word in words if not Path(word).name.startswith("libdarshan.so")]
        words = [str(runtime.path), *others]
    return {
        "LD_PRELOAD": ":".join(words),
        "DARSHAN_ENABLE_NONMPI": "1",
        "DARSHAN_CONFIG_PATH": str(config),
        "DARSHAN_LOGPATH": str(logs),
        "DARSHAN_LOG_DIR_PATH": str(logs),
        "DARSHAN_MMAP_LOGPATH": str(mmap),
        # Stands even where $DARSHAN_MOD_ENABLE replaces what the configuration file enables.
        "DXT_ENABLE_IO_TRACE": "1",
    }


def probe(
    runtime: DarshanRuntime,
    python: str,
    environment: Mapping[str, str],
    *,
    timeout_s: float = PROBE_S,
) -> ProbedRuntime:
    """Run a small program with NumPy and HDF5 under a runtime, and look what it left.

    Parameters
    ----------
    python : str
        The interpreter that will run.
    environment : mapping
        The one it will run in.
    timeout_s : float
        How long it may take.
    """
    if re.search(r"[\s:]", str(runtime.path)):
        return ProbedRuntime(
            runtime, python, "its path holds a space or a colon, which LD_PRELOAD cannot"
        )
    with tempfile.TemporaryDirectory(prefix="iobench-probe-") as name:
        return _probe(runtime, python, environment, Path(name), timeout_s)


def ready_runtime(environment: Mapping[str, str], python: str) -> ProbedRuntime | str:
    """Return the runtime of an environment, tried with a Python; in words why there is none."""
    if "DARSHAN_DISABLE" in environment:
        return "$DARSHAN_DISABLE is set"
    runtime = find_runtime(environment)
    if runtime is None:
        where = "$DARSHAN_LIB, $LD_PRELOAD, a loaded module or darshan-config"
        return f"no libdarshan.so was found through {where}"
    probed = probe(runtime, python, environment)
    return f"{runtime.path} ({runtime.found}): {probed.problem}" if probed.problem else probed


def _probe(
    runtime: DarshanRuntime,
    python: str,
    environment: Mapping[str, str],
    folder: Path,
    timeout_s: float,
) -> ProbedRuntime:
    logs = folder / "logs"
    make_dated(logs, SYSTEM_CLOCK.wall_ns(), n_days=1)
    config = folder / "darshan.config"
    config.write_text(config_text(interpreter=python, prefixes=(), packages=(), hidden=()), "utf-8")
    plain = _without_ours(environment)
    more = runtime_variables(runtime, plain, config=config, logs=logs, mmap=folder)
    done = _run(python, folder, plain | more, timeout_s)
    if isinstance(done, str):
        return ProbedRuntime(runtime, python, done)
    if done.returncode != 0:
        how = f"exit {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        at = re.findall(r"^(opening a file with \w+)$", done.stdout, re.MULTILINE)
        where = at[-1] if at else "starting"
        said = _last_line(done.stderr)
        return ProbedRuntime(
            runtime, python, f"a small program under it ended {where} ({how}): {said}"
        )
    found = sorted(logs.rglob("*.darshan"))
    if not found:
        said = _last_line(done.stderr)
        return ProbedRuntime(runtime, python, f"a small program under it left no log: {said}")
    version = _version(found[0])
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    problem = ""
    if numbers and numbers < OLDEST:
        problem = f"it is {version}; expected 3.4.5 or newer, which writes the logs of workers"
    # Others may print as well: what a site has every Python do.
    lines = [line for line in done.stdout.splitlines() if line.startswith(TOLD)]
    if not lines:
        return ProbedRuntime(runtime, python, "a small program under it ended before its end")
    told: dict[str, Any] = json.loads(lines[-1])
    prefixes, packages = tuple(told["prefixes"]), tuple(told["packages"])
    return ProbedRuntime(runtime, python, problem, version, prefixes, packages)


def _run(
    python: str, folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str] | str:
    """Run the child; return why not, in words, where it does not end."""
    try:
        return subprocess.run(
            [python, "-c", CHILD, str(folder)],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a small program under it did not end within {timeout_s:g} s"
    except OSError as error:
        return f"{python} cannot be started ({error.strerror or error})"


def _without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what makes a process a part of a run, or names one log."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith("IOBENCH_RUN") and name != "DARSHAN_LOGFILE"
    }


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return lines[-1].strip() if lines else "nothing was said"


def _version(log: Path) -> str:
    """Return the version of the runtime that wrote a log; its job is deflated, near the start."""
    head = log.read_bytes()[:65536]
    for start in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", head):
        try:
            text = zlib.decompressobj().decompress(head[start.start() :], 65536)
        except zlib.error:
            continue
        if told := re.search(rb"lib_ver=([0-9][\w.-]*)", text):
            return told[1].decode()
    return ""
