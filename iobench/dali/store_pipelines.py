"""A store under ``iobench profile --framework dali``: DALI's own readers, which read on the CPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, WorkerError
from iobench.loaders.contract import IN_THREADS, Batch, MeasuredLoader
from iobench.recording.kinds import Kind
from iobench.stores.tfrecord import FeatureKind, feature_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iobench.loaders.contract import PlannedBatch
    from iobench.recording.recorder import Recorder
    from iobench.samples import SampleSpec, Variable

OPAQUE: Final = "dali"


class DaliLoader(MeasuredLoader):
    """Hands on what a pipeline of DALI's readers makes; its threads are not seen from outside."""

    def __init__(
        self,
        shards: Sequence[Sequence[Path]],
        spec: SampleSpec,
        batch_size: int,
        *,
        threads: int,
        prefetch: int = 2,
        recorder: Recorder,
    ) -> None:
        super().__init__(threads=threads, prefetch=prefetch)
        self._recorder = recorder
        self._spec = spec
        self._opaque = recorder.string(OPAQUE)
        self._pipeline: Any = make_pipeline(
            shards, spec, batch_size, threads=threads, prefetch=prefetch
        )

    def _take(self, planned: PlannedBatch) -> Batch:
        recorder = self._recorder
        numbers = {"batch": planned.batch, "epoch": planned.epoch}
        requested_ns = recorder.clock.now_ns()
        try:
            outputs = self._pipeline.run()
        except RuntimeError as error:
            raise WorkerError(f"DALI: {_reason(error)}") from error
        there_ns = recorder.clock.now_ns()
        arrays = [np.array(output.as_array()) for output in outputs]
        recorder.emit(Kind.OPAQUE, requested_ns, there_ns, label=self._opaque, **numbers)
        recorder.emit(Kind.COLLATE, there_ns, recorder.clock.now_ns(), **numbers)
        return Batch(planned, dict(zip(self._spec.names, arrays, strict=True)), IN_THREADS)

    def _let_go(self) -> None:
        self._pipeline = None  # and its threads with it


def _reason(error: RuntimeError) -> str:
    """Return what went wrong, in a line: DALI tells first where, and at length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = lines.index("encountered:") + 1 if "encountered:" in lines else 0
    return next(iter(lines[after:] or lines), type(error).__name__)


def make_pipeline(
    shards: Sequence[Sequence[Path]],
    spec: SampleSpec,
    batch_size: int,
    *,
    threads: int,
    prefetch: int,
) -> Any:
    """Return a built pipeline over a store; its outputs are the variables in their order."""
    if {path.suffix for files in shards for path in files} != {".tfrecord", ".idx"}:
        raise OptionError("--framework dali: DALI reads TFRecord stores: choose --format tfrecord")
    graph = _from_examples([files[0] for files in shards], [files[1] for files in shards], spec)
    pipeline = importlib.import_module("nvidia.dali.pipeline").Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=prefetch,
    )
    with pipeline:
        pipeline.set_outputs(*graph())
    pipeline.build()
    return pipeline


def _from_examples(
    files: Sequence[Path], indexes: Sequence[Path], spec: SampleSpec
) -> Callable[[], Sequence[Any]]:
    fn = importlib.import_module("nvidia.dali.fn")
    tfrecord = importlib.import_module("nvidia.dali.tfrecord")
    kinds = feature_kinds(files, spec.names)
    types = {FeatureKind.FLOAT: (tfrecord.float32, 0.0), FeatureKind.INT64: (tfrecord.int64, 0)}
    features = {}
    for variable in spec:
        kind = kinds[variable.name]
        shape = () if kind is FeatureKind.BYTES else variable.shape
        features[variable.name] = tfrecord.FixedLenFeature(
            shape, *types.get(kind, (tfrecord.string, ""))
        )

    def graph() -> Sequence[Any]:
        read = fn.readers.tfrecord(
            path=[str(file) for file in files],
            index_path=[str(file) for file in indexes],
            features=features,
            name="records",
        )
        return [_typed(fn, read[variable.name], variable, kinds) for variable in spec]

    return graph


def _typed(fn: Any, values: Any, variable: Variable, kinds: Mapping[str, FeatureKind]) -> Any:
    """Return an output as the variable says; strings hold the bytes of its numbers."""
    types = importlib.import_module("nvidia.dali.types")
    dtype = np.dtype(variable.dtype)
    if kinds[variable.name] is FeatureKind.BYTES:
        return fn.reinterpret(values, dtype=types.to_dali_type(dtype.name), shape=variable.shape)
    if dtype.name in ("float32", "int64"):
        return values
    return fn.cast(values, dtype=types.to_dali_type(dtype.name))
