"""DFTracer's files as another source of segments: a JSON object a line, for each call one.

Written for what DFTracer 2.2 leaves, and for its older forms as far as these tell the same. Its
times are microseconds of the wall clock. A file is known by a hash of its name, and a forked
process does not repeat the names that its parent told: all files of a run are read before names
are given. As of Darshan's logs, segments are of POSIX calls; those of C streams are in the
counters. `np.load` reads past it: what it calls is not seen.
"""

from __future__ import annotations

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import FileFormatError
from iobench.recording.clock_marker import is_clock_marker
from iobench.storage.storage_trace import (
    COUNTER_DTYPE,
    NO_COUNTERS,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
    StorageTrace,
    is_of_interpreter,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GZIP: Final = b"\x1f\x8b"
_NO_CALL: Final = (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError)
"""What a line raises that is no call, or one with numbers that are none."""


def is_dftracer_name(name: str) -> bool:
    """Return whether a file is called like one of DFTracer's."""
    return name.removesuffix(".gz").endswith(".pfw")


def is_dftracer_start(start: bytes) -> bool:
    """Return whether a file that starts so, uncompressed, is one of DFTracer's."""
    line = start.lstrip(b"[ \r\n").split(b"\n", 1)[0]
    return line.startswith(b"{") and all(key in line for key in (b'"name"', b'"pid"', b'"ph"'))


def read_dftracer_files(paths: Sequence[Path]) -> StorageTrace:
    """Read what DFTracer left of a run.

    Parameters
    ----------
    paths : sequence of Path
        Files, compressed by gzip or not, whatever they are called.

    Returns
    -------
    StorageTrace
        Its processes in the order of their start. What could not be read is in ``refused``.
    """
    run = RunNames()
    processes: list[TracedCalls] = []
    refused: list[str] = []
    n_empty = 0
    for file in paths:
        try:
            found = _read_file(file, run)
        except FileFormatError as error:
            refused.append(f"{file}: {error}")
            continue
        except OSError as error:
            refused.append(f"{file}: cannot be read: {error.strerror or error}")
            continue
        n_empty += not found
        processes += found
    notes = []
    if n_empty:
        notes.append(
            f"{n_empty} files of DFTracer are empty: their processes changed their program, did "
            f"nothing that it follows, or were killed"
        )
    traces = sorted((each.trace(run) for each in processes), key=lambda each: each.start_ns)
    return StorageTrace(tuple(traces), tuple(refused), tuple(notes))


def _read_file(path: Path, run: RunNames) -> list[TracedCalls]:
    """Return the processes of one file, usually one; none of an empty file."""
    processes: dict[int, TracedCalls] = {}
    damaged = 0
    for number, line in enumerate(_lines(path), 1):
        text = line.strip(b"[], \t\r\n\0")
        if not text:
            continue
        if damaged == 1:
            break
        if damaged:
            raise FileFormatError(f"line {damaged} is not a call of DFTracer's")
        try:
            _take(json.loads(text), path, run, processes)
        except _NO_CALL:
            damaged = number  # fine only as the last line: its process was stopped writing it
    if damaged == 1:
        raise FileFormatError("is not a file of DFTracer's")
    for each in processes.values():
        each.cut = bool(damaged)
    return list(processes.values())


def _take(call: Any, path: Path, run: RunNames, processes: dict[int, TracedCalls]) -> None:
    """Take one line: what a hash stands for, or a call; one of `_NO_CALL` if it is neither."""
    name, pid, told = str(call["name"]), int(call["pid"]), dict(call.get("args") or {})
    if name in ("FH", "HH", "SH"):
        run.learn(name, told)
        return
    calls = processes.get(pid) or TracedCalls(path, pid)
    calls.add(name, call, told)
    processes[pid] = calls


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; the end of a compressed one that was not finished is missing."""
    with path.open("rb") as file:
        if file.read(2) != _GZIP:
            file.seek(0)
            yield from file
            return
    with gzip.open(path) as packed:
        try:
            yield from packed
        except EOFError:
            yield b"{"  # no line: says that the rest is missing
        except (gzip.BadGzipFile, zlib.error) as error:
            raise FileFormatError(f"is damaged: {error}") from None


_NS_OF_UNIT: Final = {"NS": 1, "US": 1_000, "MS": 1_000_000, "S": 10**9, "SEC": 10**9}
_RESOLUTION_NS: Final = 2_000
"""Start and duration are each cut to a microsecond."""
_READS: Final = frozenset({"read", "pread", "readv", "preadv", "preadv2"})
_WRITES: Final = frozenset({"write", "pwrite", "writev", "pwritev", "pwritev2"})
_OPENS: Final = frozenset({"open", "openat", "creat"})
_STREAM_OPENS: Final = frozenset({"fopen", "fdopen", "freopen"})
_UNKNOWN: Final = -1
_LARGEST: Final = 1 << 62
_OF_START, _OF_CALL = ("ppid", "version"), ("ret", "offset", "size")
_NO_ARGUMENTS: Final = (
    "DFTracer left out files and bytes of the calls: run it with DFTRACER_INC_METADATA=1"
)


@dataclass(slots=True)
class RunNames:
    """What hashes stand for, told by any process of the run."""

    files: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def learn(self, kind: str, told: Mapping[str, Any]) -> None:
        """Take the line of a name."""
        names = {"FH": self.files, "HH": self.hosts, "SH": self.texts}.get(kind)
        if names is not None and "value" in told:
            names[str(told["value"])] = str(told.get("name", ""))


@dataclass(slots=True)
class _OpenFile:
    """Where a process is in a file, followed while it has it open once."""

    n_open: int = 0
    position: int = _UNKNOWN


class TracedCalls:
    """The calls of one process, column by column.

    Parameters
    ----------
    path : Path
        The file they are in.

    Attributes
    ----------
    cut : bool
        Whether the file ends within a line.
    """

    def __init__(self, path: Path, pid: int) -> None:
        self.cut = False
        self._path = path
        self._pid = pid
        self._unit_ns = 1_000
        self._parent_pid, self._version, self._command = -1, 0, ""
        self._start_ns = self._end_ns = -1
        self._first_ns = self._last_ns = -1
        self._host = ""
        self._keys: dict[str, int] = {}
        self._open: dict[int, _OpenFile] = {}
        self._segments = {name: array("q") for name in SEGMENT_DTYPE.names or ()}  # in its order
        self._counters: dict[int, dict[str, int]] = {}
        self._n_bare = 0

    def add(self, name: str, call: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Take one line with the name and arguments of its call.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If a number of it is none, or larger than can be; nothing of the line is kept then.
        """
        if name == "CM" and told.get("name") == "time_metric":
            self._unit_ns = _NS_OF_UNIT.get(str(told.get("value")), 1_000)
        if "ts" not in call:
            return
        start_ns = _number(call["ts"], self._unit_ns)
        end_ns = _number(start_ns + _number(call.get("dur", 0), self._unit_ns))
        followed = call.get("cat") in ("POSIX", "STDIO")
        wanted = _OF_START if name == "start" else _OF_CALL if followed else ()
        tells = {key: _number(told[key]) for key in wanted if key in told}
        thread = _number(call.get("tid", -1))
        self._first_ns = start_ns if self._first_ns < 0 else min(self._first_ns, start_ns)
        self._last_ns = max(self._last_ns, end_ns)
        self._host = self._host or str(told.get("hhash", ""))
        if name == "start":
            self._start_ns, self._command = start_ns, str(told.get("cmd_hash"))
            self._parent_pid, self._version = tells.get("ppid", -1), tells.get("version", 0)
        elif name == "end":
            self._end_ns = end_ns
        elif followed:
            key = told.get("fhash", told.get("fname"))
            if key is not None:
                file = self._keys.setdefault(str(key), len(self._keys))
                self._call(name.removesuffix("64"), file, thread, start_ns, end_ns, tells)
            elif name.removesuffix("64") in _OPENS | _READS | _WRITES:
                self._n_bare += 1

    def _call(
        self,
        name: str,
        file: int,
        thread: int,
        start_ns: int,
        end_ns: int,
        told: Mapping[str, int],
    ) -> None:
        nbytes = told.get("ret", -1)
        if name in _READS or name in _WRITES:
            if nbytes >= 0:
                offset = self._moved(file, told.get("offset", -1), nbytes)
                row = (start_ns, end_ns, offset, nbytes, thread, file, int(name in _WRITES))
                for column, value in zip(self._segments.values(), row, strict=True):
                    column.append(value)
                self._row(file)
        elif name in _OPENS and told.get("ret", 0) >= 0:  # one that failed opened nothing
            self._opened(file)
            self._count(file, "posix_opens", start_ns, first="posix_first_open_ns")
        elif name == "lseek":
            self._open.setdefault(file, _OpenFile()).position = nbytes
            self._row(file)
        elif name == "close":
            state = self._open.setdefault(file, _OpenFile())
            state.n_open, state.position = max(state.n_open - 1, 0), _UNKNOWN
            self._count(file, last="posix_last_close_ns", end_ns=end_ns)
        elif name in _STREAM_OPENS:
            self._count(file, "stdio_opens")
        elif name == "fread":
            counted = self._count(
                file, "stdio_reads", start_ns, "stdio_first_read_ns", "stdio_last_read_ns", end_ns
            )
            counted["stdio_read_nbytes"] += max(nbytes, 0) * max(told.get("size", 1), 1)
            counted["stdio_read_ns"] += end_ns - start_ns
        elif name == "fclose":
            self._count(file, last="stdio_last_close_ns", end_ns=end_ns)

    def _opened(self, file: int) -> None:
        state = self._open.setdefault(file, _OpenFile())
        state.n_open += 1
        # A call does not say of which of its descriptors it is: with two, the place is not known.
        state.position = 0 if state.n_open == 1 else _UNKNOWN

    def _moved(self, file: int, offset: int, nbytes: int) -> int:
        """Return where a read or write was; one that does not name its place moves on."""
        if offset >= 0:
            return offset
        state = self._open.get(file)
        if state is None or state.position < 0 or state.n_open > 1:
            return _UNKNOWN
        state.position += nbytes
        return state.position - nbytes

    def _row(self, file: int) -> dict[str, int]:
        row = self._counters.get(file)
        if row is None:
            names = (COUNTER_DTYPE.names or ())[1:]
            row = {name: -1 if "_first_" in name or "_last_" in name else 0 for name in names}
            row["posix_mmaps"] = -1  # not followed
            self._counters[file] = row
        return row

    def _count(
        self,
        file: int,
        column: str = "",
        start_ns: int = -1,
        first: str = "",
        last: str = "",
        end_ns: int = -1,
    ) -> dict[str, int]:
        row = self._row(file)
        if column:
            row[column] += 1
        if first and row[first] < 0:
            row[first] = start_ns
        if last:
            row[last] = max(row[last], end_ns)
        return row

    def trace(self, run: RunNames) -> ProcessTrace:
        """Return all calls of data files, with their names."""
        names = [run.files.get(key, _unnamed(key)) for key in self._keys]
        kept = [not is_of_interpreter(name) and not is_clock_marker(name) for name in names]
        index = np.cumsum(kept) - 1
        segments = np.empty(len(self._segments["file"]), SEGMENT_DTYPE)
        for name, column in self._segments.items():
            segments[name] = np.frombuffer(column, np.int64) if column else 0
        if len(segments):
            segments = segments[np.array(kept)[segments["file"]]]
            segments["file"] = index[segments["file"]]
        segments = segments[np.argsort(segments["start_ns"], kind="stable")]
        counters = self._rows(kept, index)
        _add_segments(counters, segments)
        return ProcessTrace(
            tracer="DFTracer",
            path=self._path,
            pid=self._pid,
            parent_pid=self._parent_pid,
            host=run.hosts.get(self._host, ""),
            executable=run.texts.get(self._command, "").replace(";", " "),
            start_ns=self._start_ns if self._start_ns >= 0 else self._first_ns,
            end_ns=self._end_ns if self._end_ns >= 0 else -1,
            zero_error_ns=_RESOLUTION_NS,
            modules=(self._module(),),
            files=tuple(name for name, keep in zip(names, kept, strict=True) if keep),
            counters=counters,
            segments=segments,
            leftover=self._end_ns < 0,
        )

    def _module(self) -> ModuleState:
        return ModuleState(
            "DFTRACER",
            self._version,
            partial=self.cut or self._end_ns < 0,
            problem=_NO_ARGUMENTS if self._n_bare else "",
        )

    def _rows(self, kept: list[bool], index: NDArray[Any]) -> NDArray[Any]:
        files = [file for file in sorted(self._counters) if kept[file]]
        if not files:
            return NO_COUNTERS
        rows = np.empty(len(files), COUNTER_DTYPE)
        for at, file in enumerate(files):
            rows[at] = (index[file], *self._counters[file].values())
        return rows


def _number(value: Any, times: int = 1) -> int:
    """Return a number that fits into a column."""
    number = int(value) * times
    if abs(number) > _LARGEST:
        raise OverflowError(f"{number}: expected at most {_LARGEST}")
    return number


def _unnamed(key: str) -> str:
    """Return what a file is called that was not named; older versions give its name at once."""
    return key if "/" in key else f"file {key}, not named in what was read"


def _add_segments(counters: NDArray[Any], segments: NDArray[Any]) -> None:
    """Add up the reads of each file."""
    if not len(segments):
        return
    reads = segments[~segments["write"]]
    at = np.searchsorted(counters["file"], reads["file"])
    np.add.at(counters["posix_reads"], at, 1)
    np.add.at(counters["posix_read_nbytes"], at, reads["nbytes"])
    first = np.full(len(counters), np.iinfo(np.int64).max)
    np.minimum.at(first, at, reads["start_ns"])
    np.maximum.at(counters["posix_last_read_ns"], at, reads["end_ns"])
    counters["posix_first_read_ns"] = np.where(first < np.iinfo(np.int64).max, first, -1)
