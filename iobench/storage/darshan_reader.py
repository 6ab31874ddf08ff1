"""Darshan's logs of a run, each read by a child that may crash, hang or complain as it likes."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.errors import (
    FileFormatError,
    IobenchError,
    MissingExtraError,
    MissingFileError,
)
from iobench.storage.darshan_setup import LOGS_FOLDER, preloaded
from iobench.storage.storage_trace import ProcessTrace, StorageTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

READER: Final = "iobench.storage.darshan_log"
PATIENCE_S: Final = 60.0
PATIENCE_S_PER_MB: Final = 1.0
_NOT_INHERITED: Final = ("DARSHAN_", "DXT_", "IOBENCH_RUN")


def read_run_traces(
    run: Path, config: Mapping[str, Any], named: Sequence[Path] = ()
) -> StorageTrace | None:
    """Return what Darshan saw of a run; None where there are no logs.

    ``config`` is its ``run.json``, which may name logs of the user's own; ``named`` are further
    logs, or folders of them, a `MissingFileError` if they are not there.
    """
    for path in named:
        if not os.access(path, os.F_OK):
            raise MissingFileError(
                f"{path}: no such file or folder; name a log of Darshan, or a folder of them"
            )
    facts = config.get("darshan")
    facts = facts if isinstance(facts, Mapping) else {}
    logs = facts.get("logs")
    texts = [logs] if isinstance(logs, str) else logs if isinstance(logs, list) else []
    of_run = [run / text for text in texts if isinstance(text, str)]
    expected = dict.fromkeys((*of_run, run / LOGS_FOLDER))
    there = [path for path in expected if os.access(path, os.F_OK)]
    gone = tuple(
        f"{path}: should hold the run's logs according to its run.json, but does not exist; name "
        "them with --darshan LOG"
        for path in of_run
        if path not in there
    )
    if not named and not there:
        return StorageTrace(notes=gone) if gone else None
    trace = read_traces([*named, *there])
    return replace(trace, notes=(*trace.notes, *gone))


def read_traces(paths: Sequence[Path]) -> StorageTrace:
    """Return Darshan's logs of a run, by the start of processes.

    Paths are files, whatever they are called; or folders, of which files with Darshan's suffix are
    read, those in folders within as well. What could not be read, and why, is in ``notes``, a line
    each; also that PyDarshan is not installed.
    """
    notes: list[str] = []
    logs: dict[str, Path] = {}
    for path in paths:
        names = ("*.darshan", "*.darshan_partial")
        files = [each for name in names for each in sorted(path.rglob(name))]
        files = files if path.is_dir() else [path]
        if not files:
            notes.append(f"{path}: no log of Darshan in this folder")
        for each in files:
            logs.setdefault(os.path.realpath(each), each)
    traces: dict[object, ProcessTrace] = {}
    with tempfile.TemporaryFile() as complaints:
        reader = _Reader(complaints)
        try:
            for log in logs.values():
                try:
                    _check(log)
                    trace = reader.read(log)
                    identity: object = log
                    if trace.pid >= 0:
                        identity = (trace.pid, trace.job_id, trace.start_ns)
                    if identity in traces:
                        other = traces[identity].path
                        raise FileFormatError(f"is of the same process as {other}")
                    traces[identity] = trace
                except FileFormatError as error:
                    notes.append(f"{log}: {error}")
                except OSError as error:
                    notes.append(f"{log}: cannot be read: {error.strerror or error}")
        except MissingExtraError as error:
            notes.append(f"{len(logs)} Darshan logs are not read: {error}")
            traces = {}
        finally:
            reader.stop()
    result = sorted(traces.values(), key=lambda each: (each.start_ns, each.pid))
    return StorageTrace(tuple(result), tuple(notes))


def _check(log: Path) -> None:
    """Raise `FileFormatError` if a file is no finished Darshan log; its name is not in it."""
    if log.name.endswith(".darshan_partial"):
        raise FileFormatError(
            "is not finished: Darshan is writing it, or was stopped; read it again later"
        )
    if not stat.S_ISREG(log.stat().st_mode):  # a pipe would be waited for
        raise FileFormatError("is no regular file; expected a log")


class _Reader:
    """A child that reads logs one after the other; one that ended is replaced for the next."""

    def __init__(self, complaints: Any) -> None:
        self._complaints = complaints
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: Connection | None = None

    def read(self, log: Path) -> ProcessTrace:
        """Return what a log holds; `FileFormatError` if the library crashed or took too long."""
        answers = self._start()
        patience_s = PATIENCE_S + PATIENCE_S_PER_MB * log.stat().st_size / 1e6
        try:
            answers.send(log)
            if not answers.poll(patience_s):
                self.stop()
                raise FileFormatError(
                    f"is probably damaged: PyDarshan did not read it in {patience_s:.0f} s"
                )
            answer = answers.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise FileFormatError(
                f"is damaged: PyDarshan's process ended while it read it, {self._end()}"
            ) from None
        if isinstance(answer, IobenchError):
            raise answer
        assert isinstance(answer, ProcessTrace)
        return answer

    def _start(self) -> Connection:
        if self._answers is None:
            ours, theirs = socket.socketpair()
            os.lseek(self._complaints.fileno(), 0, os.SEEK_SET)
            self._complaints.truncate(0)
            with theirs:
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", READER, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._complaints,
                    env=child_environment(),
                )
            self._answers = Connection(ours.detach())
        return self._answers

    def stop(self) -> int:
        """End the child if there is one; return how it ended."""
        if self._answers is None or self._child is None:
            return 0
        self._answers.close()
        self._answers = None
        self._child.kill()
        return self._child.wait()

    def _end(self) -> str:
        """Return how the child ended by itself, and what it printed last."""
        assert self._child is not None
        code = self._child.wait()
        self.stop()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return f"{how} ({lines[-1]})" if lines else how


def child_environment() -> dict[str, str]:
    """Return an environment in which the reader is not traced, nor followed as part of a run."""
    inside = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
    }
    others = [each for each in preloaded(inside) if "darshan" not in each]
    inside["LD_PRELOAD"] = ":".join(others)
    inside["PYTHONPATH"] = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    inside["OPENBLAS_NUM_THREADS"] = inside["OMP_NUM_THREADS"] = "1"  # nothing to compute
    return inside
