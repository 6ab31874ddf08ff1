"""A ready ``DataLoader`` of the user's in a measured loop, with all that its workers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from iobench.errors import IobenchError, WorkerError
from iobench.loaders.contract import Batch, PlannedBatch
from iobench.recording.kinds import Kind
from iobench.recording.measured_loop import MeasuredRecording
from iobench.torch.measured_workers import MeasuredWorkers
from iobench.torch.observing import observed_iter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from iobench.loaders.stage_timer import Detail
    from iobench.recording.recorder import Recorder
    from iobench.recording.run_directory import RunDirectory

Arrays = dict[str, "NDArray[Any]"]
Passes = Callable[[int, Callable[[Any], Iterator[Any]]], Iterator[Arrays]]
NOTHING: Final[Arrays] = {}
REASON_LIMIT: Final = 500


class ReadyLoader(MeasuredWorkers):
    """Hands on the batches of a loader as they are, pass after pass.

    Which samples make up a batch, and when a pass ends, is the loader's business: a plan says how
    many batches, and their numbers and epochs are the loader's. Between rounds workers stay alive
    and keep what they have made ready.
    """

    without_workers = "num_workers=0"
    copied_from = None

    def __init__(
        self,
        loader: Any,
        passes: Passes,
        *,
        run: RunDirectory,
        recorder: Recorder,
        detail: Detail,
        unit_costs: Mapping[str, int | None],
    ) -> None:
        workers: int = loader.num_workers
        super().__init__(
            MeasuredRecording(run, recorder, detail=detail.value, unit_costs=unit_costs),
            workers=workers,
            prefetch=(loader.prefetch_factor or 1) if workers else 0,
        )
        self._loader = loader
        self._passes = passes
        self._epoch = 0
        self._pass: Iterator[Arrays] | None = None

    def _take(self, planned: PlannedBatch) -> Batch:
        clock = self._recording.clock
        start_ns = clock.now_ns()
        try:
            with self._naming_dead_workers():
                arrays = self._next()
        except IobenchError as error:
            self.close()
            if "\n" not in str(error):
                raise
            raise WorkerError(_one_line(error)) from error
        except Exception as error:
            self.close()
            raise WorkerError(f"batch {planned.batch}: {_one_line(error)}") from error
        number, epoch, maker = self._recording.delivered
        if not maker:  # of a loader that cannot be looked into, which the report says
            end_ns = clock.now_ns()
            self._recording.recorder.emit(Kind.OPAQUE, start_ns, end_ns, batch=number, epoch=epoch)
        worker = int(maker.removeprefix("worker-")) if maker.startswith("worker-") else -1
        return Batch(PlannedBatch(number, epoch, ()), arrays, worker)

    def _next(self) -> Arrays:
        """Return the next batch, of the next pass where one has ended."""
        begun = False
        while True:
            if self._pass is None:
                self._pass, begun = self._passes(self._epoch, self._begin), True
            arrays = next(self._pass, NOTHING)
            if arrays is not NOTHING:
                return arrays
            if begun:
                raise WorkerError(f"pass {self._epoch} of the loader has no batch: nothing to load")
            self._pass = None
            self._epoch += 1

    def _begin(self, loader: Any) -> Iterator[Any]:
        self._iterator = None  # of the pass before, whose workers end now
        with self._recording.in_force():
            self._iterator = observed_iter(loader)
        begun: Iterator[Any] = self._iterator
        return begun

    def _forget(self) -> None:
        self._pass = None
        if getattr(self._loader, "_iterator", None) is not None:
            self._loader._iterator = None


def _one_line(error: Exception) -> str:
    """Return what was raised; of a worker torch sends a whole traceback, which ends with it."""
    lines = str(error).strip().splitlines() or [""]
    if len(lines) > 1 and lines[0].startswith("Caught "):
        return f"{lines[0].removesuffix('.')}: {lines[-1]}"[:REASON_LIMIT]
    return f"{type(error).__name__}: {lines[0]}"[:REASON_LIMIT]
