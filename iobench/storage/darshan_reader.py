"""Logs read in a process of their own, which may crash, hang or complain as it likes.

PyDarshan calls a C library that prints what is wrong to standard error and, where a log is damaged,
may end its process. So a child reads; what it complains about goes to a file, and the traces come
back through a socket, their arrays as they are. A child that ends is replaced for the next log.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Final

from iobench.errors import FileFormatError, IobenchError, MissingExtraError, StorageError
from iobench.storage.darshan_files import check_log, is_unfinished, pid_of_log
from iobench.storage.darshan_log import read_log
from iobench.storage.storage_trace import ProcessTrace, StorageTrace

_PATIENCE_S: Final = 60.0
_PATIENCE_S_PER_MB: Final = 1.0
_Answer = tuple[ProcessTrace, ...] | FileFormatError | MissingExtraError
_NOT_INHERITED: Final = ("DARSHAN_", "DXT_", "IOBENCH_RUN")


class ReaderProcess:
    """Reads Darshan logs one after the other; a context manager."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._child: subprocess.Popen[bytes] | None = None
        self._answers: Connection | None = None

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        self._complaints.close()

    def read(self, readable: Path, path: Path) -> tuple[ProcessTrace, ...]:
        """Return the processes of a log; arguments as of `iobench.storage.darshan_log.read_log`.

        Raises
        ------
        FileFormatError
            If it is damaged; also where the library crashed, or took too long.
        MissingExtraError
            If PyDarshan is not installed.
        StorageError
            If no process can be started.
        """
        answers = self._start()
        patience_s = self._patience_s + _PATIENCE_S_PER_MB * readable.stat().st_size / 1e6
        try:
            answers.send((readable, path, pid_of_log(path.name)))
            if not answers.poll(patience_s):
                self._stop()
                raise FileFormatError(
                    f"is probably damaged: PyDarshan did not read it in {patience_s:.0f} s"
                )
            answer = _received(answers)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise FileFormatError(
                f"is damaged: PyDarshan's process ended while it read it, {self._last_words()}"
            ) from None
        if isinstance(answer, IobenchError):
            raise answer
        return answer

    def _start(self) -> Connection:
        """Return the connection to the child, a new one if there is none."""
        if self._answers is None:
            ours, theirs = socket.socketpair()
            self._complaints.truncate(0)
            environment = child_environment()
            with theirs:
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._complaints,
                    env=environment,
                )
            self._answers = Connection(ours.detach())
            try:
                self._answers.recv()  # that it has begun: what fails before is no log's fault
            except (EOFError, ConnectionResetError):
                raise StorageError(
                    f"the process that reads Darshan logs did not start: {self._last_words()}"
                ) from None
        return self._answers

    def _stop(self) -> int:
        """End the child if there is one; return how it ended."""
        if self._answers is None or self._child is None:
            return 0
        self._answers.close()
        self._answers = None
        child, self._child = self._child, None
        child.kill()
        return child.wait()

    def _last_words(self) -> str:
        """Say how the child ended by itself, and what it said last."""
        assert self._child is not None
        code = self._child.wait()
        self._stop()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return f"{how} ({lines[-1]})" if lines else how


def child_environment() -> dict[str, str]:
    """Return an environment in which the reader is not traced, nor followed as part of a run."""
    inside = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)
    }
    libraries = inside.pop("LD_PRELOAD", "").replace(":", " ").split()
    if kept := [each for each in libraries if "darshan" not in each]:
        inside["LD_PRELOAD"] = ":".join(kept)
    inside["PYTHONPATH"] = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    inside["OPENBLAS_NUM_THREADS"] = inside["OMP_NUM_THREADS"] = "1"  # nothing to compute
    return inside


def _received(answers: Connection) -> _Answer:
    """Return one answer; arrays come beside it, uncopied."""
    head = answers.recv_bytes()
    buffers = [answers.recv_bytes() for _ in range(answers.recv())]
    answer: _Answer = pickle.loads(head, buffers=buffers)
    return answer


def _send(answers: Connection, answer: _Answer) -> None:
    buffers: list[pickle.PickleBuffer] = []
    answers.send_bytes(pickle.dumps(answer, 5, buffer_callback=buffers.append))
    answers.send(len(buffers))
    for each in buffers:
        answers.send_bytes(each.raw())


class _Complaints:
    """What was written to standard error, a file here, since this was last called."""

    def __init__(self) -> None:
        self._seen = os.fstat(2).st_size

    def __call__(self) -> str:
        start, self._seen = self._seen, os.fstat(2).st_size
        lines = os.pread(2, self._seen - start, start).decode(errors="replace").split("\n")
        return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))


def main(descriptor: int) -> None:
    """Read logs that are asked for until nobody asks; the child's side."""
    answers = Connection(descriptor)
    answers.send("begun")
    while True:
        try:
            readable, path, pid = answers.recv()
        except EOFError:
            return
        try:
            _send(answers, read_log(readable, path, pid, _Complaints()))
        except (FileFormatError, MissingExtraError) as error:
            _send(answers, error)


if __name__ == "__main__":
    main(int(sys.argv[1]))


_GZIP: Final = b"\x1f\x8b"


def read_darshan_logs(paths: Sequence[Path]) -> StorageTrace:
    """Read the Darshan logs of a run: one of each process, or of an MPI job.

    Parameters
    ----------
    paths : sequence of Path
        Logs, compressed by gzip or not, whatever they are called.

    Returns
    -------
    StorageTrace
        Its processes in the order of their start; files of Python itself are left out. What could
        not be read is in ``refused``.

    Raises
    ------
    MissingExtraError
        If PyDarshan is not installed.
    StorageError
        If no process can be started that reads.
    """
    refused: list[str] = []
    known: dict[object, Path] = {}
    traces: list[ProcessTrace] = []
    with ReaderProcess() as reader:
        for log in paths:
            try:
                found = _read(log, reader)
                identity = _identity(log, found[0])
                if identity in known:
                    raise FileFormatError(f"is of the same process as {known[identity]}")
            except FileFormatError as error:
                refused.append(f"{log}: {error}")
            except StorageError:
                raise  # of the reader, not of this log
            except OSError as error:
                refused.append(f"{log}: cannot be read: {error.strerror or error}")
            else:
                known[identity] = log
                traces += found
    traces.sort(key=lambda each: (each.start_ns, each.pid, each.rank))
    return StorageTrace(tuple(traces), tuple(refused))


def _identity(log: Path, trace: ProcessTrace) -> object:
    """Return what two logs of one process have in common; without its number all they hold."""
    if trace.pid < 0:
        return hashlib.sha256(log.read_bytes()).digest()
    return trace.pid, trace.job_id, trace.start_ns


def _read(path: Path, reader: ReaderProcess) -> tuple[ProcessTrace, ...]:
    if is_unfinished(path.name):
        raise FileFormatError(
            "is not finished: Darshan is writing it, or was stopped; read it again later"
        )
    with _plain(path) as readable:
        check_log(readable)
        return reader.read(readable, path)


@contextmanager
def _plain(path: Path) -> Iterator[Path]:
    """Give a log as the library reads it: what is compressed as a whole, in a temporary file."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        plain = Path(folder) / "log.darshan"
        try:
            with gzip.open(path) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise FileFormatError(f"is cut short or damaged: {error}") from None
        yield plain
