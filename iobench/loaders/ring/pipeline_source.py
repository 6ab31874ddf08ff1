"""The steps of a dataset in the threads of a ring, for data trained as they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import IobenchError
from iobench.files.open_files import FileIdentities
from iobench.loaders.stage_timer import Detail, StageTimer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.ring.contract import Reader, Rows
    from iobench.loaders.ring.log import BatchLog
    from iobench.recording.recorder import Recorder
    from iobench.samples import Sample


class PipelineSource:
    """Makes the samples of a batch one after the other, each into its row."""

    is_remote = False  # whether it waits for a store elsewhere

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        one_thread: bool = False,
        detail: Detail = Detail.AUTO,
        unit_costs: Mapping[str, int | None] | None = None,
    ) -> None:
        self.spec = pipeline.spec
        self.one_thread = one_thread
        self._pipeline = pipeline
        self._identities = FileIdentities()  # for processes that get this source
        self._detail = detail
        self._unit_costs = dict(unit_costs or {"light_ns": None, "full_ns": None})
        self._timers: list[StageTimer] = []  # of threads that ended, with what they learnt

    def __len__(self) -> int:
        return len(self._pipeline)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order."""
        self._pipeline.expect(samples.tolist(), follows=follows)

    @property
    def is_planned(self) -> bool:
        """Whether knowing the order of a pass helps."""
        return self._pipeline.dataset is not None

    def filler(self) -> Reader:
        """Return what one thread makes samples with."""
        return DatasetReader(self._pipeline, self._detail, self._unit_costs, self._timers)


class DatasetReader:
    """Makes samples by the steps read, decode and preprocess, for one thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        detail: Detail,
        unit_costs: Mapping[str, int | None],
        timers: list[StageTimer],
    ) -> None:
        self._pipeline = pipeline
        self._detail = detail
        self._unit_costs = unit_costs
        self._timers = timers
        self._timer: StageTimer | None = None

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Make each sample in its row, or copy it there."""
        numbers = tuple(samples.tolist())
        spec = self._pipeline.spec
        lent: Sample = {}

        def row_of(position: int) -> Sample:
            nonlocal lent
            lent = {name: row[position, ...] for name, row in rows.items()}
            return lent

        def place(position: int, sample: Sample) -> int:
            spec.check(sample, where=f"sample {numbers[position]}")
            nbytes = 0
            for name, row in rows.items():
                array = sample[name]
                if array is not lent.get(name):
                    row[position] = array
                nbytes += array.nbytes
            return nbytes

        in_place = any(step.takes_out for step in self._pipeline.steps)
        if log.recorder is not None:
            timer = self._timer_of(log.recorder)
            timer.make_batch(log.batch, log.epoch, numbers, place, row_of if in_place else None)
            return
        for position, number in enumerate(numbers):
            try:
                out = row_of(position) if in_place else None
                place(position, self._pipeline.make(number, out))
            except IobenchError:
                raise
            except Exception as error:
                error.add_note(f"while sample {number} was made")
                raise

    def _timer_of(self, recorder: Recorder) -> StageTimer:
        if self._timer is None and self._timers:
            self._timer = self._timers.pop()
        if self._timer is None or self._timer.recorder is not recorder:
            self._timer = StageTimer(
                self._pipeline, recorder, detail=self._detail, unit_costs=self._unit_costs
            )
        return self._timer

    @property
    def failed_sample(self) -> int:
        """Which sample of the last batch could not be made; -1 if all could, or nobody knows."""
        return -1 if self._timer is None else self._timer.failed_sample

    def close(self) -> None:
        """Leave what was learnt of samples; nothing is open but what the steps themselves hold."""
        if self._timer is not None:
            self._timers.append(self._timer)
