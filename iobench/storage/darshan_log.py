"""One Darshan log as traces of processes: one, or one for each rank of an MPI job and their sums.

Files of Python itself and of its packages are left out, for `import torch` opens more than a
thousand of them, and no loader reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError, MissingExtraError
from iobench.recording.clock_marker import is_clock_marker
from iobench.storage.storage_trace import (
    COUNTER_DTYPE,
    INTERPRETER,
    NO_COUNTERS,
    NO_SEGMENTS,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


LEFT_OUT: Final = (INTERPRETER, r"^<STD(?:IN|OUT|ERR)>$")
"""Names of files that are not read: Python's own, and standard streams."""
_MARKER: Final = -1


@dataclass(slots=True)
class _RankParts:
    """What of a log belongs to one rank, as it is read."""

    host: str = ""
    counters: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    segments: list[NDArray[Any]] = field(default_factory=list)
    marks: list[NDArray[Any]] = field(default_factory=list)


def read_log(
    readable: Path, path: Path, pid: int, complaint: Callable[[], str] = lambda: ""
) -> tuple[ProcessTrace, ...]:
    """Return the processes of one log: of a job of MPI each rank, else the only one.

    Parameters
    ----------
    readable : Path
        The file to read: ``path``, or what it holds if it is compressed.
    path : Path
        The log as its user knows it.
    pid : int
        By its name, -1 if unknown; of an MPI job that of rank 0.
    complaint : callable
        What the library said on standard error since it was last called.

    Raises
    ------
    FileFormatError
        If it is not a Darshan log, or is damaged.
    MissingExtraError
        If PyDarshan is not installed.
    """
    try:
        import darshan
    except ImportError as error:
        raise MissingExtraError(
            f"Darshan logs are read by PyDarshan ({error}): pip install 'iobench[darshan]'"
        ) from None
    try:
        with darshan.DarshanReport(str(readable), read_all=False) as report:
            report.read_name_records(filter_patterns=LEFT_OUT, filter_mode="exclude")
            return _LogReader(report, path, pid, complaint).read(darshan.__version__)
    except (ValueError, RuntimeError, OverflowError, OSError) as error:
        raise FileFormatError(f"cannot be read by PyDarshan: {error}") from None


class _LogReader:
    """Reads one log, a ``darshan.DarshanReport`` of which no records are read yet."""

    def __init__(self, report: Any, path: Path, pid: int, complaint: Callable[[], str]) -> None:
        job = report.metadata["job"]
        self._report, self._path, self._pid = report, path, pid
        self._complaint = complaint
        self._start_ns = int(job["start_time_sec"]) * 10**9 + int(job["start_time_nsec"])
        self._files: dict[int, int] = {}
        self._ranks: dict[int, _RankParts] = {}

    def read(self, reader_version: str) -> tuple[ProcessTrace, ...]:
        """Return all that the log holds."""
        self._complaint()
        problems = {}
        for module, read in (
            ("POSIX", self._read_counters),
            ("STDIO", self._read_counters),
            ("DXT_POSIX", self._read_segments),
        ):
            if module in self._report.modules:
                read(module)
                # PyDarshan ends where its library fails; only the library says so.
                if said := self._complaint():
                    version = self._report.modules[module]["ver"]
                    problems[module] = (
                        f"{module} version {version} cannot be read by PyDarshan {reader_version} "
                        f"({said}): install the same or a newer PyDarshan than the Darshan that "
                        f"wrote the log (pip install -U darshan)"
                    )
        states = tuple(
            ModuleState(name, told["ver"], bool(told["partial_flag"]), problems.get(name, ""))
            for name, told in self._report.modules.items()
        )
        return self._traces(states)

    def _rank(self, rank: int) -> _RankParts:
        several = self._report.metadata["job"]["nprocs"] > 1
        return self._ranks.setdefault(rank if several else 0, _RankParts())

    def _file(self, key: int) -> int:
        """Return the index of a file, `_MARKER` for that of the marker."""
        if is_clock_marker(self._report.name_records[key]):
            return _MARKER
        return self._files.setdefault(key, len(self._files))

    def _read_counters(self, module: str) -> None:
        self._report.mod_read_all_records(module, dtype="numpy")
        names = self._report.counters[module]
        for each in self._report.records[module]:
            file = self._file(each["id"])
            if file != _MARKER:
                counters = dict(zip(names["counters"], each["counters"].tolist(), strict=True))
                counters |= zip(names["fcounters"], each["fcounters"].tolist(), strict=True)
                row = counter_row(module, counters, file, self._start_ns)
                self._rank(each["rank"]).counters.setdefault(module, []).append(row)

    def _read_segments(self, module: str) -> None:
        self._report.mod_read_all_dxt_records(module, dtype="numpy", writes=False)
        for each in self._report.records[module]:
            part, file = self._rank(each["rank"]), self._file(each["id"])
            part.host = part.host or each["hostname"]
            if each["read_segments"]:
                rows = segment_rows(each["read_segments"], file, self._start_ns)
                (part.marks if file == _MARKER else part.segments).append(rows)

    def _traces(self, modules: tuple[ModuleState, ...]) -> tuple[ProcessTrace, ...]:
        """Return a trace for each rank that has anything; for a single process always one."""
        job = self._report.metadata["job"]
        several = job["nprocs"] > 1
        files = tuple(self._report.name_records[key] for key in self._files)
        return tuple(
            ProcessTrace(
                path=self._path,
                pid=self._pid if rank == 0 else -1,
                job_id=int(job["jobid"]),
                rank=rank if several else -1,
                host=part.host,
                start_ns=self._start_ns,
                modules=modules,
                files=files,
                counters=joined_counters(part.counters, modules),
                segments=_by_start(part.segments),
                marks=_by_start(part.marks),
            )
            for rank, part in sorted((self._ranks or {0: _RankParts()}).items())
        )


def segment_rows(calls: Sequence[Mapping[str, Any]], file: int, zero_ns: int) -> NDArray[Any]:
    """Return the rows of one file's calls, as PyDarshan has them."""
    rows = np.zeros(len(calls), SEGMENT_DTYPE)
    for ours, theirs in (("start_ns", "start_time"), ("end_ns", "end_time")):
        rows[ours] = nanoseconds(np.array([call[theirs] for call in calls]), zero_ns)
    for ours, theirs in (("offset", "offset"), ("nbytes", "length")):
        rows[ours] = [call[theirs] for call in calls]
    rows["file"] = file
    return rows


def _by_start(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    rows = np.concatenate([NO_SEGMENTS, *parts])
    return rows[np.argsort(rows["start_ns"], kind="stable")]


_COLUMNS: Final = {
    "POSIX": {
        "posix_opens": "POSIX_OPENS",
        "posix_reads": "POSIX_READS",
        "posix_read_nbytes": "POSIX_BYTES_READ",
        "posix_mmaps": "POSIX_MMAPS",
    },
    "STDIO": {
        "stdio_opens": "STDIO_OPENS",
        "stdio_reads": "STDIO_READS",
        "stdio_read_nbytes": "STDIO_BYTES_READ",
        "stdio_read_ns": "STDIO_F_READ_TIME",
        "stdio_first_read_ns": "STDIO_F_READ_START_TIMESTAMP",
        "stdio_last_read_ns": "STDIO_F_READ_END_TIMESTAMP",
    },
}
"""By module, which of its counters our columns are; those with ``_F_`` are in seconds."""


def counter_row(
    module: str, counters: Mapping[str, float], file: int, zero_ns: int
) -> NDArray[Any]:
    """Return the row of a file by calls of one sort, -1 in all that these do not tell."""
    row = np.full(1, -1, COUNTER_DTYPE)
    row["file"] = file
    for ours, theirs in _COLUMNS[module].items():
        value = counters[theirs]
        if theirs.endswith("_TIMESTAMP"):
            row[ours] = nanoseconds(np.array([value]), zero_ns) if value > 0 else -1
        else:
            row[ours] = nanoseconds(np.array([value]), 0) if "_F_" in theirs else value
    return row


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
