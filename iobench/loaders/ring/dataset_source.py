"""A dataset as it is stored, in the ring: in threads, or in processes where that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from iobench.loaders.gil import GIL_LIMIT, measure_gil_share
from iobench.loaders.pipeline import dataset_pipeline
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.process_source import ProcessSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.datasets.contract import Dataset, SampleIndex
    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.ring.contract import BatchSource, Present


@runtime_checkable
class NumberedSamples(Protocol):
    """Samples of a dataset by number, as `iobench.open_dataset` returns them."""

    dataset: Dataset
    index: SampleIndex
    numbers: Sequence[int]


WORTH_A_HINT_S: Final = 10.0
"""What an epoch takes at least for processes to be looked into."""


def dataset_source(
    samples: NumberedSamples,
    batch_size: int,
    *,
    processes: bool | None = None,
    transform: Present | None = None,
    changed: Callable[[BatchSource], BatchSource] | None = None,
) -> BatchSource:
    """Return what fills batches with the samples of a dataset."""
    pipeline = dataset_pipeline(samples.dataset, samples.index, samples.numbers)
    alone = not getattr(samples.dataset, "thread_safe", False)
    note = "" if processes is not None else _why_processes(samples.dataset.name, pipeline, alone)
    source: BatchSource = PipelineSource(pipeline, one_thread=alone, note=note)
    if changed is not None:
        source = changed(source)
    return ProcessSource(source, batch_size, transform=transform) if processes else source


def _why_processes(name: str, pipeline: Pipeline, alone: bool) -> str:
    """Return in words what processes would bring; nothing where threads do as well."""
    asked = "processes=True asks for them, the script's own work under if __name__ == '__main__':"
    if alone:
        return f"{name} may be used by one thread at a time; processes load side by side: {asked}"
    if pipeline.dataset is not None and pipeline.dataset.chunking() is not None:
        return ""  # each process would decode anew what threads share
    share = measure_gil_share(pipeline, WORTH_A_HINT_S) or 0.0
    if share <= GIL_LIMIT:
        return ""
    return (
        f"samples of {name} hold Python's lock: two processes would make them up to "
        f"{1 + share:.1f} times as fast as two threads; {asked}"
    )
