"""torch's ``DataLoader`` in a measured loop, over a pipeline."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.contract import Batch, MeasuredLoader, PlannedBatch
from iobench.loaders.ring.process_source import end_with_consumer, portable_error
from iobench.loaders.stage_timer import Detail
from iobench.recording.kinds import Kind
from iobench.recording.measured_loop import MeasuredRecording
from iobench.recording.stages import stage
from iobench.torch.observing import DataLoader
from iobench.torch.stage_methods import STAGES

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from numpy.typing import NDArray

    from iobench.loaders.pipeline import Pipeline, Step
    from iobench.recording.recorder import Recorder
    from iobench.recording.run_directory import RunDirectory

JOIN_S: Final = 5.0
REASON_LIMIT: Final = 500
SHARED_MEMORY: Final = (
    "if /dev/shm is full, take a smaller --batch-size, fewer --workers, or --framework workers, "
    "which does not use it"
)


class TorchLoader(MeasuredLoader):
    """Loads a pipeline with the ``DataLoader`` of scripts; its workers stay alive."""

    def __init__(
        self,
        pipeline: Pipeline,
        batch_size: int,
        *,
        workers: int,
        prefetch: int = 2,
        run: RunDirectory,
        recorder: Recorder,
        detail: Detail = Detail.AUTO,
        unit_costs: Mapping[str, int | None],
        pin: bool = False,
    ) -> None:
        super().__init__(workers=workers, prefetch=prefetch if workers else 0)
        _accept_read_only()
        self._recording = MeasuredRecording(
            run, recorder, detail=detail.value, unit_costs=unit_costs
        )
        self._iterator: Any = None
        pin = pin and torch.cuda.is_available()  # torch pins for no other device
        self.copied_from = "pinned" if pin else "pageable"
        self._plan: Iterator[PlannedBatch] = iter(())
        self._drawn = deque[PlannedBatch]()
        self._loader: Any = DataLoader(
            PipelineSamples(pipeline),
            batch_sampler=_Plan(self._draw),
            num_workers=workers,
            pin_memory=pin,
            worker_init_fn=start_worker if workers else None,
            persistent_workers=workers > 0,
            prefetch_factor=prefetch if workers else None,
        )

    def _draw(self) -> Iterator[list[int]]:
        for planned in self._plan:
            self._recording.planned(planned.batch, planned.epoch)
            self._drawn.append(planned)
            yield list(planned.samples)

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        self._plan = plan
        self._drawn.clear()
        with self._naming_deaths(), self._recording.in_force():
            self._iterator = iter(self._loader)
        while True:
            with self._naming_deaths():
                tensors = self._next()
            if tensors is None:
                return
            # As in a plain loop only the consumer holds a batch, so that freeing it is not waiting.
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            maker = self._recording.delivered[2]
            worker = int(maker.removeprefix("worker-")) if maker.startswith("worker-") else -1
            ready = [Batch(self._drawn.popleft(), arrays, worker)]
            del tensors, arrays
            yield ready.pop()

    @contextlib.contextmanager
    def _naming_deaths(self) -> Iterator[None]:
        """Close, and say what to look for, where workers have died."""
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            # Of the half-sent batch of a dead worker come errors of other types than torch's own.
            is_half_sent = self.workers > 0 and isinstance(error, (OSError, EOFError))
            if isinstance(error, IobenchError) or not (_is_death(error) or is_half_sent):
                raise
            self.close()
            raise _death(error) from error

    def _next(self) -> Any:
        try:
            return next(self._iterator, None)
        except Exception as error:
            text = str(error)
            if not text.startswith("Caught "):
                raise
            number = text.partition(" worker process ")[2].partition(".")[0]
            self.close()
            if isinstance(error, IobenchError):
                raise type(error)(_original(error)) from error
            reason = _in_one_line(error)
            raise WorkerError(f"worker-{number}: {reason}; {SHARED_MEMORY}") from error

    def _let_go(self) -> None:
        """End the workers, killing those that do not end in time."""
        processes = list(getattr(self._iterator, "_workers", ()))
        # What the iterator does when it is collected; a traceback may keep it alive for long.
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        self._iterator = self._loader = None
        if shutdown is not None:
            # One that was killed may have held the lock of torch's event, which is then never free.
            ending = threading.Thread(target=_run_quietly, args=(shutdown,), daemon=True)
            if any((process.exitcode or 0) < 0 for process in processes):
                ending.start()
                ending.join(JOIN_S)
            else:
                ending.run()
            del ending
        del shutdown
        self._recording.close()
        for process in processes:
            process.join(JOIN_S)
            if process.exitcode is None:
                process.kill()
                process.join()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # torch's SIGCHLD handler raises wherever the consumer is: in its compute stage, too.
        self.close()
        if _is_death(error):
            raise _death(error) from error


def _is_death(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (")


def _death(error: BaseException | None) -> WorkerError:
    return WorkerError(
        f"{str(error).strip().partition(chr(10))[0]}; spans of its workers are kept; look for the "
        "out-of-memory killer if it was killed, at /dev/shm if there was a bus error, or run with "
        "--workers 0 to see the failure itself"
    )


def _run_quietly(shutdown: Callable[[], None]) -> None:
    # Torch's SIGCHLD handler raises again for a worker already known to be dead.
    with contextlib.suppress(RuntimeError):
        shutdown()


class _Plan:
    """A batch sampler that draws from a round's plan."""

    def __init__(self, draw: Callable[[], Iterator[list[int]]]) -> None:
        self._draw = draw

    def __iter__(self) -> Iterator[list[int]]:
        return self._draw()


def _in_one_line(error: BaseException) -> str:
    """Return what was raised; of a worker torch sends a whole traceback, which ends with it."""
    lines = str(error).strip().splitlines() or [""]
    if len(lines) > 1 and lines[0].startswith("Caught "):
        return f"{lines[0].removesuffix('.')}: {lines[-1]}"[:REASON_LIMIT]
    return f"{type(error).__name__}: {lines[0]}"[:REASON_LIMIT]


def _original(error: IobenchError) -> str:
    """Return the message of an error of ours, from the traceback that torch sends of a worker."""
    name = f"{type(error).__module__}.{type(error).__qualname__}: "
    return str(error).rpartition(name)[2].partition("\n")[0]


# -- a pipeline as the dataset that a script would give to torch's DataLoader ---


METHODS: Final = {kind: name for name, kind in STAGES.items()}
"""Which method does the steps of a kind: `iobench.torch.DataLoader` times it."""


def _run_step(_: PipelineSamples, step: Callable[..., Any], *given: Any) -> Any:
    return step(*given)


class PipelineSamples:
    """A map-style dataset whose samples a pipeline makes, with a method for each kind of step."""

    read = decode = preprocess = transform = _run_step

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        is_one = len(pipeline.steps) == 1  # which needs no name: it is the sample
        self._steps = [(METHODS.get(step.kind), _named(step, is_one)) for step in pipeline.steps]

    def __len__(self) -> int:
        return len(self._pipeline.where)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        spec = self._pipeline.spec
        try:
            where = self._pipeline.where[number]
            given: tuple[Any, ...] = (where,)
            for method, step in self._steps:
                arrays = step(*given) if method is None else getattr(self, method)(step, *given)
                given = (arrays, where)
            spec.check(given[0], where=f"sample {number}")
            return {name: torch.from_numpy(_acceptable(given[0][name])) for name in spec.names}
        except Exception as error:
            info = get_worker_info()
            if info is None:
                raise
            portable = portable_error(error, f"worker-{info.id}: sample {number} could not be made")
            raise type(portable)(str(portable)) from None  # whose notes torch would send as well


def _named(step: Step, is_one: bool) -> Callable[..., Any]:
    """Return a step; one that does several things is a stage with a name."""
    if step.kind is not Kind.FUSED or not step.label or is_one:
        return step.run
    return functools.partial(_run_named, step.label, step.run)


def _run_named(name: str, run: Callable[..., Any], *given: Any) -> Any:
    with stage(name):
        return run(*given)


def _acceptable(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as torch takes it: without negative strides."""
    array = np.asarray(array)
    return array.copy() if any(stride < 0 for stride in array.strides) else array


def _accept_read_only() -> None:
    """Let torch not warn of read-only memory: nobody writes to samples."""
    warnings.filterwarnings("ignore", "The given NumPy array is not writ")


def start_worker(worker: int) -> None:
    """Prepare a worker: it ends with its consumer, and leaves Ctrl-C to it."""
    _accept_read_only()
    end_with_consumer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
