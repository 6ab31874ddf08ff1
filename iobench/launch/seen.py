"""Which processes of a command were there, and which commands they started that were not seen."""

from __future__ import annotations

import ast
import os
import shlex
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iobench.launch.boot.iobench_boot import program
from iobench.recording import JobRank, ProcessFacts
from iobench.recording.hosts import host_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.recording import RunDirectory

__all__ = ["SeenProcess", "describe_processes", "read_seen", "unseen_commands"]

N_LISTED: Final = 40
LONGEST: Final = 160
ISOLATING: Final = {"I": "-I", "E": "-E", "S": "-S"}
SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "ksh"})


@dataclass(slots=True)
class SeenProcess:
    """A Python process that started with the bootstrap.

    Parameters
    ----------
    pid : int
    parent : str
        Number of the nearest process above it that was seen; ``""`` for the command's own.
    command : list of str
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
    found = []
    for path in sorted(folder.glob(pattern)):
        process: SeenProcess | None = None
        for what, value in _lines(path):
            if what == "python":
                # A process that replaces itself by another program keeps its number.
                process = SeenProcess(value["pid"], value["parent"], value["command"])
                found.append(process)
            elif process is not None and what == "started":
                process.started.append(value)
            elif process is not None and what == "unseen":
                process.unseen.append(value)
    return found


def _lines(path: Path) -> list[tuple[str, Any]]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            what, value = ast.literal_eval(line)
        except (ValueError, SyntaxError, TypeError):
            continue
        found.append((what, value))
    return found


def unseen_commands(processes: Sequence[SeenProcess]) -> list[str]:
    """Return the commands that these started and none of these is, each with how often."""
    missing: Counter[str] = Counter()
    for process in processes:
        below = [each for each in processes if each.parent == str(process.pid)]
        for words, count in Counter(process.started).items():
            n_seen = sum(_is(words, each.command) for each in below)
            if n_seen < count:
                missing[_one_line(words)] += count - n_seen
    texts = [text if count == 1 else f"{text} ({count} times)" for text, count in missing.items()]
    more = len(texts) - N_LISTED
    return texts if more <= 0 else [*texts[:N_LISTED], f"and {more} other commands"]


def _is(words: Sequence[str], seen: Sequence[str]) -> bool:
    """Return whether a command that was started may be this process, or have started it."""
    name = program(seen)
    if name == "-c":
        name = seen[seen.index("-c") + 1] if "-c" in seen[:-1] else name
    return not name or any(name in word for word in words)


def _one_line(words: Sequence[str]) -> str:
    text = " ".join((words[0] if len(words) == 1 else shlex.join(words)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def describe_processes(
    run: RunDirectory, command: Sequence[str], job: JobRank, code: int
) -> ProcessFacts:
    """Return what a launcher tells of its command: who was not seen, and how it ended."""
    processes = read_seen(run.path / "launch")
    unseen = [text for process in processes for text in _unseen(process)]
    if not processes:
        unseen.append(_why_not(command))
    return ProcessFacts(
        pid=os.getpid(),
        ppid=os.getppid(),
        host=host_name(),
        role="launcher",
        rank=job.rank,
        world_size=job.world_size,
        local_rank=job.local_rank,
        launcher=job.launcher,
        command=list(command),
        unseen=list(dict.fromkeys(unseen)),
        children=unseen_commands(processes),
        ended=f"exit {code}" if code >= 0 else signal.Signals(-code).name,
    )


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
    found = []
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--"):
            break
        found += [ISOLATING[letter] for letter in word[1:] if letter in ISOLATING]
        if "c" in word or "m" in word:
            break
    return found
