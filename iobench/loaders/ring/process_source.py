"""Batches made in processes, for Python code that holds the interpreter's lock.

Only the place of a buffer in shared memory, and numbers of samples, go through a pipe.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import threading
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iobench.errors import OptionError, StorageError, WorkerError
from iobench.loaders.ring.buffers import BatchMemory, ScratchRows
from iobench.loaders.ring.contract import is_planned
from iobench.loaders.ring.log import BatchLog
from iobench.loaders.ring.process_worker import ProcessJob, run_process, spec_of_batch, transformed
from iobench.recording.clocks import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Present, Reader, Rows
    from iobench.loaders.ring.process_worker import OrderParts, Task
    from iobench.samples import SampleSpec

CHECK_S: Final = 0.2
"""How often a thread that waits for its process looks whether it is there, and still wanted."""
JOIN_S: Final = 5.0


class ProcessSource:
    """Samples of another source, made and transformed in processes that reader threads feed.

    A process makes one batch at a time. There are ``processes`` of them, by default as many as
    threads ask at once.
    """

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        processes: int | None = None,
        transform: Present | None = None,
        start_method: str = "forkserver",  # not fork: the training process has threads
        run_directory: Path | None = None,
    ) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # The script is imported by a process that it started: the one that did says so.
            raise SystemExit(1)
        self._made = functools.partial(
            ProcessSource, source, batch_size, processes=processes, transform=transform,
            start_method=start_method, run_directory=run_directory,
        )  # fmt: skip
        self._context = multiprocessing.get_context(start_method)
        if start_method == "forkserver":  # imported once, by the server, not by every process
            multiprocessing.set_forkserver_preload(["__main__", run_process.__module__])
        self.source, self.spec = source, source.spec
        self._n_samples, self._most = len(source), processes
        self._job: bytes | ProcessJob = ProcessJob(
            source, transform, batch_size, source.spec, run_directory, processes
        )
        if transform is not None:
            self.spec = self._job.spec = _transformed_spec(self._job)
        if start_method != "fork":
            self._job = _packed(self._job)
        self._memory = SharedFile()
        self._pid = os.getpid()
        self._order: OrderParts = ()  # what may be needed yet of the order of a pass
        self._changed = threading.Condition()
        self._processes: list[_Process] = []
        self._idle: list[_Process] = []
        self._end = weakref.finalize(self, _end, self._processes)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made, ()

    def __len__(self) -> int:
        return self._n_samples

    @property
    def is_planned(self) -> bool:
        """Whether knowing the order of a pass helps."""
        return is_planned(self.source)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order: each process hears it in its turn."""
        last = self._order[-1:]
        number = last[0][0] + 1 if last else 1
        self._order = (*(last if follows else ()), (number, follows, samples))

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a buffer that the processes see."""
        return self._memory.new_memory(nbytes)

    def pids(self) -> list[int]:
        """Return the process ids of the processes there are."""
        return [each.process.pid or 0 for each in self._processes]

    def filler(self) -> Reader:
        """Return a filler whose batches are made in processes."""
        if self._pid != os.getpid():
            raise WorkerError("the loader is of the process that was forked: make a new one")
        return _Filler(self.fill)

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Let a process fill the buffer that these rows are of."""
        offset = self._memory.offset_of(rows[self.spec.names[0]].ctypes.data)
        process = self._take(log.is_ended)
        try:
            parts = tuple(part for part in self._order if part[0] > process.n_heard)
            process.n_heard = parts[-1][0] if parts else process.n_heard
            task = (parts, log.batch, log.epoch, samples.tolist(), offset, log.free_ns)
            process.ask(task, log.is_ended)
            log.worker = process.number
        finally:
            self._give(process)

    def _take(self, is_ended: Callable[[], bool]) -> _Process:
        """Return a process that has nothing to do, waiting for it where there are enough."""
        with self._changed:
            while not self._idle:
                if self._most is None or len(self._processes) < self._most:
                    return self._add()
                self._changed.wait(CHECK_S)
                if is_ended():
                    raise WorkerError("the loader was closed")
            return self._idle.pop(0)

    def _give(self, process: _Process) -> None:
        with self._changed:
            if not process.is_broken:
                self._idle.append(process)
            elif process in self._processes:
                self._processes.remove(process)
                if self._most is not None:
                    self._most -= 1  # a new one would be forked beside threads
            self._changed.notify()
        if process.is_broken:
            _end([process])

    def start(self) -> None:
        """Start all processes that there are to be."""
        while self._most is not None and len(self._processes) < self._most:
            self._idle.append(self._add())

    def _add(self) -> _Process:
        taken = {process.number for process in self._processes}
        number = next(number for number in itertools.count() if number not in taken)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_process,
            args=(theirs, self._memory, self._job, number, now_ns()),
            name=f"worker-{number}",
            daemon=True,
        )
        try:
            process.start()
        except OSError as error:
            ours.close()
            raise WorkerError(
                f"a loading process cannot be started ({error}); free processes and memory, give "
                "TMPDIR a shorter path, or load with processes=False"
            ) from error
        finally:
            theirs.close()
        self._processes.append(_Process(process, ours, number))
        return self._processes[-1]

    def close(self) -> None:
        """End the processes."""
        self._end()
        self._idle.clear()
        self._memory.close()


def _transformed_spec(job: ProcessJob) -> SampleSpec:
    """Return what a sample is once it is transformed, as a first batch in this process shows."""
    _packed(job)  # what cannot be sent is said first
    samples = np.arange(min(job.batch_size, len(job.source)))
    filler = job.source.filler()
    try:
        made = transformed(job, filler, ScratchRows(job.source.spec), samples, BatchLog())
    finally:
        filler.close()
    return spec_of_batch(made, job.source.spec, len(samples))


def _packed(job: ProcessJob) -> bytes:
    try:
        return pickle.dumps(job)
    except Exception as error:
        raise OptionError(
            f"the transform or dataset cannot be sent to a process ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:300]}); define it at the top level of a module, or "
            "leave processes out"
        ) from error


class _Filler(NamedTuple):
    """A reader whose batches are made in processes, which it leaves to other threads."""

    fill: Callable[[NDArray[np.int64], Rows, BatchLog], None]

    def close(self) -> None:
        """Close nothing."""


class _Process:
    """Our end of one process, used by one thread at a time."""

    def __init__(self, process: BaseProcess, connection: Connection, number: int) -> None:
        self.process, self.number = process, number
        self.is_broken = False
        self.n_heard = 0  # parts of orders
        self._pid = os.getpid()
        self._has_answered = False
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)

    def ask(self, task: Task, is_ended: Callable[[], bool]) -> None:
        """Have a batch made; raise what that raised."""
        with contextlib.suppress(OSError):  # it has ended: so finds who waits for the answer
            self._connection.send_bytes(pickle.dumps(task))
        while not (ready := [number for number, _ in self._poll.poll(CHECK_S * 1000)]):
            # A process of its own that it left behind may keep its sentinel quiet.
            if self.process.exitcode is not None:
                break
            if is_ended():
                self.is_broken = True
                self.process.kill()  # or it would go on writing into a buffer that is free then
                raise WorkerError("the loader was closed")
        answer = b""
        with contextlib.suppress(EOFError, OSError):
            answer = self._connection.recv_bytes() if self._connection.fileno() in ready else b""
        if not answer:
            raise self._ended(task[1])
        self._has_answered = True
        error = pickle.loads(answer)
        if error is not None:
            try:
                raise error
            finally:
                del error  # or its traceback would hold it, and the buffer

    def _ended(self, batch: int) -> WorkerError:
        self.is_broken = True
        self._join(JOIN_S)
        code = self.process.exitcode
        how = f"exited ({code})"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        why = (
            "look for the out-of-memory killer if this was SIGKILL, or load without processes "
            "(--workers 0, processes=False) to see the failure itself"
        )
        if not self._has_answered:
            why = (
                "it imports the script that started it, whose own work has to be under "
                "if __name__ == '__main__':"
            )
        return WorkerError(
            f"{self.process.name} (pid {self.process.pid}) {how} with batch {batch} unfinished; "
            f"{why}"
        )

    def _join(self, patience_s: float) -> None:
        # Joining one that has ended would wait for all who hold its sentinel.
        if self.process.exitcode is None:
            self.process.join(patience_s)

    def tell_end(self) -> None:
        """Tell the process to end."""
        # Closing alone would not do: processes that are forked later hold this end, too.
        if self._pid == os.getpid() and not self.is_broken:
            with contextlib.suppress(OSError):
                self._connection.send_bytes(pickle.dumps(None))
        self._connection.close()

    def join(self) -> None:
        """Wait until the process has ended, or end it."""
        if self._pid != os.getpid():
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
        process.tell_end()
    for process in every:
        process.join()


class SharedFile:
    """An unnamed file in memory (memfd) that grows by a buffer at a time. Picklable to a child.

    A killed process leaves nothing behind, and ``/dev/shm``, which containers keep small, is not
    used.
    """

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("iobench-ring", os.MFD_CLOEXEC)
        self._pid = os.getpid()
        self._nbytes = 0
        self._offsets: dict[int, int] = {}  # by address here
        self._unused: list[tuple[int, int]] = []  # size and offset of buffers that are gone

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a further buffer, where one was that nobody holds any more, or at the end."""
        if self._descriptor < 0 or self._pid != os.getpid():
            whose = "is closed" if self._descriptor < 0 else "is of the process that was forked"
            raise WorkerError(f"the loader {whose}: make a new one")
        size = _whole_pages(nbytes)
        place = next((each for each in tuple(self._unused) if each[0] == size), None)
        try:
            if place is None:
                place = size, self._nbytes
                os.posix_fallocate(self._descriptor, self._nbytes, size)
                self._nbytes += size
            else:
                self._unused.remove(place)
            pages = mmap.mmap(self._descriptor, size, offset=place[1])
        except OSError as error:
            raise StorageError(
                f"no shared memory for a batch of {nbytes} bytes in addition to {self._nbytes} "
                f"bytes of others ({error.strerror or error}); take a smaller batch_size or depth"
            ) from error
        self._offsets[np.frombuffer(pages, dtype=np.uint8).ctypes.data] = place[1]
        weakref.finalize(pages, self._unused.append, place).atexit = False
        return BatchMemory(nbytes, pages)

    def offset_of(self, address: int) -> int:
        """Return where in the file the buffer is that begins at this address."""
        return self._offsets[address]

    def map(self, offset: int, nbytes: int) -> mmap.mmap:
        """Map a buffer, in a process that did not make it."""
        return mmap.mmap(self._descriptor, _whole_pages(nbytes), offset=offset)

    def close(self) -> None:
        """Give the file back; buffers that are mapped live as long as their mappings."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_dup": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._descriptor = state["_dup"].detach()
        self._pid = -1  # maps what there is, and makes nothing new


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
