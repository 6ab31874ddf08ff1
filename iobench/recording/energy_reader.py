"""Reads a machine's counters of energy while a run goes on, a few times a second."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import OptionError
from iobench.recording import energy_counters
from iobench.recording.clocks import SYSTEM_CLOCK, Clock
from iobench.recording.energy_amd_gpus import find_amd_counters
from iobench.recording.energy_counters import (
    GPU,
    CounterError,
    CounterRoots,
    EnergyHead,
    FoundCounters,
)
from iobench.recording.energy_file import first_line
from iobench.recording.energy_gpus import find_gpu_counters
from iobench.recording.host_reader import claimed_files
from iobench.recording.this_process import boot_id, host_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

PERIOD_NS: Final = 100_000_000
TOLD_EVERY: Final = 256
MOST_READINGS: Final = 1 << 17
"""After so many, 3.6 hours, readings come half as often, and again: files stay small."""


def wants_energy(choice: str) -> bool:
    """Tell what ``--energy`` asks for.

    Raises
    ------
    OptionError
        If it is neither ``auto`` nor ``off``.
    """
    if choice not in ("auto", "off"):
        raise OptionError(f"--energy {choice}: expected auto or off")
    return choice == "auto"


def find_counters(
    environment: Mapping[str, str] = os.environ,
    *,
    roots: CounterRoots | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> FoundCounters:
    """Open all counters of this machine that the job may read; each joule is in one of them.

    But for those of the kind ``"machine"``, which have the others in them.
    """
    roots = roots or energy_counters.SYSTEM_ROOTS
    host = energy_counters.find_host_counters(roots)
    gpus = find_amd_counters(environment, clock, roots.amd)
    if roots.nvidia.exists() or not (gpus.counters or gpus.unreadable):
        gpus += find_gpu_counters(environment, clock, roots.nvidia)
    if host.of(GPU).counters and not gpus.counters:
        return host
    return gpus + energy_counters.without(host, [GPU])


class EnergyReader:
    """Writes what counters show into files; a `HostReading`, made by `open_energy_reader`.

    Parameters
    ----------
    files : sequence of int
        Open for appending; all get the same lines. Closed by this.
    found : FoundCounters
        Closed by this.
    period_ns : int
        Time from one reading to the next.
    """

    def __init__(
        self, files: Sequence[int], found: FoundCounters, *, clock: Clock, period_ns: int
    ) -> None:
        self._files, self._found = list(files), found
        self._clock, self._period_ns = clock, period_ns
        places = {each.source.name: place for place, each in enumerate(found.counters)}
        self._gauges = [(places[gauge.name], gauge) for gauge in found.gauges]
        self._failed: set[int] = set()
        self._n_readings = self._cpu_ns = 0
        self._write(
            first_line(
                EnergyHead(
                    host=host_name(),
                    boot_id=boot_id(),
                    period_ns=period_ns,
                    sources=tuple(each.source for each in found.counters),
                    unreadable=found.unreadable,
                    pid=os.getpid(),
                )
            )
        )

    @property
    def period_ns(self) -> int:
        """Time to the next reading; 0 where no counter can be read."""
        if not self._found.counters:
            return 0
        return self._period_ns << (self._n_readings // MOST_READINGS)

    def read(self) -> None:
        """Read all counters once, and write what they show."""
        cpu_ns, begun_ns = self._clock.cpu_ns(), self._clock.now_ns()
        line: list[int | None] = [begun_ns]
        for place, counter in enumerate(self._found.counters):
            asked_ns = self._clock.now_ns()
            try:
                value: int | None = counter.read_uj()
            except CounterError as error:
                value = None
                if place not in self._failed:
                    self._failed.add(place)
                    self._write({"failed": place, "reason": str(error)})
            line += [(asked_ns + self._clock.now_ns()) // 2 - begun_ns, value]
        self._write(line)
        usage = [(place, *gauge.read()) for place, gauge in self._gauges]
        if told := [each for each in usage if each[1:] != (None, None)]:
            self._write({"time_ns": begun_ns, "usage": told})
        self._n_readings += 1
        if self._n_readings % TOLD_EVERY == 0:
            self._write(self._took())
        self._cpu_ns += self._clock.cpu_ns() - cpu_ns

    def _took(self) -> dict[str, Any]:
        return {"readings": self._n_readings, "cpu_ns": self._cpu_ns}

    def finish(self) -> None:
        """Say that this is the end, and close all."""
        self._write({"closed": True, **self._took()})
        while self._files:
            os.close(self._files.pop())
        self._found.close()

    def _write(self, line: object) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        for file in [*self._files]:
            try:
                if os.write(file, data) == len(data):
                    continue
                reason = "no space left"
            except OSError as error:
                reason = error.strerror or str(error)
            logger.warning("energy: no more readings are written (%s); the run continues", reason)
            self._files.remove(file)
            os.close(file)


def open_energy_reader(
    runs: Sequence[Path],
    environment: Mapping[str, str] = os.environ,
    *,
    clock: Clock = SYSTEM_CLOCK,
    period_ns: int = PERIOD_NS,
) -> EnergyReader | None:
    """Open this machine's counters for some run directories.

    None where another process of this machine does so already, or nothing can be written: that is
    a warning, and the run goes on.

    Parameters
    ----------
    runs : sequence of Path
        Run directories; each gets a file of its own.
    environment : mapping
        Of the job: which GPUs it may use.
    period_ns : int
        Time from one reading to the next.
    """
    files = [file for _, file in claimed_files(runs, "energy", "jsonl")]
    if not files:
        return None
    found = find_counters(environment, clock=clock)
    return EnergyReader(files, found, clock=clock, period_ns=period_ns)
