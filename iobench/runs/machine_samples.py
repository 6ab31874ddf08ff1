"""What a machine did while a run went on, read back: between each two readings, how busy it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.json_files import LARGEST_NBYTES, parse_json, read_small_file
from iobench.recording.machine_head import METER_FOLDER, METER_VERSION, MachineHead

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from iobench.recording.machine_head import EnergySource
    from iobench.runs.contents import Process

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
SECOND: Final = 1e9
WRAPS: Final = 1 << 32
UNREADABLE: Final = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError),
    msgspec.ValidationError,
)
"""What a damaged file ends in; it is named, and the rest of the run is read."""


class EnergySeries(msgspec.Struct, frozen=True, eq=False):
    """One counter's readings: joules since the first one, which never fall."""

    source: EnergySource
    time_ns: Integers
    energy_j: Floats
    n_resets: int


class MachineSamples(msgspec.Struct, frozen=True, eq=False):
    """One machine's readings."""

    head: MachineHead
    time_ns: Integers
    ticks: Integers  # by reading and CPU: for how many it was busy, modulo 2**32
    values: dict[str, Floats]  # by column; what was not due on a straight line, NaN is unknown
    energy: tuple[EnergySeries, ...] = ()

    @property
    def step_ns(self) -> Integers:
        """Time between two readings."""
        return np.diff(self.time_ns)

    def busy(self) -> Floats:
        """Return for which share of the time between readings each CPU was busy: (step, CPU)."""
        ticks = np.diff(self.ticks, axis=0) % WRAPS
        seconds = self.step_ns[:, None] / SECOND
        shares: Floats = np.minimum(ticks / (seconds * self.head.ticks_per_s), 1.0)
        return shares

    def per_second(self, column: str) -> Floats | None:
        """Return how much a count rose a second between readings; None where there is none."""
        if column not in self.values:
            return None
        rise = np.diff(self.values[column])
        rates: Floats = np.where(rise >= 0, rise, np.nan) / (self.step_ns / SECOND)
        return rates

    def names(self, what: str) -> tuple[str, ...]:
        """Return the devices of a sort (``"disk"``, ``"net"``, ``"gpu"``), in the head's order."""
        columns = (each.rpartition(".")[0].partition(":") for each in self.head.columns)
        return tuple(dict.fromkeys(name for sort, _, name in columns if sort == what))

    def gpu_busy(self, name: str) -> Floats | None:
        """Return how busy a GPU was at the end of each step, as a share; None where unknown."""
        percent = self.values.get(f"gpu:{name}.busy")
        return None if percent is None else percent[1:] / 100

    def cpu_limits(self) -> dict[str, Floats]:
        """Return how much of the CPUs was used, of those allowed and of the cgroup's quota."""
        busy = self.busy()
        limits = {"cpus": busy.mean(axis=1)} if busy.size else {}
        used = self.per_second("cgroup.cpu_us")
        if used is not None and self.head.quota_cpus:
            limits["quota"] = np.minimum(used / (1e6 * self.head.quota_cpus), 1.0)
        return limits


def read_machines(run: Path) -> tuple[tuple[MachineSamples, ...], tuple[str, ...]]:
    """Return what was read of a run's machines, by name; files damaged or of earlier versions."""
    machines = []
    damaged = sorted(f"energy/{path.name}" for path in (run / "energy").glob("*"))
    for path in sorted((run / METER_FOLDER).glob("*.samples")):
        try:
            line, _, data = read_small_file(path, limit=LARGEST_NBYTES).partition(b"\n")
            machines.append(_samples(_head(line), data))
        except UNREADABLE:
            damaged.append(f"{METER_FOLDER}/{path.name}")
    return tuple(machines), tuple(damaged)


def _head(line: bytes) -> MachineHead:
    document = parse_json(line)
    head = msgspec.convert(document, MachineHead)
    if document["version"] != METER_VERSION or head.ticks_per_s <= 0:
        raise ValueError(line)
    return head


def _samples(head: MachineHead, data: bytes) -> MachineSamples:
    columns = [(name, "<i8") for name in head.columns]
    dtype = np.dtype([("time_ns", "<i8"), ("ticks", "<u4", (len(head.cpus),)), *columns])
    rows: NDArray[Any] = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    if len(rows):
        rows = rows[np.append(True, np.diff(rows["time_ns"]) > 0)]
    time_ns = rows["time_ns"].astype(np.int64)
    counts = {name: rows[name].astype(np.int64) for name in head.columns}
    energy = (
        _series(source, time_ns, counts[f"energy:{place}.uj"])
        for place, source in enumerate(head.sources)
    )
    return MachineSamples(
        head,
        time_ns,
        rows["ticks"].astype(np.int64).reshape(len(rows), len(head.cpus)),
        {name: _between(time_ns, each) for name, each in counts.items()},
        tuple(energy),
    )


def _series(source: EnergySource, time_ns: Integers, energy_uj: Integers) -> EnergySeries:
    known = energy_uj >= 0
    times, values = time_ns[known], energy_uj[known]
    rising = np.append(True, np.diff(times) > 0)[: len(times)]
    times, values = times[rising], values[rising]
    steps = np.diff(values)
    wrapped = steps + (source.wraps_uj or 0)
    resets = (steps < 0) & (wrapped < 0)
    steps = np.where(resets, values[1:], np.where(steps < 0, wrapped, steps))
    energy_j = np.append(0, np.cumsum(steps))[: len(times)] / 1e6
    return EnergySeries(source, times, energy_j, int(resets.sum()))


def _between(time_ns: Integers, counts: Integers) -> Floats:
    """Return counts as floats, what was not read on the line between those around it, or NaN."""
    known = counts >= 0
    if not known.any():
        return np.full(len(counts), np.nan)
    unknown = np.nan if not known.all() else None
    values: Floats = np.interp(time_ns, time_ns[known], counts[known], left=unknown, right=unknown)
    return values


def of_process(
    machines: Iterable[MachineSamples], process: Process | None
) -> MachineSamples | None:
    """Return what is of the machine that a process ran on; None where it was not looked for."""
    for each in machines:
        if process is None:
            break
        head = each.head
        known = head.boot_id and process.boot_id
        if head.boot_id == process.boot_id if known else head.host == process.host:
            return each
    return None
