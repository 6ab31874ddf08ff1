"""Hand-made profiles: spans written down, or made by the recurrence of an in-order worker pool."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iobench.analysis.run import exposure
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.contents import RunData
    from tests.support.sketched_runs import Lane

STAGES = (Kind.READ, Kind.DECODE, Kind.COLLATE)


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
) -> SketchedRun:
    """Return the run of a worker pool, or of a serial loader with 0 workers.

    ``durations[batch]`` are the times of `STAGES`. Batch i goes to worker i mod N, is submitted
    when batch i - N*P is delivered, or, out of order, when any batch of its worker is.
    """
    names = [f"worker-{worker}" for worker in range(workers)]
    config = {"workers": workers, "prefetch": prefetch, "expected_workers": names, "batch_size": 4}
    sketch = SketchedRun(config)
    clock = _serial(sketch, durations, step_ns) if not workers else None
    if clock is None:
        clock = _pool(sketch, durations, workers, prefetch, step_ns, handover_ns, in_order)
    sketch.shutdown(clock, clock + drain_ns)
    sketch.round(0, clock + drain_ns)
    return sketch


def epochs(
    rounds: Sequence[SketchedRun], *, pause_ns: int = 0, persistent: bool = True
) -> SketchedRun:
    """Return runs of one loader as rounds of one run; workers that do not persist are new ones."""
    whole = SketchedRun(dict(rounds[0].config))
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


def _serial(sketch: SketchedRun, durations: Sequence[Sequence[int]], step_ns: int) -> int:
    clock = 0
    for batch, stages in enumerate(durations):
        end = _work(sketch, CONSUMER, batch, clock, stages)
        sketch.wait(batch, clock, end, "consumer")
        clock = end + step_ns
    return clock


def _work(sketch: SketchedRun, lane: Lane, batch: int, start: int, stages: Sequence[int]) -> int:
    for kind, duration in zip(STAGES, stages, strict=True):
        sketch.add(lane, kind, start, start + duration, batch=batch, nbytes=duration)
        start += duration
    return start


def _pool(
    sketch: SketchedRun,
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
