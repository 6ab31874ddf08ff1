"""The steps of a dataset in the threads of a ring, for data trained as they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iobench.chunks.decoded_chunks import take_decode_counts
from iobench.errors import IobenchError
from iobench.files.open_files import FileIdentities
from iobench.loaders.contract import BatchSource, Reader
from iobench.loaders.stage_timer import RecordedDetail
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from iobench.loaders.contract import Rows
    from iobench.loaders.pipeline import Pipeline
    from iobench.loaders.ring.log import BatchLog
    from iobench.recording.recorder import Recorder
    from iobench.samples import Sample


class PipelineSource(BatchSource):
    """Makes the samples of a batch one after the other, each into its row."""

    is_remote = False  # whether it waits for a store elsewhere

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        one_thread: bool = False,
        unit_costs: Mapping[str, int | None] | None = None,
    ) -> None:
        self.spec = pipeline.spec
        self.one_thread, self.is_planned = one_thread, pipeline.chunk_cache is not None
        self._pipeline = pipeline
        self._identities = FileIdentities()  # for processes that get this source
        costs = unit_costs or {"light_ns": None, "full_ns": None}
        self._detail = RecordedDetail(costs, len(pipeline.steps) + 1)  # of all threads

    def __len__(self) -> int:
        return len(self._pipeline)

    def expect(self, samples: NDArray[np.int64], *, follows: bool) -> None:
        """Say which samples a pass will ask for, in order."""
        self._pipeline.expect(samples.tolist(), follows=follows)

    def filler(self) -> Reader:
        """Return what one thread makes samples with."""
        return DatasetReader(self._pipeline, self._detail)


class DatasetReader(Reader):
    """Makes samples by the steps read, decode and preprocess, for one thread."""

    def __init__(self, pipeline: Pipeline, detail: RecordedDetail) -> None:
        self._pipeline, self._detail = pipeline, detail
        self._is_in_place = any(step.takes_out for step in pipeline.steps)
        self.failed_sample = -1  # which of the last batch could not be made

    def fill(self, samples: NDArray[np.int64], rows: Rows, log: BatchLog) -> None:
        """Make each sample in its row, or copy it there."""
        if log.recorder is not None:
            self._time_stages(samples.tolist(), rows, log, log.recorder)
            return
        numbers = samples.tolist()
        for position in self._pipeline.by_chunk(numbers):
            row, number = self._row(rows, position), numbers[position]
            try:
                self._place(self._pipeline.make(number, row), row, rows, position, number)
            except IobenchError:
                raise
            except Exception as error:
                error.add_note(f"while sample {number} was made")
                raise

    def _row(self, rows: Rows, position: int) -> Sample | None:
        """Return where a step may make the arrays of a sample; None where none does."""
        if not self._is_in_place:
            return None
        return {name: row[position, ...] for name, row in rows.items()}

    def _place(
        self, sample: Sample, made_in: Sample | None, rows: Rows, position: int, number: int
    ) -> int:
        """Copy what is not in its row yet; return the bytes of the sample."""
        self._pipeline.spec.check(sample, where=f"sample {number}")
        nbytes = 0
        for name, row in rows.items():
            array = sample[name]
            if made_in is None or array is not made_in[name]:
                row[position] = array
            nbytes += array.nbytes
        return nbytes

    def _time_stages(
        self, samples: list[int], rows: Rows, log: BatchLog, recorder: Recorder
    ) -> None:
        """Make samples and record the stages, the last of which places them in their rows."""
        take_decode_counts()  # what this thread decoded before belongs to no batch
        batch, epoch, detail = log.batch, log.epoch, self._detail
        stages = [(step.kind, recorder.string(step.label)) for step in self._pipeline.steps]
        stages.append((Kind.COLLATE, 0))
        spent_ns, nbytes = [0] * len(stages), [0] * len(stages)
        is_summed = detail.is_summed
        started_ns = recorder.clock.now_ns()
        for position in self._pipeline.by_chunk(samples):
            self.failed_sample = sample = samples[position]
            recorder.position(batch, epoch, -1 if is_summed else sample)
            times, cpus, sizes = self._timed(sample, position, rows, recorder)
            is_shown = is_summed and sample % detail.every == 0
            for number, (kind, label) in enumerate(stages):
                start, end = times[number], times[number + 1]
                if is_summed:
                    spent_ns[number] += end - start
                    known = nbytes[number] >= 0 and sizes[number] >= 0
                    nbytes[number] = nbytes[number] + sizes[number] if known else -1
                else:
                    cpu_ns = cpus[number + 1] - cpus[number] if cpus else -1
                    recorder.emit(
                        kind, start, end, sizes[number], cpu_ns, batch, epoch, sample, label
                    )
                if is_shown:
                    recorder.emit(
                        kind, start, end, -1, -1, batch, epoch, sample, label, 0, Flag.DETAIL
                    )
        self.failed_sample = -1
        cursor_ns = started_ns
        for number, (kind, label) in enumerate(stages if is_summed else ()):
            end_ns = cursor_ns + spent_ns[number]
            recorder.emit(
                kind, cursor_ns, end_ns, nbytes[number], -1,
                batch, epoch, -1, label, 0, Flag.SUMMED, min(len(samples), 0xFFFF),
            )  # fmt: skip
            cursor_ns = end_ns
        now_ns = recorder.clock.now_ns()
        if (counts := take_decode_counts()) is not None:  # it used chunks
            for kind, first, second in (
                (Kind.DECODE, counts.decoded_nbytes, counts.used_nbytes),
                (Kind.READ, counts.n_hits + counts.n_decoded, counts.n_decoded),
            ):
                recorder.emit(
                    kind, now_ns, now_ns, first, second, batch, epoch, flags=Flag.IO | Flag.DECODED
                )
        detail.note((now_ns - started_ns) / len(samples))

    def _timed(
        self, sample: int, position: int, rows: Rows, recorder: Recorder
    ) -> tuple[list[int], list[int], list[int]]:
        """Return when stages began and the last one ended, the CPU time then, and their bytes."""
        now_ns = recorder.clock.now_ns
        cpu_ns = recorder.clock.cpu_ns if self._detail.with_cpu else None
        where = self._pipeline.where[sample]
        row = None
        given: tuple[Any, ...] = (where,)
        sizes: list[int] = []
        cpus = [] if cpu_ns is None else [cpu_ns()]
        times = [now_ns()]
        for step in self._pipeline.steps:
            if step.takes_out:
                row = row or self._row(rows, position)
                given = (*given, row)
            given = (step.run(*given), where)
            times.append(now_ns())
            if cpu_ns is not None:
                cpus.append(cpu_ns())
            sizes.append(handed_on_nbytes(given[0]))
        sizes.append(self._place(given[0], row, rows, position, sample))
        given = ()  # giving its memory back takes time, and belongs to this stage
        times.append(now_ns())
        if cpu_ns is not None:
            cpus.append(cpu_ns())
        return times, cpus, sizes
