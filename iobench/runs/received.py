"""Whose waits for batches are the training loop's, where threads hand them on to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.recording.kinds import (
    LOOP_KINDS,
    RECEIVED,
    SHUTDOWN,
    Kind,
    batch_keys,
    is_one_of,
    lane_keys,
)
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

STAGES: Final = LOOP_KINDS - {Kind.OTHER} | {Kind.WAIT}
"""What a thread that trains does: what it waits for in these is theirs."""


def with_received(spans: NDArray[Any], strings: Sequence[str]) -> NDArray[Any]:
    """Return spans of which the waits in sums are those of the threads that train.

    A thread trains in which optimisers step; of a process without any, in which backward passes
    are. What it received from other threads it waited for; these ask loaders for it, and their
    waits for the same passes are in no sum. Waits of other threads for what they received are none
    either, and where no thread that trains received anything all stays as it was written. Whatever
    else a thread that trains waited for, between two of its stages, is of kind ``blocked``.
    """
    blocked = spans["kind"] == Kind.BLOCKED
    if RECEIVED not in strings and not blocked.any():
        return spans
    lanes, in_sums = lane_keys(spans), (spans["flags"] & (Flag.DETAIL | Flag.DEVICE)) == 0
    waits = spans["kind"] == Kind.WAIT
    is_received = spans["label"] == (strings.index(RECEIVED) if RECEIVED in strings else -1)
    trains = lanes_that_train(spans[in_sums], lanes[in_sums])
    taken = waits & ~in_sums & is_received & np.isin(lanes, trains)
    # A batch in several parts came with the first one.
    rows = np.flatnonzero(taken & (spans["batch"] >= 0))
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    _, first = np.unique(batch_keys(spans[rows]), return_index=True)
    taken[np.delete(rows, first)] = False
    result = spans.copy()
    result["flags"][taken] = 0
    result["label"][taken] = 0
    if SHUTDOWN in strings:
        result["label"][taken & (spans["batch"] < 0)] = strings.index(SHUTDOWN)
    passes = spans["process"].astype(np.int64) << 32 | spans["sample"]
    replaced = waits & in_sums & np.isin(passes, passes[taken]) & ~np.isin(lanes, trains)
    result["flags"][replaced] = Flag.DETAIL
    around = ((in_sums & is_one_of(spans["kind"], STAGES)) | taken | blocked) & ~replaced
    for lane in trains:
        rows = np.flatnonzero(around & (lanes == lane))
        ends = spans["end_ns"][rows].astype(np.int64)
        rows = rows[np.lexsort((-ends, spans["start_ns"][rows]))]
        before = np.maximum.accumulate(spans["end_ns"][rows])[:-1]
        outer = rows[np.append(True, spans["end_ns"][rows][1:] > before)[: len(rows)]]
        result["flags"][outer[blocked[outer]]] = 0
    return result


def lanes_that_train(spans: NDArray[Any], lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the threads that train, of each process by what says most."""
    steps, backward = (
        np.unique(lanes[spans["kind"] == kind]) for kind in (Kind.STEP, Kind.BACKWARD)
    )
    rest = backward[~np.isin(backward >> 32, steps >> 32)]
    return np.concatenate((steps, rest))
