"""Runs the steps of a pipeline on one sample after another and records what each took.

Spans per sample with CPU time while that costs under 1 % of the time measured, then without CPU
time, then one summed span per batch and stage (``iobench run --detail auto``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from iobench.chunks.decode_counts import take_decode_counts
from iobench.errors import OptionError
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from iobench.loaders.pipeline import Pipeline
    from iobench.recording.recorder import Recorder
    from iobench.samples import Sample

BUDGET_FRACTION = 0.01
"""Recording may cost this share of the time it measures."""


class Detail(Enum):
    """What ``--detail`` asks for."""

    AUTO = "auto"
    SAMPLE = "sample"
    BATCH = "batch"

    @classmethod
    def parse(cls, text: str) -> Detail:
        """Return the detail of that name."""
        try:
            return cls(text)
        except ValueError:
            raise OptionError(f"--detail {text}: expected auto, sample or batch") from None


class StageTimer:
    """Makes the samples of one batch at a time, on one thread, into a place of the caller's."""

    def __init__(
        self,
        pipeline: Pipeline,
        recorder: Recorder,
        *,
        detail: Detail,
        unit_costs: Mapping[str, int | None],
    ) -> None:
        self._where = pipeline.where
        self.recorder = recorder
        self._steps = pipeline.steps
        labels = [(step.kind, recorder.string(step.label)) for step in pipeline.steps]
        self._stages = [*labels, (Kind.COLLATE, 0)]
        self._detail = detail
        self._light_ns = (unit_costs["light_ns"] or 0) * len(self._stages)
        self._full_ns = (unit_costs["full_ns"] or 0) * len(self._stages)
        self._fastest_ns = math.inf
        self._with_cpu = True
        self._summed = detail is Detail.BATCH
        self._every = 2  # of so many samples one is told apart, where they are summed
        self.failed_sample = -1

    def make_batch(
        self,
        batch: int,
        epoch: int,
        samples: tuple[int, ...],
        place: Callable[[int, Sample], int],
        row: Callable[[int], Sample] | None = None,
    ) -> None:
        """Make each sample and hand it to ``place(position, sample)``, which returns its bytes.

        ``row(position)`` is where a step may make its arrays. Placing is recorded as ``collate``.
        What a step raises passes through; ``failed_sample`` then names the sample.
        """
        self.failed_sample = -1
        take_decode_counts()  # what this thread decoded before belongs to no batch
        recorder = self.recorder
        summed, with_cpu = self._summed, self._with_cpu and not self._summed
        cpu_ns = recorder.clock.cpu_ns if with_cpu else _unknown
        n_stages = len(self._stages)
        spent_ns, nbytes = [0] * n_stages, [0] * n_stages
        started_ns = recorder.clock.now_ns()
        for position, sample in enumerate(samples):
            self.failed_sample = sample
            recorder.position(batch, epoch, -1 if summed else sample)
            given = self._where[sample], position, place, row, cpu_ns
            times, cpus, sizes = self._make_sample(*given)
            is_detail = summed and sample % self._every == 0
            for number, (kind, label) in enumerate(self._stages):
                start, end = times[number], times[number + 1]
                if summed:
                    spent_ns[number] += end - start
                    nbytes[number] = _add_known(nbytes[number], sizes[number])
                else:
                    spent = cpus[number + 1] - cpus[number] if with_cpu else -1
                    recorder.emit(
                        kind, start, end, sizes[number], spent, batch, epoch, sample, label
                    )
                if is_detail:
                    recorder.emit(
                        kind, start, end, -1, -1, batch, epoch, sample, label, 0, Flag.DETAIL
                    )
        self.failed_sample = -1
        cursor_ns = started_ns
        for number, (kind, label) in enumerate(self._stages if summed else ()):
            end_ns = cursor_ns + spent_ns[number]
            recorder.emit(
                kind, cursor_ns, end_ns, nbytes[number], -1,
                batch, epoch, -1, label, 0, Flag.SUMMED, min(len(samples), 0xFFFF),
            )  # fmt: skip
            cursor_ns = end_ns
        self._emit_decoded(batch, epoch)
        self._note((recorder.clock.now_ns() - started_ns) / len(samples))

    def _note(self, spent_ns: float) -> None:
        """Take a batch into account: the first ones also import libraries and open files."""
        if spent_ns >= self._fastest_ns:
            return
        self._fastest_ns = spent_ns
        budget_ns = BUDGET_FRACTION * spent_ns
        self._with_cpu = self._full_ns <= budget_ns
        if self._detail is Detail.AUTO:
            self._summed = self._light_ns > budget_ns
        self._every = max(2, math.ceil(self._light_ns / max(budget_ns, 1.0)))

    def _make_sample(
        self,
        where: Any,
        position: int,
        place: Callable[[int, Sample], int],
        row: Callable[[int], Sample] | None,
        cpu_ns: Callable[[], int],
    ) -> tuple[list[int], list[int], list[int]]:
        """Return when stages began and the last one ended, the CPU time then, and their bytes."""
        now_ns = self.recorder.clock.now_ns
        given: tuple[Any, ...] = (where,)
        cpus, times, sizes = [cpu_ns()], [now_ns()], []
        for step in self._steps:
            if row is not None and step.takes_out:
                given = (*given, row(position))
            given = (step.run(*given), where)
            times.append(now_ns())
            cpus.append(cpu_ns())
            sizes.append(handed_on_nbytes(given[0]))
        sizes.append(place(position, given[0]))
        given = ()  # giving its memory back takes time, and belongs to this stage
        times.append(now_ns())
        cpus.append(cpu_ns())
        return times, cpus, sizes

    def _emit_decoded(self, batch: int, epoch: int) -> None:
        """Record what this thread decoded for the batch, where it used chunks."""
        counts = take_decode_counts()
        if counts is None:
            return
        now = self.recorder.clock.now_ns()
        for kind, first, second in (
            (Kind.DECODE, counts.decoded_nbytes, counts.used_nbytes),
            (Kind.READ, counts.n_hits + counts.n_decoded, counts.n_decoded),
        ):
            self.recorder.emit(
                kind, now, now, first, second, batch, epoch, -1, 0, 0, Flag.IO | Flag.DECODED
            )


def _unknown() -> int:
    return -1


def _add_known(total: int, more: int) -> int:
    return -1 if total < 0 or more < 0 else total + more
