"""What runs inside one loading process: takes a task, fills a slot, says which. Nothing else."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.stages import Detail, StageTimer
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo
from iobench.recording.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection
    from pathlib import Path

    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.plan import ToldOrder
    from iobench.loaders.slots import Slots
    from iobench.samples import Sample

__all__ = [
    "DONE",
    "FAILED",
    "MESSAGE",
    "READY",
    "Assignment",
    "Task",
    "end_with_parent",
    "ending_parent",
    "portable_error",
    "run_worker",
]

MESSAGE: Final = struct.Struct("<iiii")
"""What a worker writes to the pipe all of them share: worker, batch, slot, status. A write this
small is atomic (POSIX, PIPE_BUF), so no lock is needed that a killed worker could keep."""
READY, DONE, FAILED = 0, 1, 2
REASON_LIMIT: Final = 500
PR_SET_PDEATHSIG: Final = 1


class Task(NamedTuple):
    """One batch to make: which samples, into which slot, and when it was submitted.

    Sent as a plain tuple: pickling anything else takes longer than all the rest of a hand-over.
    """

    batch: int
    epoch: int
    samples: tuple[int, ...]
    slot: int
    submitted_ns: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Everything a loading process is started with.

    ``parent_pid`` is what `ending_parent` says.
    ``order`` is what tells the pipeline in which order samples are asked for, if anybody knows.
    ``check_s`` is how often an idle worker looks whether the consumer is still alive.
    """

    worker: int
    pipeline: Pipeline
    slots: Slots
    run_directory: Path
    detail: Detail
    unit_costs: Mapping[str, int | None]
    started_ns: int
    parent_pid: int
    check_s: float
    n_workers: int
    order: ToldOrder | None = None


def run_worker(assignment: Assignment, tasks: Connection, errors: Connection, done_fd: int) -> None:
    """Make batches until the consumer closes the task pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(assignment.parent_pid)
    from iobench.datasets.decoded_chunks import (
        share_chunk_cache,  # all of them: a script's own need none
    )

    share_chunk_cache(assignment.n_workers)
    parent_pid = os.getppid()
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
    while (task := _next_task(tasks, parent_pid, assignment.check_s)) is not None:
        dequeued_ns = now_ns()
        recorder.emit(
            Kind.SUBMIT_QUEUE, task.submitted_ns, dequeued_ns, batch=task.batch, epoch=task.epoch
        )
        if assignment.order is not None:
            assignment.order.before(task.batch)
        error = _make(task, timer, assignment)
        process_io.emit(recorder, task.batch, task.epoch)
        status = DONE if error is None else FAILED
        os.write(done_fd, MESSAGE.pack(assignment.worker, task.batch, task.slot, status))
        if error is not None:
            # After the message: the consumer then reads, however full the pipe is.
            errors.send_bytes(pickle.dumps(error))
    recorder.close()


def ending_parent(start_method: str | None) -> int:
    """Return this process's id if those it starts now may end with it, -1 if they must not.

    The kernel means the thread that starts them, which only the main one outlives; and a fork
    server, not this process, is the parent of what it starts.
    """
    is_main = threading.current_thread() is threading.main_thread()
    method = start_method or multiprocessing.get_start_method()
    return os.getpid() if is_main and method in ("fork", "spawn") else -1


def end_with_parent(parent_pid: int) -> None:
    """Let the kernel end this process with its parent, even in the middle of a system call.

    Linux alone can; -1 does nothing. See `ending_parent`.
    """
    if parent_pid < 0 or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call
        os._exit(1)


def _next_task(tasks: Connection, parent_pid: int, check_s: float) -> Task | None:
    consumer = multiprocessing.parent_process()
    try:
        while not tasks.poll(check_s):
            # The parent is the consumer, or a fork server that ends with it.
            if os.getppid() != parent_pid or (consumer is not None and not consumer.is_alive()):
                return None
        values: tuple[Any, ...] | None = pickle.loads(tasks.recv_bytes())
    except (EOFError, OSError):  # the consumer died, perhaps in the middle of a message
        return None
    return None if values is None else Task(*values)


def _make(task: Task, timer: StageTimer, assignment: Assignment) -> IobenchError | None:
    def place(position: int, sample: Sample) -> int:
        return assignment.slots.place(task.slot, position, sample)

    try:
        timer.make_batch(task.batch, task.epoch, task.samples, place)
    except Exception as error:  # noqa: BLE001 - whatever a dataset raises goes to the consumer
        return portable_error(error, timer.failed_sample, assignment.worker)
    return None


def portable_error(error: Exception, sample: int, worker: int) -> IobenchError:
    """Return the error as one the consumer can raise: its own if it is ours, else a WorkerError.

    A plugin's own class may not travel: the class of `iobench.errors` it is derived from does.
    """
    for ours in type(error).__mro__:
        if issubclass(ours, IobenchError) and ours.__module__ == IobenchError.__module__:
            return ours(str(error))
    reason = str(error).partition("\n")[0][:REASON_LIMIT]
    portable = WorkerError(
        f"worker-{worker}: sample {sample} could not be made: {type(error).__name__}: {reason}"
    )
    portable.add_note("".join(traceback.format_exception(error)))
    return portable
