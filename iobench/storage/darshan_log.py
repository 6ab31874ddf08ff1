"""One Darshan log as traces of processes: one, or one for each rank of an MPI job and their sums.

Files of Python itself and of its packages are left out, for `import torch` opens more than a
thousand of them: kept, they would be most of the memory that a reader of many logs needs, and no
loader reads them. How many bytes were left out is kept, in a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError
from iobench.frozen import frozen
from iobench.recording.clock_marker import is_clock_marker
from iobench.storage.darshan_library import JobFacts, OpenLog, RawSegments
from iobench.storage.storage_trace import (
    COUNTER_DTYPE,
    NO_COUNTERS,
    NO_SEGMENTS,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
    is_of_interpreter,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.storage.darshan_files import LogName

_STREAMS: Final = frozenset({"<STDIN>", "<STDOUT>", "<STDERR>"})
_SKEW_NS: Final = 50_000_000
"""How late a log may tell its zero where no marker reads do: 1.3 to 42 ms were seen, once 52."""
_WHOLE_SECOND_NS: Final = 1_000_000_000
_LEFT_OUT: Final = -1
_STREAM: Final = -2
_MARKER: Final = -3


@frozen
class LogContents:
    """The traces of one log, and what of it was left out.

    Parameters
    ----------
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
    counters: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    segments: list[tuple[int, RawSegments]] = field(default_factory=list)
    marks: list[tuple[int, RawSegments]] = field(default_factory=list)


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
        for module in ("POSIX", "STDIO", "DXT_POSIX"):
            if module not in modules:
                continue
            try:
                if module == "DXT_POSIX":
                    self._read_segments()
                else:
                    self._read_counters(module)
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
        """Return the index of a file, less than 0 if it is not kept."""
        found = self._index.get(key)
        if found is None:
            name = self._names.get(key, f"file {key:#018x}, not named in the log")
            if name in _STREAMS:
                found = _STREAM
            elif is_clock_marker(name):
                found = _MARKER
            elif is_of_interpreter(name):
                found = _LEFT_OUT
                self._n_left_out += 1
            else:
                found = len(self._files)
                self._files.append(name)
            self._index[key] = found
        return found

    def _read_counters(self, module: str) -> None:
        """Keep the counters of files, some thousands at a time."""
        for raw in self._log.file_counters(module, f"struct darshan_{module.lower()}_file"):
            files = np.array([self._file(int(key)) for key in raw["id"]], np.int32)
            if module == "POSIX":
                nbytes = raw["POSIX_BYTES_READ"][files == _LEFT_OUT].clip(0).sum()
                self._left_out_nbytes += int(nbytes)
            kept = files >= 0
            for rank in np.unique(raw["rank"][kept]):
                own = kept & (raw["rank"] == rank)
                rows = counter_rows(module, raw[own], files[own], self._job.start_ns)
                self._rank(int(rank)).counters.setdefault(module, []).append(rows)

    def _read_segments(self) -> None:
        for raw in self._log.segments():
            part = self._rank(raw.rank)
            part.host = part.host or raw.host
            file = self._file(raw.file)
            if raw.n_segments and (file >= 0 or file == _MARKER):
                (part.segments if file >= 0 else part.marks).append((file, raw))

    def _traces(self, modules: tuple[ModuleState, ...]) -> tuple[ProcessTrace, ...]:
        """Return a trace for each rank that has anything; for a single process always one."""
        several = self._job.n_ranks > 1
        files = tuple(self._files)
        leftover = self._name.leftover or self._job.end_ns == 0
        zero_error_ns = _SKEW_NS if self._job.has_nanoseconds else _WHOLE_SECOND_NS
        return tuple(
            ProcessTrace(
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
                counters=joined_counters(part.counters, modules),
                segments=self._segments(part.segments),
                marks=self._segments(part.marks),
                leftover=leftover,
            )
            for rank, part in sorted((self._ranks or {0: _RankParts()}).items())
        )

    def _segments(self, raws: list[tuple[int, RawSegments]]) -> NDArray[Any]:
        """Return the segments of a rank by their start; what they were made of is given up."""
        if not raws:
            return NO_SEGMENTS
        files, parts = zip(*raws, strict=True)
        raws.clear()
        counts = np.array([each.n_segments for each in parts])
        firsts = np.cumsum(counts) - counts
        raw = np.frombuffer(b"".join(each.content for each in parts), self._log.segment_layout)
        at = np.arange(len(raw)) - np.repeat(firsts, counts)
        start_ns = nanoseconds(raw["start_time"], self._job.start_ns)
        order = np.argsort(start_ns, kind="stable")
        segments = np.empty(len(raw), SEGMENT_DTYPE)
        segments["start_ns"] = start_ns[order]
        segments["end_ns"] = nanoseconds(raw["end_time"], self._job.start_ns)[order]
        segments["offset"], segments["nbytes"] = raw["offset"][order], raw["length"][order]
        threads = raw["pthread_id"][order] if "pthread_id" in (raw.dtype.names or ()) else -1
        segments["thread"] = threads
        segments["file"] = np.repeat(np.array(files, np.int32), counts)[order]
        segments["write"] = (at < np.repeat([each.n_writes for each in parts], counts))[order]
        return segments


_COLUMNS: Final = {
    "POSIX": {
        "posix_opens": "POSIX_OPENS",
        "posix_reads": "POSIX_READS",
        "posix_read_nbytes": "POSIX_BYTES_READ",
        "posix_mmaps": "POSIX_MMAPS",
        "posix_first_open_ns": "POSIX_F_OPEN_START_TIMESTAMP",
        "posix_first_read_ns": "POSIX_F_READ_START_TIMESTAMP",
        "posix_last_read_ns": "POSIX_F_READ_END_TIMESTAMP",
        "posix_last_close_ns": "POSIX_F_CLOSE_END_TIMESTAMP",
    },
    "STDIO": {
        "stdio_opens": "STDIO_OPENS",
        "stdio_reads": "STDIO_READS",
        "stdio_read_nbytes": "STDIO_BYTES_READ",
        "stdio_read_ns": "STDIO_F_READ_TIME",
        "stdio_first_read_ns": "STDIO_F_READ_START_TIMESTAMP",
        "stdio_last_read_ns": "STDIO_F_READ_END_TIMESTAMP",
        "stdio_last_close_ns": "STDIO_F_CLOSE_END_TIMESTAMP",
    },
}
"""By module, which of its counters our columns are; those with ``_F_`` are in seconds."""


def counter_rows(
    module: str, raw: NDArray[Any], files: NDArray[np.int32], zero_ns: int
) -> NDArray[Any]:
    """Return the rows of files by calls of one sort, -1 in all that these do not tell."""
    rows = np.full(len(raw), -1, COUNTER_DTYPE)
    rows["file"] = files
    for ours, theirs in _COLUMNS[module].items():
        if theirs.endswith("_TIMESTAMP"):
            rows[ours] = np.where(raw[theirs] > 0, nanoseconds(raw[theirs], zero_ns), -1)
        else:
            rows[ours] = nanoseconds(raw[theirs], 0) if "_F_" in theirs else raw[theirs]
    return rows


def nanoseconds(seconds: NDArray[Any], zero_ns: int) -> NDArray[np.int64]:
    """Return times of a log on the wall clock; what is no finite number becomes -1."""
    known = np.isfinite(seconds) & (seconds >= 0) & (seconds < 1e9)
    since = np.rint(np.where(known, seconds, 0) * 1e9).astype(np.int64)
    return np.where(known, since + zero_ns, -1)  # summed as integers: as floats, 256 ns are lost


def joined_counters(
    parts: Mapping[str, list[NDArray[Any]]], modules: tuple[ModuleState, ...]
) -> NDArray[Any]:
    """Return one row for each file of POSIX or STDIO calls.

    A file without calls of one sort has 0 of them; -1 where that sort was not recorded in full or
    could not be read.
    """
    told = {name: _unique_files(parts.get(name, [])) for name in _COLUMNS}
    files = np.unique(np.concatenate([rows["file"] for rows in told.values()]))
    if not len(files):
        return NO_COUNTERS
    rows = np.full(len(files), -1, COUNTER_DTYPE)
    rows["file"] = files
    full = {each.name for each in modules if not each.partial and not each.problem}
    seen = {each.name for each in modules}
    for name, columns in _COLUMNS.items():
        at = np.searchsorted(files, told[name]["file"])
        for column in columns:
            if not _is_time(column) and (name in full or name not in seen):
                rows[column] = 0
            rows[column][at] = told[name][column]
    return rows


def _is_time(column: str) -> bool:
    return "_first_" in column or "_last_" in column


def _unique_files(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return rows by file; a file that a module has twice, which only damage explains, once."""
    if not parts:
        return NO_COUNTERS
    rows = np.concatenate(parts)
    return rows[np.unique(rows["file"], return_index=True)[1]]
