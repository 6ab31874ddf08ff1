"""A pipeline through `iobench.torch.DataLoader`, as a training script would load it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from iobench.errors import OptionError
from iobench.loaders.contract import Batch
from iobench.loaders.stage_timer import Detail
from iobench.recording.measured_loop import MeasuredRecording
from iobench.torch.data_loader import DataLoader
from iobench.torch.measured_workers import MeasuredWorkers
from iobench.torch.pipeline_samples import Stacking, samples_of, start_worker

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from iobench.loaders.contract import PlannedBatch
    from iobench.loaders.pipeline import Pipeline
    from iobench.recording.recorder import Recorder
    from iobench.recording.run_directory import RunDirectory
    from iobench.torch.pipeline_samples import MadeBatch


class TorchLoader(MeasuredWorkers):
    """Loads a pipeline with the ``DataLoader`` of scripts; its workers stay alive.

    What is recorded of a batch is what `iobench.torch.DataLoader` records in a script; waits and
    the numbers of batches are those of the measured loop. Batches are new memory each: they stay
    valid as long as their arrays are kept.
    """

    without_workers = "--workers 0"

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
        start_method: str | None = None,
    ) -> None:
        if workers < 0 or prefetch < 1 or batch_size < 1:
            raise OptionError(
                f"workers {workers}, prefetch {prefetch}, batch size {batch_size}: "
                "expected 0 or more workers, 1 or more of the others"
            )
        recording = MeasuredRecording(run, recorder, detail=detail.value, unit_costs=unit_costs)
        super().__init__(recording, workers=workers, prefetch=prefetch if workers else 0)
        self.copied_from = "pinned" if pin else "pageable"
        self._sampler = _PlanSampler(recording)
        self._loader: Any = DataLoader(
            samples_of(pipeline),
            batch_sampler=self._sampler,
            num_workers=workers,
            collate_fn=Stacking(pipeline.spec),
            pin_memory=pin,
            worker_init_fn=start_worker if workers else None,
            multiprocessing_context=start_method if workers else None,
            persistent_workers=workers > 0,
            prefetch_factor=prefetch if workers else None,
        )

    def _deliver(self, plan: Iterator[PlannedBatch]) -> Generator[Batch]:
        drawn = self._sampler.start(plan)
        with self._naming_dead_workers(), self._recording.in_force():
            self._iterator = iter(self._loader)
        while True:
            with self._naming_dead_workers():
                made: MadeBatch | None = next(self._iterator, None)
            if made is None:
                return
            if made.failure is not None:
                self.close()
                raise made.failure
            # As in a plain loop only the consumer holds a batch, so that freeing it is not waiting.
            arrays = {name: tensor.numpy() for name, tensor in made.tensors.items()}
            ready = [Batch(drawn.popleft(), arrays, made.worker)]
            del made, arrays
            yield ready.pop()

    def _unfinished(self) -> str:
        return f" with batches {[planned.batch for planned in self._sampler.drawn]} not delivered"

    def _forget(self) -> None:
        self._loader = None


class _PlanSampler:
    """A batch sampler that draws from the round's plan."""

    def __init__(self, recording: MeasuredRecording) -> None:
        self._recording = recording
        self._plan: Iterator[PlannedBatch] = iter(())
        self.drawn: deque[PlannedBatch] = deque()

    def start(self, plan: Iterator[PlannedBatch]) -> deque[PlannedBatch]:
        """Draw from this plan when iterated next; return what is drawn."""
        self._plan = plan
        self.drawn.clear()
        return self.drawn

    def __iter__(self) -> Iterator[list[int]]:
        for planned in self._plan:
            self._recording.planned(planned.batch, planned.epoch)
            self.drawn.append(planned)
            yield list(planned.samples)
