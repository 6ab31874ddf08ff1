"""What a trace shows beside spans: arrows to waits, counters over time, parts of a run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.deliveries import PHASES
from iobench.recording.kinds import WORKER_KINDS, Kind, Trait, is_one_of, kinds_that
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.report.timeline.trace_writer import PlacedSpans, TraceWriter

Integers = NDArray[np.int64]
Entry = dict[str, Any]
BINS: Final = 1000
SHORTEST_BIN_NS: Final = 1_000_000


def delivery_entries(run: RankRun, placed: PlacedSpans, writer: TraceWriter) -> Iterator[Entry]:
    """Yield what is known of the deliveries of a training process whose spans were placed."""
    deliveries, spans = run.deliveries, placed.timeline.spans
    if not len(deliveries):
        return
    pid, moved = placed.pids[deliveries.process], int(placed.moved_ns[deliveries.process])
    created, first, last = _made(placed, deliveries)
    yield from _arrows(placed, deliveries, (created, first, last), writer)
    yield from _parts(deliveries, pid, moved, writer)
    yield from _epochs(run, pid, moved)
    ready = run.attribution.ready_ns
    known, finished = ready >= 0, ready[created] >= 0
    taken = np.maximum(deliveries.delivered_ns, ready)[known]
    yield from _counted("queue depth", pid, ready[known] + moved, taken + moved)
    begun = spans["start_ns"][first][finished]
    ended = np.maximum(begun, ready[created][finished])
    yield from _counted("batches in the making", pid, begun + moved, ended + moved)
    edges = _edges(deliveries)
    for name, unit, values in (
        ("bytes read", "bytes/s", _read_rates(run, edges)),
        ("exposed share", "share", _waited_shares(deliveries, edges)),
    ):
        yield from _values(name, unit, pid, edges + moved, np.append(values, 0.0))


def _made(placed: PlacedSpans, deliveries: Deliveries) -> tuple[Integers, Integers, Integers]:
    """Find who made each delivered batch, but the training loop.

    Returns
    -------
    delivery : ndarray of int64
        Those of which something is known.
    first, last : ndarray of int64, same shape
        The spans of it that began first and ended last.
    """
    spans = placed.timeline.spans
    in_loop = (spans["process"] == deliveries.process) & (spans["thread"] == deliveries.thread)
    chosen = ~in_loop & (spans["batch"] >= 0) & is_one_of(spans["kind"], WORKER_KINDS)
    chosen &= (spans["flags"] & Flag.DEVICE) == 0
    rows = np.flatnonzero(chosen)
    delivery = deliveries.of_batch(spans["batch"][rows])
    before = (delivery >= 0) & (spans["start_ns"][rows] < deliveries.delivered_ns[delivery])
    rows, delivery = rows[before], delivery[before]
    first = _firsts(rows, delivery, placed.start_ns[rows])
    return np.unique(delivery), first, _firsts(rows, delivery, -placed.end_ns[rows])


def _firsts(rows: Integers, delivery: Integers, by: Integers) -> Integers:
    """Return the row of each delivery that has the least of something."""
    order = np.lexsort((by, delivery))
    return rows[order][np.flatnonzero(np.diff(delivery[order], prepend=-1))]


def _arrows(
    placed: PlacedSpans,
    deliveries: Deliveries,
    made: tuple[Integers, Integers, Integers],
    writer: TraceWriter,
) -> Iterator[Entry]:
    """Yield an arrow for each batch: from its first work by its last to the wait that got it.

    Each end lies inside a span, before its last moment, as viewers look for the span there.
    """
    spans, start, end = placed.timeline.spans, placed.start_ns, placed.end_ns
    waits = np.flatnonzero(
        (spans["kind"] == Kind.WAIT)
        & (spans["flags"] == 0)
        & (spans["process"] == deliveries.process)
        & (spans["thread"] == deliveries.thread)
    )
    wait_at = dict(zip(spans["start_ns"][waits].tolist(), waits.tolist(), strict=True))
    for delivery, first, last in zip(*(each.tolist() for each in made), strict=True):
        wait = wait_at.get(int(deliveries.asked_ns[delivery]), -1)
        if wait < 0 or any(start[row] >= end[row] for row in (first, last, wait)):
            continue
        done = min(end[last], end[wait]) - 1
        points = [
            ("s", first, start[first]),
            ("t", last, done),
            ("f", wait, max(start[wait], done)),
        ]
        arrow = writer.id()
        for letter, row, when in points if last != first else points[::2]:
            entry: Entry = {
                "ph": letter,
                "name": "batch",
                "cat": "batch",
                "id": arrow,
                "pid": int(placed.pid[row]),
                "tid": int(placed.tid[row]),
                "ts": int(when) / 1000,
            }
            yield {**entry, "bp": "e"} if letter == "f" else entry


def _parts(deliveries: Deliveries, pid: int, moved_ns: int, writer: TraceWriter) -> Iterator[Entry]:
    """Yield start-up, fill, steady state and drain as spans of a thread of their own."""
    begins = np.ones(len(deliveries), dtype=bool)
    begins[1:] = (deliveries.phase[1:] != deliveries.phase[:-1]) | (
        deliveries.from_ns[1:] != deliveries.until_ns[:-1]
    )
    tid = writer.thread(pid, "parts of the run")
    for low, high in itertools.pairwise([*np.flatnonzero(begins).tolist(), len(deliveries)]):
        start = int(deliveries.from_ns[low])
        yield {
            "ph": "X",
            "name": PHASES[deliveries.phase[low]],
            "cat": "part",
            "pid": pid,
            "tid": tid,
            "ts": (start + moved_ns) / 1000,
            "dur": (int(deliveries.until_ns[high - 1]) - start) / 1000,
            "args": {
                "batches": int((deliveries.batch[low:high] >= 0).sum()),
                "wait_ns": int(deliveries.wait_ns[low:high].sum()),
            },
        }


def _epochs(run: RankRun, pid: int, moved_ns: int) -> Iterator[Entry]:
    """Yield a mark where each epoch begins, by the numbers that tables have."""
    rows = np.flatnonzero(run.deliveries.batch >= 0)
    numbers, first = np.unique(run.deliveries.of_epoch[rows], return_index=True)
    begins = run.deliveries.asked_ns[rows[first]] + moved_ns
    for number, when in zip(numbers.tolist(), begins.tolist(), strict=True):
        mark = {"ph": "i", "s": "p", "name": f"epoch {number}", "cat": "epoch"}
        yield {**mark, "pid": pid, "tid": pid, "ts": when / 1000}


def _counted(name: str, pid: int, up: Integers, down: Integers) -> Iterator[Entry]:
    """Yield a counter of batches that goes up at some moments and down at others."""
    moments, place = np.unique(np.concatenate((up, down)), return_inverse=True)
    steps = np.repeat([1, -1], [len(up), len(down)])
    level = np.cumsum(np.bincount(place, steps, len(moments))).astype(np.int64)
    yield from _values(name, "batches", pid, moments, level)


def _values(
    name: str, unit: str, pid: int, moments: Integers, values: NDArray[Any]
) -> Iterator[Entry]:
    """Yield a counter where it changes."""
    head = {"ph": "C", "name": name, "cat": "counter", "pid": pid, "tid": 0}
    new = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    for moment, value in zip(moments[new].tolist(), values[new].tolist(), strict=True):
        yield {**head, "ts": moment / 1000, "args": {unit: value}}


def _edges(deliveries: Deliveries) -> Integers:
    """Return the edges of at most so many bins over all deliveries, alike but for the last."""
    low, high = int(deliveries.from_ns.min()), int(deliveries.until_ns.max())
    width = max(-(-(high - low) // BINS), SHORTEST_BIN_NS)
    return np.append(np.arange(low, high, width, dtype=np.int64), max(high, low + 1))


def _read_rates(run: RankRun, edges: Integers) -> NDArray[np.float64]:
    """Return the bytes per second that stages read in each bin, each read spread over its time."""
    spans = run.spans
    reads = spans[
        is_one_of(spans["kind"], kinds_that(Trait.TELLS_READ))
        & ((spans["flags"] & (Flag.DETAIL | Flag.IO | Flag.DEVICE)) == 0)
        & (spans["nbytes"] > 0)
    ]
    start, end = reads["start_ns"], np.maximum(reads["end_ns"], reads["start_ns"] + 1)
    # How much has been read until each edge: all that ended before, and parts of what is open.
    moments = np.concatenate((start, end))
    slope = reads["nbytes"] / (end - start)
    change = np.concatenate((slope, -slope))
    order = np.argsort(moments, kind="stable")
    moments, rate = moments[order], np.cumsum(change[order])
    read = np.append(0.0, np.cumsum(rate[:-1] * np.diff(moments))) if len(order) else moments
    until = np.interp(edges, moments, read) if len(order) else np.zeros(len(edges))
    result: NDArray[np.float64] = np.maximum(np.diff(until), 0.0) * 1e9 / np.diff(edges)
    # What float sums leave where nothing is read is none.
    result[result < 1.0] = 0.0
    return result


def _waited_shares(deliveries: Deliveries, edges: Integers) -> NDArray[np.float64]:
    """Return what share of each bin the training loop waited."""
    if not len(deliveries):
        return np.zeros(len(edges) - 1)
    moments = np.stack((deliveries.asked_ns, deliveries.delivered_ns), axis=1).ravel()
    before = np.cumsum(deliveries.wait_ns) - deliveries.wait_ns
    waited = np.stack((before, before + deliveries.wait_ns), axis=1).ravel()
    result: NDArray[np.float64] = np.diff(np.interp(edges, moments, waited)) / np.diff(edges)
    return result
