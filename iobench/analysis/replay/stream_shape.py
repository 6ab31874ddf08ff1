"""How the threads of a stream hang together, by their spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.simulator import StreamShape
from iobench.recording.span_keys import halves

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

Integers = NDArray[np.int64]


class StreamPieces(msgspec.Struct, frozen=True):
    """The pieces of a stream's batches; arrays of one row per piece, in any order.

    Parameters
    ----------
    start_ns, end_ns, lane, stage, batch : ndarray of int64
        ``batch`` is the batch's place.
    sample : ndarray of int64
        -1 where the work is of a whole batch.
    """

    start_ns: Integers
    end_ns: Integers
    lane: Integers
    stage: Integers
    batch: Integers
    sample: Integers


def find_shape(
    profile: RunData,
    lanes: Integers,
    pieces: StreamPieces,
    releases: Integers,
    asked_ns: Integers,
    *,
    n_stages: int,
    batches_ahead: int,
) -> StreamShape | None:
    """Return how a stream's threads hang together; None where nothing tells.

    Threads whose names differ in their last number only are one group. How many items a group may
    have ready is seen where one of its threads was held back: it went on when one of those was
    taken.

    Parameters
    ----------
    lanes : ndarray of int64
        Process and thread of each lane, as `lane_keys`.
    releases : ndarray of int64, shape (n_releases, 4)
        As of `Lanes`.
    asked_ns : ndarray of int64
        When the training loop asked for each batch.
    batches_ahead : int
        As configured.
    """
    if not len(pieces.lane):
        return None
    names = [
        profile.processes[process].threads[thread].rpartition("-")[0]
        for process, thread in map(halves, lanes.tolist())
    ]
    used = np.unique(pieces.lane).tolist()
    first = {
        name: min(
            int(pieces.start_ns[pieces.lane == lane].min()) for lane in used if names[lane] == name
        )
        for name in {names[lane] for lane in used}
    }
    groups = sorted(first, key=lambda name: (first[name], name))
    of_lane = np.array([groups.index(name) if name in first else -1 for name in names])
    group = of_lane[pieces.lane]
    n_items = [_items(pieces, group == number) for number in range(len(groups))]
    of_batches = pieces.sample[group == len(groups) - 1]
    batches_apart = len(groups) > 1 and bool((of_batches < 0).all())
    items = max(n_items)
    spent = np.zeros((n_stages, len(groups)), dtype=np.int64)
    np.add.at(spent, (pieces.stage, group), pieces.end_ns - pieces.start_ns)
    edges = [_edges(pieces, group == number) for number in range(len(groups))]
    ahead = []
    for number in range(len(groups)):
        begins, last = edges[number][0], number == len(groups) - 1
        if last:
            takes = np.repeat(asked_ns, n_items[number])
        elif batches_apart and number == len(groups) - 2:
            room = asked_ns[: max(len(asked_ns) - batches_ahead, 0)]
            takes = _taken_for_batches(edges[number][1], edges[-1][1], room, batches_ahead)
        else:
            takes = edges[number + 1][0]
        of_group = releases[of_lane[releases[:, 0]] == number]
        least = batches_ahead * (1 if batches_apart else n_items[number]) if last else 1
        ahead.append(_ahead(of_group, begins, takes) or max(least, _seen_ahead(begins, takes)))
    return StreamShape(
        group=tuple(np.argmax(spent, axis=1).tolist()),
        threads=tuple(int((of_lane[used] == number).sum()) for number in range(len(groups))),
        ahead=tuple(ahead),
        items=items,
        batches_apart=batches_apart,
    )


def _items(pieces: StreamPieces, chosen: NDArray[np.bool_]) -> int:
    """Return the median number of items of a batch that a group works on."""
    keys = np.unique(np.stack((pieces.batch[chosen], pieces.sample[chosen])), axis=1)
    return int(np.median(np.unique(keys[0], return_counts=True)[1]))


def _edges(pieces: StreamPieces, chosen: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Return when each item of a group was begun and finished, in order of time."""
    order = np.lexsort((pieces.start_ns[chosen], pieces.sample[chosen], pieces.batch[chosen]))
    batch, sample = pieces.batch[chosen][order], pieces.sample[chosen][order]
    new = (np.diff(batch, prepend=-1) != 0) | (np.diff(sample, prepend=-2) != 0)
    first = np.flatnonzero(new)
    ends = np.maximum.reduceat(pieces.end_ns[chosen][order], first)
    return np.sort(pieces.start_ns[chosen][order][first]), np.sort(ends)


def _taken_for_batches(
    made: Integers, batches: Integers, room: Integers, batches_ahead: int
) -> Integers:
    """Return when the maker of batches took each item: once it was there, and one batch done."""
    n_items = max(len(made) // max(len(batches), 1), 1)
    free = np.full(len(batches), np.iinfo(np.int64).min)
    free[1:] = batches[:-1]
    held = room[: max(len(free) - batches_ahead, 0)]
    free[batches_ahead : batches_ahead + len(held)] = np.maximum(
        free[batches_ahead : batches_ahead + len(held)], held
    )
    begun = np.repeat(free, n_items)
    n = min(len(begun), len(made))
    taken: Integers = np.maximum.accumulate(np.maximum(begun[:n], made[:n]))
    return taken


def _ahead(releases: Integers, begins: Integers, takes: Integers) -> int | None:
    """Return how many items after the one just taken a thread went on with, where it was held."""
    release, until = releases[:, 1], releases[:, 2]
    item = np.searchsorted(begins, until)
    taken = np.searchsorted(takes, release, side="right") - 1
    lags = (item - taken)[(item > taken) & (taken >= 1)]
    values, counts = np.unique(lags, return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else None


def _seen_ahead(begins: Integers, takes: Integers) -> int:
    """Return the most items a group was ahead, which it had room for."""
    taken = np.searchsorted(takes, begins, side="right")
    return int((np.arange(1, len(begins) + 1) - taken).max(initial=1))
