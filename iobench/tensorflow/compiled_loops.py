"""Loops that a script compiled itself: the waits in them, and what of them nobody can see.

`GRAPH_WAITS` keeps the waits of a ``tf.function`` that calls ``next(iterator)`` until Python runs
again: the next pass over a dataset, or the end of the recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import tensorflow as tf

from iobench.tensorflow.graph_waits import GRAPH_WAITS
from iobench.tensorflow.watching import latest_watch

if TYPE_CHECKING:
    from iobench.recording import Recording

__all__ = ["DISTRIBUTED", "WHOLE_PASS", "expect_waits", "write_waits"]

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

_last: _LastWaits | None = None


class _LastWaits:
    """Writes what is left when a recording, or its window, ends."""

    __slots__ = ("__weakref__", "recording")

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def leave(self) -> None:
        write_waits(self.recording)


def expect_waits(recording: Recording) -> None:
    """Let the waits of a function that is being compiled be written, at the end at the latest."""
    global _last
    if _last is None or _last.recording is not recording:
        _last = _LastWaits(recording)
        recording.open_log(_last)


def write_waits(recording: Recording) -> None:
    """Write the waits of compiled functions so far, for the pass that was begun last.

    Keras' loops take their own, step by step, and leave none.
    """
    try:
        waits = GRAPH_WAITS.take(recording.clock)
    except tf.errors.OpError as error:
        recording.add_unseen(f"tf.data: waits inside compiled functions: {type(error).__name__}")
        return
    if GRAPH_WAITS.n_lost:
        recording.add_unseen(LOST.format(GRAPH_WAITS.n_lost))
        GRAPH_WAITS.n_lost = 0
    watch = latest_watch()
    if watch is not None and watch.recording is recording:
        for wait in waits:
            watch.waited(*wait)
    elif waits:
        recording.add_unseen(NOBODYS.format(len(waits)))
