"""Samples of a dataset one after the other, made in threads a little ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from iobench.datasets.contract import GroupedDataset, make_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from iobench.datasets.contract import Arrays, Dataset, SampleIndex, Where
    from iobench.samples import Sample

__all__ = ["samples_in_order"]

N_AHEAD = 64
"""Chunks handed to the threads at a time."""


def samples_in_order(
    dataset: Dataset,
    index: SampleIndex,
    numbers: Sequence[int],
    *,
    workers: int = 1,
    memory_nbytes: int = 256 << 20,
) -> Generator[Sample, None, None]:
    """Yield samples by their numbers, in that order.

    Samples that share chunks are decoded together, each chunk once, as a conversion does it.

    Parameters
    ----------
    dataset, index
        Where they come from.
    numbers : sequence of int
        Which.
    workers : int
        Threads; one where the dataset does not say that it may be used by several.
    memory_nbytes : int
        What samples made together may take.

    Raises
    ------
    IobenchError
        As the dataset does.
    """
    n_threads = workers if getattr(dataset, "thread_safe", False) else 1
    pool = ThreadPoolExecutor(max(1, n_threads), thread_name_prefix="iobench-make")
    try:
        if isinstance(dataset, GroupedDataset):
            where = [index.where[number] for number in numbers]
            sizes = dataset.groups(where, memory_nbytes=memory_nbytes)
            if any(size > 1 for size in sizes):
                yield from _in_groups(dataset, dataset.preprocess, where, sizes, pool)
                return
        pending: deque[Future[Sample]] = deque()
        for number in numbers:
            pending.append(pool.submit(make_sample, dataset, index.where[number]))
            if len(pending) > max(1, n_threads):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_groups(
    dataset: GroupedDataset,
    preprocess: Callable[[Arrays, Where], Sample],
    where: Sequence[Where],
    sizes: Sequence[int],
    pool: ThreadPoolExecutor,
) -> Generator[Sample, None, None]:
    """Yield samples that share chunks, group after group; the chunks are decoded by the pool."""

    def run(jobs: Iterable[Callable[[], None]]) -> None:
        running: deque[Future[None]] = deque()
        for job in jobs:
            running.append(pool.submit(job))
            if len(running) > N_AHEAD:
                running.popleft().result()
        while running:
            running.popleft().result()

    start = 0
    for size in sizes:
        some = where[start : start + size]
        raw = dataset.read_group(some)
        arrays = dataset.decode_group(raw, some, run)
        del raw
        for number in range(size):
            yield preprocess(arrays[number], some[number])
        del arrays
        start += size
