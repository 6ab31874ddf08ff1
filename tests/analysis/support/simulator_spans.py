"""What is simulated, and the spans it leaves: in the shape that the real loaders record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from iobench.runs.contents import PROFILE_DTYPE, Process, RunData

__all__ = ["LOOP", "Schedule", "SpanLog", "thread_names"]

Times = NDArray[np.int64]
LOOP = -1
"""The process of the training loop; others are numbers of workers."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that a run's times depend on.

    Parameters
    ----------
    stages : tuple of Kind
        What makes a batch; `Kind.SAMPLER` is done by the training loop when it submits.
    work_ns : ndarray of int64, shape (n_batches, n_stages)
        Of each batch; on something shared, what it takes alone.
    compute_ns : ndarray of int64, shape (n_batches,)
        Of the training loop after each batch.
    workers, prefetch : int
    in_order : bool
    stream : bool
        One thread for each stage instead of a pool; ``workers`` are its stages then.
    slowness : ndarray of float64, shape (workers, n_stages), or None
        What each worker takes, over ``work_ns``.
    serialise_ns, unpickle_ns : int
        Of each batch of a pool.
    disk, cores : float or None
        How many reads, and how many other stages, go at full speed at a time; None for all.
    """

    stages: tuple[Kind, ...]
    work_ns: Times
    compute_ns: Times
    workers: int
    prefetch: int = 2
    in_order: bool = True
    stream: bool = False
    slowness: NDArray[np.float64] | None = None
    serialise_ns: int = 0
    unpickle_ns: int = 0
    disk: float | None = None
    cores: float | None = None


class SpanLog:
    """The spans a run leaves: (process, thread, kind, start, end, batch, detail, cpu_ns)."""

    def __init__(self) -> None:
        self.ended_ns = 0.0
        self.rows: list[tuple[int, int, Kind, float, float, int, str, float]] = []

    def profile(self, schedule: Schedule) -> RunData:
        """Return them as if iobench had recorded the run."""
        n_workers = 0 if schedule.stream else schedule.workers
        names = tuple(f"worker-{number}" for number in range(n_workers))
        config: dict[str, Any] = {
            "workers": n_workers,
            "prefetch": schedule.prefetch,
            "batch_size": 1,
            "in_order": schedule.in_order,
            "expected_workers": list(names),
        }
        if schedule.cores is not None:
            config["machine"] = {"cpus": int(schedule.cores)}
        if schedule.disk is not None:
            config["read_nbytes_per_s"] = schedule.disk * 1e9
        strings = ("", "round", "shutdown", *sorted({row[6] for row in self.rows if row[6]}))
        ended = self.ended_ns
        table = np.zeros(len(self.rows) + 2, PROFILE_DTYPE)
        for name in ("nbytes", "cpu_ns", "sample", "batch", "epoch"):
            table[name] = -1
        process, thread, kind, start, end, batch, detail, cpu = zip(*self.rows, strict=True)
        rows = table[:-2]
        rows["process"], rows["thread"], rows["kind"] = np.array(process) + 1, thread, kind
        rows["start_ns"], rows["end_ns"] = np.rint(start), np.rint(end)
        rows["batch"], rows["sample"] = batch, np.where(np.array(kind) < Kind.SAMPLER, batch, -1)
        # What is read alone at full speed is a byte in a nanosecond; reading takes no CPU.
        reads = np.array(kind) == Kind.READ
        rows["cpu_ns"], rows["nbytes"] = np.rint(cpu), np.where(reads, np.rint(cpu), -1)
        rows["cpu_ns"][reads] = 0
        rows["detail"] = [strings.index(text) for text in detail]
        rows["epoch"] = 0
        table["pieces"] = 1
        for row, kind_of, label, since in (
            (-2, Kind.OTHER, 1, 0.0),
            (-1, Kind.WAIT, 2, ended),
        ):
            table["kind"][row], table["label"][row] = kind_of, label
            table["start_ns"][row], table["end_ns"][row] = np.rint(since), np.rint(ended)
        table["sample"][-2] = 0
        table["sequence"] = np.arange(1, len(table) + 1)
        table = table[np.argsort(table["process"], kind="stable")]
        threads = {LOOP: thread_names(schedule)} if schedule.stream else {}
        processes = tuple(
            _process(number, threads.get(number, ("MainThread", "QueueFeederThread")))
            for number in range(LOOP, n_workers)
        )
        return RunData(Path("simulated"), config, processes, table, strings)


def _process(number: int, threads: tuple[str, ...]) -> Process:
    role = "consumer" if number == LOOP else "worker"
    anchors = (Anchor(0, 0),)
    return Process(role, number, 0, number + 2, "here", "boot", anchors, 0, True, 0, threads)


def thread_names(schedule: Schedule) -> tuple[str, ...]:
    stages = (f"{number}-{kind.spelled}-0" for number, kind in enumerate(schedule.stages))
    return ("MainThread", *stages)
