"""Hand-made runs of loading processes, and what a tracer would have seen of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ground_truth_profiles import HOST

from iobench.analysis.run import Run
from iobench.findings.storage import storage_of
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.recording.span_reader import Anchor
from iobench.storage.storage_trace import (
    COUNTER_DTYPE,
    SEGMENT_DTYPE,
    ModuleState,
    ProcessTrace,
    StorageTrace,
)
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.findings.storage import StorageFigures
    from tests.support.sketched_runs import Lane

WALL_NS = 10**18
MODULES = (ModuleState("POSIX", 4), ModuleState("STDIO", 2), ModuleState("DXT_POSIX", 1))
MS = 1_000_000


@dataclass
class TracedProcess:
    """A worker of a run, and the reads and counters of its log, by file; times are given in ms.

    The clock of its log is late, by which its reads are moved.
    """

    run: SketchedRun
    number: int
    reads: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    late_ms: float = 0

    @property
    def lane(self) -> Lane:
        return ("worker", self.number)

    @property
    def pid(self) -> int:
        return 101 + self.number

    def span(self, kind: Kind, start_ms: float, end_ms: float, **fields: Any) -> None:
        self.run.add(self.lane, kind, round(start_ms * MS), round(end_ms * MS), epoch=0, **fields)

    def look(self, at_ms: float, batch: int, rchar: int, device: int = -1) -> None:
        """``/proc`` was looked at after a batch."""
        flags = {"flags": Flag.IO, "nbytes": rchar, "cpu_ns": device}
        self.span(Kind.READ, at_ms, at_ms, batch=batch, **flags)

    def read(self, file: str, start_ms: float, end_ms: float, offset: int, nbytes: int) -> None:
        """A call that the tracer saw, with its counters."""
        self.reads.append((file, round(start_ms * MS), round(end_ms * MS), offset, nbytes))
        self.count(file, posix_reads=1, posix_read_nbytes=nbytes, posix_opens=1)

    def count(self, file: str, **counts: int) -> None:
        """Add to the counters of a file."""
        own = self.counters.setdefault(file, {})
        for name, value in counts.items():
            own[name] = own.get(name, 0) + value

    def log(self, modules: Sequence[ModuleState] = MODULES) -> ProcessTrace:
        """Return what Darshan kept."""
        files = tuple(dict.fromkeys((*self.counters, *(read[0] for read in self.reads))))
        rows = np.full(len(self.counters), -1, COUNTER_DTYPE)
        for row, (file, counts) in zip(rows, self.counters.items(), strict=True):
            row["file"] = files.index(file)
            for name, value in counts.items():
                row[name] = value
        segments = np.zeros(len(self.reads), SEGMENT_DTYPE)
        for row, (file, start, end, offset, nbytes) in zip(segments, self.reads, strict=True):
            row["start_ns"], row["end_ns"] = (
                WALL_NS + time + round(self.late_ms * MS) for time in (start, end)
            )
            row["offset"], row["nbytes"], row["file"] = offset, nbytes, files.index(file)
        marks = np.zeros(4, SEGMENT_DTYPE)
        marks["offset"] = np.arange(4) * 1000
        marks["start_ns"] = WALL_NS + marks["offset"] + 400 + round(self.late_ms * MS)
        marks["end_ns"] = marks["start_ns"] + 200
        return ProcessTrace(
            path=Path(f"{self.pid}.darshan"),
            pid=self.pid,
            start_ns=WALL_NS,
            modules=tuple(modules),
            files=files,
            counters=rows,
            marks=marks,
            segments=segments[np.argsort(segments["start_ns"], kind="stable")],
        )


class TracedRun(SketchedRun):
    """A training process that waits for workers; times are given in ms."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__({"workers": 0, "prefetch": 2, "batch_size": 1}, **(config or {}))
        self.process = {
            "host": HOST, "anchors": (Anchor(0, WALL_NS), Anchor(10**12, WALL_NS + 10**12)),
        }  # fmt: skip
        self.processes[CONSUMER] = {"pid": 100}
        self.workers: list[TracedProcess] = []
        self.round(0, 0)

    def worker(self) -> TracedProcess:
        worker = TracedProcess(self, len(self.workers))
        self.processes[worker.lane] = {"pid": worker.pid, "ppid": 100}
        self.workers.append(worker)
        self.config["workers"] = len(self.workers)
        return worker

    def wait(self, batch: int, start_ms: float, end_ms: float, nbytes: int = -1) -> None:
        start_ns, end_ns = round(start_ms * MS), round(end_ms * MS)
        made_by = f"worker-{batch % max(len(self.workers), 1)}"
        super().wait(batch, start_ns, end_ns, made_by, epoch=0, sample=0, nbytes=nbytes)
        self.spans[0]["end_ns"] = max(self.spans[0]["end_ns"], end_ns)  # of the round

    def figures(self, trace: StorageTrace | None = None) -> StorageFigures:
        """Return the figures of a run by its trace, or another."""
        found = storage_of(Run(self.data(), self.trace() if trace is None else trace).of_rank())
        assert found is not None
        return found

    def trace(self) -> StorageTrace:
        return StorageTrace(tuple(each.log() for each in self.workers))
