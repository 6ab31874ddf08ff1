"""A dataset as it is stored, in the ring: in threads, or in processes where those bring nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iobench.datasets import place_index_windows
from iobench.loaders.gil import GIL_LIMIT, measure_gil_share
from iobench.loaders.pipeline import dataset_pipeline
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.ring.process_source import ProcessSource
from iobench.loaders.ring.window_source import WindowSource
from iobench.samples import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iobench.datasets import Dataset, SampleIndex
    from iobench.loaders.ring.contract import BatchSource, Present
    from iobench.windows import WindowPlacement

__all__ = ["NumberedSamples", "dataset_source"]


@runtime_checkable
class NumberedSamples(Protocol):
    """Samples of a dataset by number, as `iobench.open_dataset` returns them."""

    dataset: Dataset
    index: SampleIndex
    numbers: Sequence[int]


def dataset_source(
    samples: NumberedSamples,
    batch_size: int,
    *,
    processes: bool | None = None,
    transform: Present | None = None,
    window: Window | WindowPlacement | None = None,
    cut: Callable[[BatchSource], BatchSource] | None = None,
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
    transform : callable, optional
        What the processes make of a batch.
    window : Window or WindowPlacement, optional
        Which items make a sample; a window is placed where it fits.
    cut : callable, optional
        What is taken of each item.

    Raises
    ------
    OptionError, WorkerError
        Of processes; see `ProcessSource`. OptionError also where a window fits nowhere.
    """
    pipeline = dataset_pipeline(samples.dataset, samples.index, samples.numbers)
    source: BatchSource = PipelineSource(pipeline)
    if cut is not None:
        source = cut(source)
    if window is not None:
        placed = (
            place_index_windows(samples.index, window) if isinstance(window, Window) else window
        )
        source = WindowSource(source, placed.among(samples.numbers), placed.window)
    if processes is None:
        alone = not getattr(samples.dataset, "thread_safe", False)
        processes = alone or (measure_gil_share(pipeline) or 0.0) > GIL_LIMIT
    return ProcessSource(source, batch_size, transform=transform) if processes else source
