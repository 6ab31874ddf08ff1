"""The logs of a run: found in files and folders, each read once, joined into one trace."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import FileFormatError, StorageError
from iobench.storage.darshan.log_files import check_log, parse_log_name
from iobench.storage.darshan.reader_process import ReaderProcess
from iobench.storage.traces.storage_trace import ProcessTrace, StorageTrace

if TYPE_CHECKING:
    from iobench.storage.darshan.logs import LogContents

__all__ = ["read_darshan_logs"]

_GZIP: Final = b"\x1f\x8b"
_WHOLE_SECOND_NS: Final = 10**9


def read_darshan_logs(paths: Sequence[Path]) -> StorageTrace:
    """Read the Darshan logs of a run: one of each process, or of an MPI job.

    Parameters
    ----------
    paths : sequence of Path
        Logs, compressed by gzip or not, whatever they are called.

    Returns
    -------
    StorageTrace
        Its processes in the order of their start; files of Python itself are left out of them.
        What could not be read is in ``refused``.

    Raises
    ------
    MissingExtraError
        If PyDarshan is not installed.
    StorageError
        If no process can be started that reads.
    """
    reading = _Reading()
    with ReaderProcess() as reader:
        for log in paths:
            try:
                reading.add(log, reader)
            except FileFormatError as error:
                reading.refused.append(f"{log}: {error}")
            except StorageError:
                raise  # of the reader, not of this log
            except OSError as error:
                reading.refused.append(f"{log}: cannot be read: {error.strerror or error}")
    return reading.trace()


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


class _Reading:
    """What has been read so far."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._traces: list[ProcessTrace] = []
        self._notes: list[str] = []
        self._known: dict[tuple[int, ...] | bytes, Path] = {}
        self._starts: dict[int, int] = {}
        self._n_left_out = 0
        self._left_out_nbytes = 0

    def add(self, path: Path, reader: ReaderProcess) -> None:
        """Read one log.

        Raises
        ------
        FileFormatError, OSError
            If it cannot be read, or is of a process that was read before.
        """
        name = parse_log_name(path.name)
        if name.unfinished:
            raise FileFormatError(
                "is not finished: Darshan is writing it, or was stopped; read it again later"
            )
        with _plain(path) as readable:
            check_log(readable)
            with readable.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            if digest in self._known:
                raise FileFormatError(f"is the same log as {self._known[digest]}")
            contents = reader.read(readable, path, name)
        first = contents.traces[0]
        process = (name.pid, first.job_id, first.start_ns)
        if name.pid >= 0 and process in self._known:
            raise FileFormatError(
                f"is of process {name.pid} and of the same time as {self._known[process]}"
            )
        self._known[digest] = self._known[process] = path
        self._keep(contents, name.pid)

    def _keep(self, contents: LogContents, pid: int) -> None:
        first = contents.traces[0]
        if pid >= 0 and pid in self._starts:
            self._notes.append(
                f"process {pid} has several logs, of different times: it changed its program, or "
                f"its number was used again"
            )
        self._starts[pid] = first.start_ns
        if first.rank >= 0 or len(contents.traces) > 1:
            self._notes.append(
                f"{first.path.name} is of an MPI job: of files that all ranks opened it has sums "
                f"over them"
            )
        if first.zero_error_ns >= _WHOLE_SECOND_NS:
            self._notes.append(f"{first.path.name} tells the time of its start in whole seconds")
        self._traces += contents.traces
        self._n_left_out += contents.n_left_out
        self._left_out_nbytes += contents.left_out_nbytes

    def trace(self) -> StorageTrace:
        """Return all that was read."""
        if self._n_left_out:
            self._notes.append(
                f"left out: files of Python itself and its packages ({self._n_left_out}, of which "
                f"{self._left_out_nbytes} B were read)"
            )
        traces = sorted(self._traces, key=lambda each: (each.start_ns, each.pid, each.rank))
        return StorageTrace(tuple(traces), tuple(self.refused), tuple(self._notes))
