"""What a machine does while a run goes on, one small file for each, ``machine/<host>.samples``.

A line of JSON (`MachineHead`), then readings of equal length, each appended by one write, so that a
process that is killed loses one at most: the monotonic time (int64), the ticks of each CPU (uint32,
beginning again at 0), and a value for each column of the head (int64, -1 where it is unknown). The
last column is the CPU time in ns that reading took so far. Readings come half as often for each
`LARGE_NBYTES` that a file has: counts lose nothing but resolution by it.
"""

from __future__ import annotations

import json
import logging
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.energy_reader import EnergyReader, open_energy_reader
from iobench.recording.host_reader import HostReader, claimed_files
from iobench.recording.machine_counters import (
    MONITOR_FOLDER,
    MONITOR_VERSION,
    OWN_COLUMN,
    MachineCounters,
    MachineHead,
)
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

LARGE_NBYTES: Final = 8 << 20
SECOND: Final = 10**9
DEFAULT_HZ: Final = 2
HIGHEST_HZ: Final = 10
MOST_OF_A_CPU: Final = 1000
WRAPS: Final = 0xFFFFFFFF


def monitor_period_ns(choice: str) -> int | None:
    """Return how often ``--monitor`` asks to look at the machine; None is never.

    Raises
    ------
    OptionError
        If it is neither ``auto`` nor ``off`` nor a rate that there is.
    """
    if choice == "off":
        return None
    if choice == "auto":
        return SECOND // DEFAULT_HZ
    if choice.isdecimal() and 1 <= int(choice) <= HIGHEST_HZ:
        return SECOND // int(choice)
    raise OptionError(
        f"--monitor {choice}: expected auto, off or 1 to {HIGHEST_HZ}, samples per second"
    )


@dataclass(slots=True)
class _Target:
    """A file that is written to."""

    path: Path
    file: int
    nbytes: int = 0


class MachineReader:
    """Writes what a machine's counters show into files; a `HostReading`.

    Parameters
    ----------
    files : sequence of (Path, int)
        With their descriptors, open for appending; all get the same. Closed by this.
    counters : MachineCounters
        Closed by this.
    frugal : bool
        Read less often where that would take more than a thousandth of a CPU.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, int]],
        counters: MachineCounters,
        *,
        clock: Clock,
        period_ns: int,
        frugal: bool = False,
    ) -> None:
        self._targets, self._frugal = [_Target(*each) for each in files], frugal
        self._counters, self._clock, self._asked_ns = counters, clock, period_ns
        self._n_readings = self._cpu_ns = 0
        columns = (*counters.columns, OWN_COLUMN)
        head = MachineHead(
            host=host_name(),
            boot_id=boot_id(),
            pid=os.getpid(),
            period_ns=period_ns,
            cpus=counters.cpus,
            ticks_per_s=os.sysconf("SC_CLK_TCK"),
            quota_cpus=counters.quota_cpus,
            memory_nbytes=counters.memory_nbytes,
            memory_limit_nbytes=counters.memory_limit_nbytes,
            columns=columns,
            links=counters.links,
            spinning=tuple(counters.spinning),
        )
        self._pack = struct.Struct(f"<q{len(counters.cpus)}I{len(columns)}q").pack
        told = {"version": MONITOR_VERSION, **asdict(head)}
        self._write(json.dumps(told, separators=(",", ":")).encode() + b"\n")

    @property
    def period_ns(self) -> int:
        """Time to the next reading; longer of a long run, and of a machine that is slow to tell."""
        if not self._counters.cpus or not self._targets:
            return 0
        cost_ns = self._cpu_ns // max(self._n_readings, 1) if self._frugal else 0
        n_halved = max(each.nbytes for each in self._targets) // LARGE_NBYTES
        return max(self._asked_ns << n_halved, cost_ns * MOST_OF_A_CPU)

    def read(self) -> None:
        """Read all counters once, and write what they show."""
        begun_ns, now_ns = self._clock.cpu_ns(), self._clock.now_ns()
        ticks = [each & WRAPS for each in self._counters.ticks()]
        self._write(self._pack(now_ns, *ticks, *self._counters.values(), self._cpu_ns))
        self._n_readings += 1
        self._cpu_ns += self._clock.cpu_ns() - begun_ns

    def finish(self) -> None:
        """Close all files."""
        for each in self._targets:
            os.close(each.file)
        self._targets = []
        self._counters.close()

    def _write(self, data: bytes) -> None:
        for each in [*self._targets]:
            try:
                written = os.write(each.file, data)
            except OSError as error:
                self._leave(each, error.strerror or str(error))
                continue
            each.nbytes += written
            if written < len(data):
                self._leave(each, "no space left")

    def _leave(self, target: _Target, reason: str) -> None:
        logger.warning(
            "%s: nothing more is written to it (%s); the run continues", target.path, reason
        )
        self._targets.remove(target)
        os.close(target.file)


def start_monitor(
    runs: Sequence[Path],
    environment: Mapping[str, str] = os.environ,
    *,
    energy: bool,
    monitor: str,
    clock: Clock = SYSTEM_CLOCK,
) -> HostReader:
    """Begin to read, in one thread, what this machine shows, for some run directories.

    What another process of this machine reads already, or cannot be written, is left out.

    Parameters
    ----------
    runs : sequence of Path
        Run directories; each gets files of its own.
    environment : mapping
        Of the job: which GPUs it may use.
    energy : bool
        Read counters of energy, and how busy GPUs are.
    monitor : str
        How often to look at CPUs, memory, disks and network, as `monitor_period_ns` takes it.
    """
    period_ns = monitor_period_ns(monitor)
    found: list[EnergyReader | MachineReader | None] = [
        open_energy_reader(runs, environment, clock=clock) if energy else None
    ]
    files = [*claimed_files(runs, MONITOR_FOLDER, "samples")] if period_ns else []
    if files and period_ns:
        counters = MachineCounters.open()
        found.append(
            MachineReader(
                files, counters, clock=clock, period_ns=period_ns, frugal=monitor == "auto"
            )
        )
    return HostReader([each for each in found if each is not None], clock).start()
