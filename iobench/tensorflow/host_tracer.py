"""TensorFlow's host tracer over a stretch of a training, on the clock of the recording."""

from __future__ import annotations

import importlib
import itertools
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from iobench.adapters.patches import Patches
from iobench.recording.kinds import Kind
from iobench.tensorflow.step_parts import find_parts
from iobench.tensorflow.traced_work import find_work, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.recording.recorder import Lane, Recorder
    from iobench.tensorflow.step_parts import LoopStep, StepScopes
    from iobench.tensorflow.traced_work import LoaderWait, TracedThread

ANCHOR: Final = "iobench.anchor"
PROFILER: Final = "tensorflow.python.profiler.profiler_v2"
LEVEL: Final = 2
"""Of the host tracer: each iterator and kernel; 1 has no iterators."""
OPAQUE: Final = "tf.data"


def write_opaque(recorder: Recorder, wait: LoaderWait, epoch: int) -> None:
    """Say that what tf.data did while a batch was waited for was not seen."""
    requested_ns, delivered_ns, batch = wait
    recorder.emit(
        Kind.OPAQUE, requested_ns, delivered_ns, batch=batch, epoch=epoch,
        label=recorder.string(OPAQUE),
    )  # fmt: skip


class HostTracer:
    """Traces what TensorFlow's threads do; two calls of ours tell how far its clock is away."""

    def __init__(self, recorder: Recorder) -> None:
        self.failure = ""
        self.uncertainty_ns = -1
        self.n_parted = 0
        self.why_whole = ""
        self.waits: list[LoaderWait] = []
        self.steps: list[LoopStep] = []
        self.scopes: StepScopes | None = None
        self.running = False
        self.recorder = recorder
        self._clock = recorder.clock
        self._folder: Path | None = None
        self._bounds: list[tuple[int, int]] = []
        self._ending = threading.Lock()
        self._patches = Patches()  # of what else starts and ends TensorFlow's one profiler

    def start(self) -> None:
        """Trace from now on; `failure` says why where that cannot be."""
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=LEVEL, python_tracer_level=0, device_tracer_level=0
        )
        try:
            own = importlib.import_module(PROFILER), tf.profiler.experimental
            self._folder = Path(tempfile.mkdtemp(prefix="iobench-trace-"))
            tf.profiler.experimental.start(str(self._folder), options)
        except (tf.errors.OpError, OSError, ImportError, AttributeError) as error:
            self._give_up(f"the host tracer did not start: {_in_short(error)}")
            return
        self.running = True
        for owner, name in itertools.product(own, ("start", "stop")):
            self._patches.put(owner, name, self._giving_way)
        self._anchor()

    def stop(self) -> None:
        """End the trace; what it holds is read by `write`. Idempotent, from any thread."""
        with self._ending:
            if not self.running:
                return
            self.running = False
            self._patches.take_back()
            self._anchor()
            try:
                tf.profiler.experimental.stop()
            except (tf.errors.OpError, OSError) as error:
                self._give_up(f"the trace was not written: {_in_short(error)}")

    def _giving_way(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a function of the profiler that ends our trace before."""

        def call(*args: Any, **kwargs: Any) -> None:
            self.stop()
            original(*args, **kwargs)

        return call

    def write(self, *, epoch: int, in_loop: bool = True) -> int:
        """End the trace and write its work; return the batches that it has work of."""
        self.stop()
        traced: set[int] = set()
        if self._folder is not None:
            try:
                threads = read_trace(self._folder)
            except (OSError, ValueError) as error:
                self._give_up(f"the trace cannot be read: {_in_short(error)}")
            else:
                offset_ns = self._offset(threads)
                self._forget()
                if offset_ns is not None:
                    traced = self._write_work(threads, offset_ns, epoch, in_loop)
                    self._write_parts(threads, offset_ns)
        for wait in self.waits:
            if wait[2] not in traced:
                write_opaque(self.recorder, wait, epoch)
        return len(traced)

    def _write_work(
        self, threads: Sequence[TracedThread], offset_ns: int, epoch: int, in_loop: bool
    ) -> set[int]:
        recorder = self.recorder
        lanes: dict[int, Lane] = {}
        waits = [(start - offset_ns, end - offset_ns, batch) for start, end, batch in self.waits]
        works = find_work(threads, waits)
        for work in works:
            times = work.start_ns + offset_ns, work.end_ns + offset_ns
            of: dict[str, int] = {"batch": work.batch, "epoch": epoch}
            of["label"] = recorder.string(work.label)
            if work.in_loop and in_loop:
                recorder.emit(work.kind, *times, **of)
                continue
            if work.thread not in lanes:
                name = f"{work.thread_name.partition('/')[0]}-{len(lanes)}"
                lanes[work.thread] = recorder.foreign_lane(name)
            recorder.emit_on(lanes[work.thread], work.kind, *times, **of)
        return {work.batch for work in works if work.batch >= 0}

    def _write_parts(self, threads: Sequence[TracedThread], offset_ns: int) -> None:
        """Write the parts of the steps within the trace, but the last: its operations may lack."""
        if self.scopes is None:
            return
        (begun_ns, _), (ended_ns, _) = self._bounds[0], self._bounds[-1]
        traced = [
            step._replace(start_ns=step.start_ns - offset_ns, end_ns=step.end_ns - offset_ns)
            for step in self.steps
            if begun_ns <= step.start_ns and step.end_ns <= ended_ns
        ][:-1]
        parted = set()
        for kind, start_ns, end_ns, step in find_parts(threads, traced, self.scopes):
            times = start_ns + offset_ns, end_ns + offset_ns
            self.recorder.emit(kind, *times, batch=step.batch, epoch=step.epoch)
            parted.add(step)
        self.n_parted = len(parted)
        if traced and not parted:
            self.why_whole = self.scopes.why_none

    def _anchor(self) -> None:
        before_ns = self._clock.now_ns()
        with tf.profiler.experimental.Trace(ANCHOR):
            pass
        self._bounds.append((before_ns, self._clock.now_ns()))

    def _offset(self, threads: Sequence[TracedThread]) -> int | None:
        """Return what to add to times of the trace; None if the two anchors contradict."""
        anchors = [call for thread in threads for call in thread.calls if call.name == ANCHOR]
        anchors.sort(key=lambda call: call.start_ns)
        if len(anchors) != len(self._bounds) or not anchors:
            self._give_up("the trace lacks our marks: its times cannot be placed")
            return None
        pairs = list(zip(self._bounds, anchors, strict=True))
        low = max(before - call.start_ns for (before, _), call in pairs)
        high = min(after - call.end_ns for (_, after), call in pairs)
        if low > high:
            self._give_up("the system's clock was set meanwhile: the trace cannot be placed")
            return None
        self.uncertainty_ns = (high - low + 1) // 2
        return (low + high) // 2

    def _give_up(self, why: str) -> None:
        self.failure = why
        self._forget()

    def _forget(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
