"""What a trace shows beside spans: arrows to waits, counters over time, parts of a run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.deliveries import PHASES
from iobench.recording.kinds import WORKER_KINDS, Kind, Trait, is_one_of, kinds_that
from iobench.recording.span_file import Flag
from iobench.report.timeline.trace_writer import TextPart, as_us, microseconds, texts_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.report.timeline.trace_spans import PlacedSpans
    from iobench.report.timeline.trace_writer import TraceWriter
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]
BINS: Final = 1000
SHORTEST_BIN_NS: Final = 1_000_000
POINT: Final = '{"ph":"%s","name":"batch","cat":"batch","id":%%d,"pid":%%d,"tid":%%d,"ts":%%d.%%03d'


def flow_entries(run: RankRun, placed: PlacedSpans, writer: TraceWriter) -> Iterator[str]:
    """Yield what is known of the deliveries of a training process whose spans were placed."""
    deliveries, spans = run.deliveries, placed.timeline.spans
    if not len(deliveries):
        return
    pid, moved = placed.pids[deliveries.process], int(placed.moved_ns[deliveries.process])
    made, first, last = _made(placed, deliveries)
    yield from _arrows(placed, deliveries, (made, first, last), writer)
    yield from _parts(deliveries, pid, moved, writer)
    yield from _epochs(run, pid, moved)
    ready = run.attribution.ready_ns
    known, finished = ready >= 0, ready[made] >= 0
    taken = np.maximum(deliveries.delivered_ns, ready)[known]
    yield from _counted("queue depth", pid, ready[known] + moved, taken + moved)
    begun = spans["start_ns"][first][finished]
    ended = np.maximum(begun, ready[made][finished])
    yield from _counted("batches in the making", pid, begun + moved, ended + moved)
    edges = _edges(deliveries)
    for name, unit, values in (
        ("bytes read", "bytes/s", read_rates(run, edges)),
        ("exposed share", "share", waited_shares(deliveries, edges)),
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
) -> Iterator[str]:
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
    asked = deliveries.asked_ns[made[0]].tolist()
    found = np.array([wait_at.get(each, -1) for each in asked], dtype=np.int64)
    rows = np.stack((*made[1:], found))[:, found >= 0]
    first, last, wait = rows[:, (start[rows] < end[rows]).all(axis=0)]
    done = np.minimum(end[last], end[wait]) - 1
    ids = writer.ids(len(first))

    def point(letter: str, row: Integers, when: Integers) -> tuple[str, tuple[Integers, ...]]:
        return POINT % letter, (ids, placed.pid[row], placed.tid[row], *as_us(when))

    yield from texts_of_rows(
        len(first),
        (
            TextPart(*point("s", first, start[first])),
            TextPart("},\n"),
            TextPart(*point("t", last, done), last != first),
            TextPart("},\n", (), last != first),
            TextPart(*point("f", wait, np.maximum(start[wait], done))),
            TextPart(',"bp":"e"}'),
        ),
    )


def _parts(deliveries: Deliveries, pid: int, moved_ns: int, writer: TraceWriter) -> Iterator[str]:
    """Yield start-up, fill, steady state and drain as spans of a thread of their own."""
    begins = np.ones(len(deliveries), dtype=bool)
    begins[1:] = (deliveries.phase[1:] != deliveries.phase[:-1]) | (
        deliveries.from_ns[1:] != deliveries.until_ns[:-1]
    )
    tid = writer.thread(pid, "parts of the run")
    for low, high in itertools.pairwise([*np.flatnonzero(begins).tolist(), len(deliveries)]):
        start = int(deliveries.from_ns[low])
        long = int(deliveries.until_ns[high - 1]) - start
        wait = int(deliveries.wait_ns[low:high].sum())
        batches = int((deliveries.batch[low:high] >= 0).sum())
        yield (
            f'{{"ph":"X","name":"{PHASES[deliveries.phase[low]]}","cat":"part","pid":{pid},'
            f'"tid":{tid},"ts":{microseconds(start + moved_ns)},"dur":{microseconds(long)},'
            f'"args":{{"batches":{batches},"wait_ns":{wait}}}}}'
        )


def _epochs(run: RankRun, pid: int, moved_ns: int) -> Iterator[str]:
    """Yield a mark where each epoch begins, by the numbers that tables have."""
    rows = np.flatnonzero(run.deliveries.batch >= 0)
    epoch = run.deliveries.of_epoch[rows]
    numbers, first = np.unique(epoch, return_index=True)
    begins = run.deliveries.asked_ns[rows[first]] + moved_ns
    for number, when in zip(numbers.tolist(), begins.tolist(), strict=True):
        yield (
            f'{{"ph":"i","s":"p","name":"epoch {number}","cat":"epoch","pid":{pid},"tid":{pid},'
            f'"ts":{microseconds(when)}}}'
        )


def _counted(name: str, pid: int, up: Integers, down: Integers) -> Iterator[str]:
    """Yield a counter of batches that goes up at some moments and down at others."""
    moments, place = np.unique(np.concatenate((up, down)), return_inverse=True)
    steps = np.repeat([1, -1], [len(up), len(down)])
    level = np.cumsum(np.bincount(place, steps, len(moments))).astype(np.int64)
    yield from _values(name, "batches", pid, moments, level)


def _values(
    name: str, unit: str, pid: int, moments: Integers, values: NDArray[Any]
) -> Iterator[str]:
    """Yield a counter where it changes."""
    head = f'{{"ph":"C","name":"{name}","cat":"counter","pid":{pid},"tid":0'
    new = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    for moment, value in zip(moments[new].tolist(), values[new].tolist(), strict=True):
        yield f'{head},"ts":{microseconds(moment)},"args":{{"{unit}":{value}}}}}'


def _edges(deliveries: Deliveries) -> Integers:
    """Return the edges of at most so many bins over all deliveries, alike but for the last."""
    low, high = int(deliveries.from_ns.min()), int(deliveries.until_ns.max())
    width = max(-(-(high - low) // BINS), SHORTEST_BIN_NS)
    return np.append(np.arange(low, high, width, dtype=np.int64), max(high, low + 1))


def read_rates(profile: RunData, edges: Integers) -> NDArray[np.float64]:
    """Return the bytes per second that stages read in each bin, each read spread over its time.

    Parameters
    ----------
    edges : ndarray of int64, shape (n_bins + 1,)
        Monotonic, in ns.
    """
    spans = profile.spans
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
    found: NDArray[np.float64] = np.maximum(np.diff(until), 0.0) * 1e9 / np.diff(edges)
    # What float sums leave where nothing is read is none.
    found[found < 1.0] = 0.0
    return found


def waited_shares(deliveries: Deliveries, edges: Integers) -> NDArray[np.float64]:
    """Return what share of each bin the training loop waited."""
    if not len(deliveries):
        return np.zeros(len(edges) - 1)
    moments = np.stack((deliveries.asked_ns, deliveries.delivered_ns), axis=1).ravel()
    before = np.cumsum(deliveries.wait_ns) - deliveries.wait_ns
    waited = np.stack((before, before + deliveries.wait_ns), axis=1).ravel()
    found: NDArray[np.float64] = np.diff(np.interp(edges, moments, waited)) / np.diff(edges)
    return found
