"""What runs inside one loading process: takes a task, fills a slot, says which. Nothing else."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.stages import Detail, StageTimer
from iobench.recording import Kind, RunDirectory, activate
from iobench.storage import ProcessIo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.slots import Slots
    from iobench.samples import Sample

__all__ = ["DONE", "FAILED", "MESSAGE", "READY", "Assignment", "Task", "run_worker"]

MESSAGE: Final = struct.Struct("<iiii")
"""What a worker writes to the pipe all of them share: worker, batch, slot, status. A write this
small is atomic (POSIX, PIPE_BUF), so no lock is needed that a killed worker could keep."""
READY, DONE, FAILED = 0, 1, 2
PARENT_CHECK_S: Final = 2.0
"""How often an idle worker looks whether the consumer is still alive."""


@dataclass(frozen=True, slots=True)
class Task:
    """One batch to make: which samples, into which slot, and when it was submitted."""

    batch: int
    epoch: int
    samples: tuple[int, ...]
    slot: int
    submitted_ns: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything a loading process is started with."""

    worker: int
    pipeline: Pipeline
    slots: Slots
    run_directory: Path
    detail: Detail
    unit_costs: Mapping[str, int | None]
    started_ns: int
    consumer_pid: int


def run_worker(
    assignment: Assignment, tasks: Connection, errors: Connection, done_fd: int
) -> None:
    """Make batches until the consumer closes the task pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    recorder = RunDirectory.open(assignment.run_directory).recorder(
        role="worker", worker=assignment.worker
    )
    activate(recorder)
    timer = StageTimer(
        assignment.pipeline, recorder, detail=assignment.detail, unit_costs=assignment.unit_costs
    )
    process_io = ProcessIo()
    now_ns = recorder.clock.now_ns
    recorder.emit(Kind.STARTUP, assignment.started_ns, now_ns())
    os.write(done_fd, MESSAGE.pack(assignment.worker, -1, -1, READY))
    while (task := _next_task(tasks, assignment.consumer_pid)) is not None:
        dequeued_ns = now_ns()
        recorder.emit(
            Kind.SUBMIT_QUEUE, task.submitted_ns, dequeued_ns, batch=task.batch, epoch=task.epoch
        )
        status = _make(task, timer, assignment, errors)
        process_io.emit(recorder, task.batch, task.epoch)
        os.write(done_fd, MESSAGE.pack(assignment.worker, task.batch, task.slot, status))
    recorder.close()


def _next_task(tasks: Connection, consumer_pid: int) -> Task | None:
    try:
        while not tasks.poll(PARENT_CHECK_S):
            if os.getppid() != consumer_pid:
                return None
        task: Task | None = pickle.loads(tasks.recv_bytes())
    except (EOFError, ConnectionResetError):
        return None
    return task


def _make(task: Task, timer: StageTimer, assignment: Assignment, errors: Connection) -> int:
    def place(position: int, sample: Sample) -> int:
        return assignment.slots.place(task.slot, position, sample)

    try:
        timer.make_batch(task.batch, task.epoch, task.samples, place)
    except Exception as error:  # noqa: BLE001 - whatever a dataset raises goes to the consumer
        errors.send_bytes(pickle.dumps(_portable(error, timer.failed_sample, assignment.worker)))
        return FAILED
    return DONE


def _portable(error: Exception, sample: int, worker: int) -> IobenchError:
    """Return the error as one the consumer can raise: its own if it is ours, else a WorkerError."""
    if isinstance(error, IobenchError) and type(error).__module__ == IobenchError.__module__:
        return type(error)(str(error))
    reason = str(error).splitlines()[0] if str(error) else ""
    portable = WorkerError(
        f"worker-{worker}: sample {sample} could not be made: {type(error).__name__}: {reason}"
    )
    portable.add_note("".join(traceback.format_exception(error)))
    return portable
