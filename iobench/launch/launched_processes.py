"""What a command was: its commit, its processes, and which of them were not seen."""

from __future__ import annotations

import ast
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.recording.facts import facts_of_this_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.recording.facts import ProcessFacts
    from iobench.recording.job import JobRank
    from iobench.recording.run_directory import RunDirectory

LONGEST: Final = 160
LIMIT_S: Final = 2
SCRIPTS: Final = (".py", ".sh", ".ipynb")


class LaunchedProcess(msgspec.Struct):
    """A Python process that started with the bootstrap."""

    pid: int
    command: list[str]
    unseen: list[str] = []  # what could not be observed in it


def read_processes(folder: Path, pattern: str = "*.txt") -> list[LaunchedProcess]:
    """Return the processes of a run that noted themselves; lines cut short are left out."""
    result = []
    for path in sorted(folder.glob(pattern)):
        process: LaunchedProcess | None = None
        for what, value in _lines(path):
            if what == "python":
                # A process that replaces itself by another program keeps its number.
                process = LaunchedProcess(value["pid"], value["command"])
                result.append(process)
            elif process is not None:
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


def _one_line(words: Sequence[str]) -> str:
    text = " ".join((words[0] if len(words) == 1 else shlex.join(words)).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def describe_processes(
    run: RunDirectory, command: Sequence[str], job: JobRank, code: int, lasted_ns: tuple[int, int]
) -> ProcessFacts:
    """Return what a launcher knows of its command: who was not seen, when and how it ended."""
    processes = read_processes(run.path / "launch")
    unseen = [(_one_line(each.command), why) for each in processes for why in _unseen(each)]
    if not processes:
        why = "no Python 3.11 or later that keeps $PYTHONPATH was started (-I, -E, -S, env -i)"
        unseen.append((_one_line(command), why))
    return facts_of_this_process(
        "launcher",
        job,
        command=list(command),
        unseen=list(dict.fromkeys(": ".join(each) for each in unseen)),
        unrecorded=unseen[0][1] if unseen else "",
        started_ns=lasted_ns[0],
        ended_ns=lasted_ns[1],
        ended=f"exit {code}" if code >= 0 else signal.Signals(-code).name,
    )


def _unseen(process: LaunchedProcess) -> list[str]:
    if any("No module named 'iobench'" in text for text in process.unseen):
        return [f"iobench is not installed for its Python ({process.command[0]})"]
    return process.unseen


def nothing_recorded(recorded: Sequence[ProcessFacts], launcher: ProcessFacts) -> str:
    """Return why no training process of a run recorded anything; ``""`` where one did."""
    if any(facts.role == "consumer" for facts in recorded):
        return ""
    if launcher.unseen:
        return launcher.unseen[0]
    return "no process that was seen took a batch from a loader that iobench knows"


def commit_of(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the commit of the repository that a command's script lies in; None if unknown.

    ``git rev-parse`` reads references alone: nothing that a stranger's repository configures runs.
    """
    script = _script(command)
    if script is None:
        return None
    own = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", "-C", str(script.parent), "rev-parse", "--verify", "HEAD"],
            env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=LIMIT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _script(command: Sequence[str]) -> Path | None:
    """Return the file of a command's script, or of the module that it runs, where it lies here."""
    result = [Path(word) for word in command if word.endswith(SCRIPTS)]
    name = command[command.index("-m") + 1] if "-m" in command[1:-1] else ""
    if name.replace(".", "").isidentifier():
        module = Path(*name.split("."))
        result += [module / "__main__.py", module.with_name(f"{module.name}.py")]
    try:
        return next((path.resolve() for path in result if path.is_file()), None)
    except OSError:  # a name that is too long for one
        return None
