"""Loops that a script compiled itself: the waits in them, and what of them nobody can see.

`GRAPH_WAITS` keeps the waits of a ``tf.function`` that calls ``next(iterator)`` until Python runs
again: the next pass over a dataset, or the end of the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import tensorflow as tf

from iobench.tensorflow.graph_waits import GRAPH_WAITS
from iobench.tensorflow.watching import forget_gone, leave_all, watch_of

if TYPE_CHECKING:
    from iobench.recording.session import Recording
    from iobench.tensorflow.graph_waits import GraphWait

WHOLE_PASS: Final = (
    "tf.data: a pass over a whole dataset inside one operation (for x in dataset in a tf.function, "
    "Dataset.reduce): no clock is read between its batches"
)
DISTRIBUTED: Final = (
    "tf.distribute: the dataset behind {} replicas: each replica asks an iterator of its own, "
    "which counts as a loader here, and their waits come one after the other"
)
NOBODYS: Final = (
    "tf.data: {} waits inside compiled functions, for an iterator that was made before the "
    "recording began"
)
LOST: Final = "tf.data: {} waits inside compiled functions, more than are kept between two passes"

_ending: _Ending | None = None


class _Ending:
    """Writes what is left when a recording, or its window, ends, and ends what is traced."""

    __slots__ = ("__weakref__", "recording")

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def leave(self) -> None:
        write_waits(self.recording)
        leave_all(self.recording)


def expect_end(recording: Recording) -> None:
    """Let what compiled functions wait for, and what is traced, be written at the latest then."""
    global _ending
    if _ending is None or _ending.recording is not recording:
        _ending = _Ending(recording)
        recording.open_log(_ending)


def take_waits(recording: Recording) -> list[GraphWait]:
    """Return the waits of compiled functions since the last taking; none where that fails."""
    try:
        waits = GRAPH_WAITS.take(recording.clock)
    except tf.errors.OpError as error:
        recording.add_unseen(f"tf.data: waits inside compiled functions: {type(error).__name__}")
        return []
    if GRAPH_WAITS.n_lost:
        recording.add_unseen(LOST.format(GRAPH_WAITS.n_lost))
        GRAPH_WAITS.n_lost = 0
    return waits


def write_waits(recording: Recording) -> None:
    """Write the waits of compiled functions so far, each for the pass over its iterator.

    Keras' loops take their own, step by step, and leave none.
    """
    waits = take_waits(recording)
    n_unknown, waited_for = 0, set()
    for wait in waits:
        watch = watch_of(wait)
        if watch is not None and watch.recording is recording:
            watch.waited(wait, just_now=False)
            waited_for.add(watch)
        else:
            n_unknown += 1
    for watch in waited_for:
        watch.read_model()
    if n_unknown:
        recording.add_unseen(NOBODYS.format(n_unknown))
    forget_gone()
