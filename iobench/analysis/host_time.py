"""The time of a run that what its machine shows is told of: its waits, and all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.time_intervals import length_before
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import Process

Integers = NDArray[np.int64]


def training_process(run: RankRun) -> Process | None:
    """Return the process whose loop waited; else the first of its rank."""
    processes, rank = run.processes, run.exposure.rank
    if run.loop.process >= 0:
        return processes[run.loop.process]
    return next((each for each in processes if each.rank == rank), None)


def waits_and_walls(run: RankRun) -> tuple[tuple[Integers, Integers], tuple[Integers, Integers]]:
    """Return from when to when the loop waited, and from when to when its passes went on."""
    deliveries = run.deliveries
    waits = deliveries.requested_ns, deliveries.delivered_ns
    return waits, (deliveries.from_ns, deliveries.until_ns) if len(deliveries) else _extent(run)


def wait_and_other_ns(run: RankRun, time_ns: Integers) -> tuple[Integers, Integers]:
    """Return of each step from a moment to the next what of it was waits, and what other time."""
    waits, walls = (
        np.diff(length_before(*each, time_ns)) if len(each[0]) else np.zeros(len(time_ns) - 1, int)
        for each in waits_and_walls(run)
    )
    return waits, walls - waits


def _extent(run: RankRun) -> tuple[Integers, Integers]:
    """Return from when to when a process without a wait has spans."""
    spans = run.spans
    spans = spans[(spans["flags"] & Flag.IO) == 0]
    if not len(spans):
        none = np.zeros(0, dtype=np.int64)
        return none, none
    return (
        np.array([spans["start_ns"].min()], dtype=np.int64),
        np.array([spans["end_ns"].max()], dtype=np.int64),
    )
