"""Traces of torch's profiler, put beside our own on one clock.

Since torch 2.4 (Kineto's commit 84d95b82 of May 2024) such a file has ``baseTimeNanoseconds``, and
its times count from there; before, from the Unix epoch. Either way they are wall time.
"""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import FileFormatError, StorageError
from iobench.report.timeline.model import sub_lanes
from iobench.report.timeline.trace_writer import microseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.report.timeline.trace_writer import TraceWriter
    from iobench.runs.contents import Process

BASE: Final = "baseTimeNanoseconds"
HOW: Final = "expected what torch.profiler's export_chrome_trace writes"
WITH_IDS: Final = frozenset("stfbneNOD")
LONGEST_US: Final = Decimal(2**62) / 1000


class TorchTrace(msgspec.Struct, frozen=True):
    """A trace of torch's profiler.

    Parameters
    ----------
    entries : tuple of mapping
        As in the file, without those that name things; microseconds are `Decimal` or int.
    names : mapping
        What processes, by ``(pid,)``, and threads, by ``(pid, tid)``, are called.
    base_ns : int
        What its times count from, after the Unix epoch.
    host : str
        ``""`` where it is not told.
    rank : int
        Of a distributed training, -1 where it is not told.
    low_ns, high_ns : int
        Its first and last moment, wall clock.
    """

    path: Path
    entries: tuple[Mapping[str, Any], ...]
    names: Mapping[tuple[Any, ...], str]
    base_ns: int
    host: str
    rank: int
    low_ns: int
    high_ns: int

    def wall_ns(self, entry: Mapping[str, Any]) -> int:
        """Return when an entry begins, wall clock."""
        return self.base_ns + _nanoseconds(entry["ts"])


def read_torch_trace(path: Path | str) -> TorchTrace:
    """Read a trace that torch's profiler wrote, also one that is compressed.

    Raises
    ------
    StorageError
        If it cannot be read.
    FileFormatError
        If it is none, or damaged.
    """
    path = Path(path)
    document = _document(path)
    found = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise FileFormatError(f"{path}: holds no list of trace events; {HOW}")
    about: dict[str, Any] = document if isinstance(document, dict) else {}
    base = about.get(BASE, 0)
    if type(base) is not int or not 0 <= base < 2**62:
        raise FileFormatError(f"{path}: its {BASE} is {str(base)[:30]!r}; {HOW}")
    timed = tuple(each for each in found if each.get("ph") != "M")
    for number, each in enumerate(timed):
        _check(path, number, each)
    if not timed:
        raise FileFormatError(f"{path}: holds no trace events with a time; {HOW}")
    told = about.get("distributedInfo")
    rank = told.get("rank", -1) if isinstance(told, dict) else -1
    spans = [each for each in timed if each["ph"] == "X"] or timed
    return TorchTrace(
        path=path,
        entries=timed,
        names=_names(found),
        base_ns=base,
        host=str(about.get("host_name", "")),
        rank=rank if type(rank) is int else -1,
        low_ns=base + min(_nanoseconds(each["ts"]) for each in timed),
        high_ns=base + max(_nanoseconds(each["ts"]) + _long(each) for each in spans),
    )


def _document(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror or error}); name a trace of torch.profiler"
        ) from error
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return json.loads(data, parse_float=Decimal, parse_constant=str)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path}: is damaged ({error}); {HOW}") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is no JSON ({str(error)[:80]}); {HOW}") from error


def _check(path: Path, number: int, entry: Mapping[str, Any]) -> None:
    letter = entry.get("ph")
    if not isinstance(letter, str) or len(letter) != 1:
        raise FileFormatError(f"{path}: event {number} has no 'ph'; {HOW}")
    for name in ("ts", "dur") if letter == "X" else ("ts",):
        value: Any = entry.get(name)
        if type(value) not in (int, Decimal) or not abs(value) < LONGEST_US:
            raise FileFormatError(
                f"{path}: event {number} has no time in {name!r} but {str(value)[:30]!r}; {HOW}"
            )
    for name in ("pid", "tid"):
        if not isinstance(entry.get(name, 0), int | str):
            raise FileFormatError(f"{path}: event {number} has no number in {name!r}; {HOW}")


def _names(found: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], str]:
    names: dict[tuple[Any, ...], str] = {}
    for each in found:
        values = each.get("args")
        if each.get("ph") != "M" or not isinstance(values, dict):
            continue
        if each.get("name") == "process_name":
            names[str(each.get("pid")),] = str(values.get("name"))
        elif each.get("name") == "process_labels":
            names["labels", str(each.get("pid"))] = str(values.get("labels"))
        elif each.get("name") == "thread_name":
            names[str(each.get("pid")), str(each.get("tid"))] = str(values.get("name"))
    return names


def _nanoseconds(value: Any) -> int:
    """Return microseconds in whole nanoseconds; what is beyond is cut off."""
    return int(value * 1000)


def _long(entry: Mapping[str, Any]) -> int:
    return max(_nanoseconds(entry.get("dur", 0)), 0)


def torch_entries(
    trace: TorchTrace, known: Sequence[tuple[Process, int]], base_ns: int, writer: TraceWriter
) -> Iterator[str]:
    """Yield a trace of torch's profiler, its threads beside ours where the process is the same.

    Parameters
    ----------
    known : sequence of (Process, int)
        Processes that are in the file, and their numbers there.
    base_ns : int
        Wall time at which the file's times begin.
    """
    merged = _Merged(trace, known, writer)
    spans = [each for each in trace.entries if each["ph"] == "X"]
    start = np.array([trace.wall_ns(each) - base_ns for each in spans], dtype=np.int64)
    end = start + np.array([_long(each) for each in spans], dtype=np.int64)
    lanes = np.array([merged.lane(each) for each in spans], dtype=np.int64)
    order = np.lexsort((-end, start, lanes))
    sub = np.zeros(len(spans), dtype=np.int32)
    sub[order] = sub_lanes(lanes[order], start[order], end[order])
    columns = (start.tolist(), (end - start).tolist(), sub.tolist())
    for each, begin, long, beside in zip(spans, *columns, strict=True):
        yield _dump({**each, **merged.place(each, beside)}, begin, long)
    for each in trace.entries:
        if each["ph"] != "X":
            changed = {**each, **merged.place(each)}
            if "id" in each and each["ph"] in WITH_IDS:
                changed["id"] = merged.identity(each)
            yield _dump(changed, trace.wall_ns(each) - base_ns)


def _dump(entry: dict[str, Any], ts_ns: int, long_ns: int | None = None) -> str:
    timed = {name: value for name, value in entry.items() if name not in ("ts", "dur")}
    dur = "" if long_ns is None else f',"dur":{microseconds(long_ns)}'
    return f'{json.dumps(timed, default=_number)[:-1]},"ts":{microseconds(ts_ns)}{dur}}}'


def _number(value: Decimal) -> float | str:
    """Return a number as JSON can hold it; one beyond all doubles stays as it was spelled."""
    found = float(value)
    return found if isfinite(found) else str(value)


class _Merged:
    """Gives the processes, threads and arrows of one trace numbers that are theirs alone."""

    def __init__(
        self, trace: TorchTrace, known: Sequence[tuple[Process, int]], writer: TraceWriter
    ) -> None:
        self._trace, self._known, self._writer = trace, known, writer
        self._pids: dict[str, int] = {}
        self._tids: dict[tuple[str, str, int], int] = {}
        self._arrows: dict[tuple[Any, Any], int] = {}
        self._lanes: dict[tuple[str, str], int] = {}

    def lane(self, entry: Mapping[str, Any]) -> int:
        """Return a number for the thread of an entry."""
        key = str(entry.get("pid", 0)), str(entry.get("tid", 0))
        return self._lanes.setdefault(key, len(self._lanes))

    def place(self, entry: Mapping[str, Any], sub: int = 0) -> dict[str, int]:
        """Return the process and thread of an entry."""
        pid, tid = str(entry.get("pid", 0)), str(entry.get("tid", 0))
        if pid not in self._pids:
            self._pids[pid] = self._process(pid)
        if (pid, tid, sub) not in self._tids:
            name = self._trace.names.get((pid, tid), f"thread {tid}")
            more = f" (overlapping, {sub})" if sub else ""
            found = self._writer.thread(self._pids[pid], f"torch: {name}{more}")
            self._tids[pid, tid, sub] = found
        return {"pid": self._pids[pid], "tid": self._tids[pid, tid, sub]}

    def identity(self, entry: Mapping[str, Any]) -> int:
        """Return the number of an arrow, or another pair, of which an entry is one end."""
        key = entry.get("cat"), str(entry["id"])
        if key not in self._arrows:
            self._arrows[key] = int(self._writer.ids(1)[0])
        return self._arrows[key]

    def _process(self, pid: str) -> int:
        """Return our number of a process we know, else a new one."""
        alike = [(who, number) for who, number in self._known if str(who.pid) == pid]
        trace = self._trace
        if alike:
            return max(
                alike,
                key=lambda each: (each[0].host == trace.host, each[0].rank == trace.rank),
            )[1]
        name = trace.names.get((pid,)) or pid or "trace"
        labels = trace.names.get(("labels", pid), "")
        rank = f" of rank {trace.rank}" if trace.rank >= 0 else ""
        return self._writer.process(0, f"torch: {labels or name}{rank}", labels)
