"""Traces of torch's profiler, merged with ours on one clock.

Since torch 2.4 (Kineto's commit 84d95b82 of May 2024) such a file has ``baseTimeNanoseconds``, and
its times count from there; before, from the Unix epoch. Either way they are wall time.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from iobench.errors import FileFormatError, StorageError
from iobench.report.timeline.model import sub_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.report.timeline.trace_events import TraceWriter
    from iobench.runs.contents import Process

EXPECTED: Final = "expected what torch.profiler's export_chrome_trace writes"
Microseconds = Annotated[float, Meta(gt=-(2.0**52), lt=2.0**52)]


class TimedEvent(msgspec.Struct, frozen=True):
    """What must be right of an event that has a time."""

    ph: Annotated[str, Meta(min_length=1, max_length=1)]
    ts: Microseconds
    dur: Microseconds = 0.0
    pid: int | str = 0
    tid: int | str = 0


class TorchDocument(msgspec.Struct, frozen=True):
    """What of a file is read here."""

    traceEvents: list[dict[str, Any]]
    baseTimeNanoseconds: Annotated[int, Meta(ge=0, lt=2**62)] = 0
    distributedInfo: dict[str, Any] = {}


class TorchTrace:
    """A trace that torch's profiler wrote, compressed or not, between two moments of wall time."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            document = msgspec.convert(_content(self.path), TorchDocument)
            self._events = [each for each in document.traceEvents if each.get("ph") != "M"]
            times = msgspec.convert(self._events, list[TimedEvent])
        except msgspec.ValidationError as error:
            raise FileFormatError(f"{path}: {error}; {EXPECTED}") from error
        if not times:
            raise FileFormatError(f"{path}: holds no trace events with a time; {EXPECTED}")
        self._rank = document.distributedInfo.get("rank")
        self._names = {
            (each.get("name"), *_lane(each)): str(next(iter(each["args"].values())))
            for each in document.traceEvents
            if each.get("ph") == "M" and isinstance(each.get("args"), dict) and each["args"]
        }
        start_ns = [round(each.ts * 1000) + document.baseTimeNanoseconds for each in times]
        self._start_ns = np.array(start_ns, dtype=np.int64)
        length_ns = [round(each.dur * 1000) for each in times]
        self._end_ns = self._start_ns + np.array(length_ns, dtype=np.int64)
        self.low_ns, self.high_ns = int(self._start_ns.min()), int(self._end_ns.max())

    def merged(
        self, known: Sequence[tuple[Process, int]], base_ns: int, writer: TraceWriter
    ) -> Iterator[dict[str, Any]]:
        """Yield its events after ``base_ns``, its threads in a process that is ``known``."""
        pids: dict[str, int] = {}
        tids: dict[tuple[str, str, int], int] = {}
        ids: defaultdict[tuple[Any, str], int] = defaultdict(lambda: next(writer.ids))
        times = ((self._start_ns - base_ns) / 1000).tolist()
        for event, ts, sub in zip(self._events, times, self._sub_lanes(), strict=True):
            pid, tid = _lane(event)
            if pid not in pids:
                pids[pid] = self._process(pid, known, writer)
            if (pid, tid, sub) not in tids:
                name = self._names.get(("thread_name", pid, tid), f"thread {tid}")
                more = f" (overlapping, {sub})" if sub else ""
                tids[pid, tid, sub] = writer.thread(pids[pid], f"torch: {name}{more}")
            moved = {**event, "pid": pids[pid], "tid": tids[pid, tid, sub], "ts": ts}
            if "id" in event:
                moved["id"] = ids[event.get("cat"), str(event["id"])]
            yield moved

    def _sub_lanes(self) -> list[int]:
        """Return which of several threads each event is on, where spans of one overlap."""
        numbers: dict[tuple[str, str], int] = {}
        lane = np.array([numbers.setdefault(_lane(each), len(numbers)) for each in self._events])
        rows = np.flatnonzero([each["ph"] == "X" for each in self._events])
        rows = rows[np.lexsort((-self._end_ns[rows], self._start_ns[rows], lane[rows]))]
        sub = np.zeros(len(lane), dtype=np.int64)
        sub[rows] = sub_lanes(lane[rows], self._start_ns[rows], self._end_ns[rows])
        return list(sub.tolist())

    def _process(self, pid: str, known: Sequence[tuple[Process, int]], writer: TraceWriter) -> int:
        """Return our number of a process we know, of this rank if there are several."""
        alike = [each for each in known if str(each[0].pid) == pid]
        if alike:
            return next((n for each, n in alike if each.rank == self._rank), alike[0][1])
        known_as = (self._names.get((f"process_{what}", pid, "0")) for what in ("labels", "name"))
        rank = "" if self._rank is None else f" of rank {self._rank}"
        return writer.process(0, f"torch: {next(filter(None, known_as), pid) or 'trace'}{rank}")


def _content(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror or error}); name a trace of torch.profiler"
        ) from error
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return json.loads(data, parse_constant=str)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: is no JSON ({str(error)[:80]}); {EXPECTED}") from error


def _lane(event: dict[str, Any]) -> tuple[str, str]:
    return str(event.get("pid", 0)), str(event.get("tid", 0))
