"""Batches made in processes, for Python code that holds the interpreter's lock.

Only the place of a buffer in shared memory, and numbers of samples, go through a pipe.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from iobench.chunks.decoded_chunks import share_chunk_cache
from iobench.errors import (
    IobenchError,
    OptionError,
    SampleError,
    StorageError,
    WorkerError,
    failure_text,
)
from iobench.loaders.contract import BatchSource
from iobench.loaders.ring.buffers import BatchLayout, BatchMemory, ScratchRows
from iobench.loaders.ring.log import BatchLog
from iobench.recording.activation import activate
from iobench.recording.clocks import now_ns
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo, RunQueue
from iobench.recording.run_directory import RunDirectory
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.contract import Present, Reader, Rows

CHECK_S: Final = 0.2
"""How often a thread that waits for its process looks whether it is there, and still wanted."""
JOIN_S: Final = 5.0
OrderParts: TypeAlias = "tuple[tuple[int, bool, NDArray[np.int64]], ...]"
"""Parts of the order of a pass: number, whether it follows another one, samples."""
Task: TypeAlias = "tuple[OrderParts, int, int, list[int], int, int]"
"""Parts of the order, batch, epoch, samples, place in the memory, and since when there was room."""


@dataclass(slots=True)
class ProcessJob:
    """What all processes of a ring are started with."""

    source: BatchSource  # what fills batches; picklable
    transform: Present | None  # what the user makes of them; importable
    batch_size: int  # samples of the largest batch
    spec: SampleSpec  # what a sample of a batch is
    run_directory: Path | None  # where spans go
    n_processes: int

    def packed(self) -> bytes:
        """Return it as it is sent; raise OptionError where that cannot be."""
        try:
            return pickle.dumps(self)
        except Exception as error:
            raise OptionError(
                f"the transform or dataset cannot be sent to a process ({failure_text(error)}); "
                "define it at the top level of a module, or leave processes out"
            ) from error

    def transformed(
        self, filler: Reader, scratch: ScratchRows, samples: NDArray[np.int64], log: BatchLog
    ) -> tuple[Any, SampleSpec]:
        """Return what the transform makes of a batch, and what a sample of that is."""
        assert self.transform is not None
        rows = scratch.arrays(len(samples))
        filler.fill(samples, rows, log)
        made = log.transform(self.transform, rows, samples)
        return made, _spec_of_batch(made, self.source.spec, len(samples))


def _spec_of_batch(made: Any, inside: SampleSpec, n_samples: int) -> SampleSpec:
    if not isinstance(made, dict) or not made:
        raise SampleError(
            f"the transform returned {type(made).__name__}, expected a dict of arrays by name"
        )
    variables = []
    for name, value in made.items():
        array = np.asarray(value)
        if array.ndim < 1 or len(array) != n_samples:
            raise SampleError(
                f"the transform returned {name!r} of shape {array.shape} for {n_samples} samples; "
                "in processes every array has the samples as its first axis"
            )
        shape = array.shape[1:]
        dims = tuple(f"dim_{axis}" for axis in range(len(shape)))
        known = inside[name] if name in inside.names else Variable(str(name), shape, "f4", dims)
        dims = known.dims if len(known.dims) == len(shape) else dims
        variables.append(Variable(str(name), shape, array.dtype.str, dims, known.units, known.role))
    return SampleSpec(tuple(variables))


# -- the training process ---------------------------------------------------------------------


class ProcessSource(BatchSource):
    """Samples of another source, made and transformed in processes: one for each reader thread.

    A process is started when a thread asks for it, and is there for another one after that.
    """

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        processes: int,
        transform: Present | None = None,
        *,
        start_method: str = "forkserver",  # not fork: the training process has threads
        run_directory: Path | None = None,
    ) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # The script is imported by a process that it started: the one that did says so.
            raise SystemExit(1)
        self._given = source, batch_size, processes, transform
        self._context = multiprocessing.get_context(start_method)
        if start_method == "forkserver":  # imported once, by the server, not by every process
            multiprocessing.set_forkserver_preload(["__main__", __name__])
        self.source, self.spec, self.is_planned = source, source.spec, source.is_planned
        job = ProcessJob(source, transform, batch_size, source.spec, run_directory, processes)
        if transform is not None:
            job.packed()  # what cannot be sent is said first
            filler, scratch = source.filler(), ScratchRows(source.spec)
            try:  # a first batch here shows what the others will be
                first = np.arange(min(batch_size, len(source)))
                _, self.spec = job.transformed(filler, scratch, first, BatchLog())
            finally:
                filler.close()
            job.spec = self.spec
        self._job: bytes | ProcessJob = job if start_method == "fork" else job.packed()
        self._memory = SharedFile()
        self._pid = os.getpid()
        self._order: OrderParts = ()  # what may be needed yet of the order of a pass
        self._processes: list[_Process] = []
        self._idle: deque[_Process] = deque()
        self._numbers = itertools.count()
        self._end = weakref.finalize(self, _end, self._processes)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessSource, self._given

    def __len__(self) -> int:
        return len(self.source)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order: each process hears it in its turn."""
        last = self._order[-1:]
        number = last[0][0] + 1 if last else 1
        self._order = (*(last if follows else ()), (number, follows, samples))

    def new_memory(self, nbytes: int) -> BatchMemory:
        """Return a buffer that the processes see."""
        return self._memory.new_memory(nbytes)

    def filler(self) -> Reader:
        """Return a reader whose batches a process makes."""
        if self._pid != os.getpid():
            raise WorkerError("the loader is of the process that was forked: make a new one")
        with suppress(IndexError):
            return ProcessReader(self, self._idle.popleft())
        return ProcessReader(self, self._add())

    def fill(
        self, process: _Process, samples: NDArray[np.int64], rows: Rows, log: BatchLog
    ) -> None:
        """Let a process fill the buffer that these rows are of."""
        offset = self._memory.offsets[rows[self.spec.names[0]].ctypes.data]
        parts = tuple(part for part in self._order if part[0] > process.n_heard)
        process.n_heard = parts[-1][0] if parts else process.n_heard
        task = (parts, log.batch, log.epoch, samples.tolist(), offset, log.free_ns)
        process.ask(task, log.is_ended)
        log.worker = process.number

    def give(self, process: _Process) -> None:
        """Take a process back; one that is broken is ended."""
        if not process.is_broken:
            self._idle.append(process)
        elif process in self._processes:
            self._processes.remove(process)
            _end([process])

    def start(self) -> None:
        """Start all processes that there are to be."""
        while len(self._processes) < self._given[2]:
            self._idle.append(self._add())

    def _add(self) -> _Process:
        number = next(self._numbers)
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


class ProcessReader:
    """One thread's process."""

    def __init__(self, source: ProcessSource, process: _Process) -> None:
        self.fill = functools.partial(source.fill, process)
        self.close = functools.partial(source.give, process)


class _Process:
    """Our end of one process, used by one thread at a time."""

    def __init__(self, process: BaseProcess, connection: Connection, number: int) -> None:
        self.process, self.number = process, number
        self.is_broken = False
        self.n_heard = 0  # parts of orders
        self._pid = os.getpid()
        self._has_answered = False
        self._connection = connection

    def ask(self, task: Task, is_ended: Callable[[], bool]) -> None:
        """Have a batch made; raise what that raised."""
        connection, process = self._connection, self.process
        with suppress(OSError):  # it has ended: so finds who waits for the answer
            connection.send_bytes(pickle.dumps(task))
        while not (ready := wait([connection, process.sentinel], CHECK_S)):
            # A process of its own that it left behind may keep its sentinel quiet.
            if process.exitcode is not None:
                break
            if is_ended():
                self.is_broken = True
                process.kill()  # or it would go on writing into a buffer that is free then
                raise WorkerError("the loader was closed")
        answer = b""
        with suppress(EOFError, OSError):
            answer = connection.recv_bytes() if connection in ready else b""
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
        why = "look for the out-of-memory killer if this was SIGKILL, or load without processes "
        why += "(--workers 0, processes=False) to see the failure itself"
        if not self._has_answered:
            why = "it imports the script that started it, whose own work has to be under "
            why += "if __name__ == '__main__':"
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
            with suppress(OSError):
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
        self.offsets: dict[int, int] = {}  # where in the file buffers are, by address here
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
        self.offsets[np.frombuffer(pages, dtype=np.uint8).ctypes.data] = place[1]
        weakref.finalize(pages, self._unused.append, place).atexit = False
        return BatchMemory(nbytes, pages)

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


# -- a process of the ring --------------------------------------------------------------------


def run_process(
    connection: Connection,
    memory: SharedFile,
    packed: bytes | ProcessJob,
    number: int,
    started_ns: int,
) -> None:
    """Make batches until the other end says so or is gone.

    Unless the process is forked its job is pickled apart and unpickled with the first batch, so
    that what cannot be imported or opened is answered and not printed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_consumer()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # a fork has none of the threads that torch would wait for
    worker: _Worker | None = None
    try:
        while (message := pickle.loads(connection.recv_bytes())) is not None:
            failure: Exception | None = None
            try:
                worker = worker or _Worker(_unpacked(packed), memory, number, started_ns)
                worker.make(message)
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises travels
                failure = portable_error(error, "" if worker is None else worker.failed())
            connection.send_bytes(pickle.dumps(failure))
    except (EOFError, OSError):
        pass  # the training process is gone
    if worker is not None:
        worker.close()


def _unpacked(packed: bytes | ProcessJob) -> ProcessJob:
    if isinstance(packed, ProcessJob):
        return packed
    try:
        job: ProcessJob = pickle.loads(packed)
    except Exception as error:
        raise WorkerError(
            "the transform or dataset cannot be imported in a process of its own "
            f"({failure_text(error)}); define it at the top level of a module that can be "
            "imported, or leave processes out"
        ) from error
    return job


def end_with_consumer() -> None:
    """End this process when the training process does, whatever it is at then."""

    def await_end(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    if (consumer := multiprocessing.parent_process()) is not None:
        threading.Thread(
            target=await_end, args=(consumer.sentinel,), name="iobench-parent", daemon=True
        ).start()


class _Worker:
    def __init__(self, job: ProcessJob, memory: SharedFile, number: int, started_ns: int) -> None:
        share_chunk_cache(job.n_processes)
        self._job, self._memory, self._number = job, memory, number
        self._filler: Reader = job.source.filler()
        self._scratch = ScratchRows(job.source.spec)
        self._layout = BatchLayout(job.spec, job.batch_size)
        self._mapped: dict[int, mmap.mmap] = {}
        self._recorder = None
        if job.run_directory is not None:
            self._recorder = RunDirectory.open(job.run_directory).recorder(
                role="worker", worker=number
            )
            activate(self._recorder)
            self._io, self._run_queue = ProcessIo(), RunQueue()
            self._run_queue.begin(self._recorder.clock.now_ns())
        self._log = BatchLog(self._recorder)
        self._log.add(Kind.STARTUP, started_ns)

    def make(self, task: Task) -> None:
        """Make a batch in its place."""
        job, log = self._job, self._log
        parts, batch, epoch, numbers, offset, free_ns = task
        samples = np.array(numbers, dtype=np.int64)
        for _, follows, order in parts:
            job.source.expect(order, follows=follows)
        log.begin(batch, epoch)
        if offset not in self._mapped:
            self._mapped[offset] = self._memory.map(offset, self._layout.nbytes)
        rows = self._layout.arrays(self._mapped[offset], len(numbers))
        log.add(Kind.SUBMIT_QUEUE, free_ns)  # it was given the batch then
        try:
            if job.transform is None:
                self._filler.fill(samples, rows, log)
                return
            made, spec = job.transformed(self._filler, self._scratch, samples, log)
            start_ns = log.now_ns()
            if spec != job.spec:
                ours, first = (
                    ", ".join(f"{v.name} {np.dtype(v.dtype).name} {v.shape}" for v in each)
                    for each in (spec, job.spec)
                )
                raise SampleError(
                    f"the transform returned {ours}, of the first batch {first}: in processes it "
                    "has to stay the same"
                )
            for name, row in rows.items():
                row[...] = made[name]
            log.add(Kind.COLLATE, start_ns)
        finally:
            if self._recorder is not None:
                self._io.emit(self._recorder, batch, epoch)
                self._run_queue.emit(self._recorder, batch, epoch)

    def failed(self) -> str:
        """Return which sample of a measured loop failed; empty outside of one."""
        if self._recorder is None:
            return ""
        sample = getattr(self._filler, "failed_sample", -1)
        return f"worker-{self._number}: sample {sample} could not be made"

    def close(self) -> None:
        self._filler.close()
        if self._recorder is not None:
            self._recorder.close()


def portable_error(error: Exception, where: str = "") -> Exception:
    """Return the error as one the consumer can raise: ours, else as it is, or what is left of it.

    A plugin's own class may not travel: the class of `iobench.errors` it is derived from does. In a
    measured loop ``where`` says which sample it was, and others' errors are ours.
    """
    for kind in type(error).__mro__:
        if issubclass(kind, IobenchError) and kind.__module__ == IobenchError.__module__:
            return error if kind is type(error) else kind(str(error))
    portable = WorkerError(f"{where}: {failure_text(error)}") if where else error
    try:
        pickle.loads(pickle.dumps(portable))
    except Exception:  # noqa: BLE001 - a class of the user's own may do anything
        portable = WorkerError(failure_text(error))
    trace = "".join(traceback.format_exception(error))
    portable.add_note(f"in a process of the loader:\n{trace}")
    return portable
