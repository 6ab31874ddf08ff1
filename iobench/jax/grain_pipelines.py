"""What a pipeline of grain says of itself: its source, size of batch, workers and threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_PARTS: Final = 1000
PROCESS: Final = "ProcessPrefetchIterDataset"


def loader_settings(dataset: Any) -> dict[str, Any]:
    """Return what `LoaderFacts` has of a ``DataLoader``, ``IterDataset`` or ``MapDataset``.

    Of a pipeline that mixes several, the first one counts.
    """
    size, part = None, dataset
    workers = threads = 0
    for part in _parts(dataset):
        name = type(part).__name__
        if name in {"BatchMapDataset", "BatchIterDataset"}:
            size = int(part._batch_size) * (size or 1)
        elif name == "InterleaveIterDataset":
            workers = sum(type(each).__name__ == PROCESS for each in _parents(part))
        elif name == PROCESS:
            workers = workers or 1
        elif name == "PrefetchIterDataset" and not workers:  # else they are those of a worker
            threads += int(part._read_options.num_threads)
    return {
        "name": type(getattr(part, "_source", part)).__name__,
        "batch_size": size,
        "workers": workers,
        "threads": threads,
    }


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield the parts of a pipeline, the last one first, by the first of several parents."""
    part = getattr(dataset, "_dataset", dataset)  # of a DataLoader
    for _ in range(MOST_PARTS):
        yield part
        parents = _parents(part)
        if not parents:
            return
        part = parents[0]


def _parents(part: Any) -> list[Any]:
    parents = getattr(part, "_datasets", None) or getattr(part, "_parents", ())
    return [*parents[:MOST_PARTS]] if isinstance(parents, (list, tuple)) else []
