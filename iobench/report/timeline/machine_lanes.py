"""What a machine did while a run went on, as lanes below those of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.run import RankRun
    from iobench.runs.machine_samples import MachineSamples

Floats = NDArray[np.float64]
SHARE, BYTES, RATE = "share", "bytes", "rate"
Figure = tuple[str, str, Floats | None, float | None]
"""Name, unit, means between readings (NaN is unknown), and what fills the lane if not the most."""
MOST_STEPS: Final = 2000
"""Of a lane on a page; of more, several become their mean."""
STEPS: Final = 1000
"""A page has values in so many steps of a lane's top."""


def _figures(samples: MachineSamples) -> Iterator[Figure]:
    head = samples.head

    def rate(column: str, divisor: float = 1.0) -> Floats | None:
        values = samples.per_second(column)
        return None if values is None else values / divisor

    if head.cpus:
        limits = samples.cpu_limits()
        yield "CPUs", SHARE, limits["cpus"], 1.0
        yield "CPUs of the quota", SHARE, limits.get("quota"), 1.0
    for what in ("memory", "io", "cpu"):
        yield f"held up for {what}", SHARE, rate(f"pressure.{what}_us", 1e6), 1.0
    for name, column, top in (
        ("memory taken", "memory.used_nbytes", head.memory_nbytes),
        ("page cache", "memory.cached_nbytes", head.memory_nbytes),
    ):
        if column in samples.values:
            yield name, BYTES, samples.values[column][1:], top
    for disk in samples.names("disk"):
        yield f"{disk} busy", SHARE, rate(f"disk:{disk}.busy_ms", 1e3), 1.0
        for what in ("read", "written"):
            yield f"{disk} {what}", RATE, rate(f"disk:{disk}.{what}"), None
    for link in samples.names("net"):
        for what in ("received", "sent"):
            yield f"{link} {what}", RATE, rate(f"net:{link}.{what}"), head.links.get(link)
    for gpu in samples.names("gpu"):
        title = head.sources[int(gpu)].title
        yield f"{title} busy", SHARE, samples.gpu_busy(gpu), 1.0


def machine_payload(run: RankRun, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Return what a page draws of the machine: lanes that share their edges (us), as a group."""
    process = next((each for each in run.processes if each.rank == run.rank), None)
    samples = of_process(run.machines, process)
    if samples is None:
        return []
    first, last = np.searchsorted(samples.time_ns, (start_ns, end_ns))
    part = slice(max(first - 1, 0), last + 1)
    inside, lanes = samples.time_ns[part], []
    for name, unit, values, top in _figures(samples):
        if len(inside) > 1 and values is not None and not np.isnan(values).all():
            full = top or float(np.nanmax(values)) or 1.0
            edges, means = _thinned(inside, values[part][: len(inside) - 1])
            steps = np.clip(np.rint(means / full * STEPS), 0, STEPS).tolist()
            shown = [None if np.isnan(step) else int(step) for step in steps]
            lanes.append({"name": name, "unit": unit, "top": full, "values": shown})
    return [{"edges": ((edges - start_ns) // 1000).tolist(), "lanes": lanes}] if lanes else []


def _thinned(edges: NDArray[np.int64], values: Floats) -> tuple[NDArray[np.int64], Floats]:
    n_joined = -(-len(values) // MOST_STEPS)
    if n_joined < 2:
        return edges, values
    first = np.arange(0, len(values), n_joined)
    step = np.diff(edges) * ~np.isnan(values)
    total = np.add.reduceat(np.nan_to_num(values) * step, first)
    known = np.add.reduceat(step, first)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.append(edges[first], edges[-1:]), np.where(known > 0, total / known, np.nan)
