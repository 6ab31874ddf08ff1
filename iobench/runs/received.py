"""Whose waits for batches are the training loop's, where threads hand them on to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.recording.kinds import RECEIVED, SHUTDOWN, Kind, batch_keys, lane_keys
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def with_received(spans: NDArray[Any], strings: Sequence[str]) -> NDArray[Any]:
    """Return spans of which the waits in sums are those of the threads that train.

    A thread trains in which optimisers step; of a process without any, in which backward passes
    are. What it received from other threads it waited for; these ask loaders for it, and their
    waits for the same passes are in no sum. Waits of other threads for what they received are none
    either, and where no thread that trains received anything all stays as it was written.
    """
    if RECEIVED not in strings:
        return spans
    lanes, in_sums = lane_keys(spans), (spans["flags"] & (Flag.DETAIL | Flag.DEVICE)) == 0
    waits = spans["kind"] == Kind.WAIT
    received = waits & ~in_sums & (spans["label"] == strings.index(RECEIVED))
    trains = lanes_that_train(spans[in_sums], lanes[in_sums])
    taken = received & np.isin(lanes, trains)
    if not taken.any():
        return spans
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
    asked = waits & in_sums & np.isin(passes, passes[taken]) & ~np.isin(lanes, trains)
    result["flags"][asked] = Flag.DETAIL
    return result


def lanes_that_train(spans: NDArray[Any], lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the threads that train, of each process by what says most."""
    steps, backward = (
        np.unique(lanes[spans["kind"] == kind]) for kind in (Kind.STEP, Kind.BACKWARD)
    )
    rest = backward[~np.isin(backward >> 32, steps >> 32)]
    return np.concatenate((steps, rest))
