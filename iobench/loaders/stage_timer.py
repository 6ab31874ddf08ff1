"""Runs the steps of a pipeline on one sample after another and records what each took.

How finely is a matter of cost: spans per sample with CPU time while that costs under 1 % of the
time measured, then without CPU time, then one summed span per batch and stage with one sample in
N beside it (``iobench run --detail auto``).
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


class DetailPace:
    """How finely a sort of work is recorded: what its fastest piece can bear."""

    __slots__ = (
        "_detail", "_fastest_ns", "_full_ns", "_light_ns", "every", "summed", "with_cpu",
    )  # fmt: skip

    def __init__(
        self, detail: Detail, unit_costs: Mapping[str, int | None], *, n_spans: int
    ) -> None:
        self._detail = detail
        self._light_ns = (unit_costs["light_ns"] or 0) * n_spans
        self._full_ns = (unit_costs["full_ns"] or 0) * n_spans
        self._fastest_ns: float = math.inf
        self.with_cpu = True
        self.summed = detail is Detail.BATCH
        self.every = 2

    def note(self, spent_ns: float) -> None:
        """Take a piece into account: the first ones also import libraries and open files."""
        if spent_ns >= self._fastest_ns:
            return
        self._fastest_ns = spent_ns
        budget_ns = BUDGET_FRACTION * spent_ns
        self.with_cpu = self._full_ns <= budget_ns
        if self._detail is Detail.AUTO:
            self.summed = self._light_ns > budget_ns
        self.every = max(2, math.ceil(self._light_ns / max(budget_ns, 1.0)))


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
        self.recorder = self._recorder = recorder
        self._steps = [(step, recorder.string(step.label)) for step in pipeline.steps]
        self._pace = DetailPace(detail, unit_costs, n_spans=len(pipeline.steps) + 1)  # collate
        self._take_counts = take_decode_counts
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
        self._take_counts()  # what this thread decoded before belongs to no batch
        started_ns = self._recorder.clock.now_ns()
        if self._pace.summed:
            self._make_summed(batch, epoch, samples, place, row)
        else:
            for position, sample in enumerate(samples):
                self.failed_sample = sample
                self._make_sample(batch, epoch, sample, position, place, row)
        self.failed_sample = -1
        self._emit_decoded(batch, epoch)
        self._pace.note((self._recorder.clock.now_ns() - started_ns) / len(samples))

    def _emit_decoded(self, batch: int, epoch: int) -> None:
        """Record what this thread decoded for the batch, where it used chunks."""
        counts = self._take_counts()
        if counts is None:
            return
        now = self._recorder.clock.now_ns()
        for kind, first, second in (
            (Kind.DECODE, counts.decoded_nbytes, counts.used_nbytes),
            (Kind.READ, counts.n_hits + counts.n_decoded, counts.n_decoded),
        ):
            self._recorder.emit(
                kind, now, now, first, second, batch, epoch, -1, 0, 0, Flag.IO | Flag.DECODED
            )  # fmt: skip

    def _make_sample(
        self,
        batch: int,
        epoch: int,
        sample: int,
        position: int,
        place: Callable[[int, Sample], int],
        row: Callable[[int], Sample] | None,
    ) -> None:
        recorder = self._recorder
        now_ns, emit = recorder.clock.now_ns, recorder.emit
        with_cpu = self._pace.with_cpu
        cpu_ns = recorder.clock.cpu_ns if with_cpu else _unknown
        recorder.position(batch, epoch, sample)
        where = self._where[sample]
        given: tuple[Any, ...] = (where,)
        for step, label in self._steps:
            if row is not None and step.takes_out:
                given = (*given, row(position))
            cpu, start = cpu_ns(), now_ns()
            given = (step.run(*given), where)
            end = now_ns()
            spent = cpu_ns() - cpu if with_cpu else -1
            emit(
                step.kind, start, end, handed_on_nbytes(given[0]), spent,
                batch, epoch, sample, label,
            )  # fmt: skip
        cpu, start = cpu_ns(), now_ns()
        nbytes = place(position, given[0])
        given = ()  # giving its memory back takes time, and belongs to this stage
        end = now_ns()
        spent = cpu_ns() - cpu if with_cpu else -1
        emit(Kind.COLLATE, start, end, nbytes, spent, batch, epoch, sample)

    def _make_summed(
        self,
        batch: int,
        epoch: int,
        samples: tuple[int, ...],
        place: Callable[[int, Sample], int],
        row: Callable[[int], Sample] | None,
    ) -> None:
        recorder = self._recorder
        now_ns = recorder.clock.now_ns
        n_stages = len(self._steps) + 1
        spent_ns, nbytes = [0] * n_stages, [0] * n_stages
        recorder.position(batch, epoch, -1)
        started_ns = now_ns()
        for position, sample in enumerate(samples):
            self.failed_sample = sample
            boundaries = [now_ns()]
            where = self._where[sample]
            given: tuple[Any, ...] = (where,)
            for number, (step, _) in enumerate(self._steps):
                if row is not None and step.takes_out:
                    given = (*given, row(position))
                given = (step.run(*given), where)
                boundaries.append(now_ns())
                nbytes[number] = _add_known(nbytes[number], handed_on_nbytes(given[0]))
            placed = place(position, given[0])
            given = ()
            boundaries.append(now_ns())
            nbytes[-1] = _add_known(nbytes[-1], placed)
            for number in range(n_stages):
                spent_ns[number] += boundaries[number + 1] - boundaries[number]
            if sample % self._pace.every == 0:
                self._emit_detail(batch, epoch, sample, boundaries)
        cursor_ns = started_ns
        for number, (kind, label) in enumerate(self._stages()):
            end_ns = cursor_ns + spent_ns[number]
            recorder.emit(
                kind, cursor_ns, end_ns, nbytes[number], -1,
                batch, epoch, -1, label, 0, Flag.SUMMED, min(len(samples), 0xFFFF),
            )  # fmt: skip
            cursor_ns = end_ns

    def _emit_detail(self, batch: int, epoch: int, sample: int, boundaries: list[int]) -> None:
        for number, (kind, label) in enumerate(self._stages()):
            self._recorder.emit(
                kind, boundaries[number], boundaries[number + 1], -1, -1,
                batch, epoch, sample, label, 0, Flag.DETAIL,
            )  # fmt: skip

    def _stages(self) -> list[tuple[Kind, int]]:
        return [*((step.kind, label) for step, label in self._steps), (Kind.COLLATE, 0)]


def _unknown() -> int:
    return -1


def _add_known(total: int, more: int) -> int:
    return -1 if total < 0 or more < 0 else total + more
