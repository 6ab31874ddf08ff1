"""``iobench profile --framework tensorflow``: tf.data with its threads seen; tensors of the ring.

TensorFlow tells no times of its copies to a GPU by events. A copy in eager mode returns when it is
made, so its call tells; what tf.data copies ahead is within what is opaque.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from msgspec.structs import replace

from iobench.errors import DeviceError, WorkerError
from iobench.loaders.contract import (
    IN_THREADS,
    Batch,
    MeasuredLoader,
    PlacedArray,
    refuse_below_one,
)
from iobench.loaders.iterable_loader import IterableLoader
from iobench.loaders.planned_ring import PlannedRing
from iobench.recording.kinds import Kind
from iobench.stores.example import FeatureKind
from iobench.stores.tfrecord import feature_kinds
from iobench.tensorflow.host_tracer import HostTracer
from iobench.tensorflow.tensors import as_array, as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iobench.datasets.baseline import SamplePasses
    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec, Variable

TRACED_SAMPLES: Final = 10_000
"""Of a round, at most: a trace takes memory, and time to be read."""
TRACED_BATCHES: Final = 10
OPAQUE: Final = "tf.data"
PIPELINE: Final = "pipeline"
"""Its building: a new one each pass, by the training loop's own thread."""
BITS: Final = {"uint32": tf.int32, "uint64": tf.int64}
"""What ``decode_raw`` knows no name for is of as many bits."""


class TracedRounds:
    """Traces the first batches of each round; the others are opaque."""

    def __init__(self, recorder: Recorder, batch_size: int) -> None:
        self._recorder = recorder
        self._limit = max(TRACED_BATCHES, TRACED_SAMPLES // batch_size)
        self._tracer = HostTracer(recorder.clock)
        self._waits: list[tuple[int, int, int]] = []
        self._epoch = -1
        self._stopping: threading.Thread | None = None
        self._is_due = False

    def start(self) -> None:
        """Trace the next round from its first batch on: there is one tracer for all loops."""
        self._is_due = True

    @contextmanager
    def batch(self, planned: PlannedBatch) -> Iterator[None]:
        """Note that the loop asks for a batch, and when it holds it."""
        if self._is_due:
            self._is_due = False
            self._tracer.start()
        if len(self._waits) == self._limit and self._tracer.running:
            # Writing the trace out takes a while, in which the training loop goes on.
            self._stopping = threading.Thread(target=self._tracer.stop, name="trace")
            self._stopping.start()
        requested_ns = self._recorder.clock.now_ns()
        yield
        self._waits.append((requested_ns, self._recorder.clock.now_ns(), planned.batch))
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
        self._tracer.stop()
        recorder, tracer = self._recorder, self._tracer
        self._tracer = HostTracer(recorder.clock)
        waits, self._waits = self._waits, []
        traced = tracer.write(recorder, waits, epoch=self._epoch)
        label = recorder.string(OPAQUE)
        for start_ns, end_ns, batch in waits:
            if batch not in traced:
                recorder.emit(
                    Kind.OPAQUE, start_ns, end_ns, batch=batch, epoch=self._epoch, label=label
                )


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
                tensors = next(self._iterator)
            except tf.errors.OpError as error:
                raise WorkerError(f"tf.data: {_in_a_line(error)}") from error
        tensors = {name: tensors[name] for name in self._spec.names}
        if self._place:
            placed = checked_place(tensors, self._place)
            return Batch(planned, placed, IN_THREADS, on_device=True)
        arrays = {name: as_array(tensor) for name, tensor in tensors.items()}
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


class TFRingLoader(PlannedRing):
    """Hands on what `TFStoreLoader` does: tensors that share the ring's memory."""

    def __init__(self, *args: Any, place: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = place

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches; as `PlannedRing`, each made of tensors once."""
        for batch in super().batches(plan):
            tensors = {name: as_tensor(array) for name, array in batch.arrays.items()}
            yield self._copied(batch, tensors, self._place) if self._place else batch
            del batch, tensors

    def _copied(self, batch: Batch, tensors: dict[str, Any], place: str) -> Batch:
        """Return a batch on the device, as eager TensorFlow copies it: it waits for the copies."""
        recorder, planned = self._recorder, batch.planned
        now_ns = recorder.clock.now_ns
        start_ns = now_ns()
        try:
            with tf.device(place):
                copies = {name: tf.identity(tensor) for name, tensor in tensors.items()}
        except tf.errors.OpError as error:
            raise DeviceError(f"TensorFlow, {place}: {_in_a_line(error)}") from error
        placed = checked_place(copies, place)
        nbytes = sum(array.nbytes for array in placed.values())
        recorder.emit(
            Kind.H2D, start_ns, now_ns(), nbytes, batch=planned.batch, epoch=planned.epoch
        )
        return dataclasses.replace(batch, arrays=placed, on_device=True)


def find_gpu(name: str) -> str | None:
    """Return what TensorFlow calls a device such as ``cuda:0``; None where it does not see it."""
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return None
    index = int(number or 0)
    try:
        traced = tf.config.list_physical_devices("GPU")
        if index >= len(traced):
            return None
        with suppress(RuntimeError):  # it is at work there already; else others have memory left
            tf.config.experimental.set_memory_growth(traced[index], enable=True)
        known = [device.name for device in tf.config.list_logical_devices("GPU")]
    except (tf.errors.OpError, RuntimeError):  # a driver that it cannot use
        return None
    place = f"/device:GPU:{index}"
    return place if place in known else None


def checked_place(tensors: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return tensors of a device as the measured loop takes them."""
    for name, tensor in tensors.items():
        if not tensor.device.endswith(place):
            raise DeviceError(
                f"TensorFlow, {place}: {name} stayed on {tensor.device.rpartition('/')[2]}"
            )
    return {
        name: PlacedArray(tensor, tensor.dtype.size * math.prod(tensor.shape), tensor.numpy)
        for name, tensor in tensors.items()
    }


def _in_a_line(error: tf.errors.OpError) -> str:
    return " ".join(str(error.message).split())
