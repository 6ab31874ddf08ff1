"""Batches made in processes, for Python code that holds the interpreter's lock.

A process fills a buffer of shared memory; only its place in that memory, and the numbers of the
samples, go through a pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import weakref
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.errors import OptionError, WorkerError
from iobench.loaders.ring.contract import is_planned
from iobench.loaders.ring.process_worker import DESCRIBE, run_process
from iobench.loaders.ring.shared_memory import SharedFile

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.ring.buffers import BatchMemory
    from iobench.loaders.ring.contract import BatchSource, Filler, Present, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.samples import SampleSpec

__all__ = ["ProcessSource"]

CHECK_S: Final = 0.2
"""How often a thread that waits for its process looks whether the batch is still wanted."""
JOIN_S: Final = 5.0
START_METHODS: Final = ("forkserver", "spawn")
"""Not fork: the training process has threads."""


class ProcessSource:
    """Samples of another source, made and transformed in processes; one for each reader thread.

    Parameters
    ----------
    source : BatchSource
        What fills batches; picklable.
    batch_size : int
        Samples of the largest batch.
    transform : callable, optional
        From a dict of arrays, the batch as their first axis, to another one. Importable in a
        fresh interpreter; its arrays have the same shapes and dtypes for every batch, but for the
        number of samples.
    start_method : {"forkserver", "spawn"}, optional
        By default the first that the system has.
    run_directory : Path, optional
        Where processes write their spans.

    Attributes
    ----------
    spec : SampleSpec
        What a sample is after the transform; the first batch is made to find out.

    Raises
    ------
    OptionError
        If the source or transform cannot be sent to a process.
    WorkerError
        If it cannot be imported there, or the process ends.
    """

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        transform: Present | None = None,
        start_method: str | None = None,
        run_directory: Path | None = None,
    ) -> None:
        if start_method is None:
            there = multiprocessing.get_all_start_methods()
            start_method = next(name for name in START_METHODS if name in there)
        if start_method not in START_METHODS:
            raise OptionError(
                f"start_method={start_method!r}: expected {' or '.join(START_METHODS)}"
            )
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # The script is imported by a process that it started: the one that did says so.
            raise SystemExit(1)
        self._n_samples = len(source)
        self._context = multiprocessing.get_context(start_method)
        if start_method == "forkserver":  # imported once, by the server, not by every process
            multiprocessing.set_forkserver_preload(["__main__", run_process.__module__])
        self._memory = SharedFile()
        self._pid = os.getpid()
        self._parts = (source, transform, batch_size, run_directory)
        self._told = _ToldOrders()
        _packed(*self._parts, 0)  # so that what cannot be sent is said here
        self._processes = _Processes()
        self._end = weakref.finalize(self, self._processes.close)
        self.spec: SampleSpec = source.spec
        if transform is not None:
            try:
                first = self._take()
                samples = np.arange(min(batch_size, len(source)))
                self.spec = first.ask((-1, -1, samples, DESCRIBE, None), lambda: False)
            except BaseException:
                self.close()  # the error may be kept, and the source with it
                raise
            self._processes.put(first)

    def __len__(self) -> int:
        return self._n_samples

    @property
    def source(self) -> BatchSource:
        """What the processes fill batches from."""
        return self._parts[0]

    @property
    def is_planned(self) -> bool:
        """Whether knowing the order of a pass helps."""
        return is_planned(self.source)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order: each process hears it in its turn."""
        self._told.add(samples, follows=follows)

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a buffer that the processes see."""
        return self._memory.new_memory(nbytes)

    def filler(self) -> Filler:
        """Return a filler with a process of its own; processes are used again.

        Raises
        ------
        WorkerError
            If this process was forked from the one that the source is of.
        """
        if self._pid != os.getpid():
            raise WorkerError("the loader is of the process that was forked: make a new one")
        return _ProcessFiller(self._take(), self._processes, self._memory, self.spec, self._told)

    def _take(self) -> _Process:
        return self._processes.take() or self._start()

    def _start(self) -> _Process:
        number = self._processes.next_number()
        packed = _packed(*self._parts, number)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_process,
            args=(theirs, self._memory, packed),
            name=f"iobench-ring-{number}",
            daemon=True,
        )
        try:
            process.start()
        except OSError as error:
            ours.close()
            theirs.close()
            raise WorkerError(
                f"a loading process cannot be started ({error.strerror or error}); free processes "
                "and memory, give TMPDIR a shorter path, or load with processes=False"
            ) from error
        theirs.close()
        started = _Process(process, ours)
        self._processes.add(started)
        try:
            started.begin()
        except BaseException:
            started.is_broken = True
            self._processes.put(started)
            raise
        return started

    def close(self) -> None:
        """End the processes."""
        self._end()
        self._memory.close()


def _packed(
    source: BatchSource,
    transform: Present | None,
    batch_size: int,
    run_directory: Path | None,
    worker: int,
) -> bytes:
    try:
        return pickle.dumps((source, transform, batch_size, run_directory, worker))
    except Exception as error:
        raise OptionError(
            f"the transform or dataset cannot be sent to a process ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:300]}); define it at the top level of a module, or "
            "leave processes out"
        ) from error


class _Process:
    """Our end of one process."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.pid = os.getpid()
        self.process = process
        self.connection = connection
        self.is_broken = self.is_begun = False
        self.heard = 0  # parts of orders

    def begin(self) -> None:
        """Hear whether everything could be imported."""
        self._answer(lambda: False)
        self.is_begun = True

    def ask(self, task: tuple[Any, ...], is_ended: Any) -> Any:
        """Return the answer to a task; raise what it raised."""
        try:
            self.connection.send(task)
        except OSError:
            raise self._ended() from None
        return self._answer(is_ended)

    def _answer(self, is_ended: Any) -> Any:
        while not wait([self.connection, self.process.sentinel], CHECK_S):
            if is_ended():
                self.is_broken = True
                self.process.kill()  # or it would go on writing into a buffer that is free then
                self.process.join()
                raise WorkerError("the loader was closed")
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _ended(self) -> WorkerError:
        self.is_broken = True
        self.process.join(JOIN_S)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"
        why = "look for the out-of-memory killer if the signal was 9"
        if not self.is_begun:
            why = (
                "it imports the script that started it, whose own work has to be under "
                "if __name__ == '__main__':"
            )
        return WorkerError(f"process {self.process.pid} of the ring {how}; {why}")

    def close(self) -> None:
        self.connection.close()
        if self.pid != os.getpid():
            return  # a forked child has no processes to end
        self.process.join(0 if self.is_broken else JOIN_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class _Processes:
    """All processes of a source, and those that no thread uses now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[_Process] = []
        self._idle: list[_Process] = []
        self._count = 0

    def next_number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count - 1

    def add(self, process: _Process) -> None:
        with self._lock:
            self._all.append(process)

    def take(self) -> _Process | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def put(self, process: _Process) -> None:
        with self._lock:
            if not process.is_broken and process in self._all:
                self._idle.append(process)
                return
            if process in self._all:
                self._all.remove(process)
        process.close()

    def close(self) -> None:
        with self._lock:
            every, self._all, self._idle = self._all, [], []
        for process in every:
            process.connection.close()
        for process in every:
            process.close()


class _ToldOrders:
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


class _ProcessFiller:
    def __init__(
        self,
        process: _Process,
        processes: _Processes,
        memory: SharedFile,
        spec: SampleSpec,
        told: _ToldOrders,
    ) -> None:
        self._process = process
        self._processes = processes
        self._memory = memory
        self._spec = spec
        self._told = told

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Let the process fill the buffer that these rows are of."""
        first = rows[self._spec.names[0]]
        offset = self._memory.offset_of(first.ctypes.data)
        parts, heard = self._told.after(self._process.heard)
        for part in parts:
            self._process.ask(part, log.is_ended)
        self._process.heard = heard
        self._process.ask((log.batch, log.epoch, samples, offset, self._spec), log.is_ended)

    def close(self) -> None:
        """Leave the process to the next thread."""
        self._processes.put(self._process)
