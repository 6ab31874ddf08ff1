"""What a recording process tells of itself beside its spans: its loaders, and what is not seen."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from iobench.json_files import read_fields, read_json
from iobench.masking import mask_values, mask_words
from iobench.recording.this_process import host_name, name_in_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.recording.job import JobRank

logger = logging.getLogger(__name__)
FACTS_VERSION: Final = 1
LARGEST_NS: Final = 2**57


@dataclass(slots=True)
class LoaderFacts:
    """One loader that a training process asked for batches.

    Parameters
    ----------
    number : int
        Of the process's loaders, from 0; rounds name it in their detail, as ``"loader-<n>"``.
    framework : str
        ``"torch"``, ``"native"``, ``"tensorflow"``, ``"dali"``, or the user's own word.
    kind : str
        Its class, with the module.
    name : str
        What a reader of the report knows it by: the class of its dataset, or a name given.
    workers, prefetch : int
        Loading processes, and batches each may be ahead; without any, batches that threads keep
        ready.
    threads : int
        Loading threads of the training process; 0 if it loads in the loop.
    start_method : str
        Of its processes: ``"fork"``, ``"spawn"``, ``"forkserver"``, or ``""``.
    worker_pids : list of int
        Of every loading process that was started.
    unseen : list of str
        What could not be observed, and why, in words.
    operators : list of dict
        What a pipeline of the framework's own tells of its operations, summed over the last round:
        ``operation, kind, busy_ns, elements, nbytes, parallelism``; empty where it tells nothing.
    gradients : bool or None
        False where every pass over it began with gradients switched off, as validations do; None
        where nobody looked.
    unreplayed : str
        Why its batches are not replayed, in words; ``""`` where they can be.
    """

    number: int
    framework: str
    kind: str
    name: str
    workers: int = 0
    prefetch: int = 0
    threads: int = 0
    batch_size: int | None = None
    start_method: str = ""
    worker_pids: list[int] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    gradients: bool | None = None
    unreplayed: str = ""

    @property
    def kept(self) -> tuple[str | int | None, ...]:
        """What stays the same of a loader that is made anew."""
        return (
            *(self.framework, self.kind, self.name, self.workers, self.prefetch),
            *(self.threads, self.batch_size),
        )

    @property
    def restarts(self) -> bool:
        """Whether more processes loaded for it than it has workers: they were started anew."""
        return len(set(self.worker_pids)) > self.workers > 0

    @property
    def filled_after(self) -> int:
        """Deliveries of a round before its steady state.

        Threads keep so many batches ready and make one more meanwhile.
        """
        if not self.workers:
            return self.prefetch + 1
        return max(1, self.workers * self.prefetch)


@dataclass(slots=True)
class EpochMetric:
    """A figure of the script's own in one epoch; -1 is before the first batch.

    ``mean`` is None where a value, or what they add up to, is not finite.
    """

    name: str
    epoch: int
    mean: float | None = 0.0
    n_values: int = 0

    def add(self, value: float) -> None:
        """Take another value into the mean."""
        self.n_values += 1
        if self.mean is not None:
            mean = self.mean + (value - self.mean) / self.n_values
            self.mean = mean if math.isfinite(mean) else None


@dataclass(slots=True)
class ProcessFacts:
    """One process of a run, as it describes itself.

    Parameters
    ----------
    host, launcher, role : str
        As in `JobRank` and the span file.
    command : list of str
        How it was started.
    unseen : list of str
        What could not be observed in this process, and why.
    children : list of str
        Commands of processes it started that do not record.
    unit_costs : dict
        What a span costs here, as `unit_costs` measured it.
    started_ns : int or None
        When it began, by the clock of its spans; None where that is not known, as of a notebook,
        which waits for its user.
    ended_ns : int or None
        When a launcher's command had ended, by the same clock; None of other processes.
    ended : str or None
        ``"closed"``, or the exception that ended it; None while it runs, or if it was killed.
    imports_ns : list of tuple of int
        From when until when its main thread imported, under ``iobench run``; the first one is the
        start of the interpreter, from ``started_ns`` on, and began when our code first ran.
    versions : dict of str to str
        Of the packages it has imported that read, decode, compute or train.
    thread_settings : dict of str to str
        The variables that say how many threads libraries use, as they were when recording began,
        and ``affinity``: the CPUs it may run on.
    initial_reads : dict of str to tuple of int
        By function of a library that reads, as ``"numpy.load"``: calls before the first loader was
        asked, and the bytes they told of.
    batches_per_step : int or None
        Batches whose gradients a framework collects for one step of the optimiser; None where it
        does not say.
    moves : list of str
        Frameworks whose moves from the host to devices were watched.
    metrics : list of EpochMetric
        The script's own figures, by name and epoch.
    initial_nbytes : int or None
        Bytes that all read calls of the process had returned by then, as the system counts them.
    """

    pid: int
    ppid: int
    host: str
    role: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    launcher: str = ""
    command: list[str] = field(default_factory=list)
    loaders: list[LoaderFacts] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    unit_costs: dict[str, int | None] = field(default_factory=dict)
    started_ns: int | None = None
    ended_ns: int | None = None
    ended: str | None = None
    imports_ns: list[tuple[int, int]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    thread_settings: dict[str, str] = field(default_factory=dict)
    initial_reads: dict[str, tuple[int, int]] = field(default_factory=dict)
    initial_nbytes: int | None = None
    batches_per_step: int | None = None
    moves: list[str] = field(default_factory=list)
    metrics: list[EpochMetric] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file, whole at every instant; a full disk is a warning, never an error."""
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            document = {"version": FACTS_VERSION, **mask_values(asdict(self))}
            document |= {name: mask_words(document[name]) for name in ("command", "children")}
            part.write_text(json.dumps(document, default=_plain), "utf-8")
            part.replace(path)
        except OSError as error:
            logger.warning("%s: cannot be written (%s)", path, error.strerror or error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def facts_of_this_process(role: str, job: JobRank, **more: Any) -> ProcessFacts:
    """Return what this process is; ``more`` as in `ProcessFacts`."""
    return ProcessFacts(
        pid=os.getpid(),
        ppid=os.getppid(),
        host=host_name(),
        role=role,
        rank=job.rank,
        world_size=job.world_size,
        local_rank=job.local_rank,
        launcher=job.launcher,
        **more,
    )


def _plain(value: object) -> int | str:
    """Return what JSON has for a value that loaders gave, such as a whole number of NumPy's."""
    return value.__index__() if isinstance(value, SupportsIndex) else str(value)


def read_process_facts(directory: Path) -> tuple[ProcessFacts, ...]:
    """Return what the processes of a run told, by rank and process number.

    A file that cannot be read, or of a later version, is left out with a warning: spans count
    without it.
    """
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            document = read_json(path, finite=True)
            found.append(_process_facts(document))
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s: cannot be read (%s)", path, error)
    return tuple(sorted(found, key=lambda facts: (facts.rank, facts.role, facts.pid)))


def _process_facts(document: Mapping[str, Any]) -> ProcessFacts:
    if document["version"] != FACTS_VERSION:
        raise ValueError(f"version {document['version']}, expected {FACTS_VERSION}")
    facts = read_fields(ProcessFacts, document)
    for each in (operation for loader in facts.loaders for operation in loader.operators):
        counts = (each["busy_ns"], each.get("parallelism") or 0)
        if not all(isinstance(value, int) and 0 <= value < LARGEST_NS for value in counts):
            raise ValueError(f"operation {each['operation']} worked {counts}, expected numbers")
    return facts


def facts_path(directory: Path, *, host: str, rank: int, start_ns: int) -> Path:
    """Return where this process tells its facts; no other process has that name."""
    return directory / f"rank{rank:05d}-{name_in_files(host)}-{os.getpid()}-{start_ns}.json"
