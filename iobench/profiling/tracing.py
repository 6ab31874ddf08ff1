"""Darshan around what a profile measures: not around making stand-ins, stores and plans."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from iobench.errors import ProfileError, StorageError
from iobench.files.open_files import close_files
from iobench.recording.span_reader import read_head
from iobench.storage.darshan_setup import (
    DarshanSetup,
    gather_logs,
    read_choice,
    ready_runtime,
    restart_under,
    set_up,
    tracing,
    waiting_runtime,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.recording.run_directory import RunDirectory
    from iobench.sources.request import Screen


class ProfileTracing:
    """What ``--darshan`` means for one profile; closed after its loaders.

    ``document`` is what ``run.json`` says of it before it has begun.
    """

    def __init__(self, words: Sequence[str], screen: Screen) -> None:
        is_auto, self.document = read_choice(words)
        self._screen = screen
        self._stack = ExitStack()
        self._runs: Sequence[RunDirectory] = ()
        self._setup: DarshanSetup | None = None
        self._runtime: Path | None = None
        if is_auto:
            try:
                self._runtime = _runtime()
            except StorageError as error:
                self._refuse(str(error))

    def begin(
        self, out: Path, runs: Sequence[RunDirectory], files: Sequence[Sequence[Path]]
    ) -> None:
        """Trace this process from now on, and those that it starts."""
        if self._runtime is None:
            return
        paths = {path.absolute() for each in files for path in each}
        folders = {path if path.is_dir() else path.parent for path in paths}
        try:
            self._setup = set_up(out, self._runtime, sys.executable, os.environ, folders)
        except StorageError as error:
            self._refuse(str(error))
        else:
            self._runs = runs
            self._screen.note(self._setup.line())
            close_files()  # what is open already is not seen
            self._stack.enter_context(tracing(self._setup))
        for run in runs:
            setup = self._setup
            run.update(darshan=setup.document(run.path) if setup else self.document)

    def _refuse(self, reason: str) -> None:
        self.document = {"state": "off", "reason": reason}
        self._screen.note(f"darshan: not traced: {reason}; what /proc counts is used instead")

    def close(self) -> None:
        """End it: the log of this process is written now, its workers' were when they ended."""
        self._stack.close()
        if self._setup is None:
            return
        pids = set()
        for path in (path for run in self._runs for path in run.span_files()):
            with suppress(ProfileError):  # of a process that was killed at its start
                pids.add(read_head(path).pid)
        for line in gather_logs(self._setup.folder, self._setup.mmap, pids):
            self._screen.note(line)


def _runtime() -> Path:
    """Return the runtime that waits in this process."""
    waiting = waiting_runtime()
    if waiting is not None:
        return waiting
    result = ready_runtime(os.environ, sys.executable)
    if sys.argv[1:2] == ["profile"]:
        restart_under(result)
    raise StorageError(
        f"{result} must be loaded when a process starts; use the command iobench profile"
    )
