"""How busy a run's GPUs were and how much of their memory was taken, as their driver reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun


class GpuUsage(msgspec.Struct, frozen=True):
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
    energy = run.energy
    if len(energy) != 1 or len(run.ranks) != 1 or not len(run.deliveries):
        return ()
    begun, ended = run.deliveries.from_ns, run.deliveries.until_ns
    usage = []
    for gpu in energy[0].gpus:
        place = np.searchsorted(begun, gpu.time_ns, side="right") - 1
        inside = (place >= 0) & (gpu.time_ns < ended[place])  # else it was another run's turn
        busy, used = gpu.busy[inside], gpu.used_nbytes[inside]
        if inside.any():
            busy, used = busy[~np.isnan(busy)], used[~np.isnan(used)]
            usage.append(
                GpuUsage(
                    gpu.title,
                    int(inside.sum()),
                    float(busy.mean()) if len(busy) else None,
                    int(used.max()) if len(used) else None,
                )
            )
    return tuple(usage)
