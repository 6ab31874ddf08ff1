"""Hand-made profiles: spans written down, or made by the recurrence of an in-order worker pool."""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.runs.contents import PROFILE_DTYPE, Process, RunData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONSUMER = ("consumer", -1)
STAGES = (Kind.READ, Kind.DECODE, Kind.COLLATE)
Lane = tuple[str, int] | tuple[str, int, int]


@dataclass
class Sketch:
    """Spans by process, each a dict of SPAN_DTYPE fields with texts; becomes a RunData."""

    config: dict[str, Any] = field(default_factory=dict)
    spans: list[dict[str, Any]] = field(default_factory=list)
    lost: dict[Lane, int] = field(default_factory=dict)

    def add(self, lane: Lane, kind: Kind, start_ns: int, end_ns: int, **fields: Any) -> None:
        self.spans.append(
            {"lane": lane, "kind": kind, "start_ns": start_ns, "end_ns": end_ns, **fields}
        )

    def wait(self, batch: int, start_ns: int, end_ns: int, made_by: str = "", **more: Any) -> None:
        self.add(CONSUMER, Kind.WAIT, start_ns, end_ns, batch=batch, detail=made_by, **more)

    def shutdown(self, start_ns: int, end_ns: int) -> None:
        self.add(CONSUMER, Kind.WAIT, start_ns, end_ns, label="shutdown")

    def round(self, start_ns: int, end_ns: int, number: int = 0) -> None:
        self.add(CONSUMER, Kind.OTHER, start_ns, end_ns, label="round", sample=number)

    def submit(self, worker: int, batch: int, start_ns: int, end_ns: int) -> None:
        self.add(("worker", worker), Kind.SUBMIT_QUEUE, start_ns, end_ns, batch=batch)

    def without(self, lane: Lane) -> Sketch:
        return dataclasses.replace(
            self, spans=[span for span in self.spans if span["lane"] != lane]
        )

    def moved(self, change: Callable[[int], int]) -> Sketch:
        """Return the same spans at other times."""
        times = ("start_ns", "end_ns")
        return dataclasses.replace(
            self,
            spans=[{**span, **{name: change(span[name]) for name in times}} for span in self.spans],
        )

    def profile(self, lanes: Sequence[Lane] | None = None) -> RunData:
        found = sorted({span["lane"] for span in self.spans})
        lanes = [lane for lane in lanes or found if lane in found]
        texts = [span.get(name, "") for span in self.spans for name in ("label", "detail")]
        strings = ("", *dict.fromkeys(text for text in texts if text))
        table = np.zeros(len(self.spans), PROFILE_DTYPE)
        unknown = dict.fromkeys(("nbytes", "cpu_ns", "sample", "batch", "epoch"), -1)
        for row, span in enumerate(self.spans):
            values = {"pieces": 1, "flags": 0, "thread": 0, "sequence": row + 1, **unknown, **span}
            values["process"] = lanes.index(values.pop("lane"))
            values["label"] = strings.index(values.get("label", ""))
            values["detail"] = strings.index(values.get("detail", ""))
            for name, value in values.items():
                table[name][row] = value
        table = table[np.argsort(table["process"], kind="stable")]
        processes = tuple(self._process(lane, pid) for pid, lane in enumerate(lanes))
        names = {process.name for process in processes}
        missing = [name for name in self.config.get("expected_workers", ()) if name not in names]
        return RunData(Path("run"), self.config, processes, table, strings, tuple(missing))

    def _process(self, lane: Lane, pid: int) -> Process:
        role, worker, *_ = lane
        lost = self.lost.get(lane, 0)
        return Process(
            role, worker, 0, pid, "here", "boot", (Anchor(0, 0),), lost, True, 0, ("MainThread",)
        )


def on_machine(
    found: RunData,
    *,
    wall_ns: int,
    pid: int = 4711,
    host: str = "here",
    drift_ns: Sequence[int] = (),
) -> RunData:
    """Return a profile as of a real machine: its processes have numbers and a wall clock.

    ``drift_ns`` are how far the wall clock had gone when each process, one ns after the other,
    looked at it.
    """
    processes = tuple(
        replace(
            who,
            pid=pid + index,
            host=host,
            boot_id=host,
            anchors=(Anchor(index, wall_ns + index + (drift_ns[index] if drift_ns else 0)),),
        )
        for index, who in enumerate(found.processes)
    )
    return msgspec.structs.replace(found, processes=processes)


def pool(
    durations: Sequence[Sequence[int]],
    *,
    workers: int,
    step_ns: int,
    prefetch: int = 2,
    handover_ns: int = 0,
    in_order: bool = True,
    drain_ns: int = 0,
) -> Sketch:
    """Return the run of a worker pool, or of a serial loader with 0 workers.

    ``durations[batch]`` are the times of `STAGES`. Batch i goes to worker i mod N, is submitted
    when batch i - N*P is delivered, or, out of order, when any batch of its worker is.
    """
    names = [f"worker-{worker}" for worker in range(workers)]
    config = {"workers": workers, "prefetch": prefetch, "expected_workers": names, "batch_size": 4}
    sketch = Sketch(config)
    clock = _serial(sketch, durations, step_ns) if not workers else None
    if clock is None:
        clock = _pool(sketch, durations, workers, prefetch, step_ns, handover_ns, in_order)
    sketch.shutdown(clock, clock + drain_ns)
    sketch.round(0, clock + drain_ns)
    return sketch


def epochs(rounds: Sequence[Sketch], *, pause_ns: int = 0, persistent: bool = True) -> Sketch:
    """Return runs of one loader as rounds of one run; workers that do not persist are new ones."""
    whole = Sketch(dict(rounds[0].config))
    start = n_batches = 0
    for number, sketch in enumerate(rounds):
        end = max(span["end_ns"] for span in sketch.spans if span["lane"] == CONSUMER)
        begun = {span["batch"] for span in sketch.spans if "batch" in span}
        for span in sketch.moved(start.__add__).spans:
            lane = span["lane"]
            lane = lane if persistent or lane == CONSUMER else (*lane, number)
            batch = {"batch": span["batch"] + n_batches} if "batch" in span else {}
            mark = {"sample": number} if span["kind"] == Kind.OTHER else {}
            whole.spans.append({**span, **batch, **mark, "lane": lane})
        start += end + pause_ns
        n_batches += len(begun)
    return whole


def _serial(sketch: Sketch, durations: Sequence[Sequence[int]], step_ns: int) -> int:
    clock = 0
    for batch, stages in enumerate(durations):
        end = _work(sketch, CONSUMER, batch, clock, stages)
        sketch.wait(batch, clock, end, "consumer")
        clock = end + step_ns
    return clock


def _work(sketch: Sketch, lane: Lane, batch: int, start: int, stages: Sequence[int]) -> int:
    for kind, duration in zip(STAGES, stages, strict=True):
        sketch.add(lane, kind, start, start + duration, batch=batch, nbytes=duration)
        start += duration
    return start


def _pool(
    sketch: Sketch,
    durations: Sequence[Sequence[int]],
    workers: int,
    prefetch: int,
    step_ns: int,
    handover_ns: int,
    in_order: bool,
) -> int:
    free = [0] * workers
    ends: list[tuple[int, int]] = []
    submitted = 0

    def submit(worker: int, now: int) -> None:
        nonlocal submitted
        if submitted == len(durations):
            return
        batch, submitted = submitted, submitted + 1
        start = max(now, free[worker])
        sketch.submit(worker, batch, now, start)
        free[worker] = _work(sketch, ("worker", worker), batch, start, durations[batch])
        made[batch] = worker
        ends.append((free[worker], batch) if not in_order else (batch, free[worker]))
        heapq.heapify(ends)

    made: dict[int, int] = {}
    for index in range(workers * prefetch):
        submit(index % workers, 0)
    clock = 0
    for _ in range(len(durations)):
        first = heapq.heappop(ends)
        ready, batch = first if not in_order else first[::-1]
        delivered = max(clock, ready + handover_ns)
        sketch.wait(batch, clock, delivered, f"worker-{made[batch]}", epoch=0)
        submit(made[batch], delivered)
        clock = delivered + step_ns
    return clock


def exposed(profile: RunData, steady: bool = False) -> dict[str, int]:
    """Return the exposed time by stage, of stages that have some."""
    figures = exposure(profile)
    window = figures.steady if steady else figures.whole
    assert window is not None
    return {stage: ns for stage, ns in window.exposed_ns.items() if ns}
