"""A dataset as it is stored, in the ring: in threads, or in processes where those bring nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iobench.loaders.gil import GIL_LIMIT, measure_gil_share
from iobench.loaders.pipeline import dataset_pipeline
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.process_source import ProcessSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.datasets import Dataset, SampleIndex
    from iobench.loaders.ring.contract import BatchSource

__all__ = ["NumberedSamples", "dataset_source"]


@runtime_checkable
class NumberedSamples(Protocol):
    """Samples of a dataset by number, as `iobench.open_dataset` returns them."""

    dataset: Dataset
    index: SampleIndex
    numbers: Sequence[int]


def dataset_source(
    samples: NumberedSamples, batch_size: int, *, processes: bool | None = None
) -> BatchSource:
    """Return what fills batches with the samples of a dataset.

    Parameters
    ----------
    samples : NumberedSamples
        Which samples of what.
    batch_size : int
        Samples of the largest batch.
    processes : bool, optional
        Whether each reader thread leaves the work to a process. By default where the dataset may
        be used by one thread alone, or holds Python's lock for more than `GIL_LIMIT` of the time
        (measured on some samples).

    Raises
    ------
    OptionError, WorkerError
        Of processes; see `ProcessSource`.
    """
    pipeline = dataset_pipeline(samples.dataset, samples.index, samples.numbers)
    source = PipelineSource(pipeline)
    if processes is None:
        alone = not getattr(samples.dataset, "thread_safe", False)
        processes = alone or (measure_gil_share(pipeline) or 0.0) > GIL_LIMIT
    return ProcessSource(source, batch_size) if processes else source
