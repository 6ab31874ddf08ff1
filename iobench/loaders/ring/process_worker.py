"""What runs in a process of the process ring: fills a shared buffer, transforms, says so."""

from __future__ import annotations

import mmap
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
from iobench.loaders.ring.buffers import BatchLayout
from iobench.loaders.ring.contract import PlannedSource
from iobench.loaders.ring.log import BatchLog, listed_samples
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo, RunQueue
from iobench.recording.run_directory import RunDirectory
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from numpy.typing import NDArray

    from iobench.loaders.ring.contract import BatchSource, Present, Reader
    from iobench.loaders.ring.shared_memory import SharedFile

Task = tuple[int, int, list[int], int, int]
"""Batch, epoch, samples, place in the memory, and since when there was room: quick to pickle."""

USUAL_PROCESSES: Final = 4
"""As many as a loader has threads by default, at most."""
DESCRIBE: Final = -1
"""The offset of a task that only asks what a batch looks like."""


@dataclass(frozen=True, slots=True)
class ProcessJob:
    """Everything a process of the ring is started with."""

    source: BatchSource  # what fills batches; picklable
    transform: Present | None  # what the user makes of them; importable
    batch_size: int  # samples of the largest batch
    spec: SampleSpec  # what a sample of a batch is, as far as that is known
    run_directory: Path | None  # where spans go
    n_processes: int | None  # how many there will be, where that is known
    worker: int = -1
    started_ns: int = 0  # its number, and when it was started


def run_process(connection: Connection, memory: SharedFile, packed: bytes | ProcessJob) -> None:
    """Make batches until the other end says so or is gone.

    Unless the process is forked its job is pickled apart and unpickled here, so that what cannot
    be imported is answered and not printed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_consumer()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # a fork has none of the threads that torch would wait for
    try:
        job: ProcessJob = packed if isinstance(packed, ProcessJob) else pickle.loads(packed)
    except Exception as error:  # noqa: BLE001 - whatever importing the user's modules raises
        refusal = WorkerError(
            "the transform or dataset cannot be imported in a process of its own "
            f"({type(error).__name__}: {_line(error)}); define it at the top level of a module "
            "that can be imported, or leave processes out"
        )
        _answer(connection, refusal)
        return
    try:
        # By default started one by one, as threads ask for them.
        usual = min(available_cpus(), USUAL_PROCESSES)
        share_chunk_cache(job.n_processes or max(job.worker + 1, usual))
        serving = _Worker(job, memory)
    except Exception as error:  # noqa: BLE001 - whatever opening the user's data raises travels
        _answer(connection, _portable(error))
        return
    if _answer(connection, None):
        serving.serve(connection)


def _answer(connection: Connection, answer: Any) -> bool:
    """Tell whether the training process was there to be answered."""
    try:
        connection.send_bytes(b"" if answer is None else pickle.dumps(answer))
    except OSError:
        return False
    return True


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
    def __init__(self, job: ProcessJob, memory: SharedFile) -> None:
        self._job = job
        self._memory = memory
        recorder = None
        if job.run_directory is not None:
            recorder = RunDirectory.open(job.run_directory).recorder(
                role="worker", worker=job.worker
            )
            activate(recorder)
            self._io, self._run_queue = ProcessIo(), RunQueue()
            self._run_queue.begin(recorder.clock.now_ns())
        self._log = BatchLog(recorder)
        self._filler: Reader = job.source.filler()
        self._inside = BatchLayout(job.source.spec, job.batch_size)
        self._scratch: mmap.mmap | None = None
        self._outside = BatchLayout(job.spec, job.batch_size)
        self._mapped: dict[int, mmap.mmap] = {}
        self._log.started(job.started_ns)

    def serve(self, connection: Connection) -> None:
        while True:
            try:
                task = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                break
            if task is None:
                break
            answer: Any
            try:
                parts, batch = task
                for follows, samples in parts:  # of the order of a pass
                    if isinstance(self._job.source, PlannedSource):
                        self._job.source.expect(samples, follows=follows)
                answer = self._make(*batch)
            except Exception as error:  # noqa: BLE001 - whatever the user's code raises travels
                answer = _portable(error)
                if self._log.recorder is not None:  # of a measured loop: one that names the sample
                    sample = getattr(self._filler, "failed_sample", -1)
                    answer = portable_error(error, sample, self._job.worker)
            if not _answer(connection, answer):
                break
        self._filler.close()
        if self._log.recorder is not None:
            self._log.recorder.close()

    def _make(
        self, batch: int, epoch: int, numbers: list[int], offset: int, free_ns: int
    ) -> SampleSpec | None:
        job, log = self._job, self._log
        samples = np.array(numbers, dtype=np.int64)
        log.begin(batch, epoch)
        if offset == DESCRIBE:
            spec = spec_of_batch(self._transformed(samples), job.source.spec, len(samples))
            self._outside = BatchLayout(spec, job.batch_size)
            return spec
        pages = self._mapped.get(offset)
        if pages is None:
            pages = self._mapped[offset] = self._memory.map(offset, self._outside.nbytes)
        rows = self._outside.arrays(pages, len(samples))
        log.submitted(free_ns)
        try:
            if job.transform is None:
                self._filler.fill(samples, rows, log)
            else:
                made = self._transformed(samples)
                start_ns = log.now_ns()
                _copy(made, rows)
                log.add(Kind.COLLATE, start_ns, log.now_ns())
        finally:
            if log.recorder is not None:
                self._io.emit(log.recorder, batch, epoch)
                self._run_queue.emit(log.recorder, batch, epoch)
        return None

    def _transformed(self, samples: NDArray[np.int64]) -> Any:
        if self._scratch is None:
            self._scratch = mmap.mmap(-1, self._inside.nbytes)
        rows = self._inside.arrays(self._scratch, len(samples))
        self._filler.fill(samples, rows, self._log)
        if self._job.transform is None:
            return rows
        start_ns = self._log.now_ns()
        try:
            made = self._job.transform(rows)
        except BaseException as error:
            error.add_note(f"the transform was given {listed_samples(samples)}")
            raise
        self._log.add(Kind.TRANSFORM, start_ns, self._log.now_ns())
        return made


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
        known = inside[name] if name in inside.names else None
        same = known is not None and len(known.shape) == len(shape)
        variables.append(
            Variable(
                str(name),
                shape,
                array.dtype.str,
                known.dims
                if known is not None and same
                else tuple(f"dim_{axis}" for axis in range(len(shape))),
                known.units if known is not None else "",
                known.role if known is not None else "input",
            )
        )
    return SampleSpec(tuple(variables))


def _copy(made: Any, rows: dict[str, NDArray[Any]]) -> None:
    if not isinstance(made, dict) or made.keys() != rows.keys():
        names = sorted(made) if isinstance(made, dict) else type(made).__name__
        raise SampleError(f"the transform returned {names}, of the first batch {sorted(rows)}")
    for name, row in rows.items():
        array = np.asarray(made[name])
        if array.shape != row.shape or array.dtype != row.dtype:
            raise SampleError(
                f"the transform returned {name!r} as {array.dtype.str} {array.shape}, of the "
                f"first batch {row.dtype.str} {row.shape}: in processes it has to stay the same"
            )
        row[...] = array


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
