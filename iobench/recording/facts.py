"""What a recording process tells of itself beside its spans: its loaders, and what is not seen."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from typing import TYPE_CHECKING, Annotated, Any, Final, SupportsIndex

import msgspec

from iobench.json_files import read_json
from iobench.masking import mask_values, mask_words
from iobench.recording.this_process import host_name, name_in_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.recording.job import JobRank

logger = logging.getLogger(__name__)
FACTS_VERSION: Final = 1
LARGEST_NS: Final = 2**57
Number = Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)]
Ns = Annotated[int, msgspec.Meta(ge=-LARGEST_NS, le=LARGEST_NS)]


class LoaderFacts(msgspec.Struct):
    """One loader that a training process asked for batches."""

    number: Number  # of the process's loaders, from 0; rounds name it as "loader-<n>"
    framework: str  # "torch", "native", "tensorflow", "dali", or the user's own word
    kind: str  # its class, with the module
    name: str  # the class of its dataset, or a name given
    workers: Number = 0  # loading processes
    prefetch: Number = 0  # batches each may be ahead; without any, that threads keep ready
    threads: Number = 0  # loading threads of the training process; 0 if it loads in the loop
    batch_size: Number | None = None
    worker_pids: list[Number] = []  # of every loading process that was started
    unseen: list[str] = []  # what could not be observed, and why, in words
    gradients: bool | None = None  # False where every pass over it began with them switched off
    unreplayed: str = ""  # why its batches are not replayed
    start_method: str = ""  # of its processes: "fork", "forkserver", "spawn"; "" is unknown
    iterable: bool = False  # its workers share out the samples themselves, as of an IterableDataset
    shuffles: bool = False  # it is known to hand out samples in an order of chance

    @property
    def identity(self) -> tuple[str | int | None, ...]:
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
        """Deliveries of a round before its steady state."""
        if not self.workers:
            return self.prefetch + 1
        return max(1, self.workers * self.prefetch)


class EpochMetric(msgspec.Struct):
    """A figure of the script's own in one epoch; -1 is before the first batch."""

    name: str
    epoch: Number
    mean: float | None = 0.0
    n_values: Number = 0

    def add(self, value: float) -> None:
        """Take another value into the mean."""
        self.n_values += 1
        if self.mean is not None:
            mean = self.mean + (value - self.mean) / self.n_values
            self.mean = mean if math.isfinite(mean) else None


class ProcessFacts(msgspec.Struct):
    """One process of a run, as it describes itself."""

    pid: Number
    ppid: Number
    host: str
    role: str  # as in the span file
    rank: Number = 0
    world_size: Number = 1
    command: list[str] = []  # how it was started
    loaders: list[LoaderFacts] = []
    unseen: list[str] = []  # what could not be observed in this process, and why
    unrecorded: str = ""  # of a launcher: the first reason, where no other process tells anything
    unit_costs: dict[str, Ns | None] = {}  # what a span costs here, as `unit_costs` measured it
    started_ns: Ns | None = None  # by the clock of its spans; None of a notebook
    ended_ns: Ns | None = None  # of a launcher: when its command had ended
    ended: str | None = None  # "closed", or the exception; None while it runs, or was killed
    # Its main thread's imports under `iobench run`; the first one begins with the interpreter.
    imports_ns: list[tuple[Ns, Ns]] = []
    versions: dict[str, str] = {}  # of packages it imported that read, decode, compute or train
    thread_settings: dict[str, str] = {}  # variables for threads of libraries
    initial_nbytes: Ns | None = None  # that its read calls had returned before any loader
    batches_per_step: Number | None = None  # whose gradients a framework collects for one step
    metrics: list[EpochMetric] = []  # the script's own figures

    def write(self, path: Path) -> None:
        """Write the file, whole at every instant; a full disk is a warning, never an error."""
        part = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            document = {
                "version": FACTS_VERSION,
                **mask_values(msgspec.to_builtins(self, enc_hook=_plain)),
            }
            document["command"] = mask_words(document["command"])
            part.write_text(json.dumps(document), "utf-8")
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
        **more,
    )


def _plain(value: object) -> float | str:
    """Return what JSON has for a value that loaders gave, such as a number of NumPy's."""
    if isinstance(value, float):
        return float(value)
    return value.__index__() if isinstance(value, SupportsIndex) else str(value)


def read_process_facts(directory: Path) -> tuple[ProcessFacts, ...]:
    """Return what the processes of a run told, by rank and process number."""
    result = []
    for path in sorted(directory.glob("*.json")):
        try:
            document = read_json(path, finite=True)
            result.append(_process_facts(document))
        except (OSError, ValueError, TypeError, KeyError, msgspec.ValidationError) as error:
            logger.warning("%s: cannot be read (%s)", path, error)
    return tuple(sorted(result, key=lambda facts: (facts.rank, facts.role, facts.pid)))


def _process_facts(document: Mapping[str, Any]) -> ProcessFacts:
    if document["version"] != FACTS_VERSION:
        raise ValueError(f"version {document['version']}, expected {FACTS_VERSION}")
    return msgspec.convert(document, ProcessFacts)


def facts_path(directory: Path, *, host: str, rank: int, start_ns: int) -> Path:
    """Return where this process tells its facts; no other process has that name."""
    return directory / f"rank{rank:05d}-{name_in_files(host)}-{os.getpid()}-{start_ns}.json"
