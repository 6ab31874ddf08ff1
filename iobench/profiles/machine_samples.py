"""What a machine did while a run went on, read back: between each two readings, how busy it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from iobench.errors import ProfileError
from iobench.frozen import frozen
from iobench.json_files import LARGEST_NBYTES, read_fields, read_small_file
from iobench.recording.machine_counters import (
    MONITOR_FOLDER,
    MONITOR_VERSION,
    OWN_COLUMN,
    MachineHead,
    reading_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from iobench.profiles.contents import Process
    from iobench.recording.energy_file import HostEnergy

Floats = NDArray[np.float64]
H = TypeVar("H", "MachineSamples", "HostEnergy")
SECOND: Final = 1e9
WRAPS: Final = 1 << 32


@frozen(eq=False)
class MachineSamples:
    """One machine's readings.

    Parameters
    ----------
    time_ns : ndarray of int64, shape (n_readings,)
        Monotonic, rising.
    ticks : ndarray of int64, shape (n_readings, n_cpus)
        For how many each CPU was busy, modulo 2**32.
    values : mapping of str to ndarray of float64, shape (n_readings,)
        By column; NaN is unknown.
    """

    head: MachineHead
    time_ns: NDArray[np.int64]
    ticks: NDArray[np.int64]
    values: dict[str, Floats]

    @property
    def host(self) -> str:
        """The machine it is of."""
        return self.head.host

    @property
    def boot_id(self) -> str:
        """Since which start."""
        return self.head.boot_id

    @property
    def step_ns(self) -> NDArray[np.int64]:
        """Time between two readings."""
        return np.diff(self.time_ns)

    def busy(self) -> Floats:
        """Return for which share of the time between readings each CPU was busy: (step, CPU)."""
        ticks = np.diff(self.ticks, axis=0) % WRAPS
        seconds = self.step_ns[:, None] / SECOND
        found: Floats = np.minimum(ticks / (seconds * self.head.ticks_per_s), 1.0)
        return found

    def per_second(self, column: str) -> Floats | None:
        """Return how much a count rose a second between readings; None where there is none.

        NaN where it was set back, or could not be read.
        """
        if column not in self.values:
            return None
        rise = np.diff(self.values[column])
        found: Floats = np.where(rise >= 0, rise, np.nan) / (self.step_ns / SECOND)
        return found

    def names(self, what: str) -> tuple[str, ...]:
        """Return the devices of a sort, ``"disk"`` or ``"net"``, in the order of the head."""
        columns = (each.rpartition(".")[0] for each in self.head.columns)
        return tuple(
            dict.fromkeys(
                each.partition(":")[2] for each in columns if each.partition(":")[0] == what
            )
        )

    def cpu_limits(self) -> dict[str, Floats]:
        """Return how much of the CPUs was used, of those allowed and of the cgroup's quota."""
        found = {"cpus": self.busy().mean(axis=1)}
        used = self.per_second("cgroup.cpu_us")
        if used is not None and self.head.quota_cpus:
            found["quota"] = np.minimum(used / (1e6 * self.head.quota_cpus), 1.0)
        return found

    def cost(self) -> tuple[int, int] | None:
        """Return the CPU time of reading in ns, and how many readings; None of too few."""
        own = self.values.get(OWN_COLUMN, np.zeros(0))
        return (int(own[-1]), len(own) - 1) if len(own) > 1 and own[-1] > 0 else None


def read_machines(run: Path) -> tuple[tuple[MachineSamples, ...], tuple[str, ...]]:
    """Return what was read of a run's machines, by name, and the files that are damaged.

    Of a file that was cut off the whole readings count.

    Raises
    ------
    ProfileError
        If a file is of another version.
    """
    found, damaged = [], []
    for path in sorted((run / MONITOR_FOLDER).glob("*.samples")):
        try:
            head, _, data = read_small_file(path, limit=LARGEST_NBYTES).partition(b"\n")
            told = json.loads(head)
            version = told.pop("version", None)
            about = read_fields(MachineHead, told)
            dtype = reading_dtype(len(about.cpus), about.columns)
            if about.ticks_per_s <= 0:
                raise ValueError(about.ticks_per_s)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            damaged.append(f"{MONITOR_FOLDER}/{path.name}")
            continue
        if version != MONITOR_VERSION:
            raise ProfileError(
                f"{path}: readings of version {str(version)[:40]}, expected {MONITOR_VERSION}; "
                "use the iobench that wrote them"
            )
        found.append(_samples(about, np.frombuffer(data, dtype, len(data) // dtype.itemsize)))
    return tuple(found), tuple(damaged)


def _samples(head: MachineHead, rows: NDArray[Any]) -> MachineSamples:
    if len(rows):
        rows = rows[np.append(True, np.diff(rows["time_ns"]) > 0)]
    values = {name: rows[name].astype(np.float64) for name in head.columns}
    return MachineSamples(
        head,
        rows["time_ns"].astype(np.int64),
        rows["ticks"].astype(np.int64).reshape(len(rows), len(head.cpus)),
        {name: np.where(each < 0, np.nan, each) for name, each in values.items()},
    )


def of_process(found: Iterable[H], who: Process | None) -> H | None:
    """Return what is of the machine that a process ran on; None where it was not looked for."""
    if who is None:
        return None
    for each in found:
        known = each.boot_id and who.boot_id
        if each.boot_id == who.boot_id if known else each.host == who.host:
            return each
    return None
