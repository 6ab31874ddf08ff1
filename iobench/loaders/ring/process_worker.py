"""What runs in a process of the process ring: fills a shared buffer, transforms, says so."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.chunks.decoded_chunks import share_chunk_cache
from iobench.cpus import available_cpus
from iobench.errors import IobenchError, SampleError, WorkerError
from iobench.loaders.ring.buffers import BatchLayout, ScratchRows
from iobench.loaders.ring.contract import PlannedSource
from iobench.loaders.ring.log import BatchLog
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo, RunQueue
from iobench.recording.run_directory import RunDirectory
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    import mmap
    from multiprocessing.connection import Connection
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Present, Reader
    from iobench.loaders.ring.process_source import SharedFile

OrderParts = tuple[tuple[int, bool, "NDArray[np.int64]"], ...]
"""Parts of the order of a pass: number, whether it follows another one, samples."""
Task = tuple[OrderParts, int, int, list[int], int, int]
"""Parts of the order, batch, epoch, samples, place in the memory, and since when there was room."""
USUAL_PROCESSES: Final = 4
"""As many as a loader has threads by default, at most."""


@dataclass(slots=True)
class ProcessJob:
    """What all processes of a ring are started with."""

    source: BatchSource  # what fills batches; picklable
    transform: Present | None  # what the user makes of them; importable
    batch_size: int  # samples of the largest batch
    spec: SampleSpec  # what a sample of a batch is
    run_directory: Path | None  # where spans go
    n_processes: int | None  # how many there will be, where that is known


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
                failure = _portable(error) if worker is None else worker.portable(error)
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
            f"({type(error).__name__}: {_line(error)}); define it at the top level of a module "
            "that can be imported, or leave processes out"
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
        # By default processes are started one by one, as threads ask for them.
        usual = min(available_cpus(), USUAL_PROCESSES)
        share_chunk_cache(job.n_processes or max(number + 1, usual))
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
        self._log.started(started_ns)

    def make(self, task: Task) -> None:
        """Make a batch in its place."""
        job, log = self._job, self._log
        parts, batch, epoch, numbers, offset, free_ns = task
        samples = np.array(numbers, dtype=np.int64)
        for _, follows, order in parts:
            if isinstance(job.source, PlannedSource):
                job.source.expect(order, follows=follows)
        log.begin(batch, epoch)
        if offset not in self._mapped:
            self._mapped[offset] = self._memory.map(offset, self._layout.nbytes)
        rows = self._layout.arrays(self._mapped[offset], len(numbers))
        log.submitted(free_ns)
        try:
            if job.transform is None:
                self._filler.fill(samples, rows, log)
                return
            made = transformed(job, self._filler, self._scratch, samples, log)
            start_ns = log.now_ns()
            spec = spec_of_batch(made, job.source.spec, len(samples))
            if spec != job.spec:
                raise SampleError(
                    f"the transform returned {_shapes(spec)}, of the first batch "
                    f"{_shapes(job.spec)}: in processes it has to stay the same"
                )
            for name, row in rows.items():
                row[...] = made[name]
            log.add(Kind.COLLATE, start_ns, log.now_ns())
        finally:
            if self._recorder is not None:
                self._io.emit(self._recorder, batch, epoch)
                self._run_queue.emit(self._recorder, batch, epoch)

    def portable(self, error: Exception) -> Exception:
        """Return an error as it travels; that of a measured loop names the sample."""
        if self._recorder is None:
            return _portable(error)
        return portable_error(error, getattr(self._filler, "failed_sample", -1), self._number)

    def close(self) -> None:
        self._filler.close()
        if self._recorder is not None:
            self._recorder.close()


def transformed(
    job: ProcessJob, filler: Reader, scratch: ScratchRows, samples: NDArray[np.int64], log: BatchLog
) -> Any:
    """Return what the transform makes of a batch, which is read to the scratch memory."""
    assert job.transform is not None
    rows = scratch.arrays(len(samples))
    filler.fill(samples, rows, log)
    return log.transform(job.transform, rows, samples)


def spec_of_batch(made: Any, inside: SampleSpec, n_samples: int) -> SampleSpec:
    """Return what a sample of a transformed batch is."""
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
        variable = Variable(str(name), shape, array.dtype.str, dims)
        if name in inside.names:
            known = inside[name]
            dims = known.dims if len(known.dims) == len(shape) else dims
            variable = Variable(str(name), shape, array.dtype.str, dims, known.units, known.role)
        variables.append(variable)
    return SampleSpec(tuple(variables))


def _shapes(spec: SampleSpec) -> str:
    return ", ".join(f"{v.name} {np.dtype(v.dtype).name} {v.shape}" for v in spec)


def portable_error(error: Exception, sample: int, worker: int) -> IobenchError:
    """Return the error as one the consumer can raise: its own if it is ours, else a WorkerError.

    A plugin's own class may not travel: the class of `iobench.errors` it is derived from does.
    """
    for ours in type(error).__mro__:
        if issubclass(ours, IobenchError) and ours.__module__ == IobenchError.__module__:
            return ours(str(error))
    portable = WorkerError(
        f"worker-{worker}: sample {sample} could not be made: {type(error).__name__}: "
        f"{_line(error)}"
    )
    portable.add_note("".join(traceback.format_exception(error)))
    return portable


def _portable(error: Exception) -> Exception:
    """Return the error as it is, or what can be sent of it, with its traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    is_ours = isinstance(error, IobenchError)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a class of the user's own may do anything
        error = WorkerError(f"{type(error).__name__}: {_line(error)}")
    if not is_ours:
        error.add_note(f"in a process of the ring:\n{trace}")
    return error


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:500]
