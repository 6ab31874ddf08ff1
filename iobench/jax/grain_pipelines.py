"""What a pipeline of grain is made of: who makes its batches, how far ahead, and of how many."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Nodes that hand on one element for each that they take.
ONE_TO_ONE: Final = frozenset(
    {
        "MapMapDataset", "RandomMapMapDataset", "MapWithIndexMapDataset", "MapIterDataset",
        "RandomMapIterDataset", "MapWithIndexIterDataset", "WithOptionsIterDataset",
        "_WithSeedMapDataset", "_WithSeedIterDataset", "_OutputIterDataset",
        "_DataLoaderStateIterDataset", "_DataLoaderPipelineMarkerIterDataset",
        "_MpContextIterDataset", "_LazyWorkerSliceIterDataset", "ShuffleMapDataset",
        "SliceMapDataset", "RepeatMapDataset", "_SamplerMapDataset", "WindowShuffleMapDataset",
    }
)  # fmt: skip
BATCHES: Final = frozenset({"BatchMapDataset", "BatchIterDataset"})
REPEATS: Final = frozenset({"RepeatMapDataset", "RepeatIterDataset"})
MOST_PARTS: Final = 1000
SAMPLES_IN_WORKERS: Final = "its workers make samples, which the training process joins to batches"
THREADS_IN_WORKERS: Final = "threads of its workers make samples of several batches at once"
SAMPLES_IN_THREADS: Final = "its threads make samples of several batches at once"
THREADS_IN_A_ROW: Final = "several threads hand its batches on to each other"
MIXED: Final = "it mixes several pipelines, each with threads or workers of its own"
UNKNOWN_ORDER: Final = "which of its workers' elements make a batch is known only in the end"
EPOCHS: Final = "epochs: a pass of this loader goes over its samples {}; it counts as one"
SEVERAL: Final = "workers: those of pipelines that are mixed; what they do is not seen"
MOST_MIXED: Final = 64


@dataclass(slots=True)
class PipelineShape:
    """How a pipeline of grain makes its batches.

    Attributes
    ----------
    source : str
        The class of what it reads from.
    per_batch : int or None
        Elements of its workers, or threads, in a batch; None where that varies.
    shards : list
        The datasets of its worker processes, as their iterators know them.
    workers, prefetch, threads : int
        As in `LoaderFacts`.
    in_loop : bool
        Whether the loop's own thread makes the batches.
    in_workers : bool
        Whether one thread of each worker makes its elements.
    unreplayed : str
        As in `LoaderFacts`.
    unseen : list of str
        What cannot be seen of it.
    """

    source: str = ""
    batch_size: int | None = None
    per_batch: int | None = 1
    shards: list[Any] = field(default_factory=list)
    workers: int = 0
    prefetch: int = 0
    threads: int = 0
    in_loop: bool = True
    in_workers: bool = False
    unreplayed: str = ""
    unseen: list[str] = field(default_factory=list)


def read_shape(dataset: Any) -> PipelineShape:
    """Return how a ``DataLoader``, ``IterDataset`` or ``MapDataset`` makes its batches."""
    shape = PipelineShape()
    per_batch: int | None = 1
    ahead = 0
    parents: Any = ()
    for part in _down(dataset):
        name = type(part).__name__
        parents = getattr(part, "_parents", ())
        if name in BATCHES:
            size = int(part._batch_size)
            shape.batch_size = size * (shape.batch_size or 1)
            per_batch = None if per_batch is None else per_batch * size
        elif name in {"InterleaveIterDataset", "ProcessPrefetchIterDataset"}:
            single = name == "ProcessPrefetchIterDataset"
            parents = [part] if single else part._datasets
            if _are_workers(parents):
                _add_workers(shape, parents, per_batch, ahead, single=single)
                return shape
            shape.in_loop = False  # a thread for each of several files
            shape.unreplayed = THREADS_IN_A_ROW
            break
        elif name == "PrefetchIterDataset":
            threads, buffered = _read_options(part)
            if threads:
                shape.per_batch = per_batch
                _add_threads(shape, threads, buffered, per_batch, ahead)
        elif name == "ThreadPrefetchIterDataset":
            if int(part._prefetch_buffer_size):
                ahead += 1
                shape.in_loop = False
                shape.prefetch = max(shape.prefetch, int(part._prefetch_buffer_size))
                shape.unreplayed = THREADS_IN_A_ROW
        elif name not in ONE_TO_ONE:
            per_batch = None
        _note(shape, part)
    if len(parents) > 1 and isinstance(parents, (list, tuple)):
        _add_mixed(shape, parents)
    _read_source(shape, dataset)
    return shape


def _are_workers(parts: Any) -> bool:
    return isinstance(parts, (list, tuple)) and all(
        type(each).__name__ == "ProcessPrefetchIterDataset" for each in parts
    )


def _add_mixed(shape: PipelineShape, parents: Sequence[Any]) -> None:
    """Note what of several pipelines are mixed."""
    inner = [read_shape(each) for each in parents[:MOST_MIXED]]
    shape.source = " and ".join(sorted({each.source for each in inner}))
    shape.threads += sum(each.threads for each in inner)
    if any(each.shards for each in inner):
        shape.unseen.append(SEVERAL)
    if not all(each.in_loop for each in inner):
        shape.in_loop = False
        shape.unreplayed = MIXED
    sizes = {each.batch_size for each in inner}
    if len(sizes) == 1 and (size := sizes.pop()):
        shape.batch_size = size * (shape.batch_size or 1)
    for each in inner:
        shape.unseen += [told for told in each.unseen if told not in shape.unseen]


def _down(part: Any) -> Iterator[Any]:
    """Yield a pipeline's parts, the one that is asked first, as far as each has one parent."""
    for _ in range(MOST_PARTS):
        part = getattr(part, "_dataset", part)  # of a DataLoader
        yield part
        parents: Any = getattr(part, "_parents", ())
        if len(parents) != 1:
            return
        part = parents[0]


def _read_options(part: Any) -> tuple[int, int]:
    options = part._read_options
    threads, buffered = int(options.num_threads), int(options.prefetch_buffer_size)
    return (threads, buffered) if threads and buffered else (0, 0)


def _add_workers(
    shape: PipelineShape, found: Sequence[Any], per_batch: int | None, ahead: int, *, single: bool
) -> None:
    """Note the worker processes of ``mp_prefetch``."""
    shape.shards, shape.workers = [each._parent for each in found], len(found)
    shape.in_loop, shape.per_batch = False, per_batch
    # A worker is told to go on when the element so many before is taken: those in its queue, the
    # one it makes, and where a thread empties the queue, its own and those it keeps.
    buffered = int(found[0]._buffer_size)
    shape.prefetch = buffered + 1 if single else 2 * buffered + 2
    if per_batch is None:
        shape.unreplayed = UNKNOWN_ORDER
    elif per_batch > 1:
        shape.unreplayed = SAMPLES_IN_WORKERS
        shape.prefetch = max(1, shape.prefetch // per_batch)
    inner = read_shape(shape.shards[0])
    shape.batch_size = (
        (shape.batch_size or 1) * inner.batch_size if inner.batch_size else (shape.batch_size)
    )
    shape.source = inner.source
    shape.unseen += [each for each in inner.unseen if each not in shape.unseen]
    shape.in_workers = inner.in_loop
    if not inner.in_loop:
        shape.unreplayed = shape.unreplayed or THREADS_IN_WORKERS
    if ahead:
        shape.unreplayed = shape.unreplayed or THREADS_IN_A_ROW


def _add_threads(
    shape: PipelineShape, threads: int, buffered: int, per_batch: int | None, ahead: int
) -> None:
    shape.in_loop = False
    shape.threads += threads
    shape.prefetch = max(shape.prefetch, buffered // (per_batch or buffered))
    if per_batch != 1:
        shape.unreplayed = SAMPLES_IN_THREADS
    elif ahead:
        shape.unreplayed = THREADS_IN_A_ROW


def _note(shape: PipelineShape, part: Any) -> None:
    """Note what a part does that a report has to say."""
    times: int | None = 1
    if type(part).__name__ in REPEATS:
        times = getattr(part, "_num_epochs", None)
    sampler = getattr(part, "_sampler", None)
    if sampler is not None and hasattr(sampler, "_num_epochs"):
        times = sampler._num_epochs
    if times is None or times > 1:
        told = EPOCHS.format("without end" if times is None else f"{times} times")
        if told not in shape.unseen:
            shape.unseen.append(told)


def _read_source(shape: PipelineShape, dataset: Any) -> None:
    if shape.source:
        return
    *_, part = _down(dataset)
    source = getattr(part, "_source", part)
    shape.source = type(source).__name__


def n_elements_at_most(dataset: Any) -> int:
    """Return how many elements a pipeline has at most, by the last of its parts that knows."""
    found = sys.maxsize
    for part in _down(dataset):
        if hasattr(type(part), "__len__"):
            return min(found, len(part))
    return found
