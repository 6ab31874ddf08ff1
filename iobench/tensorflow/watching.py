"""What is recorded of an iterator of tf.data: its waits, and a window of its threads' work."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from iobench.recording.delivery_log import DeliveryLog
from iobench.recording.kinds import Kind
from iobench.tensorflow.graph_waits import GRAPH_WAITS, iterator_key
from iobench.tensorflow.host_tracer import HostTracer, write_opaque
from iobench.tensorflow.traced_work import THREADED, operation_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.recording.facts import LoaderFacts
    from iobench.recording.session import Recording
    from iobench.tensorflow.graph_waits import GraphWait
    from iobench.tensorflow.step_parts import LoopStep, StepScopes

NAME: Final = "_iobench_name"
"""Where a dataset that `instrument` was given has what reports call it."""
KNOWN: Final = "_iobench_known"
DEPTH: Final = 100
UNREPLAYED: Final = (
    "tf.data pipelines are not replayed: record the script as changed too, and compare both runs"
)
THREADS: Final = "threads"
TRACING: Final = "tracing by iobench"
COMPILED: Final = "tf.data's threads: not traced, since no Python runs in a compiled loop; opaque"
DEVICES: Final = (
    "GPUs: TensorFlow's tracer is used for the host only, so neither their busy time nor copies to "
    "them (prefetch_to_device, copy_to_device, tf.distribute, inside operations) are measured; "
    "steps are timed by when the loop continues"
)
PARTED: Final = (
    "Keras' steps: forward pass, backward pass and optimiser are separated in {} traced steps, by "
    "names of operations; in the other steps they are one"
)
WHOLE: Final = "Keras' steps: forward pass, backward pass and optimiser are one: {}"
WINDOW: Final = range(4, 54)
"""Batches of a loader's first round whose making is traced: past its fill, and few enough."""

NOBODYS: Final = (
    "tf.data: {} waits inside compiled functions, for an iterator that was made before the "
    "recording began"
)
LOST: Final = "tf.data: {} waits inside compiled functions, more than are kept between two passes"

_latest: IteratorWatch | None = None
last_requested: IteratorWatch | None = None
"""The pass whose batch a loop of Python's got last."""
_ending: _Ending | None = None
_watches: dict[int, IteratorWatch] = {}
"""By `iterator_key`: kept until what compiled functions waited for has been taken."""


class _KnownDataset:
    """A dataset in a recording, and how many passes over it brought a batch."""

    def __init__(self, recording: Recording, dataset: Any, name: str | None) -> None:
        chain = [*_chain_of(dataset)]
        operations = [operation_name(type(each).__name__.strip("_")) for each in chain]
        shown = [
            each for each in operations[::-1] if each not in ("Options", "Model", "Distribute")
        ]
        kind = type(dataset)
        self.recording = recording
        self.facts: LoaderFacts = recording.add_loader(
            "tensorflow",
            f"{kind.__module__}.{kind.__qualname__}",
            name or " > ".join(shown),
            threads=int(not THREADED.isdisjoint(shown)),
            prefetch=_prefetch(chain, operations),
            batch_size=next(filter(None, (_static(each, "_batch_size") for each in chain)), None),
            unreplayed=UNREPLAYED,
        )
        self.n_passes = 0  # Keras begins one more after each epoch


class IteratorWatch:
    """Records one pass over a dataset; made as its iterator is asked for."""

    def __init__(self, known: _KnownDataset) -> None:
        self.recording = recording = known.recording
        self.log = DeliveryLog(recording, known.facts)
        self.batch = -1
        self._known = known
        self._n = 0
        self._in_loop = True
        traced = not known.n_passes and recording.detail != "batch"
        self._tracer = HostTracer(recording.recorder) if traced else None
        self.iterator: weakref.ref[Any] | None = None

    def take_iterator(self, iterator: Any) -> None:
        """Take the iterator that was asked for."""
        self.iterator = weakref.ref(iterator)
        key = int(iterator_key(iterator))
        if key >= 0:
            _watches[key] = self
        weakref.finalize(iterator, self.left)

    def delivered(self, nbytes: int) -> None:
        """Note that the loop holds the batch it asked the log for."""
        global last_requested
        last_requested = self
        self._number_epoch()
        before_ns = self.log.delivered_ns
        number = self.recording.next_batch()
        self.log.deliver(number, nbytes=nbytes, maker=THREADS)
        if self.log.delivered_ns == before_ns:
            return  # another loader's work
        self._note(self.log.requested_ns, self.log.delivered_ns, number)
        self._move_window()
        own_ns = self.recording.clock.now_ns() - self.log.delivered_ns
        self.log.spent(own_ns)
        self.recording.recorder.own_ns += own_ns

    def waited(self, wait: GraphWait, *, just_now: bool = True) -> int:
        """Note a wait inside a compiled function; return the number of its batch, -1 for none."""
        self._in_loop = False
        requested_ns, delivered_ns, is_batch, _ = wait
        if not is_batch:
            self.log.waited(requested_ns, delivered_ns, -1)
            return -1
        self._number_epoch()
        number = self.recording.next_batch()
        self.log.waited(requested_ns, delivered_ns, number, maker=THREADS)
        self._note(requested_ns, delivered_ns, number)
        if just_now:
            self._move_window()
        elif self._tracer is not None and not self._tracer.started:
            self._tracer = None
            self._note_unseen(COMPILED)
        return number

    def computed(self, step: LoopStep, scopes: StepScopes) -> None:
        """Note what the loop did with a batch, and in which scopes, where that is traced."""
        if self._tracer is not None and self._tracer.running:
            self._tracer.steps.append(step)
            self._tracer.scopes = scopes

    def ended(self) -> None:
        """Note that there is no further batch."""
        self.log.end()
        self._close_window()

    def left(self) -> None:
        """Note that the iterator is gone, or the recording at its end. Idempotent."""
        self.log.leave()
        self._close_window()

    def _number_epoch(self) -> None:
        """Give the pass its number, now that it brings a batch; or the batch that of its epoch."""
        if self.log.epoch < 0:
            self.log.epoch = self._known.n_passes
            self._known.n_passes += 1
            if self.log.epoch:
                self._tracer = None
        if self.recording.epoch >= 0 and self.recording.pass_role == "training":
            self.log.epoch = self.recording.epoch

    def _note(self, requested_ns: int, delivered_ns: int, number: int) -> None:
        self.batch = number
        wait = requested_ns, delivered_ns, number
        if self._tracer is not None and self._tracer.running:
            self._tracer.waits.append(wait)
        else:
            write_opaque(self.recording.recorder, wait, self.log.epoch)

    def _move_window(self) -> None:
        """Start, or end, the window of the tracer."""
        self._n += 1
        if self._tracer is not None and self._n == WINDOW.start:
            began_ns = self.recording.clock.now_ns()
            self._tracer.start()
            self._took_time(began_ns)
            if self._tracer.failure:
                self._note_unseen(f"tf.data's threads: {self._tracer.failure}")
        elif self._n == WINDOW.stop:
            self._close_window()

    def _close_window(self) -> None:
        """End the window, and write what was seen in it. Idempotent."""
        tracer, self._tracer = self._tracer, None
        if tracer is None or not (tracer.started or tracer.waits):
            return
        began_ns = self.recording.clock.now_ns()
        n_traced = tracer.write(epoch=self.log.epoch, in_loop=self._in_loop)
        if tracer.failure:
            self._note_unseen(f"tf.data's threads: {tracer.failure}")
        elif tracer.waits:
            self._note_unseen(
                f"tf.data's threads: traced for {n_traced} batches of round {self.log.number}, "
                f"placed within {max(tracer.uncertainty_ns // 1000, 1)} us; opaque for the others"
            )
        if tf.config.list_physical_devices("GPU"):
            self._note_unseen(DEVICES)
        if tracer.n_parted:
            self._note_unseen(PARTED.format(tracer.n_parted))
        elif tracer.why_whole:
            self._note_unseen(WHOLE.format(tracer.why_whole))
        self._took_time(began_ns)

    def _took_time(self, began_ns: int) -> None:
        """Say what tracing itself took of the training loop, so that it is not computing's."""
        recorder = self.recording.recorder
        ended_ns = self.recording.clock.now_ns()
        recorder.once_ns += ended_ns - began_ns
        recorder.emit(Kind.OTHER, began_ns, ended_ns, label=recorder.string(TRACING))

    def _note_unseen(self, what: str) -> None:
        self.recording.add_unseen(what, self._known.facts)


def watch(dataset: Any, recording: Recording) -> IteratorWatch:
    """Return what records a pass over a dataset that begins now."""
    global _latest
    marked = next((each for each in _chain_of(dataset) if hasattr(each, NAME)), None)
    holder = dataset if marked is None else marked
    known: _KnownDataset | None = getattr(holder, KNOWN, None)
    if known is None or known.recording is not recording:
        known = _KnownDataset(recording, dataset, getattr(marked, NAME, None))
        setattr(holder, KNOWN, known)
    _latest = IteratorWatch(known)
    return _latest


def watch_of(wait: GraphWait) -> IteratorWatch | None:
    """Return whose iterator was waited for in a compiled function; None where nobody noted it."""
    return _latest if wait.iterator < 0 else _watches.get(wait.iterator)


# -- compiled loops ---


class _Ending:
    """Writes what is left when a recording, or its window, ends, and ends what is traced."""

    __slots__ = ("__weakref__", "recording")

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def leave(self) -> None:
        write_waits(self.recording)
        for each in {*_watches.values(), _latest}:
            if each is not None and each.recording is self.recording:
                each.left()


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
    """Write the waits of compiled functions so far, each for the pass over its iterator."""
    n_unknown = 0
    for wait in take_waits(recording):
        watch = watch_of(wait)
        if watch is not None and watch.recording is recording:
            watch.waited(wait, just_now=False)
        else:
            n_unknown += 1
    if n_unknown:
        recording.add_unseen(NOBODYS.format(n_unknown))
    for key, each in [*_watches.items()]:
        if each.iterator is None or each.iterator() is None:  # nobody can ask it any more
            del _watches[key]


# -- what a dataset tells of itself ---


def batch_nbytes(batch: Any) -> int:
    """Return the size of a batch; -1 where a part of it does not tell."""
    total = 0
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        try:
            n_values = leaf.shape.num_elements()
        except (AttributeError, ValueError):
            return -1
        if n_values is None or not leaf.dtype.size:
            return -1
        total += n_values * leaf.dtype.size
    return total


def _chain_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those it is made from, each one's first input."""
    for _ in range(DEPTH):
        yield dataset
        inputs = dataset._inputs() if hasattr(dataset, "_inputs") else ()
        if not inputs:
            return
        dataset = inputs[0]


def _prefetch(chain: list[Any], operations: list[str]) -> int:
    if "Prefetch" not in operations:
        return 0
    size = _static(chain[operations.index("Prefetch")], "_buffer_size")
    return size if size is not None and size > 0 else 2  # as autotuning begins


def _static(dataset: Any, name: str) -> int | None:
    """Return a size that a dataset was made with, None where that is unknown."""
    size = getattr(dataset, name, None)
    known = None if size is None else tf.get_static_value(size)
    return None if known is None else int(known)
