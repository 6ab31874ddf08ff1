"""Worker processes that write batches into shared slots and pass slot numbers only.

Pickling batches through a queue costs more than reading them: 31 to 36 ms of wait for a 24 MB
batch at a 21 ms step, against none with slots.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from iobench.errors import IobenchError, OptionError, WorkerError
from iobench.loaders.contract import Batch
from iobench.loaders.slots import Slots
from iobench.loaders.stages import Detail
from iobench.loaders.worker_process import (
    FAILED,
    MESSAGE,
    READY,
    Assignment,
    Task,
    ending_parent,
    run_worker,
)
from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess
    from types import TracebackType

    from iobench.loaders.contract import PlannedBatch
    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.plan import ToldOrder

__all__ = ["WorkerLoader"]

JOIN_S: Final = 5.0


class _Worker:
    """The consumer's end of one loading process."""

    def __init__(self, process: BaseProcess, tasks: Connection, errors: Connection) -> None:
        self.process = process
        self.tasks = tasks
        self.errors = errors
        self.outstanding: dict[int, Task] = {}

    def submit(self, task: Task) -> None:
        self.outstanding[task.batch] = task
        self.tasks.send_bytes(pickle.dumps(tuple(task)))

    def end(self) -> None:
        """Tell the process to end; one in the middle of a batch has nobody left to make it for."""
        if self.outstanding:
            self.process.terminate()
        else:
            # Closing the pipe alone would not do: a fork holds its own end.
            with contextlib.suppress(OSError):
                self.tasks.send_bytes(pickle.dumps(None))
        self.tasks.close()

    @property
    def name(self) -> str:
        return self.process.name


class WorkerLoader:
    """Loading processes ahead of the consumer; they start at the first ``batches``.

    A batch is valid until the next one is asked for: its slot is then filled again. Each task
    goes to the worker with the fewest outstanding ones; batches come in the planned order.

    Parameters
    ----------
    pipeline : Pipeline
        How a sample is made; must be picklable unless processes are forked.
    batch_size : int
        Samples a batch.
    workers : int
        Loading processes, at least 1.
    prefetch : int
        Batches each worker may be ahead, at least 1.
    run_directory : Path
        Where the workers write their span files.
    detail : Detail
        How finely stages are recorded.
    unit_costs : mapping of str to int
        What recording one span costs, ns.
    start_method : str or None
        As in `multiprocessing`; None takes fork where there is one, since nothing else has been
        loaded into a profile's process that could break on it.
    check_s : float
        How often either side looks whether the other is alive while nothing arrives.
    order : ToldOrder, optional
        Tells the pipeline what `batches` will be given: processes keep decoded chunks accordingly.

    Raises
    ------
    OptionError
        If ``workers`` or ``prefetch`` is below 1.
    StorageError
        If the slots need more memory than there is.
    """

    framework = "workers"

    def __init__(
        self,
        pipeline: Pipeline,
        batch_size: int,
        *,
        workers: int,
        prefetch: int = 2,
        run_directory: Path,
        detail: Detail = Detail.AUTO,
        unit_costs: Mapping[str, int | None],
        start_method: str | None = None,
        check_s: float = 2.0,
        order: ToldOrder | None = None,
    ) -> None:
        if workers < 1 or prefetch < 1:
            raise OptionError(f"workers {workers}, prefetch {prefetch}: expected 1 or more of each")
        self.workers = workers
        self.prefetch = prefetch
        self._pipeline = pipeline
        self._run_directory = run_directory
        self._detail = detail
        self._unit_costs = dict(unit_costs)
        self._check_s = check_s
        self._order = order
        methods = multiprocessing.get_all_start_methods()
        method = start_method or ("fork" if "fork" in methods else None)
        self._context: BaseContext = multiprocessing.get_context(method)
        # One more than can be in flight: the consumer holds a batch while all others are filled.
        self._slots = Slots(pipeline.spec, batch_size, workers * prefetch + 1)
        self._free = list(range(self._slots.n_slots))
        self._pool: list[_Worker] = []
        self._done_read = self._done_write = -1
        self._ready: dict[int, tuple[int, int]] = {}
        self._failed: dict[int, int] = {}
        self._in_flight: deque[PlannedBatch] = deque()
        self._round: Generator[Batch] | None = None
        self._closed = False

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that were started."""
        return [worker.process.pid or 0 for worker in self._pool]

    def batches(self, plan: Iterable[PlannedBatch]) -> Iterator[Batch]:
        """Yield the planned batches in order; ends the round before, if that still goes on.

        Raises
        ------
        WorkerError
            If a worker dies, or a step raises something that is not an IobenchError.
        IobenchError
            Whatever a step raised of it.
        """
        self._check_open()
        if self._round is not None:
            self._round.close()  # its slots are needed; it may have been left early
        if not self._pool:
            self._start()
        self._drop_in_flight()
        self._round = self._deliver(iter(plan))
        return self._round

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        self._submit_ahead(plan)
        while self._in_flight:
            planned = self._in_flight[0]
            slot, worker = self._wait_for(planned.batch)
            self._in_flight.popleft()
            try:
                # Before it is handed out: the workers go on while the consumer computes.
                self._submit_ahead(plan)
                yield Batch(planned, self._slots.arrays(slot), worker)
            finally:
                self._free.append(slot)
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the loader is closed: make a new one")

    def _submit_ahead(self, plan: Iterator[PlannedBatch]) -> None:
        while len(self._in_flight) < self.workers * self.prefetch:
            planned = next(plan, None)
            if planned is None:
                return
            self._submit(planned, self._free.pop())
            self._in_flight.append(planned)

    def _submit(self, planned: PlannedBatch, slot: int) -> None:
        worker = min(self._pool, key=lambda worker: len(worker.outstanding))
        task = Task(planned.batch, planned.epoch, planned.samples, slot, now_ns())
        try:
            worker.submit(task)
        except OSError:
            worker.process.join(JOIN_S)  # its end of the pipe is gone: so will it be
            self._raise_if_dead()
            raise

    def _wait_for(self, batch: int) -> tuple[int, int]:
        while batch not in self._ready:
            # Before receiving: it may have failed while an earlier batch was waited for.
            if batch in self._failed:
                raise self._failure(self._failed[batch])
            self._receive()
        return self._ready.pop(batch)

    def _drop_in_flight(self) -> None:
        """Wait out what a round that ended early left, so that all slots are free again."""
        while self._in_flight:
            slot, _ = self._wait_for(self._in_flight[0].batch)
            self._in_flight.popleft()
            self._free.append(slot)

    def _receive(self) -> None:
        """Take messages from the shared pipe; raise if a worker died with a batch unfinished."""
        # With a timeout: a process of its own that a dead worker left keeps its sentinel quiet.
        for fd, _ in self._poll.poll(self._check_s * 1000):
            if fd == self._done_read:
                data = os.read(self._done_read, MESSAGE.size * 64)
                for number, batch, slot, status in MESSAGE.iter_unpack(data):
                    self._note(number, batch, slot, status)
                return
        self._raise_if_dead()

    def _note(self, number: int, batch: int, slot: int, status: int) -> None:
        if status == READY:
            return
        del self._pool[number].outstanding[batch]
        if status == FAILED:
            self._failed[batch] = number
        else:
            self._ready[batch] = (slot, number)

    def _failure(self, number: int) -> IobenchError:
        try:
            error: IobenchError = pickle.loads(self._pool[number].errors.recv_bytes())
        except (EOFError, OSError):  # it died before or while it said why
            self._pool[number].process.join(JOIN_S)
            self._raise_if_dead()
            raise
        self.close()
        return error

    def _raise_if_dead(self) -> None:
        for worker in self._pool:
            worker.process.join(0)
            code = worker.process.exitcode
            if code is None:
                continue
            batches = sorted(worker.outstanding)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited ({code})"
            who = f"{worker.name} (pid {worker.process.pid})"
            self.close()
            raise WorkerError(
                f"{who} {how} with batches {batches} "
                "unfinished: its spans are kept; look for the out-of-memory killer if this was "
                "SIGKILL, or run with --workers 0 to see the failure itself"
            )

    def _start(self) -> None:
        self._done_read, self._done_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._done_read, select.POLLIN)
        try:
            for number in range(self.workers):
                self._pool.append(self._start_worker(number))
                self._poll.register(self._pool[-1].process.sentinel, select.POLLIN)
        except BaseException:  # fewer workers than asked for are never used
            self.close()
            raise

    def _start_worker(self, number: int) -> _Worker:
        task_reader, task_writer = self._context.Pipe(duplex=False)
        error_reader, error_writer = self._context.Pipe(duplex=False)
        assignment = Assignment(
            number,
            self._pipeline,
            self._slots,
            self._run_directory,
            self._detail,
            self._unit_costs,
            now_ns(),
            parent_pid=ending_parent(self._context.get_start_method()),
            check_s=self._check_s,
            n_workers=self.workers,
            order=self._order,
        )
        done = _InheritedFd(self._done_write)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=_enter,
            args=(assignment, task_reader, error_writer, done),
            name=f"worker-{number}",
            daemon=True,
        )
        process.start()
        task_reader.close()
        error_writer.close()
        return _Worker(process, task_writer, error_reader)

    def close(self) -> None:
        """End the workers, killing those that do not end in time, and free the slots."""
        if self._closed:
            return
        self._closed = True
        for worker in self._pool:
            worker.end()
        for worker in self._pool:
            worker.process.join(JOIN_S)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.process.close()
            worker.errors.close()
        self._pool = []
        for fd in (self._done_read, self._done_write):
            if fd >= 0:
                os.close(fd)
        self._slots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _InheritedFd:
    """A file descriptor that reaches the child however it is started."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[object, ...]:
        return _detach, (multiprocessing.reduction.DupFd(self.fd),)


def _detach(dup: object) -> _InheritedFd:
    return _InheritedFd(dup.detach())  # type: ignore[attr-defined]


def _enter(
    assignment: Assignment, tasks: Connection, errors: Connection, done: _InheritedFd
) -> None:
    run_worker(assignment, tasks, errors, done.fd)
