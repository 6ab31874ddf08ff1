"""How busy a run's GPUs were and how much of their memory was taken, as their driver reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iobench.frozen import frozen

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.recording.energy_file import GpuReading


@frozen
class GpuUsage:
    """What a driver told of one GPU during a run, of all processes together.

    Parameters
    ----------
    title : str
        As people know it.
    n_readings : int
        How often it was asked during the run.
    busy_fraction : float or None
        For how much of the time before a reading something ran on it, on average; null is unknown.
    used_nbytes : int or None
        How much of its memory was taken at most; null is unknown.
    """

    title: str
    n_readings: int
    busy_fraction: float | None
    used_nbytes: int | None


def usage_of(run: RankRun) -> tuple[GpuUsage, ...]:
    """Return what is known of the GPUs of a run; nothing where several training processes share.

    Nobody tells then which GPU is whose.
    """
    if len(run.whole.energy) != 1 or len(run.whole.ranks) != 1 or not len(run.deliveries):
        return ()
    begun, ended = run.deliveries.from_ns, run.deliveries.until_ns
    by_gpu: dict[str, list[GpuReading]] = {}
    for reading in run.whole.energy[0].usage:
        place = int(np.searchsorted(begun, reading.time_ns, side="right")) - 1
        if place >= 0 and reading.time_ns < ended[place]:  # else it was another run's turn
            by_gpu.setdefault(reading.source.name, []).append(reading)
    return tuple(map(_summed, by_gpu.values()))


def _summed(readings: list[GpuReading]) -> GpuUsage:
    percent = [each.busy_percent for each in readings if each.busy_percent is not None]
    nbytes = [each.used_nbytes for each in readings if each.used_nbytes is not None]
    return GpuUsage(
        readings[0].source.title,
        len(readings),
        sum(percent) / (100 * len(percent)) if percent else None,
        max(nbytes, default=None),
    )
