"""One Darshan log as traces of processes: one, or one for each rank of an MPI job and their sums.

Files of Python itself and of its packages are left out, for `import torch` opens more than a
thousand of them: kept, they would be most of the memory that a reader of many logs needs, and no
loader reads them. How many bytes were left out is kept, in a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError
from iobench.storage.darshan.backend import JobFacts, OpenLog
from iobench.storage.traces import (
    COUNTER_DTYPE,
    NO_COUNTERS,
    NO_SEGMENTS,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.storage.darshan.names import LogName

__all__ = ["LogContents", "is_of_interpreter", "read_log"]

_POSIX: Final = {
    "posix_opens": "POSIX_OPENS",
    "posix_reads": "POSIX_READS",
    "posix_read_nbytes": "POSIX_BYTES_READ",
    "posix_writes": "POSIX_WRITES",
    "posix_write_nbytes": "POSIX_BYTES_WRITTEN",
    "posix_mmaps": "POSIX_MMAPS",
    "posix_seeks": "POSIX_SEEKS",
    "posix_sequential_reads": "POSIX_SEQ_READS",
    "posix_consecutive_reads": "POSIX_CONSEC_READS",
}
_POSIX_DURATIONS: Final = {"posix_read_ns": "POSIX_F_READ_TIME"}
_POSIX_TIMES: Final = {
    "posix_first_open_ns": "POSIX_F_OPEN_START_TIMESTAMP",
    "posix_first_read_ns": "POSIX_F_READ_START_TIMESTAMP",
    "posix_last_read_ns": "POSIX_F_READ_END_TIMESTAMP",
    "posix_last_close_ns": "POSIX_F_CLOSE_END_TIMESTAMP",
}
_STDIO: Final = {
    "stdio_opens": "STDIO_OPENS",
    "stdio_reads": "STDIO_READS",
    "stdio_read_nbytes": "STDIO_BYTES_READ",
}
_STDIO_DURATIONS: Final = {"stdio_read_ns": "STDIO_F_READ_TIME"}
_STDIO_TIMES: Final = {
    "stdio_first_read_ns": "STDIO_F_READ_START_TIMESTAMP",
    "stdio_last_read_ns": "STDIO_F_READ_END_TIMESTAMP",
    "stdio_last_close_ns": "STDIO_F_CLOSE_END_TIMESTAMP",
}
_STREAMS: Final = frozenset({"<STDIN>", "<STDOUT>", "<STDERR>"})
_INTERPRETER: Final = re.compile(
    r"(?:/lib(?:64)?/python\d[\d.]*/|/(?:site|dist)-packages/|/pyvenv\.cfg$"
    r"|\.py$|\.py[co](?:\.\d+)?$|\.so(?:\.[\d.]+)?$|\.pth$)"
)
_SKEW_NS: Final = 50_000_000
"""How late the zero of a log may be told: 1.3 to 42 ms were measured."""
_WHOLE_SECOND_NS: Final = 1_000_000_000
_LEFT_OUT: Final = -1


@dataclass(frozen=True, slots=True)
class LogContents:
    """The traces of one log, and what of it was left out.

    Parameters
    ----------
    traces : tuple of ProcessTrace
    n_left_out : int
        Files of Python itself and its packages.
    left_out_nbytes : int
        Read of them by POSIX calls.
    """

    traces: tuple[ProcessTrace, ...]
    n_left_out: int = 0
    left_out_nbytes: int = 0


@dataclass(slots=True)
class _RankParts:
    """What of a log belongs to one rank, as it is read."""

    host: str = ""
    posix: list[NDArray[Any]] = field(default_factory=list)
    stdio: list[NDArray[Any]] = field(default_factory=list)
    segments: list[NDArray[Any]] = field(default_factory=list)
    heatmap_nbytes: int = -1


def is_of_interpreter(name: str) -> bool:
    """Return whether a file is Python's own: code, libraries, anything in a packages folder."""
    return _INTERPRETER.search(name) is not None


def read_log(
    readable: Path, path: Path, name: LogName, complaint: Callable[[], str] = lambda: ""
) -> LogContents:
    """Read one log.

    Parameters
    ----------
    readable : Path
        The file to read: ``path``, or what it holds if it is compressed.
    path : Path
        The log as its user knows it.
    name : LogName
        What its name tells.
    complaint : callable
        What the library said on standard error since it was last asked.

    Raises
    ------
    FileFormatError
        If it is not a Darshan log, or is damaged.
    MissingExtraError
        If PyDarshan is not installed.
    """
    with OpenLog(str(readable)) as log:
        return _LogReader(log, path, name, complaint).read()


class _LogReader:
    """Reads one open log."""

    def __init__(
        self, log: OpenLog, path: Path, name: LogName, complaint: Callable[[], str]
    ) -> None:
        self._log = log
        self._path = path
        self._name = name
        self._complaint = complaint
        self._job: JobFacts = log.job()
        self._names = log.names()
        self._files: list[str] = []
        self._index: dict[int, int] = {}
        self._ranks: dict[int, _RankParts] = {}
        self._problems: dict[str, str] = {}
        self._n_left_out = 0
        self._left_out_nbytes = 0

    def read(self) -> LogContents:
        """Return all that the log holds."""
        modules = self._log.modules()
        for module, part in (
            ("POSIX", self._read_posix),
            ("STDIO", self._read_stdio),
            ("DXT_POSIX", self._read_segments),
            ("HEATMAP", self._read_histograms),
        ):
            if module not in modules:
                continue
            try:
                part()
            except FileFormatError as error:
                self._problems[module] = self._cure(module, modules[module]["ver"], str(error))
        states = tuple(
            ModuleState(name, told["ver"], bool(told["partial_flag"]), self._problems.get(name, ""))
            for name, told in modules.items()
        )
        return LogContents(self._traces(states), self._n_left_out, self._left_out_nbytes)

    def _cure(self, module: str, version: int, error: str) -> str:
        """Say why a module could not be read, in the library's words, and what to do."""
        said = self._complaint() or error
        return (
            f"{module} version {version} cannot be read by PyDarshan {self._log.reader_version} "
            f"({said}): install the same or a newer PyDarshan than the Darshan that wrote the log "
            f"(pip install -U darshan)"
        )

    def _rank(self, rank: int) -> _RankParts:
        return self._ranks.setdefault(rank if self._job.n_ranks > 1 else 0, _RankParts())

    def _file(self, key: int) -> int:
        """Return the index of a file, -1 if it is left out."""
        found = self._index.get(key)
        if found is None:
            name = self._names.get(key, f"file {key:#018x}, not named in the log")
            if name in _STREAMS:
                found = _LEFT_OUT
            elif is_of_interpreter(name):
                found = _LEFT_OUT
                self._n_left_out += 1
            else:
                found = len(self._files)
                self._files.append(name)
            self._index[key] = found
        return found

    def _read_posix(self) -> None:
        for raw in self._log.file_counters("POSIX", "struct darshan_posix_file"):
            rows, kept = self._rows(raw, _POSIX, _POSIX_DURATIONS, _POSIX_TIMES)
            self._left_out_nbytes += int(raw["POSIX_BYTES_READ"][~kept].clip(0).sum())
            for rank in np.unique(raw["rank"][kept]):
                self._rank(int(rank)).posix.append(rows[raw["rank"][kept] == rank])

    def _read_stdio(self) -> None:
        for raw in self._log.file_counters("STDIO", "struct darshan_stdio_file"):
            rows, kept = self._rows(raw, _STDIO, _STDIO_DURATIONS, _STDIO_TIMES)
            for rank in np.unique(raw["rank"][kept]):
                self._rank(int(rank)).stdio.append(rows[raw["rank"][kept] == rank])

    def _rows(
        self,
        raw: NDArray[Any],
        counts: dict[str, str],
        durations: dict[str, str],
        times: dict[str, str],
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return rows of one module's counters, and which of the files have one."""
        files = np.array([self._file(int(key)) for key in raw["id"]], np.int32)
        kept = files != _LEFT_OUT
        rows = np.full(int(kept.sum()), -1, COUNTER_DTYPE)
        rows["file"] = files[kept]
        for ours, theirs in counts.items():
            rows[ours] = raw[theirs][kept]
        for ours, theirs in durations.items():
            rows[ours] = _nanoseconds(raw[theirs][kept], 0)
        for ours, theirs in times.items():
            seconds = raw[theirs][kept]
            rows[ours] = np.where(seconds > 0, _nanoseconds(seconds, self._job.start_ns), -1)
        return rows, kept

    def _read_segments(self) -> None:
        for key, rank, host, n_writes, raw in self._log.segments():
            part = self._rank(rank)
            part.host = part.host or host
            file = self._file(key)
            if file == _LEFT_OUT or not len(raw):
                continue
            segments = np.empty(len(raw), SEGMENT_DTYPE)
            segments["start_ns"] = _nanoseconds(raw["start_time"], self._job.start_ns)
            segments["end_ns"] = _nanoseconds(raw["end_time"], self._job.start_ns)
            segments["offset"], segments["nbytes"] = raw["offset"], raw["length"]
            told = raw.dtype.names or ()
            segments["thread"] = raw["pthread_id"] if "pthread_id" in told else -1
            segments["file"] = file
            segments["write"] = np.arange(len(raw)) < n_writes
            part.segments.append(segments)

    def _read_histograms(self) -> None:
        for key, rank, nbytes in self._log.read_histograms():
            if self._names.get(key, "") in ("heatmap:POSIX", "heatmap:STDIO"):
                part = self._rank(rank)
                part.heatmap_nbytes = max(part.heatmap_nbytes, 0) + nbytes

    def _traces(self, modules: tuple[ModuleState, ...]) -> tuple[ProcessTrace, ...]:
        """Return a trace for each rank that has anything; for a single process always one."""
        several = self._job.n_ranks > 1
        files = tuple(self._files)
        leftover = self._name.leftover or self._job.end_ns == 0
        zero_error_ns = _SKEW_NS if self._job.has_nanoseconds else _WHOLE_SECOND_NS
        return tuple(
            ProcessTrace(
                tracer="Darshan",
                path=self._path,
                pid=self._name.pid if rank == 0 else -1,
                job_id=self._job.job_id,
                parent_pid=self._job.parent_pid,
                rank=rank if several else -1,
                host=part.host,
                executable=self._job.executable,
                start_ns=self._job.start_ns,
                end_ns=self._job.end_ns or -1,
                zero_error_ns=zero_error_ns,
                modules=modules,
                files=files,
                counters=_joined_counters(part, modules),
                segments=_by_start(part.segments),
                heatmap_read_nbytes=part.heatmap_nbytes,
                leftover=leftover,
            )
            for rank, part in sorted((self._ranks or {0: _RankParts()}).items())
        )


def _nanoseconds(seconds: NDArray[Any], zero_ns: int) -> NDArray[np.int64]:
    """Return times of a log on the wall clock; what is no finite number becomes -1."""
    known = np.isfinite(seconds) & (seconds >= 0) & (seconds < 1e9)
    return np.where(known, zero_ns + np.rint(np.where(known, seconds, 0) * 1e9), -1).astype(
        np.int64
    )


def _by_start(parts: list[NDArray[Any]]) -> NDArray[Any]:
    if not parts:
        return NO_SEGMENTS
    segments = np.concatenate(parts)
    parts.clear()
    return segments[np.argsort(segments["start_ns"], kind="stable")]


def _joined_counters(part: _RankParts, modules: tuple[ModuleState, ...]) -> NDArray[Any]:
    """Return one row for each file of POSIX or STDIO calls.

    A file without calls of one sort has 0 of them; -1 where that sort was not recorded in full or
    could not be read.
    """
    posix, stdio = _unique_files(part.posix), _unique_files(part.stdio)
    files = np.union1d(posix["file"], stdio["file"])
    if not len(files):
        return NO_COUNTERS
    rows = np.full(len(files), -1, COUNTER_DTYPE)
    rows["file"] = files
    full = {each.name for each in modules if not each.partial and not each.problem}
    seen = {each.name for each in modules}
    for name, told, prefix in (("POSIX", posix, "posix_"), ("STDIO", stdio, "stdio_")):
        columns = [column for column in COUNTER_DTYPE.names or () if column.startswith(prefix)]
        at = np.searchsorted(files, told["file"])
        for column in columns:
            if not _is_time(column) and (name in full or name not in seen):
                rows[column] = 0
            rows[column][at] = told[column]
    return rows


def _is_time(column: str) -> bool:
    return "_first_" in column or "_last_" in column


def _unique_files(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return rows by file; a file that a module has twice, which only damage explains, once."""
    if not parts:
        return NO_COUNTERS
    rows = np.concatenate(parts)
    return rows[np.unique(rows["file"], return_index=True)[1]]
