"""Batches made in processes, for Python code that holds the interpreter's lock.

Only the place of a buffer in shared memory, and numbers of samples, go through a pipe.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import OptionError, WorkerError
from iobench.files.open_files import open_files
from iobench.loaders.ring.contract import is_planned
from iobench.loaders.ring.process_worker import DESCRIBE, ProcessJob, run_process
from iobench.loaders.ring.shared_memory import SharedFile
from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.loaders.ring.contract import BatchSource, Present, Reader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.loaders.ring.process_worker import Task
    from iobench.samples import SampleSpec

CHECK_S: Final = 0.2
"""How often a thread that waits for its process looks whether it is there, and still wanted."""
JOIN_S: Final = 5.0
START_METHODS: Final = ("forkserver", "spawn")
"""By default. Not fork: the training process has threads."""


class ProcessSource:
    """Samples of another source, made and transformed in processes that reader threads feed."""

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        processes: int | None = None,
        transform: Present | None = None,
        start_method: str | None = None,
        run_directory: Path | None = None,
    ) -> None:
        if start_method is None:
            there = multiprocessing.get_all_start_methods()
            start_method = next(name for name in START_METHODS if name in there)
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # The script is imported by a process that it started: the one that did says so.
            raise SystemExit(1)
        self._n_samples = len(source)
        self._options: dict[str, Any] = {
            "processes": processes, "transform": transform, "start_method": start_method,
            "run_directory": run_directory,
        }  # fmt: skip
        self._context = multiprocessing.get_context(start_method)
        self._is_forking = start_method == "fork"
        if start_method == "forkserver":  # imported once, by the server, not by every process
            multiprocessing.set_forkserver_preload(["__main__", run_process.__module__])
        self._memory = SharedFile()
        self._pid = os.getpid()
        self._job = ProcessJob(source, transform, batch_size, source.spec, run_directory, processes)
        self._order = _PassOrder()
        if not self._is_forking:
            _packed(self._job)  # so that what cannot be sent is said here
        self._most = processes
        self._lock = threading.Lock()
        self._there: list[_Process] = []
        self._end = weakref.finalize(self, _end, self._there)
        self.spec: SampleSpec = source.spec
        if transform is not None:
            try:
                samples = list(range(min(batch_size, len(source))))
                task = (-1, -1, samples, DESCRIBE, 0)
                self.spec = self._ask(task, lambda: False)[0]
            except BaseException:
                self.close()  # the error may be kept, and the source with it
                raise

    def __reduce__(self) -> tuple[Any, ...]:
        made = functools.partial(ProcessSource, **self._options)
        return made, (self.source, self._job.batch_size)

    def __len__(self) -> int:
        return self._n_samples

    @property
    def source(self) -> BatchSource:
        """What the processes fill batches from."""
        return self._job.source

    @property
    def is_planned(self) -> bool:
        """Whether knowing the order of a pass helps."""
        return is_planned(self.source)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order: each process hears it in its turn."""
        self._order.add(samples, follows=follows)

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a buffer that the processes see."""
        return self._memory.new_memory(nbytes)

    def pids(self) -> list[int]:
        """Return the process ids of the processes there are."""
        return [process.process.pid or 0 for process in self._there]

    def filler(self) -> Reader:
        """Return a filler whose batches are made in processes."""
        if self._pid != os.getpid():
            raise WorkerError("the loader is of the process that was forked: make a new one")
        return _ProcessReader(self)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Let a process fill the buffer that these rows are of."""
        offset = self._memory.offset_of(rows[self.spec.names[0]].ctypes.data)
        task = (log.batch, log.epoch, samples.tolist(), offset, log.free_ns)
        _, log.worker = self._ask(task, log.is_ended)

    def _ask(self, task: Task, is_ended: Callable[[], bool]) -> tuple[Any, int]:
        """Return the answer to a task, and the number of the process that made it."""
        with self._lock:
            whole = [process for process in self._there if not process.is_broken]
            process = min(whole, key=lambda process: len(process.asked), default=None)
            may_add = self._most is None or len(whole) < self._most
            if process is None or (process.asked and may_add):
                process = self._add()
            process.asked.append(task[0])
        try:
            return process.ask(self._order, task, is_ended), process.number
        finally:
            with self._lock:
                process.asked.remove(task[0])
                gone = process.is_broken and not process.asked and process in self._there
                if gone:
                    self._there.remove(process)
            if gone:
                _end([process])

    def start(self) -> None:
        """Start all that there are to be; raise WorkerError if one has ended by itself."""
        for process in self._there:
            process.look()
        while self._most is not None and len(self._there) < self._most:
            self._add()

    def _add(self) -> _Process:
        free = {process.number for process in self._there}
        number = next(number for number in itertools.count() if number not in free)
        self._there.append(self._start(number))
        return self._there[-1]

    def _start(self, number: int) -> _Process:
        job = replace(self._job, spec=self.spec, worker=number, started_ns=now_ns())
        packed = job if self._is_forking else _packed(job)
        failure: OSError | None = None
        for _ in range(2):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(  # type: ignore[attr-defined]
                target=run_process,
                args=(theirs, self._memory, packed),
                name=f"worker-{number}",
                daemon=True,
            )
            try:
                process.start()
                return _Process(process, ours, number)
            except OSError as error:
                failure = error
                ours.close()
                open_files.let_go()  # files that nobody reads from here may be what is too many
            finally:
                theirs.close()
        raise WorkerError(
            f"a loading process cannot be started ({failure}); free processes and memory, give "
            "TMPDIR a shorter path, or load with processes=False"
        ) from failure

    def close(self) -> None:
        """End the processes."""
        self._end()
        self._memory.close()


def _packed(job: ProcessJob) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:
        raise OptionError(
            f"the transform or dataset cannot be sent to a process ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:300]}); define it at the top level of a module, or "
            "leave processes out"
        ) from error


class _Process:
    """Our end of one process, which answers tasks in their order; several may be sent ahead."""

    def __init__(self, process: BaseProcess, connection: Connection, number: int) -> None:
        self.pid = os.getpid()
        self.process = process
        self.number = number
        self.is_broken = False
        self.asked: list[int] = []  # batches
        self._connection = connection
        self._is_ready = False
        self._heard = 0  # parts of orders
        self._sending = threading.Lock()
        self._answered = threading.Lock()  # held until the last task that was sent is answered
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)

    def ask(self, order: _PassOrder, task: Task, is_ended: Callable[[], bool]) -> Any:
        """Return the answer to a task; raise what it raised."""
        answered = threading.Lock()
        with answered:
            with self._sending:
                before, self._answered = self._answered, answered
                parts, self._heard = order.after(self._heard)
                with contextlib.suppress(OSError):  # it has ended: so finds who waits for answers
                    self._connection.send_bytes(pickle.dumps((parts, task)))
            with before:
                if not self._is_ready:
                    self._begin(is_ended)
                answer = self._answer(is_ended)
        if not isinstance(answer, BaseException):
            return answer
        try:
            raise answer
        finally:
            del answer  # or its traceback would hold it, and the buffer

    def _begin(self, is_ended: Callable[[], bool]) -> None:
        """Hear whether everything could be imported and opened there."""
        refusal = self._answer(is_ended)
        if isinstance(refusal, BaseException):
            self.is_broken = True  # it makes nothing
            raise refusal
        self._is_ready = True

    def _answer(self, is_ended: Callable[[], bool]) -> Any:
        while not (ready := [number for number, _ in self._poll.poll(CHECK_S * 1000)]):
            # A process of its own that it left behind may keep its sentinel quiet.
            if self.process.exitcode is not None:
                break
            if is_ended():
                self.is_broken = True
                self.process.kill()  # or it would go on writing into a buffer that is free then
                self.process.join()
                raise WorkerError("the loader was closed")
        try:
            if self._connection.fileno() in ready:
                answer = self._connection.recv_bytes()
                return pickle.loads(answer) if answer else None
        except (EOFError, OSError):
            pass
        raise self._ended()

    def _ended(self) -> WorkerError:
        self.is_broken = True
        self._join(JOIN_S)
        code = self.process.exitcode
        how = f"exited ({code})"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        why = (
            f"with batches {sorted(self.asked)} unfinished; look for the out-of-memory killer if "
            "this was SIGKILL, or load without processes (--workers 0, processes=False) to see "
            "the failure itself"
        )
        if not self._is_ready:
            why = (
                "as it began; it imports the script that started it, whose own work has to be "
                "under if __name__ == '__main__':"
            )
        return WorkerError(f"{self.process.name} (pid {self.process.pid}) {how} {why}")

    def look(self) -> None:
        """Raise WorkerError if the process has ended."""
        if self.process.exitcode is not None:
            raise self._ended()

    def _join(self, patience_s: float) -> None:
        # Joining one that has ended would wait for all who hold its sentinel.
        if self.process.exitcode is None:
            self.process.join(patience_s)

    def end(self) -> None:
        """Tell the process to end."""
        # Closing alone would not do: processes that are forked later hold this end, too.
        if self.pid == os.getpid() and not self.is_broken:
            with contextlib.suppress(OSError):
                self._connection.send_bytes(pickle.dumps(None))
        self._connection.close()

    def join(self) -> None:
        """Wait until the process has ended, or end it."""
        if self.pid != os.getpid():
            return  # a forked child has no processes to end
        self._join(0 if self.is_broken else JOIN_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _end(processes: list[_Process]) -> None:
    """End processes; a list that is the source's own is empty then."""
    every = processes.copy()
    processes.clear()
    for process in every:
        process.end()
    for process in every:
        process.join()


class _PassOrder:
    """The parts of the order of a pass that may be needed yet, as far as they are known."""

    def __init__(self) -> None:
        self._parts: tuple[tuple[bool, NDArray[np.int64]], ...] = ()
        self._count = 0

    def add(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say what comes next; a new pass unless it ``follows``."""
        self._parts = (*(self._parts[-1:] if follows else ()), (follows, samples))
        self._count += 1

    def after(self, heard: int) -> tuple[tuple[tuple[bool, NDArray[np.int64]], ...], int]:
        """Return what a process that heard so many parts has not heard yet, and how many then."""
        count, parts = self._count, self._parts
        return parts[max(0, len(parts) - (count - heard)) :], count


class _ProcessReader:
    """A reader whose batches are made in processes, which it leaves to other threads."""

    def __init__(self, source: ProcessSource) -> None:
        self.fill = source.fill

    def close(self) -> None:
        """Close nothing."""
