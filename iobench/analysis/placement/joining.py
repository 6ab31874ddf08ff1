"""Which log is of which process: by host and number, by rank, by being the only one left.

A process number is given again some time after its process is gone, so lives must overlap as well.
What a killed process leaves has no number; it is given to a process only if no other can be meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.read_spans import names_interpreter
from iobench.frozen import frozen
from iobench.recording.kinds import Trait, is_one_of, kinds_that

if TYPE_CHECKING:
    from collections.abc import Collection

    from iobench.profiles.contents import Process, Profile
    from iobench.storage.storage_trace import ProcessTrace, StorageTrace

MAY_READ: Final = kinds_that(Trait.READS | Trait.MIXED | Trait.READS_LATE)
_FOREVER: Final = np.iinfo(np.int64).max
_SHOWN: Final = 60


@frozen
class JoinedLogs:
    """The log of each process, and what the other logs are.

    Parameters
    ----------
    trace : tuple of int
        For each process of the profile the index of its log, -1 if it has none.
    extra : tuple of str
        One line for each log of no process: which, and why.
    same : dict of int to int
        Processes whose log another entry of the profile has that is the same process: one that was
        forked and recorded before a loader named it has two.
    """

    trace: tuple[int, ...]
    extra: tuple[str, ...]
    same: dict[int, int]


@frozen
class _Life:
    """When a process lived, by the wall clock, as far as is known."""

    start_ns: int
    end_ns: int

    def overlap_ns(self, log: ProcessTrace) -> int:
        """Return for how long it lived while the log was kept; negative if never."""
        end = log.end_ns if log.end_ns >= log.start_ns else _FOREVER
        start = log.start_ns - log.zero_error_ns
        return min(self.end_ns, end + log.zero_error_ns if end != _FOREVER else end) - max(
            self.start_ns, start
        )


def reading_processes(profile: Profile) -> tuple[int, ...]:
    """Return the processes that read, by what their spans are; a loop that only waits does not."""
    spans = profile.spans
    reads = is_one_of(spans["kind"], MAY_READ) & (spans["end_ns"] > spans["start_ns"])
    reads &= ~names_interpreter(profile)
    return tuple(np.unique(spans["process"][reads]).tolist())


def process_label(process: Process) -> str:
    """Return how a line names a process: ``worker-0 (process 12)``."""
    return f"{process.name} (process {process.pid})"


def join_logs(profile: Profile, trace: StorageTrace, expected: Collection[int]) -> JoinedLogs:
    """Find the log of each process.

    Parameters
    ----------
    expected : collection of int
        Processes that read, and so should have a log.
    """
    return _Joining(profile, trace, expected).joined()


class _Joining:
    """The state of joining one run's logs."""

    def __init__(self, profile: Profile, trace: StorageTrace, expected: Collection[int]) -> None:
        self._profile, self._logs, self._expected = profile, trace.processes, expected
        self._lives = _lives(profile)
        self._pids = {who.pid for who in profile.processes}
        self._told = _told(profile)
        self._of_process = [-1] * len(profile.processes)
        self._why: dict[int, str] = {}

    def joined(self) -> JoinedLogs:
        leftovers = []
        for index, log in enumerate(self._logs):
            if log.pid >= 0:
                self._join_by_number(index, log)
            elif log.rank >= 0:
                self._join_by_rank(index, log)
            elif log.leftover:
                leftovers.append(index)
            else:
                self._why[index] = "sums over all processes of a job"
        self._join_leftovers(leftovers)
        return JoinedLogs(
            tuple(self._of_process),
            tuple(f"{self._logs[i].path.name}: {why}" for i, why in sorted(self._why.items())),
            self._same(),
        )

    def _same(self) -> dict[int, int]:
        """Find the entries of a process that another entry of it has the log of."""
        processes = self._profile.processes
        having = {
            (processes[i].host, processes[i].pid): i
            for i, held in enumerate(self._of_process)
            if held >= 0
        }
        found = {}
        for i, who in enumerate(processes):
            other = having.get((who.host, who.pid), i)
            if self._of_process[i] < 0 and other != i:
                kept = self._logs[self._of_process[other]]
                if self._lives[i].overlap_ns(kept) >= 0:
                    found[i] = other
        return found

    def _join_by_number(self, index: int, log: ProcessTrace) -> None:
        processes = self._profile.processes
        same = [i for i, who in enumerate(processes) if who.pid == log.pid]
        near = [i for i in same if _same_host(processes[i].host, log.host)]
        living = [i for i in near if self._lives[i].overlap_ns(log) >= 0]
        if not living and log.rank >= 0 and not same:
            self._join_by_rank(index, log)
        elif not living:
            self._why[index] = self._not_of_the_run(log, same, near)
        elif len({processes[i].host for i in living}) > 1:
            self._why[index] = f"several hosts have a process {log.pid}, and the log names no host"
        else:
            self._give(index, max(living, key=lambda i: self._lives[i].overlap_ns(log)))

    def _join_by_rank(self, index: int, log: ProcessTrace) -> None:
        found = [
            i
            for i, who in enumerate(self._profile.processes)
            if who.role == "consumer"
            and who.rank == log.rank
            and _same_host(who.host, log.host)
            and self._lives[i].overlap_ns(log) >= 0
        ]
        if len(found) == 1:
            self._give(index, found[0])
        else:
            self._why[index] = f"of rank {log.rank} of a job; no training process of this run is it"

    def _give(self, index: int, process: int) -> None:
        """Give a process its log; of two the one that was kept longer while it lived."""
        held = self._of_process[process]
        loser = index
        if held < 0 or self._weight(index, process) > self._weight(held, process):
            loser, self._of_process[process] = held, index
        if loser >= 0:
            who = process_label(self._profile.processes[process])
            self._why[loser] = f"another log of {who}, which has Darshan's twice"

    def _weight(self, index: int, process: int) -> tuple[int, int, int]:
        log = self._logs[index]
        return self._lives[process].overlap_ns(log), len(log.segments), len(log.counters)

    def _join_leftovers(self, leftovers: list[int]) -> None:
        jobs = {self._logs[held].job_id for held in self._of_process if held >= 0}
        jobs |= {who.pid for who in self._profile.processes if who.role == "consumer"}
        ours = [index for index in leftovers if self._logs[index].job_id in jobs]
        same = self._same()
        bare = [i for i in self._expected if self._of_process[i] < 0 and i not in same]
        for index in leftovers:
            log = self._logs[index]
            fitting = [
                i
                for i in bare
                if _same_host(self._profile.processes[i].host, log.host)
                and self._lives[i].overlap_ns(log) >= 0
                and log.start_ns + log.zero_error_ns >= self._begin_of_rank(i)
            ]
            if index not in ours:
                self._why[index] = (
                    f"of a process of job {log.job_id} that was killed, not of this run"
                )
            elif len(ours) == 1 and len(bare) == 1 and fitting:
                self._of_process[fitting[0]] = index
            else:
                self._why[index] = (
                    "of a process of this job that never closed its log; it has no process "
                    f"number, and {len(bare)} processes of the run have no log"
                )

    def _begin_of_rank(self, process: int) -> int:
        """Return when the training process that a process belongs to began, log or spans."""
        rank = self._profile.processes[process].rank
        begins = [
            begin
            for i, who in enumerate(self._profile.processes)
            if who.rank == rank and who.role == "consumer"
            for held in [self._of_process[i]]
            for begin in (
                self._lives[i].start_ns,
                *([self._logs[held].start_ns] if held >= 0 else []),
            )
        ]
        return min(begins, default=self._lives[process].start_ns)

    def _not_of_the_run(self, log: ProcessTrace, same: list[int], near: list[int]) -> str:
        """Say in words what a log is whose process is not one of the profile's."""
        if near:
            after = all(log.start_ns > self._lives[i].end_ns for i in near)
            when = "began after it had ended" if after else "ended before it began"
            return (
                f"of another process {log.pid} than the run's, since it {when}: of another run, or "
                "from before the machine was restarted"
            )
        if same:
            return f"of process {log.pid} on {log.host}, where no such process of the run was"
        if log.parent_pid in self._pids or log.job_id in self._pids:
            program = log.executable[:_SHOWN].strip()
            return f"of process {log.pid}, a child of the run without spans: {program or 'unknown'}"
        if (log.host, log.pid) in self._told:
            return f"of process {log.pid}, of another training process of the job"
        if log.end_ns >= log.start_ns and not any(
            life.overlap_ns(log) >= 0 for life in self._lives
        ):
            return f"of process {log.pid} of job {log.job_id}, at another time than the run"
        return f"of process {log.pid} of job {log.job_id}, which the run did not have"


def _lives(profile: Profile) -> list[_Life]:
    spans, never = profile.spans, np.iinfo(np.int64)
    start = np.full(len(profile.processes), never.max)
    end = np.full(len(profile.processes), never.min)
    np.minimum.at(start, spans["process"], spans["start_ns"])
    np.maximum.at(end, spans["process"], spans["end_ns"])
    lives = []
    for who, begun, ended in zip(profile.processes, start.tolist(), end.tolist(), strict=True):
        first, last = who.anchors[0], who.anchors[-1]
        times = [first.wall_ns, last.wall_ns]
        if begun <= ended:
            times.append(begun + first.wall_ns - first.monotonic_ns)
            times.append(ended + last.wall_ns - last.monotonic_ns)
        lives.append(_Life(min(times), max(times)))
    return lives


def _told(profile: Profile) -> set[tuple[str, int]]:
    """Return hosts and numbers of the processes of all ranks, with and without the host."""
    return {
        (host, pid)
        for told in profile.facts
        for pid in (told.pid, *(pid for each in told.loaders for pid in each.worker_pids))
        for host in (told.host, "")
    }


def _same_host(one: str, other: str) -> bool:
    """Compare names of hosts, with or without their domains; an unknown one may be any."""
    short = [name.split(".")[0].casefold() for name in (one, other)]
    return "" in short or short[0] == short[1]
