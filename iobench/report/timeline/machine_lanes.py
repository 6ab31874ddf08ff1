"""What a machine did while a run went on, as lanes below those of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.runs.machine_samples import of_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iobench.analysis.run import RankRun
    from iobench.runs.machine_samples import GpuSeries, MachineSamples

Floats = NDArray[np.float64]
SHARE, BYTES, RATE = "share", "bytes", "rate"
MOST_STEPS: Final = 2000
"""Of a lane on a page; of more, several become their mean."""
STEPS: Final = 1000
"""A page has values in so many steps of a lane's top."""


class MachineLane(msgspec.Struct, frozen=True, eq=False):
    """One figure of a machine: means between two edges, NaN is unknown.

    ``unit`` is ``"share"`` from 0 to 1, ``"bytes"`` or ``"rate"``, in bytes a second; ``top`` fills
    the lane; ``is_part`` is one of many alike, a CPU: a page has their mean.
    """

    name: str
    unit: str
    edges_ns: NDArray[np.int64]
    values: Floats
    top: float
    is_part: bool = False


class MachineLanes(msgspec.Struct, frozen=True):
    """All lanes of one machine, as the process that ran on it calls it."""

    host: str
    boot_id: str
    lanes: tuple[MachineLane, ...]


def lanes_of_machine(run: RankRun) -> MachineLanes | None:
    """Return the lanes of the machine that a training process ran on; None if nobody looked."""
    process = next((each for each in run.processes if each.rank == run.rank), None)
    samples = of_process(run.machines, process)
    if process is None or samples is None or len(samples.time_ns) < 2:
        return None
    energy = of_process(run.energy, process)
    gpus = _gpu_lanes(() if energy is None else energy.gpus)
    return MachineLanes(process.host, process.boot_id, (*_lanes(samples), *gpus))


def _lanes(samples: MachineSamples) -> Iterator[MachineLane]:
    edges, head = samples.time_ns, samples.head

    def lane(name: str, unit: str, values: Floats | None, top: float | None = None) -> Any:
        if values is None or np.isnan(values).all():
            return
        largest = float(np.nanmax(values))
        yield MachineLane(name, unit, edges, values, top or largest or 1.0)

    if head.cpus:
        for name, values in samples.cpu_limits().items():
            yield from lane("CPUs" if name == "cpus" else "CPUs of the quota", SHARE, values, 1.0)
        for number, values in zip(head.cpus, samples.busy().T, strict=True):
            yield MachineLane(f"CPU {number}", SHARE, edges, values, 1.0, is_part=True)
    for what in ("memory", "io", "cpu"):
        held = samples.per_second(f"pressure.{what}_us")
        yield from lane(f"held up for {what}", SHARE, None if held is None else held / 1e6, 1.0)
    for name, column, top in (
        ("memory taken", "memory.used_nbytes", head.memory_nbytes),
        ("memory of the cgroup", "cgroup.used_nbytes", head.memory_limit_nbytes),
        ("page cache", "memory.cached_nbytes", head.memory_nbytes),
    ):
        if column in samples.values:
            yield from lane(name, BYTES, samples.values[column][1:], top)
    for disk in samples.names("disk"):
        busy = samples.per_second(f"disk:{disk}.busy_ms")
        yield from lane(f"{disk} busy", SHARE, None if busy is None else busy / 1e3, 1.0)
        for direction in ("read", "written"):
            yield from lane(
                f"{disk} {direction}", RATE, samples.per_second(f"disk:{disk}.{direction}")
            )
    for link in samples.names("net"):
        for direction in ("received", "sent"):
            moved = samples.per_second(f"net:{link}.{direction}")
            yield from lane(f"{link} {direction}", RATE, moved, head.links.get(link))


def _gpu_lanes(gpus: tuple[GpuSeries, ...]) -> Iterator[MachineLane]:
    for gpu in gpus:
        edges, used = gpu.time_ns, gpu.used_nbytes[1:]
        if len(edges) > 1:
            yield MachineLane(f"{gpu.title} busy", SHARE, edges, gpu.busy[1:], 1.0)
            top = float(np.nanmax([*used, 1.0]))
            yield MachineLane(f"{gpu.title} memory", BYTES, edges, used, top)


def machine_payload(run: RankRun, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Return what a page draws of a run's machine: lanes that share their edges, in groups.

    ``edges`` in microseconds since the first moment of the timeline, and of each lane ``values`` in
    thousandths of its ``top``, null where unknown.
    """
    groups: dict[int, dict[str, Any]] = {}
    machine = lanes_of_machine(run)
    for each in () if machine is None else machine.lanes:
        if each.is_part:
            continue
        first, last = np.searchsorted(each.edges_ns, (start_ns, end_ns))
        part = slice(max(first - 1, 0), last + 1)
        inside = each.edges_ns[part]
        edges, values = _thinned(inside, each.values[part][: len(inside) - 1])
        steps = np.clip(np.rint(values / each.top * STEPS), 0, STEPS).tolist()
        group = groups.setdefault(
            id(each.edges_ns), {"edges": ((edges - start_ns) // 1000).tolist(), "lanes": []}
        )
        shown = [None if np.isnan(step) else int(step) for step in steps]
        group["lanes"].append(
            {"name": each.name, "unit": each.unit, "top": each.top, "values": shown}
        )
    return [each for each in groups.values() if len(each["edges"]) > 1]


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


def counter_events(machine: MachineLanes, pid: int, moved_ns: int) -> Iterator[dict[str, Any]]:
    """Yield each lane as a counter of a trace: shares in per cent, others in bytes."""
    for each in machine.lanes:
        values: NDArray[Any] = each.values * 100 if each.unit == SHARE else each.values
        unit = {SHARE: "%", BYTES: "bytes", RATE: "bytes/s"}[each.unit]
        # The last step lasts until its end; what is as before says nothing.
        time_ns, values = each.edges_ns + moved_ns, np.round(np.append(values, values[-1:]), 1)
        shown = ~np.isnan(values) & np.append(True, np.diff(values) != 0) & (time_ns >= 0)
        shown[-1] = ~np.isnan(values[-1]) and time_ns[-1] >= 0
        head = {"ph": "C", "name": f"{each.name} ({unit})", "pid": pid}
        for when, value in zip(time_ns[shown].tolist(), values[shown].tolist(), strict=True):
            yield {**head, "ts": when / 1000, "args": {"value": value}}
