"""Darshan's logs of a run, read by a child that may crash, hang or complain as it likes."""

from __future__ import annotations

import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
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
    from collections.abc import Iterator, Sequence

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
    checked = []
    for log in logs.values():
        try:
            _check(log)
            checked.append(log)
        except FileFormatError as error:
            notes.append(f"{log}: {error}")
        except OSError as error:
            notes.append(f"{log}: cannot be read: {error.strerror or error}")
    traces: dict[object, ProcessTrace] = {}
    for log, answer in _answers(checked):
        if isinstance(answer, MissingExtraError):
            notes.append(f"{len(logs)} Darshan logs are not read: {answer}")
            break
        if isinstance(answer, IobenchError):
            notes.append(f"{log}: {answer}")
            continue
        of_process = (answer.pid, answer.job_id, answer.start_ns)
        first = traces.setdefault(of_process if answer.pid >= 0 else log, answer)
        if first is not answer:
            notes.append(f"{log}: is of the same process as {first.path}")
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


def _answers(logs: Sequence[Path]) -> Iterator[tuple[Path, ProcessTrace | IobenchError]]:
    """Yield each log with what it holds, or why it cannot be read.

    A child that ended within a log, or took too long, is replaced for those behind it.
    """
    left = list(logs)
    while left:
        answers, how = _read_by_child(left)
        yield from zip(left, answers, strict=False)
        left = left[len(answers) :]
        if left:
            yield left.pop(0), FileFormatError(how)


def _read_by_child(logs: Sequence[Path]) -> tuple[list[ProcessTrace | IobenchError], str]:
    """Return what a child says of logs, as far as it comes, and why it came no further."""
    patience_s = PATIENCE_S + PATIENCE_S_PER_MB * sum(log.stat().st_size for log in logs) / 1e6
    with tempfile.TemporaryFile() as complaints:
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-m", READER],
                input=b"\0".join(map(os.fsencode, logs)),
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=child_environment(),
                timeout=patience_s,
                check=False,
            )
            answered, code = ended.stdout, ended.returncode
            complaints.seek(0)
            lines = complaints.read().decode(errors="replace").strip().splitlines()
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
            how = f"is damaged: PyDarshan's process ended while it read it, {how}"
            how += f" ({lines[-1]})" if lines else ""
        except subprocess.TimeoutExpired as error:
            answered = error.stdout or b""
            how = f"is probably damaged: PyDarshan did not read it in {patience_s:.0f} s"
    answers, left = [], io.BytesIO(answered)
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            answers.append(pickle.load(left))
    return answers, how


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
