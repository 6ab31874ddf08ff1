"""``iobench profile --framework tensorflow``: pipelines of tf.data, with their threads seen."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from msgspec.structs import replace

from iobench.errors import WorkerError
from iobench.loaders.contract import (
    IN_THREADS,
    Batch,
    MeasuredLoader,
)
from iobench.loaders.planned_loaders import IterableLoader
from iobench.recording.kinds import Kind
from iobench.stores.tfrecord import FeatureKind, feature_kinds
from iobench.tensorflow.host_tracer import HostTracer
from iobench.tensorflow.store_loader import as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from iobench.datasets.contract import SamplePasses
    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec, Variable

TRACED_SAMPLES: Final = 10_000
"""Of a round, at most: a trace takes memory, and time to be read."""
TRACED_BATCHES: Final = 10
PIPELINE: Final = "pipeline"
"""Its building: a new one each pass, by the training loop's own thread."""
BITS: Final = {"uint32": tf.int32, "uint64": tf.int64}
"""What ``decode_raw`` knows no name for is of as many bits."""


class TracedRounds:
    """Traces the first batches of each round; the others are opaque."""

    def __init__(self, recorder: Recorder, batch_size: int) -> None:
        self._recorder = recorder
        self._limit = max(TRACED_BATCHES, TRACED_SAMPLES // batch_size)
        self._tracer = HostTracer(recorder)
        self._epoch = -1
        self._stopping: threading.Thread | None = None
        self._is_due = False

    def start(self) -> None:
        """Trace the next round from its first batch on: there is one tracer for all loops."""
        self._is_due = True

    @contextmanager
    def batch(self, planned: PlannedBatch) -> Iterator[None]:
        """Note that the loop asks for a batch, and when it holds it."""
        tracer = self._tracer
        if self._is_due:
            self._is_due = False
            tracer.start()
        if len(tracer.waits) == self._limit and tracer.running:
            # Writing the trace out takes a while, in which the training loop goes on.
            self._stopping = threading.Thread(target=tracer.stop, name="trace")
            self._stopping.start()
        requested_ns = self._recorder.clock.now_ns()
        yield
        tracer.waits.append((requested_ns, self._recorder.clock.now_ns(), planned.batch))
        self._epoch = planned.epoch

    def next_round(self) -> None:
        """Write what was traced, and trace the next round."""
        self.write()
        self.start()

    def write(self) -> None:
        """End the trace, and write what TensorFlow's threads did in the round."""
        self._is_due = False
        if self._stopping is not None:
            self._stopping.join()
            self._stopping = None
        tracer, self._tracer = self._tracer, HostTracer(self._recorder)
        tracer.write(epoch=self._epoch)


class TFPipelineLoader(IterableLoader):
    """Asks a pipeline of tf.data for its batches, and tells its operations apart."""

    is_one_stage = False  # the trace tells operations apart, or is opaque

    def __init__(self, passes: SamplePasses, batch_size: int, *, recorder: Recorder) -> None:
        # On a lane of its own: as the threads' work it is what a batch came from.
        building = recorder.foreign_lane(PIPELINE)

        def items(epoch: int) -> Iterable[Any]:
            begun_ns = recorder.clock.now_ns()
            result = passes.items(epoch)
            recorder.emit_on(
                building, Kind.OPEN, begun_ns, recorder.clock.now_ns(), batch=self._batch,
                epoch=epoch, label=recorder.string(PIPELINE),
            )  # fmt: skip
            return result

        super().__init__(replace(passes, items=items), batch_size, recorder=recorder)
        self._traced = TracedRounds(recorder, batch_size)
        self._batch = -1
        self._is_first = True  # which fills shuffle buffers: too many calls for a trace

    def _take(self, planned: PlannedBatch) -> Batch:
        self._batch = planned.batch
        with self._traced.batch(planned):
            batch = super()._take(planned)
        if self._is_first:
            self._is_first = False
            self._traced.start()
        return dataclasses.replace(batch, worker=IN_THREADS)

    def after_round(self) -> None:
        """Write what TensorFlow's threads did in the round, and trace the next one."""
        self._traced.next_round()

    def close(self) -> None:
        """End the pipeline, and write what is left of its work."""
        super().close()
        self._traced.write()


class TFExampleLoader(MeasuredLoader):
    """Reads a store's shards with ``TFRecordDataset``, parses, batches and prefetches them."""

    def __init__(
        self,
        files: Sequence[Path],
        spec: SampleSpec,
        batch_size: int,
        *,
        threads: int,
        prefetch: int = 2,
        recorder: Recorder,
    ) -> None:
        super().__init__(threads=threads, prefetch=prefetch)
        self._files, self._spec, self._batch_size = files, spec, batch_size
        self._iterator: Any = None
        self._traced = TracedRounds(recorder, batch_size)

    def _take(self, planned: PlannedBatch) -> Batch:
        if self._iterator is None:
            # Not before: TensorFlow's threads would be there when another loader forks.
            self._iterator = iter(self._pipeline())
            self._traced.start()
        with self._traced.batch(planned):
            try:
                tensors = next(self._iterator)
            except tf.errors.OpError as error:
                raise WorkerError(f"tf.data: {' '.join(error.message.split())}") from error
        arrays = {name: as_array(tensors[name]) for name in self._spec.names}
        return Batch(planned, arrays, IN_THREADS)

    def _pipeline(self) -> Any:
        paths = [str(file) for file in self._files]
        at_once = min(self.threads, len(paths))
        examples = tf.data.TFRecordDataset(
            paths, num_parallel_reads=at_once if at_once > 1 else None
        )
        parse = _parser(self._files, self._spec)
        parsed = examples.repeat().map(parse, num_parallel_calls=self.threads)
        batches = parsed.batch(self._batch_size, drop_remainder=True).prefetch(self.prefetch)
        settings = tf.data.Options()
        settings.threading.private_threadpool_size = self.threads
        return batches.with_options(settings)

    def after_round(self) -> None:
        """Write what TensorFlow's threads did in the round, and trace the next one."""
        self._traced.next_round()

    def _let_go(self) -> None:
        self._iterator = None  # and its threads with it
        self._traced.write()


def _parser(files: Sequence[Path], spec: SampleSpec) -> Callable[[Any], dict[str, Any]]:
    """Return what parses an example, by how the first one of the store holds its arrays."""
    kinds = feature_kinds(files, spec.names)
    features, changes = {}, {}
    for variable in spec:
        features[variable.name], changes[variable.name] = _feature(variable, kinds[variable.name])

    def parse(example: Any) -> dict[str, Any]:
        values = tf.io.parse_single_example(example, features)
        return {name: change(values[name]) for name, change in changes.items()}

    return parse


def _feature(variable: Variable, kind: FeatureKind) -> tuple[Any, Callable[[Any], Any]]:
    """Return how a feature is parsed, and what makes the variable of it."""
    dtype = np.dtype(variable.dtype)
    if kind is FeatureKind.FLOAT:
        return tf.io.FixedLenFeature(variable.shape, tf.float32), lambda values: values
    if kind is FeatureKind.INT64:
        own_dtype = tf.as_dtype(dtype)
        return (
            tf.io.FixedLenFeature(variable.shape, tf.int64),
            lambda values: values if own_dtype == tf.int64 else tf.cast(values, own_dtype),
        )
    raw = BITS.get(dtype.name, tf.as_dtype(dtype))

    def from_bytes(text: Any) -> Any:
        values = tf.reshape(tf.io.decode_raw(text, raw), variable.shape)
        return values if raw.as_numpy_dtype == dtype.type else tf.bitcast(values, dtype.name)

    return tf.io.FixedLenFeature((), tf.string), from_bytes
