"""A TFRecord store under ``iobench profile`` as tf.data reads it, with its threads seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf

from iobench.errors import WorkerError
from iobench.loaders.contract import IN_THREADS, Batch
from iobench.loaders.measured_loader import MeasuredLoader, refuse_below_one
from iobench.stores.example import FeatureKind
from iobench.stores.tfrecord import feature_kinds
from iobench.tensorflow.gpu_copies import checked_place
from iobench.tensorflow.tensors import as_array
from iobench.tensorflow.traced_rounds import TracedRounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec, Variable

BITS: Final = {"uint32": tf.int32, "uint64": tf.int64}
"""What ``decode_raw`` knows no name for is of as many bits."""


class TFExampleLoader(MeasuredLoader):
    """Reads the shards of a store with ``TFRecordDataset``, parses, batches and prefetches.

    As a script would: ``TFRecordDataset(files, num_parallel_reads).repeat().map(parse).batch()
    .prefetch()``. Samples come in the store's order, whatever the plan says of them; of it only
    the numbers of the batches are used. Batches stay valid as long as they are held.
    """

    def __init__(
        self,
        files: Sequence[Path],
        spec: SampleSpec,
        batch_size: int,
        *,
        threads: int,
        prefetch: int = 2,
        recorder: Recorder,
        place: str | None = None,
    ) -> None:
        refuse_below_one(threads=threads, prefetch=prefetch, batch_size=batch_size)
        super().__init__(threads=threads, prefetch=prefetch)
        self._names = spec.names
        self._files, self._spec, self._batch_size = files, spec, batch_size
        if place:
            self.copied_from, self.copied_by = None, "tf.data (prefetch_to_device)"
        self._place = place
        self._iterator: Any = None
        self._traced = TracedRounds(recorder, batch_size)

    def _take(self, planned: PlannedBatch) -> Batch:
        if self._iterator is None:
            # Not before: TensorFlow's threads would be there when another loader forks.
            self._iterator = iter(self._pipeline())
            self._traced.start()
        with self._traced.batch(planned):
            try:
                found = next(self._iterator)
            except tf.errors.OpError as error:
                raise WorkerError(f"tf.data: {' '.join(str(error.message).split())}") from error
        if self._place:
            placed = checked_place({name: found[name] for name in self._names}, self._place)
            return Batch(planned, placed, IN_THREADS, on_device=True)
        return Batch(planned, {name: as_array(found[name]) for name in self._names}, IN_THREADS)

    def _pipeline(self) -> Any:
        paths = [str(file) for file in self._files]
        parse = _parser(self._files, self._spec)
        at_once = min(self.threads, len(paths))
        examples = tf.data.TFRecordDataset(
            paths, num_parallel_reads=at_once if at_once > 1 else None
        )
        parsed = examples.repeat().map(parse, num_parallel_calls=self.threads)
        batches = parsed.batch(self._batch_size, drop_remainder=True).prefetch(self.prefetch)
        settings = tf.data.Options()
        settings.threading.private_threadpool_size = self.threads
        batches = batches.with_options(settings)
        if not self._place:
            return batches
        return batches.apply(
            tf.data.experimental.prefetch_to_device(self._place, buffer_size=self.prefetch)
        )

    def after_round(self) -> None:
        """Write what TensorFlow's threads did in the round, and trace the next one."""
        self._traced.next_round()

    def _let_go(self) -> None:
        self._iterator = None  # and its threads with it
        self._traced.close()


def _parser(files: Sequence[Path], spec: SampleSpec) -> Callable[[Any], dict[str, Any]]:
    """Return what parses an example, by how the first one of the store holds its arrays."""
    kinds = feature_kinds(files, spec.names)
    features, changes = {}, {}
    for variable in spec:
        features[variable.name], changes[variable.name] = _feature(variable, kinds[variable.name])

    def parse(example: Any) -> dict[str, Any]:
        found = tf.io.parse_single_example(example, features)
        return {name: change(found[name]) for name, change in changes.items()}

    return parse


def _feature(variable: Variable, kind: FeatureKind) -> tuple[Any, Callable[[Any], Any]]:
    """Return how a feature is parsed, and what makes the variable of it."""
    dtype = np.dtype(variable.dtype)
    if kind is FeatureKind.FLOAT:
        return tf.io.FixedLenFeature(variable.shape, tf.float32), lambda values: values
    if kind is FeatureKind.INT64:
        wanted = tf.as_dtype(dtype)
        return (
            tf.io.FixedLenFeature(variable.shape, tf.int64),
            lambda values: values if wanted == tf.int64 else tf.cast(values, wanted),
        )
    raw = BITS.get(dtype.name, tf.as_dtype(dtype))

    def from_bytes(text: Any) -> Any:
        values = tf.reshape(tf.io.decode_raw(text, raw), variable.shape)
        return values if raw.as_numpy_dtype == dtype.type else tf.bitcast(values, dtype.name)

    return tf.io.FixedLenFeature((), tf.string), from_bytes
