"""What a machine did while a run went on, read back: between each two readings, how busy it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iobench.errors import ProfileError
from iobench.json_files import LARGEST_NBYTES, parse_json, read_small_file
from iobench.recording.machine_head import METER_FOLDER, METER_VERSION, UNKNOWN, MachineHead

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from iobench.recording.machine_head import EnergySource, UnreadableEnergy
    from iobench.runs.contents import Process

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
H = TypeVar("H", "MachineSamples", "HostEnergy")
SECOND: Final = 1e9
WRAPS: Final = 1 << 32
MOST_WATTS: Final = 10_000
"""No processor or GPU takes more: a counter that would say so was set back, and did not wrap."""


UNREADABLE: Final = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError),
    msgspec.ValidationError,
)
"""What a damaged file ends in; it is named, and the rest of the run is read."""


class EnergySeries(msgspec.Struct, frozen=True, eq=False):
    """One counter's readings: joules since the first one, which never fall.

    ``n_resets`` is how often the counter was set back: what it had counted by then since the
    reading before is in nothing.
    """

    source: EnergySource
    time_ns: Integers
    energy_j: Floats
    n_resets: int


class GpuSeries(msgspec.Struct, frozen=True, eq=False):
    """How busy a GPU was lately (a share), and how much of its memory was used; NaN is unknown."""

    title: str
    time_ns: Integers
    busy: Floats
    used_nbytes: Floats


class HostEnergy(msgspec.Struct, frozen=True, eq=False):
    """What one machine's counters of energy showed, and why others showed nothing."""

    host: str
    boot_id: str
    series: tuple[EnergySeries, ...]
    unreadable: tuple[UnreadableEnergy, ...]
    gpus: tuple[GpuSeries, ...] = ()


class MachineSamples(msgspec.Struct, frozen=True, eq=False):
    """One machine's readings."""

    head: MachineHead
    time_ns: Integers
    ticks: Integers  # by reading and CPU: for how many it was busy, modulo 2**32
    values: dict[str, Floats]  # by column; what was not due on a straight line, NaN is unknown
    energy: HostEnergy | None = None  # None where it was not requested

    @property
    def host(self) -> str:
        """The machine it is of."""
        return self.head.host

    @property
    def boot_id(self) -> str:
        """Since which start."""
        return self.head.boot_id

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
        """Return how much a count rose a second between readings; None where there is none.

        NaN where it was set back, or could not be read.
        """
        if column not in self.values:
            return None
        rise = np.diff(self.values[column])
        rates: Floats = np.where(rise >= 0, rise, np.nan) / (self.step_ns / SECOND)
        return rates

    def names(self, what: str) -> tuple[str, ...]:
        """Return the devices of a sort, ``"disk"`` or ``"net"``, in the order of the head."""
        columns = (each.rpartition(".")[0].partition(":") for each in self.head.columns)
        return tuple(dict.fromkeys(name for sort, _, name in columns if sort == what))

    def cpu_limits(self) -> dict[str, Floats]:
        """Return how much of the CPUs was used, of those allowed and of the cgroup's quota."""
        limits = {"cpus": self.busy().mean(axis=1)}
        used = self.per_second("cgroup.cpu_us")
        if used is not None and self.head.quota_cpus:
            limits["quota"] = np.minimum(used / (1e6 * self.head.quota_cpus), 1.0)
        return limits


def read_machines(run: Path) -> tuple[tuple[MachineSamples, ...], tuple[str, ...]]:
    """Return what was read of a run's machines, by name, and the files that are damaged.

    Of a file that was cut off the whole readings count.

    Raises
    ------
    ProfileError
        If a file is of another version.
    """
    machines, damaged = [], []
    for folder, pattern in ((METER_FOLDER, "*.samples"), ("energy", "*.jsonl")):
        for path in sorted((run / folder).glob(pattern)):
            read = _samples if pattern == "*.samples" else _lines_of_energy
            try:
                machines.append(read(path, read_small_file(path, limit=LARGEST_NBYTES)))
            except ProfileError:
                raise
            except UNREADABLE:
                damaged.append(f"{folder}/{path.name}")
    return tuple(machines), tuple(damaged)


def _head(path: Path, line: bytes) -> MachineHead:
    document = parse_json(line)
    version = document.pop("version", None)
    if version != METER_VERSION:
        raise ProfileError(
            f"{path}: readings of version {str(version)[:40]}, expected {METER_VERSION}; use the "
            "iobench that wrote them"
        )
    head = msgspec.convert(document, MachineHead)
    if head.ticks_per_s <= 0:
        raise ValueError(head.ticks_per_s)
    return head


def _samples(path: Path, data: bytes) -> MachineSamples:
    line, _, data = data.partition(b"\n")
    head = _head(path, line)
    columns = [(name, "<i8") for name in head.columns]
    dtype = np.dtype([("time_ns", "<i8"), ("ticks", "<u4", (len(head.cpus),)), *columns])
    rows: NDArray[Any] = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    if len(rows):
        rows = rows[np.append(True, np.diff(rows["time_ns"]) > 0)]
    time_ns = rows["time_ns"].astype(np.int64)
    counts = {name: rows[name].astype(np.int64) for name in head.columns}
    unknown = np.full(len(rows), UNKNOWN)
    energy, gpus = [], {}
    for place in range(len(head.sources)):
        energy.append((time_ns, counts[f"energy:{place}.uj"]))
        use = [counts.get(f"gpu:{place}.{each}", unknown) for each in ("busy", "used")]
        if any(f"gpu:{place}.{each}" in counts for each in ("busy", "used")):
            gpus[place] = (time_ns, *use)
    return MachineSamples(
        head,
        time_ns,
        rows["ticks"].astype(np.int64).reshape(len(rows), len(head.cpus)),
        {name: _between(time_ns, each) for name, each in counts.items()},
        _host_energy(head, energy, gpus),
    )


def _lines_of_energy(path: Path, data: bytes) -> MachineSamples:
    """Return what earlier versions wrote of energy: lines of JSON, the last one perhaps cut off."""
    lines = data.split(b"\n")[:-1]
    head = _head(path, lines[0])
    rows: list[list[int]] = []
    usage: list[list[int]] = []
    for line in lines[1:]:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, list) and len(row) == 1 + 2 * len(head.sources):
            rows.append([UNKNOWN if each is None else each for each in row])
        elif isinstance(row, dict) and "usage" in row:
            usage += [
                [row["time_ns"], *(UNKNOWN if one is None else one for one in each)]
                for each in row["usage"]
            ]
    read = np.array(rows, dtype=np.int64).reshape(len(rows), 1 + 2 * len(head.sources))
    used = np.array(usage, dtype=np.int64).reshape(len(usage), 4).T
    counters = [
        (read[:, 0] + read[:, place], read[:, place + 1]) for place in range(1, read.shape[1], 2)
    ]
    gpus = {
        int(place): tuple(used[row, used[1] == place] for row in (0, 2, 3))
        for place in np.unique(used[1])
    }
    energy = _host_energy(head, counters, gpus)
    none = np.zeros(0, dtype=np.int64)
    return MachineSamples(head, none, none.reshape(0, 0), {}, energy)


def _host_energy(
    head: MachineHead,
    counters: Iterable[tuple[Integers, Integers]],
    gpus: Mapping[int, tuple[Integers, ...]],
) -> HostEnergy | None:
    if not head.sources and not head.unreadable:
        return None
    return HostEnergy(
        head.host,
        head.boot_id,
        tuple(_series(each, *one) for each, one in zip(head.sources, counters, strict=True)),
        head.unreadable,
        tuple(_gpu(head.sources[place].title, *one) for place, one in gpus.items()),
    )


def _series(source: EnergySource, time_ns: Integers, energy_uj: Integers) -> EnergySeries:
    known = energy_uj >= 0
    times, values = time_ns[known], energy_uj[known]
    rising = np.append(True, np.diff(times) > 0)[: len(times)]
    times, values = times[rising], values[rising]
    steps = np.diff(values)
    wrapped = steps + (source.wraps_uj or 0)
    # A watt for a nanosecond is a thousandth of a microjoule.
    wraps = (steps < 0) & (wrapped >= 0) & (wrapped <= MOST_WATTS * np.diff(times) // 1000)
    wraps &= source.wraps_uj is not None
    resets = (steps < 0) & ~wraps
    steps = np.where(resets, values[1:], np.where(wraps, wrapped, steps))
    energy_j = np.append(0, np.cumsum(steps))[: len(times)] / 1e6
    return EnergySeries(source, times, energy_j, int(resets.sum()))


def _gpu(title: str, time_ns: Integers, percent: Integers, nbytes: Integers) -> GpuSeries:
    busy = np.where((percent >= 0) & (percent <= 100), percent / 100, np.nan)
    return GpuSeries(title, time_ns, busy, np.where(nbytes >= 0, nbytes, np.nan))


def _between(time_ns: Integers, counts: Integers) -> Floats:
    """Return counts as floats, what was not read on the line between those beside it, or NaN."""
    known = counts >= 0
    if not known.any():
        return np.full(len(counts), np.nan)
    unknown = np.nan if not known.all() else None
    values: Floats = np.interp(time_ns, time_ns[known], counts[known], left=unknown, right=unknown)
    return values


def of_process(machines: Iterable[H], process: Process | None) -> H | None:
    """Return what is of the machine that a process ran on; None where it was not looked for."""
    if process is None:
        return None
    for each in machines:
        known = each.boot_id and process.boot_id
        if each.boot_id == process.boot_id if known else each.host == process.host:
            return each
    return None
