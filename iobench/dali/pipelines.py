"""DALI pipelines over the shards of a store: its TFRecord and its NumPy reader, on the CPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import OptionError
from iobench.stores.example import FeatureKind
from iobench.stores.tfrecord import feature_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iobench.samples import SampleSpec, Variable


def make_pipeline(
    shards: Sequence[Sequence[Path]],
    counts: Sequence[int],
    spec: SampleSpec,
    batch_size: int,
    *,
    threads: int,
    prefetch: int,
    place: int | None = None,
) -> Any:
    """Return a built pipeline over a store; its outputs are the variables in their order."""
    suffixes = {path.suffix for files in shards for path in files}
    if suffixes == {".tfrecord", ".idx"}:
        graph = _from_examples([files[0] for files in shards], [files[1] for files in shards], spec)
    elif suffixes == {".npy"} and not any(map(_holds_whole_samples, shards[0])):
        graph = _from_arrays(shards, counts, spec, batch_size)
    else:
        raise OptionError(
            "--framework dali: DALI reads TFRecord stores, and NumPy stores with a file for each "
            "variable (of 64 KiB or more a sample); choose --format tfrecord"
        )
    pipeline = importlib.import_module("nvidia.dali.pipeline").Pipeline(
        batch_size=batch_size,
        num_threads=threads,
        device_id=place,
        prefetch_queue_depth=prefetch,
    )
    with pipeline:
        outputs = graph()
        pipeline.set_outputs(*(outputs if place is None else [each.gpu() for each in outputs]))
    pipeline.build()
    return pipeline


def _holds_whole_samples(path: Path) -> bool:
    """Return whether the rows of an array are whole samples, which DALI cannot take apart."""
    return np.load(path, mmap_mode="r").dtype.names is not None


def _from_examples(
    files: Sequence[Path], indexes: Sequence[Path], spec: SampleSpec
) -> Callable[[], Sequence[Any]]:
    fn = importlib.import_module("nvidia.dali.fn")
    tfrecord = importlib.import_module("nvidia.dali.tfrecord")
    kinds = feature_kinds(files, spec.names)
    features = {}
    for variable in spec:
        kind = kinds[variable.name]
        shape = () if kind is FeatureKind.BYTES else variable.shape
        features[variable.name] = tfrecord.FixedLenFeature(shape, *_tfrecord_type(tfrecord, kind))

    def graph() -> Sequence[Any]:
        read = fn.readers.tfrecord(
            path=[str(file) for file in files],
            index_path=[str(file) for file in indexes],
            features=features,
            name="records",
        )
        return [_typed(fn, read[variable.name], variable, kinds) for variable in spec]

    return graph


def _tfrecord_type(tfrecord: Any, kind: FeatureKind) -> tuple[Any, Any]:
    if kind is FeatureKind.FLOAT:
        return tfrecord.float32, 0.0
    if kind is FeatureKind.INT64:
        return tfrecord.int64, 0
    return tfrecord.string, ""


def _typed(fn: Any, values: Any, variable: Variable, kinds: Mapping[str, FeatureKind]) -> Any:
    """Return an output as the variable says; strings hold the bytes of its numbers."""
    types = importlib.import_module("nvidia.dali.types")
    dtype = np.dtype(variable.dtype)
    if kinds[variable.name] is FeatureKind.BYTES:
        return fn.reinterpret(values, dtype=types.to_dali_type(dtype.name), shape=variable.shape)
    if dtype.name in ("float32", "int64"):
        return values
    return fn.cast(values, dtype=types.to_dali_type(dtype.name))


def _from_arrays(
    shards: Sequence[Sequence[Path]], counts: Sequence[int], spec: SampleSpec, batch_size: int
) -> Callable[[], Sequence[Any]]:
    """Return readers that take one row of a shard's array after the other."""
    fn = importlib.import_module("nvidia.dali.fn")
    types = importlib.import_module("nvidia.dali.types")
    rows = np.concatenate([np.arange(n, dtype=np.int32) for n in counts])

    def row(info: Any) -> Any:
        place = (info.iteration * batch_size + info.idx_in_batch) % len(rows)
        return rows[place : place + 1]

    def graph() -> Sequence[Any]:
        starts = fn.external_source(source=row, batch=False, dtype=types.INT32, ndim=1)
        found = []
        for variable, files in zip(spec, zip(*shards, strict=True), strict=True):
            repeated = [str(file) for file, n in zip(files, counts, strict=True) for _ in range(n)]
            read = fn.readers.numpy(
                files=repeated, roi_start=starts, roi_shape=[1], roi_axes=[0], name=variable.name
            )
            found.append(fn.reshape(read, shape=[*variable.shape], layout=""))
        return found

    return graph
