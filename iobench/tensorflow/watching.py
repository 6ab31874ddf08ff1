"""What is recorded of an iterator of tf.data: its waits, and a window of its threads' work."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from iobench.loaders.stage_timer import BUDGET_FRACTION
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
FIRST_TRACED: Final = 4
"""Batch of a pass from which on a window may begin: past its fill."""
WINDOW: Final = 50
"""Batches whose making is traced at once, at most: a trace takes memory, and time to be read."""
WINDOW_NS: Final = 1_000_000_000
"""What reading a trace may take; a next one is of fewer batches where it takes longer."""
TRACED: Final = (
    "tf.data's threads: traced for {} batches of {}, placed within {} us; opaque for the others"
)

NOBODYS: Final = (
    "tf.data: {} waits inside compiled functions, for an iterator that was made before the "
    "recording began"
)
LOST: Final = "tf.data: {} waits inside compiled functions, more than are kept between two passes"

_latest: IteratorWatch | None = None
last_requested: IteratorWatch | None = None
"""The pass whose batch a loop of Python's got last."""
_traced: IteratorWatch | None = None
"""The pass whose window is open: TensorFlow has one profiler."""
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
        self.epochs: list[int] = []  # of the windows that were traced
        self.n_traced = self.n_parted = self.uncertainty_ns = 0
        self._due_ns = 0  # when the next window may begin,
        self.window = WINDOW  # and of how many batches it is
        self._said: dict[str, str] = {}

    def is_due(self, epoch: int, now_ns: int) -> bool:
        """Tell whether to trace: the first epoch, another one, and what costs under 1 %."""
        is_second = len(self.epochs) == 1 and epoch != self.epochs[0]
        return _traced is None and (is_second or now_ns >= self._due_ns)

    def traced(self, tracer: HostTracer, epoch: int, n_batches: int, spent_ns: int) -> None:
        """Note a window that is over, and that tracing it took so long of the training loop."""
        self._due_ns = tracer.recorder.clock.now_ns() + int(spent_ns / BUDGET_FRACTION)
        self.window = max(1, min(WINDOW, self.window * WINDOW_NS // max(spent_ns, 1)))
        if tracer.failure:
            self.note_unseen(f"tf.data's threads: {tracer.failure}")
        elif tracer.waits:
            self.epochs.append(epoch)
            self.n_traced += n_batches
            self.uncertainty_ns = max(self.uncertainty_ns, tracer.uncertainty_ns, 1000)
            epochs = _in_words(sorted({*self.epochs}))
            self._say(TRACED, self.n_traced, epochs, self.uncertainty_ns // 1000)
        if tf.config.list_physical_devices("GPU"):
            self.note_unseen(DEVICES)
        self.n_parted += tracer.n_parted
        if tracer.n_parted:
            self._say(PARTED, self.n_parted)
        elif tracer.why_whole:
            self._say(WHOLE, tracer.why_whole)

    def note_unseen(self, what: str) -> None:
        """Tell in the report what cannot be observed, and why; once."""
        self.recording.add_unseen(what, self.facts)

    def _say(self, sentence: str, *values: object) -> None:
        """Tell it with these values, in place of those of before."""
        before = self._said.get(sentence, "")
        self._said[sentence] = sentence.format(*values)
        self.recording.add_unseen(self._said[sentence], self.facts, replaces=before)


class IteratorWatch:
    """Records one pass over a dataset; made as its iterator is asked for."""

    def __init__(self, known: _KnownDataset) -> None:
        self.recording = recording = known.recording
        self.log = DeliveryLog(recording, known.facts)
        self.batch = -1
        self._known = known
        self._n = 0
        self._in_loop = True
        self._tracer: HostTracer | None = None
        self._until = 0
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
        elif not self._known.epochs and self.recording.detail != "batch":
            self._known.note_unseen(COMPILED)
        return number

    def computed(self, step: LoopStep, scopes: StepScopes) -> None:
        """Note what the loop did with a batch, and in which scopes, where that is traced."""
        if self._tracer is not None and self._tracer.running:
            self._tracer.steps.append(step)
            self._tracer.scopes = scopes

    def ended(self) -> None:
        """Note that there is no further batch."""
        self.log.end()
        self.close_window()

    def left(self) -> None:
        """Note that the iterator is gone, or the recording at its end. Idempotent."""
        self.log.leave()
        self.close_window()

    def _number_epoch(self) -> None:
        """Give the pass its number, now that it brings a batch; or the batch that of its epoch."""
        before = self.log.epoch
        if self.log.epoch < 0:
            self.log.epoch = self._known.n_passes
            self._known.n_passes += 1
        if self.recording.epoch >= 0 and self.recording.pass_role == "training":
            if before >= 0 and self.recording.epoch != before:
                self.close_window()
            self.log.epoch = self.recording.epoch

    def _note(self, requested_ns: int, delivered_ns: int, number: int) -> None:
        self.batch = number
        wait = requested_ns, delivered_ns, number
        if self._tracer is not None and self._tracer.running:
            self._tracer.waits.append(wait)
        else:
            write_opaque(self.recording.recorder, wait, self.log.epoch)

    def _move_window(self) -> None:
        """Begin, or end, a window of the tracer."""
        global _traced
        self._n += 1
        if self._tracer is not None:
            if self._n >= self._until:
                self.close_window()
            return
        if self._n < FIRST_TRACED or self.recording.detail == "batch":
            return
        began_ns = self.recording.clock.now_ns()
        if self._known.is_due(self.log.epoch, began_ns):
            self._tracer, self._until = (
                HostTracer(self.recording.recorder),
                self._n + self._known.window,
            )
            _traced = self
            self._tracer.start()
            self._took_time(began_ns)
            if self._tracer.failure:
                self.close_window()

    def close_window(self) -> None:
        """End the window, and write what was seen in it. Idempotent."""
        global _traced
        tracer, self._tracer = self._tracer, None
        if tracer is None:
            return
        _traced = None
        began_ns = self.recording.clock.now_ns()
        n_traced = tracer.write(epoch=self.log.epoch, in_loop=self._in_loop)
        spent_ns = self.recording.clock.now_ns() - began_ns
        self._known.traced(tracer, self.log.epoch, n_traced, spent_ns)
        self._took_time(began_ns)

    def _took_time(self, began_ns: int) -> None:
        """Say what tracing itself took of the training loop, so that it is not computing's."""
        recorder = self.recording.recorder
        ended_ns = self.recording.clock.now_ns()
        recorder.once_ns += ended_ns - began_ns
        recorder.emit(Kind.OTHER, began_ns, ended_ns, label=recorder.string(TRACING))


def watch(dataset: Any, recording: Recording) -> IteratorWatch:
    """Return what records a pass over a dataset that begins now."""
    global _latest
    marked = next((each for each in _chain_of(dataset) if hasattr(each, NAME)), None)
    holder = dataset if marked is None else marked
    known: _KnownDataset | None = getattr(holder, KNOWN, None)
    if known is None or known.recording is not recording:
        known = _KnownDataset(recording, dataset, getattr(marked, NAME, None))
        setattr(holder, KNOWN, known)
    if _traced is not None:  # a validation within a training
        _traced.close_window()
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


def _in_words(epochs: list[int]) -> str:
    first, last = epochs[0], epochs[-1]
    if len(epochs) == 1:
        return f"epoch {first}"
    if len(epochs) == 2:
        return f"epochs {first} and {last}"
    is_run = last - first == len(epochs) - 1
    return f"epochs {first} to {last}" if is_run else f"{len(epochs)} epochs from {first} to {last}"


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
