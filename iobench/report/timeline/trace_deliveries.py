"""What a trace shows beside spans: arrows to waits, the queue of batches, parts of a run."""

from __future__ import annotations

import itertools
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.deliveries import PHASES
from iobench.recording.kinds import WORKER_KINDS, Kind, is_one_of
from iobench.recording.span_file import Flag
from iobench.report.timeline.trace_writer import Event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.deliveries import Deliveries
    from iobench.report.timeline.chrome_trace import PlacedSpans

Integers = NDArray[np.int64]


def delivery_events(placed: PlacedSpans) -> Iterator[Event]:
    """Yield what is known of the deliveries of a training process whose spans were placed."""
    deliveries = placed.run.deliveries
    if not len(deliveries):
        return
    pid, moved = placed.pids[deliveries.process], int(placed.moved_ns[deliveries.process])
    created, first, last = _work(placed, deliveries)
    yield from _arrows(placed, deliveries, created, first, last)
    yield from _parts(placed, deliveries, pid, moved)
    with_batch = np.flatnonzero(deliveries.batch >= 0)
    numbers, begins = np.unique(deliveries.of_epoch[with_batch], return_index=True)
    for number, when in zip(
        numbers.tolist(),
        (deliveries.requested_ns[with_batch[begins]] + moved).tolist(),
        strict=True,
    ):
        yield Event("i", f"epoch {number}", pid, pid, when / 1000, "epoch", s="p")
    ready = placed.run.attribution.ready_ns
    known = ready >= 0
    taken = np.maximum(deliveries.delivered_ns, ready)[known]
    yield from _counted("queue depth", pid, ready[known] + moved, taken + moved)


def _work(placed: PlacedSpans, deliveries: Deliveries) -> tuple[Integers, Integers, Integers]:
    """Return deliveries made outside the loop, and of each the spans first begun and last ended."""
    spans = placed.timeline.spans
    in_loop = (spans["process"] == deliveries.process) & (spans["thread"] == deliveries.thread)
    chosen = ~in_loop & (spans["batch"] >= 0) & is_one_of(spans["kind"], WORKER_KINDS)
    rows = np.flatnonzero(chosen & ((spans["flags"] & Flag.DEVICE) == 0))
    delivery = deliveries.of_batch(spans["batch"][rows])
    before = (delivery >= 0) & (spans["start_ns"][rows] < deliveries.delivered_ns[delivery])
    rows, delivery = rows[before], delivery[before]

    def firsts(by: Integers) -> Integers:
        order = np.lexsort((by, delivery))
        return rows[order][np.flatnonzero(np.diff(delivery[order], prepend=-1))]

    return np.unique(delivery), firsts(placed.start_ns[rows]), firsts(-placed.end_ns[rows])


def _arrows(
    placed: PlacedSpans, deliveries: Deliveries, created: Integers, first: Integers, last: Integers
) -> Iterator[Event]:
    """Yield an arrow for each batch: from its first work by its last to the wait that got it.

    Each end lies inside a span, before its last moment, as viewers look for the span there.
    """
    spans, start, end = placed.timeline.spans, placed.start_ns, placed.end_ns
    in_loop = (spans["process"] == deliveries.process) & (spans["thread"] == deliveries.thread)
    waits = np.flatnonzero(in_loop & (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    wait_at = dict(zip(spans["start_ns"][waits].tolist(), waits.tolist(), strict=True))
    wait = np.array(
        [wait_at.get(each, -1) for each in deliveries.requested_ns[created].tolist()],
        dtype=np.int64,
    )
    whole = wait >= 0
    for rows in (first, last, wait):
        whole &= start[rows] < end[rows]
    first, last, wait = first[whole], last[whole], wait[whole]
    ids = np.array([*itertools.islice(placed.writer.ids, len(wait))], dtype=np.int64)
    done = np.minimum(end[last], end[wait]) - 1
    apart = last != first
    none = repeat(None)
    for letter, rows, when, number in (
        ("s", first, start[first], ids),
        ("t", last[apart], done[apart], ids[apart]),
        ("f", wait, np.maximum(start[wait], done), ids),
    ):
        yield from map(
            Event,
            *(repeat(letter), repeat("batch"), placed.pid[rows].tolist()),
            *(placed.tid[rows].tolist(), (when / 1000).tolist(), repeat("batch")),
            *(none, none, number.tolist(), repeat("e" if letter == "f" else None)),
        )


def _parts(placed: PlacedSpans, deliveries: Deliveries, pid: int, moved_ns: int) -> Iterator[Event]:
    """Yield start-up, fill, steady state and drain as spans of a thread of their own."""
    begins = np.ones(len(deliveries), dtype=bool)
    begins[1:] = (deliveries.phase[1:] != deliveries.phase[:-1]) | (
        deliveries.from_ns[1:] != deliveries.until_ns[:-1]
    )
    tid = placed.writer.thread(pid, "parts of the run")
    for low, high in itertools.pairwise([*np.flatnonzero(begins).tolist(), len(deliveries)]):
        start, end = int(deliveries.from_ns[low]), int(deliveries.until_ns[high - 1])
        args = {
            "batches": int((deliveries.batch[low:high] >= 0).sum()),
            "wait_ns": int(deliveries.wait_ns[low:high].sum()),
        }
        name, ts = PHASES[deliveries.phase[low]], (start + moved_ns) / 1000
        yield Event("X", name, pid, tid, ts, "part", (end - start) / 1000, args)


def _counted(name: str, pid: int, up: Integers, down: Integers) -> Iterator[Event]:
    """Yield a counter of batches that goes up at some moments and down at others."""
    moments, place = np.unique(np.concatenate((up, down)), return_inverse=True)
    steps = np.repeat([1, -1], [len(up), len(down)])
    level = np.cumsum(np.bincount(place, steps, len(moments))).astype(np.int64)
    new = np.flatnonzero(np.append(True, level[1:] != level[:-1])[: len(level)])
    for moment, value in zip(moments[new].tolist(), level[new].tolist(), strict=True):
        yield Event("C", name, pid, 0, moment / 1000, "counter", args={"batches": value})
