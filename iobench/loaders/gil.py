"""Whether reader threads can make a dataset's samples side by side, or only processes can."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from iobench.cpus import available_cpus
from iobench.datasets import stopwatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.loaders.pipeline import Pipeline

__all__ = ["GIL_LIMIT", "measure_gil_share"]

GIL_LIMIT: Final = 0.5
"""Above this share two threads bring less than half of what two processes bring."""
ENOUGH_S: Final = 0.05
MAX_SAMPLES: Final = 64
N_TRIES: Final = 3


def measure_gil_share(pipeline: Pipeline) -> float | None:
    """Return the share of a sample's making that holds Python's lock, from 0 to 1.

    Some samples are made by one thread, then as many by each of two at once: with no lock in the
    way both take as long, with nothing but the lock twice as long. Samples are read once before,
    so that neither reads from the disk. The least of some tries counts.

    Returns
    -------
    float or None
        None where it cannot be told: one CPU, or one sample.
    """
    if available_cpus() < 2 or len(pipeline) < 2:
        return None
    _make(pipeline, [0])  # imports, opens files
    watch = stopwatch()
    _make(pipeline, [0])
    count = min(MAX_SAMPLES, len(pipeline) // 2, max(1, round(ENOUGH_S / max(watch(), 1e-6))))
    _make(pipeline, range(2 * count))
    shares = [_share(pipeline, range(count), range(count, 2 * count)) for _ in range(N_TRIES)]
    return min(shares)  # what else the machine does only makes it look larger


def _share(pipeline: Pipeline, first: Sequence[int], second: Sequence[int]) -> float:
    watch = stopwatch()
    _make(pipeline, first)
    _make(pipeline, second)
    alone_s = watch() / 2
    other = threading.Thread(target=_make, args=(pipeline, second), name="iobench-gil")
    watch = stopwatch()
    other.start()
    _make(pipeline, first)
    other.join()
    return min(max(watch() / max(alone_s, 1e-9) - 1.0, 0.0), 1.0)


def _make(pipeline: Pipeline, samples: Sequence[int]) -> None:
    for sample in samples:
        value = pipeline.where[sample]
        for step in pipeline.steps:
            value = step.run(value)
