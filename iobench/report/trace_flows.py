"""What a trace shows beside spans: arrows to waits, counters over time, parts of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.deliveries import PHASES
from iobench.analysis.epoch_numbers import epoch_of_deliveries
from iobench.recording.kinds import WORKER_KINDS, Kind, Trait, is_one_of, kinds_that
from iobench.recording.span_file import Flag
from iobench.report.trace_entries import microseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.deliveries import Deliveries
    from iobench.analysis.run import RankRun
    from iobench.profiles.contents import Profile
    from iobench.report.trace_entries import EntryFile, TraceNumbers
    from iobench.report.trace_spans import PlacedSpans

__all__ = ["write_flows"]

Integers = NDArray[np.int64]
BINS: Final = 1000
SHORTEST_BIN_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Made:
    """The spans that made each delivered batch: the first begun and the last finished of them."""

    delivery: Integers
    first: Integers
    last: Integers


def write_flows(
    measured: RankRun, placed: PlacedSpans, numbers: TraceNumbers, entries: EntryFile
) -> None:
    """Write what is known of the deliveries of one training process.

    Parameters
    ----------
    measured : RankRun
        Of the profile whose spans were placed.
    placed : PlacedSpans
    numbers : TraceNumbers
    entries : EntryFile
    """
    deliveries = measured.deliveries
    if not len(deliveries):
        return
    made = _made(placed, deliveries)
    pid, moved = placed.pids[deliveries.process], int(placed.moved_ns[deliveries.process])
    entries.add_all(_arrows(placed, deliveries, made, numbers))
    entries.add_all(_parts(deliveries, pid, moved, numbers))
    entries.add_all(_epochs(measured, pid, moved))
    ready = measured.attribution.ready_ns
    known = np.flatnonzero(ready >= 0)
    begun = placed.start_ns[made.first] - placed.moved_ns[_process(placed, made.first)]
    ready_of_made = ready[made.delivery]
    finished = ready_of_made >= 0
    taken = np.maximum(deliveries.delivered_ns, ready)
    for name, unit, up, down in (
        ("queue depth", "batches", ready[known], taken[known]),
        ("batches in the making", "batches", begun[finished], ready_of_made[finished]),
    ):
        entries.add_all(_counted(name, unit, pid, up + moved, np.maximum(up, down) + moved))
    edges = _edges(deliveries)
    rates = read_rates(measured.profile, edges), waited_shares(deliveries, edges)
    for name, unit, values in zip(
        ("bytes read", "exposed share"), ("bytes/s", "share"), rates, strict=True
    ):
        entries.add_all(_sampled(name, unit, pid, edges + moved, values))


def _process(placed: PlacedSpans, rows: Integers) -> Integers:
    return placed.timeline.spans["process"][rows].astype(np.int64)


def _made(placed: PlacedSpans, deliveries: Deliveries) -> _Made:
    """Find the work on each delivered batch that others than the training loop did."""
    spans = placed.timeline.spans
    in_loop = (spans["process"] == deliveries.process) & (spans["thread"] == deliveries.thread)
    chosen = ~in_loop & (spans["batch"] >= 0) & is_one_of(spans["kind"], WORKER_KINDS)
    chosen &= (spans["flags"] & Flag.DEVICE) == 0
    rows = np.flatnonzero(chosen)
    with_batch = np.flatnonzero(deliveries.batch >= 0)
    with_batch = with_batch[np.argsort(deliveries.batch[with_batch], kind="stable")]
    batches = deliveries.batch[with_batch]
    place = np.searchsorted(batches, spans["batch"][rows])
    found = place < len(batches)
    found[found] = batches[place[found]] == spans["batch"][rows][found]
    rows, delivery = rows[found], with_batch[place[found]]
    before = spans["start_ns"][rows] < deliveries.delivered_ns[delivery]
    rows, delivery = rows[before], delivery[before]
    first = _firsts(rows, delivery, placed.start_ns[rows])
    last = _firsts(rows, delivery, -placed.end_ns[rows])
    return _Made(np.unique(delivery), first, last)


def _firsts(rows: Integers, delivery: Integers, by: Integers) -> Integers:
    """Return the row of each delivery that has the least of something."""
    order = np.lexsort((by, delivery))
    return rows[order][np.flatnonzero(np.diff(delivery[order], prepend=-1))]


def _arrows(
    placed: PlacedSpans, deliveries: Deliveries, made: _Made, numbers: TraceNumbers
) -> Iterator[str]:
    """Yield an arrow for each batch: from its first work by its last to the wait that got it.

    Each end lies inside a span, before its last moment, as viewers look for the span there.
    """
    spans = placed.timeline.spans
    waits = np.flatnonzero((spans["kind"] == Kind.WAIT) & (spans["flags"] == 0))
    at = (spans["process"][waits] == deliveries.process) & (
        spans["thread"][waits] == deliveries.thread
    )
    wait_at = dict(zip(spans["start_ns"][waits[at]].tolist(), waits[at].tolist(), strict=True))
    start, end, pid, tid = placed.start_ns, placed.end_ns, placed.pid, placed.tid
    asked = deliveries.asked_ns.tolist()
    for delivery, first, last in zip(
        made.delivery.tolist(), made.first.tolist(), made.last.tolist(), strict=True
    ):
        wait = wait_at.get(asked[delivery])
        if wait is None or any(start[row] >= end[row] for row in (first, last, wait)):
            continue
        done = min(int(end[last]), int(end[wait])) - 1
        got = max(int(start[wait]), done)
        same = f'"name":"batch","cat":"batch","id":{numbers.arrow()}'
        points = [("s", first, int(start[first])), ("f", wait, got)]
        if last != first:
            points.insert(1, ("t", last, done))
        for letter, row, when in points:
            bound = ',"bp":"e"' if letter == "f" else ""
            yield (
                f'{{"ph":"{letter}",{same},"pid":{pid[row]},"tid":{tid[row]},'
                f'"ts":{microseconds(when)}{bound}}}'
            )


def _parts(deliveries: Deliveries, pid: int, moved_ns: int, numbers: TraceNumbers) -> Iterator[str]:
    """Yield start-up, fill, steady state and drain as spans of a thread of their own."""
    begins = np.ones(len(deliveries), dtype=bool)
    begins[1:] = (deliveries.phase[1:] != deliveries.phase[:-1]) | (
        deliveries.from_ns[1:] != deliveries.until_ns[:-1]
    )
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(deliveries)) - 1
    tid = numbers.thread(pid, "parts of the run")
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        start = int(deliveries.from_ns[low])
        long = int(deliveries.until_ns[high]) - start
        wait = int(deliveries.wait_ns[low : high + 1].sum())
        batches = int((deliveries.batch[low : high + 1] >= 0).sum())
        yield (
            f'{{"ph":"X","name":"{PHASES[deliveries.phase[low]]}","cat":"part","pid":{pid},'
            f'"tid":{tid},"ts":{microseconds(start + moved_ns)},"dur":{microseconds(long)},'
            f'"args":{{"batches":{batches},"wait_ns":{wait}}}}}'
        )


def _epochs(measured: RankRun, pid: int, moved_ns: int) -> Iterator[str]:
    """Yield a mark where each epoch begins, by the numbers that tables have."""
    deliveries = measured.deliveries
    rows = np.flatnonzero(deliveries.batch >= 0)
    numbers, first = np.unique(
        epoch_of_deliveries(measured.loop, measured.deliveries)[rows], return_index=True
    )
    for number, row in zip(numbers.tolist(), rows[first].tolist(), strict=True):
        when = microseconds(int(deliveries.asked_ns[row]) + moved_ns)
        yield (
            f'{{"ph":"i","s":"p","name":"epoch {number}","cat":"epoch","pid":{pid},"tid":{pid},'
            f'"ts":{when}}}'
        )


def _counted(name: str, unit: str, pid: int, up: Integers, down: Integers) -> Iterator[str]:
    """Yield a counter that goes up at some moments and down at others, where it changes."""
    times = np.concatenate((up, down))
    steps = np.repeat([1, -1], [len(up), len(down)])
    moments, place = np.unique(times, return_inverse=True)
    level = np.cumsum(np.bincount(place.reshape(-1), steps, len(moments))).astype(np.int64)
    yield from _values(name, unit, pid, moments, level)


def _sampled(
    name: str, unit: str, pid: int, edges: Integers, values: NDArray[np.float64]
) -> Iterator[str]:
    yield from _values(name, unit, pid, edges, np.append(values, 0.0))


def _values(
    name: str, unit: str, pid: int, moments: Integers, values: NDArray[Any]
) -> Iterator[str]:
    head = f'{{"ph":"C","name":"{name}","cat":"counter","pid":{pid},"tid":0'
    new = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    for moment, value in zip(moments[new].tolist(), values[new].tolist(), strict=True):
        yield f'{head},"ts":{microseconds(moment)},"args":{{"{unit}":{value}}}}}'


def _edges(deliveries: Deliveries) -> Integers:
    """Return the edges of at most so many bins over all deliveries, alike but for the last."""
    low, high = int(deliveries.from_ns.min()), int(deliveries.until_ns.max())
    width = max(-(-(high - low) // BINS), SHORTEST_BIN_NS)
    return np.append(np.arange(low, high, width, dtype=np.int64), max(high, low + 1))


def read_rates(profile: Profile, edges: Integers) -> NDArray[np.float64]:
    """Return the bytes per second that stages read in each bin, each read spread over its time.

    Parameters
    ----------
    profile : Profile
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
