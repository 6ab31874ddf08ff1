"""Whether reader threads can make a dataset's samples side by side, or only processes can."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from iobench.chunks.decoded_chunks import keeping_nothing
from iobench.cpus import available_cpus
from iobench.datasets.setup_processes import stopwatch
from iobench.errors import IobenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.loaders.pipeline import Pipeline

GIL_LIMIT: Final = 0.5
"""Above this share two threads bring less than half of what two processes bring."""
ENOUGH_S: Final = 0.05
MAX_SAMPLES: Final = 64
N_TRIES: Final = 3
LONG_S: Final = 0.2


def measure_gil_share(pipeline: Pipeline, shortest_s: float = 0.0) -> float | None:
    """Return the share of a sample's making that holds Python's lock, from 0 to 1.

    Some samples are made by one thread, then as many by each of two at once: with no lock in the
    way both take as long, with nothing but the lock twice as long. Samples are read once before,
    so that neither reads from the disk. The least of some tries counts, or the first that is not
    above `GIL_LIMIT`; samples that take long are tried once.
    """
    if available_cpus() < 2 or len(pipeline) < 2:
        return None
    try:
        with keeping_nothing():  # what is kept decoded is there for all threads at no cost
            return _measured(pipeline, shortest_s)
    except IobenchError:
        return None


def reader_threads(dataset: Any, pipeline: Pipeline, workers: int) -> tuple[int, float | None]:
    """Return how many threads load, 0 where processes do, and the share they hold the lock."""
    if not workers or not getattr(dataset, "thread_safe", False):
        return 0, None
    share = measure_gil_share(pipeline)
    return (workers if (share or 0.0) <= GIL_LIMIT else 0), share


def _measured(pipeline: Pipeline, shortest_s: float) -> float | None:
    _make(pipeline, [0])  # imports, opens files
    watch = stopwatch()
    _make(pipeline, [0])
    one_s = max(watch(), 1e-6)
    if one_s * len(pipeline) < shortest_s:
        return None
    count = min(MAX_SAMPLES, len(pipeline) // 2, max(1, round(ENOUGH_S / one_s)))
    n_tries = N_TRIES if one_s < LONG_S else 1
    _make(pipeline, range(2 * count))
    share = 1.0
    for _ in range(n_tries):  # what else the machine does only makes it look larger
        share = min(share, _share(pipeline, range(count), range(count, 2 * count)))
        if share <= GIL_LIMIT:
            break
    return share


def _share(pipeline: Pipeline, first: Sequence[int], second: Sequence[int]) -> float:
    watch = stopwatch()
    _make(pipeline, first)
    _make(pipeline, second)
    alone_s = watch() / 2
    other = threading.Thread(target=_make_all, args=(pipeline, second), name="iobench-gil")
    watch = stopwatch()
    other.start()
    _make(pipeline, first)
    other.join()
    return min(max(watch() / max(alone_s, 1e-9) - 1.0, 0.0), 1.0)


def _make_all(pipeline: Pipeline, samples: Sequence[int]) -> None:
    with suppress(IobenchError):  # the other thread has made them once, and would have said so
        _make(pipeline, samples)


def _make(pipeline: Pipeline, samples: Sequence[int]) -> None:
    for sample in samples:
        pipeline.make(sample)
