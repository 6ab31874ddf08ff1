"""What a profile is: the processes of a run, and their spans in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.recording.span_file import SPAN_DTYPE
from iobench.runs.run_facts import RunFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.recording.digests import BatchDigest
    from iobench.recording.facts import ProcessFacts
    from iobench.recording.span_reader import Anchor
    from iobench.recording.span_writer import StoppedRecording
    from iobench.runs.machine_samples import MachineSamples

TRAINING_PROCESS: Final = "training process"
"""How a missing one is called among the missing workers."""

PROFILE_DTYPE: Final = np.dtype([*SPAN_DTYPE.descr, ("process", "<i4"), ("thread", "<i4")])
"""A span, the index of its process in ``RunData.processes`` and of its thread within that."""


class Summed(msgspec.Struct, frozen=True):
    """Sums of the batches of a long run that have no details; the first and the latest have."""

    from_ns: int  # all other figures are of what came before,
    until_ns: int  # and after
    n_batches: int  # without details
    wait_ns: int  # for them, as exact as that of the others; of several ranks the sum
    wall_ns: int  # of the passes between
    busy_ns: dict[str, int]  # own time of every stage, in all processes
    workers_own_ns: int = 0  # of recording in loading processes that left no file any more
    own_ns: int = 0  # of recording in the loop, between waits


class Process(msgspec.Struct, frozen=True):
    """One process that recorded; monotonic times of one boot id can be compared."""

    role: str  # "consumer", "worker", or "child" for a fork without a name
    worker: int  # number of the loading process, -1 for others
    rank: int  # training process it is or works for
    pid: int
    host: str
    boot_id: str
    anchors: tuple[Anchor, ...]  # monotonic and wall-clock time at the start, and at the end
    lost: int  # spans it could not write
    closed: bool  # whether it ended its file itself; False where it was killed or is alive
    damaged: int  # records of its file that cannot be read, at least
    threads: tuple[str, ...]  # their names
    ppid: int = -1  # the process that started it, -1 where unknown
    once_ns: int | None = None  # what starting to record took of its time,
    own_ns: int | None = None  # and recording since; None where it did not measure

    def monotonic_ns(self, wall_ns: NDArray[Any]) -> NDArray[np.int64]:
        """Return wall-clock times on its monotonic clock, by its first anchor."""
        first = self.anchors[0]
        moved: NDArray[np.int64] = wall_ns.astype(np.int64) - (first.wall_ns - first.monotonic_ns)
        return moved

    @property
    def name(self) -> str:
        """``"worker-<n>"`` for a loading process, else its role."""
        return f"{self.role}-{self.worker}" if self.worker >= 0 else self.role


class RunData(msgspec.Struct, frozen=True):
    """What was read of a run, or of one training process of it."""

    path: Path  # the run directory
    config: Mapping[str, Any]  # what ``run.json`` says; ``run_facts`` is the same, typed
    processes: tuple[Process, ...]  # by rank, role, worker number and start
    spans: NDArray[Any]  # of `PROFILE_DTYPE`, whose ``label`` and ``detail`` are indices of
    strings: tuple[str, ...]  # these; the first is ""
    facts: tuple[ProcessFacts, ...] = ()  # what the processes of all ranks say of themselves
    ranks: tuple[int, ...] = ()  # training processes that left spans, read or not
    rank: int | None = None  # the only one whose spans were read; None where all were
    digests: tuple[BatchDigest, ...] | None = None
    machines: tuple[MachineSamples, ...] = ()
    damaged_machines: tuple[str, ...] = ()  # files of what machines did that cannot be read
    stopped: tuple[StoppedRecording, ...] = ()  # processes whose recording stopped
    summed: Summed | None = None
    run_facts: RunFacts = RunFacts()

    def __post_init__(self) -> None:
        facts = RunFacts.from_config(self.config, self.path)
        facts = facts.with_processes(self.facts, self.rank)
        msgspec.structs.force_setattr(self, "run_facts", facts)

    @property
    def energy(self) -> tuple[MachineSamples, ...]:
        """Machines whose counters of energy were looked for."""
        return tuple(each for each in self.machines if each.head.sources or each.head.unreadable)

    @property
    def is_script(self) -> bool:
        """Whether it is of a user's own script, and not of ``iobench profile``."""
        return self.run_facts.is_script

    @property
    def ranks_read(self) -> tuple[int, ...]:
        """Training processes that its processes are, or work for; of one rank, that one."""
        if self.rank is not None:
            return (self.rank,)
        return tuple(sorted({process.rank for process in self.processes}))

    def of_rank(self, rank: int) -> RunData:
        """Return the part of one training process and its loading processes."""
        mine = np.array([process.rank == rank for process in self.processes], dtype=bool)
        processes = tuple(process for process in self.processes if process.rank == rank)
        spans = self.spans[mine[self.spans["process"]]]
        spans["process"] = (np.cumsum(mine) - 1)[spans["process"]]
        return replace(
            self,
            processes=processes,
            spans=spans,
            rank=rank,
            stopped=tuple(each for each in self.stopped if each.rank == rank),
        )

    def facts_of(self, process: int) -> ProcessFacts | None:
        """Return what a process says of itself, by its index; None where it says nothing."""
        owner = self.processes[process]
        key = owner.pid, owner.host, owner.rank
        known = (each for each in self.facts if (each.pid, each.host, each.rank) == key)
        return next(known, None)

    @property
    def lost_spans(self) -> int:
        """Spans that could not be written, and records that cannot be read."""
        counted = {process.pid for process in self.processes}
        without_file = sum(each.lost for each in self.stopped if each.pid not in counted)
        return without_file + sum(process.lost + process.damaged for process in self.processes)

    @property
    def missing_workers(self) -> tuple[str, ...]:
        """Processes of the rank, or of all, that were expected, or started, and left nothing."""
        loading = {process.rank for process in self.processes if process.role == "worker"}
        training = {process.rank for process in self.processes if process.role == "consumer"}
        without = [f"{TRAINING_PROCESS} {number}" for number in sorted(loading - training)]
        names = {process.name for process in self.processes}
        known = {(process.host, process.pid) for process in self.processes}
        by_name = [name for name in self.run_facts.expected_workers if name not in names]
        by_pid = [
            f"loader-{loader.number} process {pid}"
            for each in self.facts
            if self.summed is None and self.rank in (None, each.rank)
            for loader in each.loaders
            for pid in loader.worker_pids
            if (each.host, pid) not in known
        ]
        return (*without, *by_name, *by_pid)

    def string_number(self, text: str) -> int:
        """Return the index of a text in ``strings``, -1 if no span has it."""
        return self.strings.index(text) if text in self.strings else -1
