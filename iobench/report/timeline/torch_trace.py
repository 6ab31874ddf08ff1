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
from msgspec import Meta

from iobench.errors import FileFormatError, StorageError

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
        base_ns = document.baseTimeNanoseconds
        self._start_ns = [round(each.ts * 1000) + base_ns for each in times]
        self.low_ns = min(self._start_ns)
        self.high_ns = max(round((each.ts + each.dur) * 1000) + base_ns for each in times)

    def merged(
        self, known: Sequence[tuple[Process, int]], base_ns: int, writer: TraceWriter
    ) -> Iterator[dict[str, Any]]:
        """Yield its events after ``base_ns``, its threads in a process that is ``known``."""
        pids: dict[str, int] = {}
        tids: dict[tuple[str, str], int] = {}
        ids: defaultdict[tuple[Any, str], int] = defaultdict(lambda: next(writer.ids))
        for event, start_ns in zip(self._events, self._start_ns, strict=True):
            pid, tid = lane = _lane(event)
            if pid not in pids:
                pids[pid] = self._process(pid, known, writer)
            if lane not in tids:
                name = self._names.get(("thread_name", *lane), f"thread {tid}")
                tids[lane] = writer.thread(pids[pid], f"torch: {name}")
            ts = (start_ns - base_ns) / 1000
            moved = {**event, "pid": pids[pid], "tid": tids[lane], "ts": ts}
            if "id" in event:
                moved["id"] = ids[event.get("cat"), str(event["id"])]
            yield moved

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
