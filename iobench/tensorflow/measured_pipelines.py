"""``iobench profile --framework tensorflow``: pipelines of tf.data, with their threads seen."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from msgspec.structs import replace

from iobench.datasets.contract import SamplePasses
from iobench.loaders.contract import IN_THREADS, Batch
from iobench.loaders.planned_loaders import IterableLoader
from iobench.recording.kinds import Kind
from iobench.stores.tfrecord import FeatureKind, feature_kinds
from iobench.tensorflow.host_tracer import HostTracer
from iobench.tensorflow.store_loader import as_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

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


class TFPipelineLoader(IterableLoader):
    """Asks a pipeline of tf.data for its batches, and tells its operations apart.

    The first batches of each round are traced, and the others opaque.
    """

    is_one_stage = False  # the trace tells operations apart, or is opaque

    def __init__(self, passes: SamplePasses, batch_size: int, *, recorder: Recorder) -> None:
        # On a lane of its own: as the threads' work it is what a batch came from.
        building = recorder.foreign_lane(PIPELINE)

        def items(epoch: int) -> Iterable[Any]:
            begun_ns = recorder.clock.now_ns()
            result = passes.items(epoch)
            recorder.emit_on(
                building, Kind.OPEN, begun_ns, recorder.clock.now_ns(),
                batch=-1 if self._planned is None else self._planned.batch, epoch=epoch,
                label=recorder.string(PIPELINE),
            )  # fmt: skip
            return result

        super().__init__(replace(passes, items=items), batch_size, recorder=recorder)
        self._limit = max(TRACED_BATCHES, TRACED_SAMPLES // batch_size)
        self._planned: PlannedBatch | None = None
        self._is_due = False
        self._new_tracer()

    def _new_tracer(self) -> None:
        self._tracer = HostTracer(self._recorder)
        # Writing a trace out takes a while, in which the training loop goes on.
        self._stopping = threading.Thread(target=self._tracer.stop, name="trace")

    def _take(self, planned: PlannedBatch) -> Batch:
        tracer, now_ns = self._tracer, self._recorder.clock.now_ns
        # The very first batch fills shuffle buffers: too many calls for a trace.
        is_first, self._planned = self._planned is None, planned
        if self._is_due:
            self._is_due = False
            tracer.start()
        if len(tracer.waits) == self._limit and tracer.running:
            self._stopping.start()
        requested_ns = now_ns()
        batch = super()._take(planned)
        tracer.waits.append((requested_ns, now_ns(), planned.batch))
        self._is_due = is_first
        return dataclasses.replace(batch, worker=IN_THREADS)

    def after_round(self) -> None:
        """Write what TensorFlow's threads did in the round, and trace the next one."""
        self._write()
        self._is_due = True

    def _write(self) -> None:
        self._is_due = False
        if self._stopping.ident is not None:
            self._stopping.join()
        self._tracer.write(epoch=-1 if self._planned is None else self._planned.epoch)
        self._new_tracer()

    def close(self) -> None:
        """End the pipeline, and write what is left of its work."""
        super().close()
        self._write()


class TFExampleLoader(TFPipelineLoader):
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
        at_once = min(threads, len(files))
        settings = tf.data.Options()
        settings.threading.private_threadpool_size = threads

        def items(_epoch: int) -> Iterator[Any]:
            parse = _parser(files, spec)
            examples = tf.data.TFRecordDataset(
                [str(file) for file in files], num_parallel_reads=at_once if at_once > 1 else None
            )
            parsed = examples.repeat().map(parse, num_parallel_calls=threads)
            batches = parsed.batch(batch_size, drop_remainder=True).prefetch(prefetch)
            for tensors in batches.with_options(settings):
                yield {name: as_array(tensors[name]) for name in spec.names}

        passes = SamplePasses(spec, items, batched=True)
        super().__init__(passes, batch_size, recorder=recorder)
        self.threads, self.prefetch = threads, prefetch


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
