"""Waits for batches inside compiled functions, where no Python runs: Keras' ``fit`` among them.

Two readings of TensorFlow's clock go in around each question; random numbers are counted apart.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import tensorflow as tf

try:  # one that no strategy of tf.distribute turns into one for each replica
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable
except ImportError:
    ResourceVariable = tf.Variable

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.recording.clocks import Clock

HOST: Final = "CPU:0"
CAPACITY: Final = 1 << 14
COLUMNS: Final = 4
KEYS: Final = 1 << 52
"""Few enough for a floating-point number to tell them apart."""


class GraphWait(NamedTuple):
    """A wait in a compiled function: when, whether a batch came, and `iterator_key` of whom."""

    requested_ns: int
    delivered_ns: int
    is_batch: bool
    iterator: int


def iterator_key(iterator: Any) -> Any:
    """Return a number that an iterator has in Python and in compiled functions; -1 for unknown."""
    try:
        resource = iterator._iterator_resource
        name = tf.raw_ops.IteratorToStringHandle(resource_handle=resource)
        with tf.device(HOST):
            return tf.strings.to_hash_bucket_fast(name, KEYS)
    except (AttributeError, TypeError, ValueError, tf.errors.OpError):
        return tf.constant(-1, tf.int64)


class GraphWaits:
    """The waits of this process's compiled functions, until they are taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: Any = None
        self._count: Any = None
        self._n_taken = 0
        self._since_ns = -1
        self.n_lost = 0

    def timed(self, ask: Callable[[Any], Any], iterator: Any) -> Any:
        """Ask an iterator in a function that is being traced, with the time it takes kept."""
        if not self._has_place():
            return ask(iterator)
        with tf.device(HOST):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            result = ask(iterator)  # on the script's own device: what it iterates may be on a GPU
        is_batch = tf.constant(1.0, tf.float64)
        if isinstance(result, tf.experimental.Optional):
            is_batch = tf.cast(result.has_value(), tf.float64)
        key = tf.cast(iterator_key(iterator), tf.float64)
        with tf.device(HOST):
            with tf.control_dependencies(tf.nest.flatten(result, expand_composites=True)):
                after = tf.timestamp()
            with tf.control_dependencies([after]):
                place = tf.math.floormod(self._count.assign_add(1) - 1, CAPACITY)
                row = tf.reshape(tf.stack([before, after, is_batch, key]), (1, COLUMNS))
                row_written = self._times.scatter_nd_update(tf.reshape(place, (1, 1)), row)
        with tf.control_dependencies([row_written]):
            return tf.nest.map_structure(tf.identity, result, expand_composites=True)

    def take(self, clock: Clock) -> list[GraphWait]:
        """Return the waits since the last taking, in order, on the clock."""
        n_there = 0 if self._count is None else int(self._count)
        n_new = n_there - self._n_taken
        until_ns = clock.now_ns()
        apart_ns = until_ns - clock.wall_ns()
        if not n_new:
            self._since_ns = until_ns
            return []
        self.n_lost += max(0, n_new - CAPACITY)
        places = [place % CAPACITY for place in range(n_there - min(n_new, CAPACITY), n_there)]
        rows = tf.gather(self._times, places).numpy().tolist()
        low = self._since_ns
        result = []
        for requested_s, delivered_s, is_batch, key in rows:
            requested_ns = min(max(round(requested_s * 1e9) + apart_ns, low), until_ns)
            low = min(max(round(delivered_s * 1e9) + apart_ns, requested_ns), until_ns)
            result.append(GraphWait(requested_ns, low, bool(is_batch), int(key)))
        self._n_taken, self._since_ns = n_there, until_ns
        return result

    def _has_place(self) -> bool:
        """Make the place for them; False where there is none: in graphs of TensorFlow 1."""
        with self._lock, tf.init_scope():
            if not tf.executing_eagerly():
                return False
            if self._count is None:
                with tf.device(HOST):
                    self._times = ResourceVariable(
                        tf.zeros((CAPACITY, COLUMNS), tf.float64),
                        trainable=False,
                        name="iobench_times",
                    )
                    self._count = ResourceVariable(
                        tf.constant(0, tf.int64), trainable=False, name="iobench_count"
                    )
        return True


GRAPH_WAITS: Final = GraphWaits()
