"""Darshan in the processes of a command: begun before it, its logs brought together after it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.errors import StorageError
from iobench.launch.launched_processes import read_processes
from iobench.recording.facts import read_process_facts
from iobench.recording.this_process import host_name, name_in_files
from iobench.storage.darshan_gathering import gather_logs
from iobench.storage.darshan_setup import DarshanSetup, ready_runtime, set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iobench.recording.clocks import Clock
    from iobench.recording.job import JobRank
    from iobench.recording.run_directory import RunDirectory
    from iobench.storage.darshan_setup import DarshanChoice


def begin_tracing(
    choice: DarshanChoice,
    run: RunDirectory,
    job: JobRank,
    command: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> DarshanSetup | None:
    """Return how a command's processes are to be traced; None, and said, where they cannot be."""
    if not choice.auto:
        return None
    setup: DarshanSetup | None = None
    try:
        python = _python_of(command, environment)
        runtime = ready_runtime(environment, python)
        setup = set_up(run.path, runtime, python, environment)
        document, line = setup.document(run.path), setup.line()
    except StorageError as error:
        document = {"state": "off", "reason": str(error)}
        line = f"darshan: not traced: {error}; what /proc counts is used instead"
    if job.rank == 0:
        run.update(darshan=document)
        say(line)
    return setup


def end_tracing(
    setup: DarshanSetup, run: RunDirectory, job: JobRank, say: Callable[[str], None], clock: Clock
) -> None:
    """Wait for the logs of this machine's processes, 10 s at most, and say what there is."""
    host = host_name()
    pids = {
        each.pid for each in read_processes(run.path / "launch", f"{name_in_files(host)}-*.txt")
    }
    for facts in read_process_facts(run.processes_path):
        if facts.host == host and facts.role == "consumer":
            pids.update(pid for loader in facts.loaders for pid in loader.worker_pids)
    lines = gather_logs(setup.folder, setup.mmap, pids, clock=clock)
    for line in lines if job.rank == 0 else ():
        say(line)


def _python_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that a command, also of ``srun`` or ``mpirun``, will run; else this one."""
    pythons = (interpreter_of(word, environment) for word in (*command, "python3"))
    return next((each for each in pythons if each is not None), sys.executable)


def interpreter_of(word: str, environment: Mapping[str, str]) -> str | None:
    """Return the Python that a program is, or is read by (``torchrun``); None of anything else."""
    path = environment.get("PATH")
    program = shutil.which(word, path=path)
    for each in () if program is None else (program, *_words_of_script(program)):
        result = shutil.which(each, path=path)
        if result and re.fullmatch(r"(python|pypy)[\d.]*", Path(result).name):
            return result
    return None


def _words_of_script(program: str) -> list[str]:
    """Return what the first line of a script names; nothing of other programs."""
    try:
        with Path(program).open("rb") as file:
            line = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return []
    return line[2:].split() if line.startswith("#!") else []
