"""A Keras callback that tells each step's wait from its computing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from iobench.recording.kinds import Kind
from iobench.recording.session import current_recording
from iobench.tensorflow import hooks, watching
from iobench.tensorflow.step_parts import LoopStep, StepScopes
from iobench.tensorflow.watching import take_waits, watch_of, write_waits

if TYPE_CHECKING:
    from iobench.tensorflow.watching import IteratorWatch

STEP: Final = "forward+backward"
PREDICT: Final = "predict"


class KerasCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Records the steps of ``fit``, ``evaluate`` and ``predict``: epoch, batch, wait, computing.

    ``model.fit(dataset, callbacks=[KerasCallback()])`` within `iobench.record`; under ``iobench
    run`` every loop has one already. A step is a span of kind ``step`` labelled
    ``forward+backward`` (the compiled function holds the optimiser's step as well: neither
    ``forward`` nor ``backward`` would be true of it), one of validation of kind ``evaluate``;
    saving a model is a ``checkpoint``. Outside of a recording it does nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun_ns = -1
        self._epoch = -1
        hooks.install()

    def on_train_begin(self, logs: Any = None) -> None:
        """Note for how many batches the optimiser collects gradients, where it does."""
        recording = current_recording()
        optimizer = getattr(self.model, "optimizer", None)
        collected = getattr(optimizer, "gradient_accumulation_steps", None)
        if recording is not None and type(collected) is int:
            recording.facts.batches_per_step = collected
            recording.write_facts()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = epoch
        recording = current_recording()
        if recording is not None:
            recording.epoch = epoch

    def on_train_end(self, logs: Any = None) -> None:
        """Note that there is no epoch any more."""
        recording = current_recording()
        if recording is not None:
            recording.epoch = -1

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a step."""
        recording = current_recording()
        if recording is not None:
            write_waits(recording)  # of what a callback did: no part of this step
            self._begun_ns = recording.clock.now_ns()

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write a step, or several that were one call."""
        self._end(Kind.STEP, STEP)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write a step of an evaluation."""
        self._end(Kind.EVALUATE, "")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write a step of a prediction."""
        self._end(Kind.EVALUATE, PREDICT)

    def _end(self, kind: Kind, label: str) -> None:
        """Write the waits of a call, and the computing after each of them."""
        recording = current_recording()
        if recording is None or self._begun_ns < 0:
            return
        ended_ns = recording.clock.now_ns()
        held: list[tuple[int, int, int, IteratorWatch | None]] = []
        for wait in take_waits(recording):
            watch = watch_of(wait)
            if watch is not None and watch.recording is not recording:
                watch = None
            number = -1 if watch is None else watch.waited(wait)
            if wait.is_batch:
                held.append((wait.requested_ns, wait.delivered_ns, number, watch))
        latest = watching.last_requested
        if not held and latest is not None and latest.recording is recording:
            requested_ns, delivered_ns = latest.log.requested_ns, latest.log.delivered_ns
            if delivered_ns >= self._begun_ns:  # in Python
                held = [(requested_ns, delivered_ns, latest.batch, latest)]
        held = held or [(-1, self._begun_ns, -1, None)]
        recorder = recording.recorder
        ends_ns = [*(requested_ns for requested_ns, *_ in held[1:]), ended_ns]
        for (_, start_ns, number, watch), end_ns in zip(held, ends_ns, strict=True):
            step = LoopStep(start_ns, max(start_ns, end_ns), number, self._epoch)
            recorder.emit(
                kind, step.start_ns, step.end_ns, batch=number, epoch=self._epoch,
                label=recorder.string(label),
            )  # fmt: skip
            if kind == Kind.STEP and watch is not None:
                watch.computed(step, StepScopes.of(self.model, len(held)))
        self._begun_ns = -1


def with_callback(callbacks: Any) -> Any:
    """Return what Keras takes for ``callbacks``, with ours ahead; a list of its own is extended."""
    if isinstance(callbacks, tf.keras.callbacks.CallbackList):
        if not any(isinstance(each, KerasCallback) for each in callbacks.callbacks):
            callbacks.append(KerasCallback())
        return callbacks
    given = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    if any(isinstance(each, KerasCallback) for each in given):
        return callbacks
    return [KerasCallback(), *(each for each in given if each is not None)]
