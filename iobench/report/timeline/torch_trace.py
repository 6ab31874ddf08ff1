"""Traces of torch's profiler, merged with ours on one clock.

Since torch 2.4 (Kineto's commit 84d95b82 of May 2024) such a file has ``baseTimeNanoseconds``, and
its times count from there; before, from the Unix epoch. Either way they are wall time.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.errors import FileFormatError, StorageError
from iobench.report.timeline.model import sub_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iobench.report.timeline.trace_writer import TraceWriter
    from iobench.runs.contents import Process

BASE: Final = "baseTimeNanoseconds"
HOW: Final = "expected what torch.profiler's export_chrome_trace writes"
WITH_IDS: Final = frozenset("stfbneNOD")
LONGEST_US: Final = 2**62 / 1000


class TorchTrace(msgspec.Struct, frozen=True):
    """A trace of torch's profiler.

    Parameters
    ----------
    entries : list of dict
        Those that have a time, as in the file.
    names : dict
        Of processes, by ``(pid,)``, of threads, by ``(pid, tid)``; labels by ``("labels", pid)``.
    base_ns : int
        Wall time from which its times count.
    low_ns, high_ns : int
        Its first and last moment, wall clock.
    host, rank
        ``""`` and -1 where the file does not say.
    """

    path: Path
    entries: list[dict[str, Any]]
    names: dict[tuple[str, ...], str]
    base_ns: int
    low_ns: int
    high_ns: int
    host: str
    rank: int

    def merged(
        self, known: Sequence[tuple[Process, int]], base_ns: int, writer: TraceWriter
    ) -> Iterator[dict[str, Any]]:
        """Yield its entries on our clock, its threads in our process where it is the same.

        Parameters
        ----------
        known : sequence of (Process, int)
            Processes that are in the file, and their numbers there.
        base_ns : int
            Wall time at which the file's times begin.
        """
        pids: dict[str, int] = {}
        tids: dict[tuple[str, str, int], int] = {}
        ids: dict[tuple[Any, str], int] = {}

        def moved(entry: dict[str, Any], sub: int = 0) -> dict[str, Any]:
            pid, tid = _lane(entry)
            if pid not in pids:
                pids[pid] = self._process(pid, known, writer)
            if (pid, tid, sub) not in tids:
                name = self.names.get((pid, tid), f"thread {tid}")
                more = f" (overlapping, {sub})" if sub else ""
                tids[pid, tid, sub] = writer.thread(pids[pid], f"torch: {name}{more}")
            result = {**entry, "pid": pids[pid], "tid": tids[pid, tid, sub]}
            result["ts"] = (self.base_ns + _nanoseconds(entry["ts"]) - base_ns) / 1000
            if "id" in entry and entry["ph"] in WITH_IDS:
                key = entry.get("cat"), str(entry["id"])
                if key not in ids:
                    ids[key] = writer.id()
                result["id"] = ids[key]
            return result

        spans = [each for each in self.entries if each["ph"] == "X"]
        numbers: dict[tuple[str, str], int] = {}
        lane = np.array(
            [numbers.setdefault(_lane(each), len(numbers)) for each in spans], dtype=np.int64
        )
        start = np.array([_nanoseconds(each["ts"]) for each in spans], dtype=np.int64)
        end = start + np.array([_nanoseconds(each["dur"]) for each in spans], dtype=np.int64)
        order = np.lexsort((-end, start, lane))
        sub = np.zeros(len(spans), dtype=np.int32)
        sub[order] = sub_lanes(lane[order], start[order], end[order])
        for each, number in zip(spans, sub.tolist(), strict=True):
            yield moved(each, number)
        for each in self.entries:
            if each["ph"] != "X":
                yield moved(each)

    def _process(self, pid: str, known: Sequence[tuple[Process, int]], writer: TraceWriter) -> int:
        """Return our number of a process we know, else a new one."""
        alike = [(process, number) for process, number in known if str(process.pid) == pid]
        if alike:
            return max(
                alike, key=lambda each: (each[0].host == self.host, each[0].rank == self.rank)
            )[1]
        name = self.names.get((pid,)) or pid or "trace"
        labels = self.names.get(("labels", pid), "")
        rank = f" of rank {self.rank}" if self.rank >= 0 else ""
        return writer.process(0, f"torch: {labels or name}{rank}", labels)


def read_torch_trace(path: Path | str) -> TorchTrace:
    """Read a trace that torch's profiler wrote, compressed or not.

    Raises
    ------
    StorageError
        If it cannot be read.
    FileFormatError
        If it is none, or damaged.
    """
    path = Path(path)
    document = _document(path)
    about: dict[str, Any] = document if isinstance(document, dict) else {"traceEvents": document}
    entries = about.get("traceEvents")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise FileFormatError(f"{path}: holds no list of trace events; {HOW}")
    base = about.get(BASE, 0)
    if type(base) is not int or not 0 <= base < 2**62:
        raise FileFormatError(f"{path}: its {BASE} is {str(base)[:30]!r}; {HOW}")
    timed = [each for each in entries if each.get("ph") != "M"]
    for number, each in enumerate(timed):
        _check(path, number, each)
    if not timed:
        raise FileFormatError(f"{path}: holds no trace events with a time; {HOW}")
    job = about.get("distributedInfo")
    rank = job.get("rank") if isinstance(job, dict) else -1
    spans = [each for each in timed if each["ph"] == "X"] or timed
    return TorchTrace(
        path=path,
        entries=timed,
        names=_names(entries),
        base_ns=base,
        low_ns=base + min(_nanoseconds(each["ts"]) for each in timed),
        high_ns=base + max(_nanoseconds(each["ts"] + each.get("dur", 0)) for each in spans),
        host=str(about.get("host_name", "")),
        rank=rank if type(rank) is int else -1,
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
        return json.loads(data, parse_constant=str)
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
        if type(value) not in (int, float) or not abs(value) < LONGEST_US:
            raise FileFormatError(
                f"{path}: event {number} has no time in {name!r} but {str(value)[:30]!r}; {HOW}"
            )
    for name in ("pid", "tid"):
        if not isinstance(entry.get(name, 0), int | str):
            raise FileFormatError(f"{path}: event {number} has no number in {name!r}; {HOW}")


def _names(entries: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], str]:
    names: dict[tuple[str, ...], str] = {}
    for each in entries:
        values = each.get("args")
        if each.get("ph") != "M" or not isinstance(values, dict):
            continue
        pid, tid = _lane(each)
        if each.get("name") == "process_name":
            names[(pid,)] = str(values.get("name"))
        elif each.get("name") == "process_labels":
            names["labels", pid] = str(values.get("labels"))
        elif each.get("name") == "thread_name":
            names[pid, tid] = str(values.get("name"))
    return names


def _lane(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry.get("pid", 0)), str(entry.get("tid", 0))


def _nanoseconds(us: float) -> int:
    return round(us * 1000)
