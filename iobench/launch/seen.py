"""Which processes of a command were there, and which commands they started that were not seen."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.launch.boot.iobench_boot import program
from iobench.recording.facts import facts_of_this_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.recording.facts import ProcessFacts
    from iobench.recording.job import JobRank
    from iobench.recording.run_directory import RunDirectory

N_LISTED: Final = 40
ASK_THE_SYSTEM: Final = frozenset({"uname", "ldconfig"})
"""Programs that Python's ``platform`` and ``ctypes`` start: they load no data."""
LONGEST: Final = 160
ISOLATING: Final = {"I": "-I", "E": "-E", "S": "-S"}
OLDEST: Final = (3, 11)
LOOK_INSIDE: Final = """\
import sys
sys.path[:] = [each for each in sys.path if each]
try:
    from importlib.util import find_spec
    sys.path.insert(0, sys.argv[1])
    found = find_spec("iobench") is not None
except ImportError:
    found = False
print(sys.version_info[0], sys.version_info[1], int(found))
"""
"""Asks a Python, of any version, for its own version and whether it finds iobench."""
LOOK_S: Final = 20
SHEBANG_NBYTES: Final = 512
SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})


@dataclass(slots=True)
class SeenProcess:
    """A Python process that started with the bootstrap.

    Parameters
    ----------
    parent : str
        Number of the nearest process above it that was seen; ``""`` for the command's own.
    started : list of tuple of str
        Commands that it, or a fork of it, started.
    unseen : list of str
        What could not be observed in it.
    """

    pid: int
    parent: str
    command: list[str]
    started: list[tuple[str, ...]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def read_seen(folder: Path, pattern: str = "*.txt") -> list[SeenProcess]:
    """Return the processes of a run that told of themselves; lines cut short are left out."""
    result = []
    for path in sorted(folder.glob(pattern)):
        process: SeenProcess | None = None
        for what, value in _lines(path):
            if what == "python":
                # A process that replaces itself by another program keeps its number.
                process = SeenProcess(value["pid"], value["parent"], value["command"])
                result.append(process)
            elif process is not None and what == "started":
                process.started.append(value)
            elif process is not None and what == "unseen":
                process.unseen.append(value)
    return result


def _lines(path: Path) -> list[tuple[str, Any]]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return []
    result = []
    for line in text.splitlines():
        try:
            what, value = ast.literal_eval(line)
        except (ValueError, SyntaxError, TypeError):
            continue
        result.append((what, value))
    return result


def unseen_commands(processes: Sequence[SeenProcess]) -> list[str]:
    """Return the commands that these started and none of these is, each with how often."""
    missing: Counter[str] = Counter()
    for process in processes:
        below = [each for each in processes if each.parent == str(process.pid)]
        for words, count in Counter(process.started).items():
            if "".join(words[:1]).split(" ")[0] in ASK_THE_SYSTEM:
                continue
            n_known = sum(_is(words, each.command) for each in below)
            if n_known < count:
                missing[_one_line(words)] += count - n_known
    texts = [text if count == 1 else f"{text} ({count} times)" for text, count in missing.items()]
    more = len(texts) - N_LISTED
    return texts if more <= 0 else [*texts[:N_LISTED], f"and {more} other commands"]


def _is(words: Sequence[str], seen: Sequence[str]) -> bool:
    """Return whether a command that was started may be this process, or have started it."""
    name = program(seen)
    if name == "-c" and list(words[:1]) == list(seen[:1]):
        return list(words) == list(seen)  # the code of both is masked
    if name == "-c":
        return " ".join(seen[seen.index("-c") :][:2]) in " ".join(words)
    return not name or any(name in word for word in words)


def _one_line(words: Sequence[str]) -> str:
    text = " ".join((words[0] if len(words) == 1 else shlex.join(words)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def describe_processes(
    run: RunDirectory, command: Sequence[str], job: JobRank, code: int, lasted_ns: tuple[int, int]
) -> ProcessFacts:
    """Return what a launcher tells of its command: who was not seen, when and how it ended.

    ``command`` is what may be kept of it.
    """
    processes = read_seen(run.path / "launch")
    unseen = [text for process in processes for text in _unseen(process)]
    if not processes:
        unseen.append(_why_not(command))
    return facts_of_this_process(
        "launcher",
        job,
        command=list(command),
        unseen=list(dict.fromkeys(unseen)),
        children=unseen_commands(processes),
        started_ns=lasted_ns[0],
        ended_ns=lasted_ns[1],
        ended=f"exit {code}" if code >= 0 else signal.Signals(-code).name,
    )


def why_unseen(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Say, before a command is started, why nothing of its Python can be recorded.

    Returns
    -------
    str
        ``""`` where all is well, and where nobody can know: shells, srun, compiled launchers.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    python = None if program is None else _interpreter(program, environment)
    if program is None or python is None:
        return ""
    if flags := _flags(command):
        return f"{python}: {', '.join(flags)} keeps iobench out; leave it out"
    if _is_this_python(python):
        return ""
    folder = _script_folder(program if python != program else None, command)
    try:
        done = subprocess.run(
            [python, "-c", LOOK_INSIDE, folder],
            env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=LOOK_S, check=True,
        )  # fmt: skip
        major, minor, result = map(int, done.stdout.split()[-3:])
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""  # the command itself will say what is wrong with it
    if (major, minor) < OLDEST:
        return (
            f"{python}: is Python {major}.{minor}, and iobench needs "
            f"{'.'.join(map(str, OLDEST))} or later; use a newer one"
        )
    if not result:
        return f"{python}: has no iobench; install it there: {python} -m pip install iobench"
    return ""


def _interpreter(program: str, environment: Mapping[str, str]) -> str | None:
    """Return the Python that a program is, or is read by (``torchrun``); None of anything else."""
    if Path(program).name.startswith("python"):
        return program
    try:
        with Path(program).open("rb") as file:
            first = file.read(SHEBANG_NBYTES).partition(b"\n")[0]
    except OSError:
        return None
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    result = shutil.which(words[0], path=environment.get("PATH")) if words else None
    return result if result is not None and Path(result).name.startswith("python") else None


def _is_this_python(python: str) -> bool:
    """Tell whether a program is this process's Python by another name: python, python3."""
    own = Path(sys.executable)
    result = Path(python).absolute()
    return result.parent == own.parent and result.resolve() == own.resolve()


def _script_folder(script: str | None, command: Sequence[str]) -> str:
    """Return the folder that Python looks into first for what a command imports."""
    if script is None:
        name = program(command)
        script = next((word for word in command[1:] if name and word.endswith(name)), "")
        if not Path(script).is_file():
            return str(Path.cwd())  # of -m and -c
    return str(Path(script).resolve().parent)


def nothing_recorded(recorded: Sequence[ProcessFacts], launched: ProcessFacts) -> str:
    """Say why no training process of a run recorded anything; ``""`` where one did.

    Parameters
    ----------
    recorded : sequence of ProcessFacts
        Of all processes of the run.
    launched : ProcessFacts
        What the launcher tells of its command.
    """
    if any(facts.role == "consumer" for facts in recorded):
        return ""
    if launched.unseen:
        return launched.unseen[0]
    rest = f"; not seen: {', '.join(launched.children)}" if launched.children else ""
    return f"no process that was seen took a batch from a loader that iobench knows{rest}"


def _unseen(process: SeenProcess) -> list[str]:
    name = _one_line(process.command)
    if any("No module named 'iobench'" in text for text in process.unseen):
        return [f"{name}: iobench is not installed beside its Python ({process.command[0]})"]
    return [f"{name}: {text}" for text in process.unseen]


def _why_not(command: Sequence[str]) -> str:
    """Say why no Python of a command was seen at all."""
    name = _one_line(command)
    flags = _flags(command)
    if flags:
        return f"{name}: was not seen, started with {', '.join(flags)}"
    return (
        f"{name}: no Python 3.11 or later started, or none that keeps $PYTHONPATH and its "
        "sitecustomize"
    )


def _flags(command: Sequence[str]) -> list[str]:
    """Return the flags of a Python command that keep iobench out."""
    if not Path(command[0]).name.startswith("python"):
        return []
    result = []
    words = iter(command[1:])
    for word in words:
        if word in {"-W", "-X"}:
            next(words, "")
            continue
        if not word.startswith("-") or word.startswith("--"):
            break
        result += [ISOLATING[letter] for letter in word[1:] if letter in ISOLATING]
        if "c" in word or "m" in word:
            break
    return result
