"""One batch where it is made, in a worker or the training process: samples, stages, collate."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, Subset

from iobench.loaders.stage_timer import BUDGET_FRACTION, Detail
from iobench.recording import span_file
from iobench.recording.kinds import Kind
from iobench.recording.process_io import ProcessIo, RunQueue
from iobench.recording.span_file import Flag
from iobench.samples import handed_on_nbytes
from iobench.torch.stage_methods import STAGES, StageMethods, StageSum, StageSums, makers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iobench.recording.digests import DigestLog
    from iobench.recording.recorder import Recorder
    from iobench.torch.stage_methods import Stage

ITEMS_LIMIT: Final = 1000
STRIDED: Final = torch.strided
TENSOR: Final = torch.Tensor
DESCRIBED: Final = (*STAGES.values(), Kind.COLLATE)
_packed: Final = span_file.POSITION.pack
# Plain numbers: arithmetic of flags takes longer than writing a span.
SUMMED: Final = int(Flag.SUMMED)
ESTIMATED: Final = int(Flag.ESTIMATED)
DIGEST: Final = "digest"
"""Label of the stage that notes digests of batches."""
CALL_LIGHT_SPANS: Final = 4
"""What timing a sample, or one call of a method, costs in light spans: 1.4 in a loop of nothing
else, 3 to 5 where the sample's own work has been in the caches meanwhile."""


def open_digests(is_recorded: bool, run: Path, rank: int) -> DigestLog | None:
    """Return where a process notes digests of batches, if they were asked for."""
    if not is_recorded:
        return None
    from iobench.recording.digests import DigestLog  # few recordings keep any

    return DigestLog(run, rank=rank)


class BatchTag(NamedTuple):
    """Which batch is to be made, when that was asked for, whether to record it; sent as a tuple."""

    batch: int
    epoch: int
    submitted_ns: int
    is_recorded: bool


class BatchRecorder:
    """Records how a thread makes batches: `begin`, `sample`, `end_sample`, `collate`, `finish`."""

    def __init__(
        self,
        recorder: Recorder,
        dataset: Any,
        *,
        batches: bool,
        detail: Detail,
        unit_costs: Mapping[str, int | None],
        digests: DigestLog | None = None,
        sparse: bool = False,
        worker: bool = False,
    ) -> None:
        self.recorder = recorder
        self.lane = recorder.lane()
        self.methods = StageMethods(dataset)
        self.tag: BatchTag | None = None
        self.nbytes = self.ended_ns = -1
        self.inner_ns = 0
        self.theirs_ns = 0
        self._sparse = sparse
        self._described = {kind: recorder.described(kind) for kind in DESCRIBED}
        self._fused = recorder.described(Kind.FUSED)
        self._position = self.lane.position
        self._yields = isinstance(dataset, IterableDataset)
        self._one_by_one = batches and _takes_one_by_one(dataset)
        self._detail = detail
        self.unit_costs = unit_costs
        self._digests = digests
        self._batches = batches
        light_ns, full_ns = (unit_costs.get(name) or 0 for name in ("light_ns", "full_ns"))
        self._sample_cost_ns = CALL_LIGHT_SPANS * light_ns * (1 + len(self.methods))
        self._cpu_cost_ns = max(full_ns - light_ns, 0) * (1 + len(self.methods))
        self._io = (ProcessIo(), RunQueue()) if worker else None
        self._io_every_ns = (1 + worker) * int((unit_costs.get("io_ns") or 0) / BUDGET_FRACTION)
        self._io_due_ns = 0
        self._uncounted: BatchTag | None = None
        self._fastest_ns = math.inf
        self._summed = detail is Detail.BATCH
        self.with_cpu = not self._summed
        self._outer: BatchRecorder | None = None
        self._by_sample = self._fetching = False
        self._begun_ns = self._begun_cpu_ns = self._sample_ns = self._sample_cpu_ns = -1
        self.n_samples = 1
        self._sample_position = self._position
        self._sums = StageSums()
        # What libraries were seen to do, and in how many spans, in batches in which they are
        # watched: all, unless these spans cost too much.
        self._watched = StageSums()
        self._n_watched_spans = 0
        # Of samples too short to be timed all, those of one batch in ``every`` are.
        self._every, self._n_batches, self._timed = 1, 0, True
        self._hushed = False

    def begin(self, tag: BatchTag, index: Any) -> Any:
        """Start on a batch; return what the fetcher is to be given for its index."""
        self.nbytes = self.ended_ns = self._sample_ns = -1
        if not tag.is_recorded:
            self.tag = None
            return index
        self.tag = tag
        if self._io is not None and not self._n_batches:
            self._io[1].begin(self.recorder.clock.now_ns())
        if makers.maker is not self:
            self._outer, makers.maker = makers.maker, self
        self.lane = lane = self.recorder.lane()
        if self._yields and lane.open is None:
            lane.open = []
        self._position = lane.place(tag.batch, tag.epoch)
        self._sums.clear()
        self.inner_ns = 0
        many = type(index) in (list, tuple)
        self.n_samples = n_samples_of(index)
        self._by_sample = many and self._one_by_one and not self._summed
        self._time_calls(self._n_batches % self._every == 0)
        self._n_batches += 1
        self._fetching = True
        self._sample_position = self._position
        self._begun_cpu_ns = -1 if self._by_sample else lane.cpu_ns()
        self._begun_ns = lane.now_ns()
        if self._by_sample:
            return _Samples(index, self)  # each goes on with open stages, inside of its own span
        lane.resume()
        return index

    def _time_calls(self, is_recorded: bool) -> None:
        """Time what is called for each sample of this batch, or only the batch."""
        self._timed = is_recorded
        self.methods.timed(is_recorded)
        if not self._by_sample:
            self._watch(is_recorded or self.watching_is_cheap)

    @property
    def watching_is_cheap(self) -> bool:
        """Whether the spans of libraries in a batch cost no more than is to be spent on them."""
        cost_ns = CALL_LIGHT_SPANS * (self.unit_costs.get("light_ns") or 0) * self._n_watched_spans
        return cost_ns <= BUDGET_FRACTION * self._watched.all_ns

    def _watch(self, is_recorded: bool) -> None:
        """Let libraries tell what they do for this batch, and keep it, or be silent."""
        self._hushed = not is_recorded
        if self._hushed:
            self.lane.quiet += 1
        elif self._detail is Detail.AUTO:
            self.lane.tally = []

    def _watch_no_more(self, spent_ns: int) -> bool:
        """End that for a batch that took so long; return whether libraries told what they did."""
        if self._hushed:
            self._hushed = False
            self.lane.quiet -= 1
            return False
        tally, self.lane.tally = self.lane.tally, None
        if tally is not None:
            self._n_watched_spans += len(tally)
            self._watched.clear()
            self._watched.add_nested(tally)
            self._watched.of_batch(spent_ns, self.n_samples)
        return True

    def sample(self, number: object) -> None:
        """End the sample before, if there is one, and begin the next."""
        tag = self.tag
        if tag is None:
            return
        self.end_sample()
        lane = self.lane
        try:
            position = _packed(number if type(number) is int else -1, tag[0], tag[1])
        except struct.error:
            position = self._position
        lane.position = self._sample_position = position
        self._sample_cpu_ns = lane.cpu_ns() if self.with_cpu else -1
        self._sample_ns = lane.now_ns()
        lane.resume()

    def end_sample(self) -> None:
        """Record the sample that was begun, if there is one."""
        start_ns = self._sample_ns
        if self.tag is None or start_ns < 0:
            return
        lane = self.lane
        lane.suspend()
        end_ns = lane.now_ns()
        spent_ns = lane.cpu_ns() - self._sample_cpu_ns if self.with_cpu else -1
        lane.position = self._sample_position  # the user's code may work on other things as well
        lane.write(start_ns, end_ns, -1, spent_ns, self._fused)
        self._sample_position = self._position
        self._sample_ns = -1

    def stage(self, kind: Kind, start_ns: int, cpu_ns: int, value: Any) -> int:
        """Record a stage begun then that brought this value; return its time."""
        lane = self.lane
        now_ns, read_cpu_ns = lane.now_ns, lane.cpu_ns
        if cpu_ns >= 0:
            cpu_ns = read_cpu_ns() - cpu_ns
        end_ns = now_ns()
        if self.tag is None:
            return 0
        spent_ns = end_ns - start_ns
        if self._summed:
            self._sums.add((kind, ""), spent_ns - self.inner_ns, handed_on_nbytes(value))
        else:
            lane.position = self._sample_position
            lane.write(start_ns, end_ns, handed_on_nbytes(value), cpu_ns, self._described[kind])
        return spent_ns

    def end_samples(self) -> None:
        """Note that all samples of the batch are there, or that one failed. Idempotent."""
        tag = self.tag
        if tag is None or not self._fetching:
            return
        self._fetching = False
        if self._sample_ns >= 0:
            self.end_sample()
        lane = self.lane
        lane.suspend()
        lane.position = self._sample_position = self._position
        end_ns = lane.now_ns()
        if not self._by_sample:
            watched = self._watch_no_more(end_ns - self._begun_ns)
            self._emit_summed(tag, end_ns, watched=watched)
        spent_ns = (end_ns - self._begun_ns) / self.n_samples
        self.theirs_ns += end_ns - self._begun_ns
        if self._timed:
            self.theirs_ns -= self._timing_ns(end_ns - self._begun_ns)
        if spent_ns < self._fastest_ns:
            self._fastest_ns = spent_ns
            self._choose()

    def _timing_ns(self, spent_ns: int) -> int:
        """Return what timing the calls of a batch that took so long has cost of it."""
        if not (self._by_sample or len(self.methods)):
            return 0
        # Not more than half of it: what a timed call costs is known by and large.
        return min(self._sample_cost_ns * self.n_samples, spent_ns // 2)

    def _emit_summed(self, tag: BatchTag, end_ns: int, *, watched: bool) -> None:
        """Record the batch's stages one after the other, each with the sum of its samples."""
        spent_ns, n_samples = end_ns - self._begun_ns, self.n_samples
        if self._timed:
            stages, flags = self._sums.of_batch(spent_ns, n_samples), 0
        else:
            stages = self._like_others(spent_ns, n_samples, watched=watched)
            flags = ESTIMATED
        # What no stage names comes last. Its CPU time is known where it is all of the batch.
        read_cpu_ns = self.lane.cpu_ns
        cpu_ns = -1 if stages else read_cpu_ns() - self._begun_cpu_ns
        if n_samples > 1:
            flags |= SUMMED
        start_ns = self._begun_ns
        rest = (int(Kind.FUSED), "")
        for stage, each in [*stages.items(), (rest, StageSum(spent_ns, -1))]:
            stop_ns = min(start_ns + each.spent_ns, end_ns)
            self.recorder.emit(
                stage[0], start_ns, stop_ns, each.nbytes, cpu_ns if stage == rest else -1,
                tag.batch, tag.epoch, -1, self.recorder.string(stage[1]), 0, flags, n_samples,
            )  # fmt: skip
            start_ns = stop_ns

    def _like_others(
        self, spent_ns: int, n_samples: int, *, watched: bool
    ) -> dict[Stage, StageSum]:
        """Return the stages of a batch that is not timed: of the dataset, and of libraries."""
        stages = dict(self._sums.like_others(spent_ns, n_samples))
        if watched:
            return stages
        for stage, each in self._watched.like_others(spent_ns, n_samples).items():
            stages.setdefault(stage, StageSum()).add(each.spent_ns, each.nbytes)
        return stages

    def _choose(self) -> None:
        # As `RecordedDetail`: the fastest batch decides, since the first ones also open files.
        budget_ns = BUDGET_FRACTION * self._fastest_ns
        cost_ns = self._sample_cost_ns
        if self._detail is Detail.AUTO:
            before, self._summed = self._summed, cost_ns > budget_ns
            if self._summed and not before:
                self._n_batches = 0  # the next one is timed
            self._every = math.ceil(cost_ns / max(budget_ns, 1.0)) if self._summed else 1
            if self._sparse and self.may_be_left_out:
                self._every = 1
        self.with_cpu = not self._summed and cost_ns + self._cpu_cost_ns <= budget_ns

    @property
    def may_be_left_out(self) -> bool:
        """Whether batches like the one made last may be recorded as a whole."""
        auto = self._detail is Detail.AUTO and self._digests is None
        return auto and self._summed and not self._yields

    def collate(self, collate: Callable[[Any], Any], samples: Any) -> Any:
        """Call the user's collate function, and record the call."""
        tag = self.tag
        if tag is None:
            return collate(samples)
        self.end_samples()
        lane = self.lane
        now_ns, read_cpu_ns = lane.now_ns, lane.cpu_ns
        start_ns = now_ns()
        cpu_ns = read_cpu_ns()  # inside the wall times, so that it never exceeds them
        try:
            batch = collate(samples)
        finally:
            cpu_ns = read_cpu_ns() - cpu_ns
            self.ended_ns = end_ns = now_ns()
        self.theirs_ns += end_ns - start_ns
        self.nbytes = nbytes = batch_nbytes(batch)
        lane.position = self._position
        lane.write(start_ns, end_ns, nbytes, cpu_ns, self._described[Kind.COLLATE])
        if self._digests is not None:
            of_samples = self._batches and isinstance(samples, list | tuple)
            n_samples = len(samples) if of_samples else self.n_samples
            self._note_digest(self._digests, tag, batch, n_samples)
        return batch

    def _note_digest(self, digests: DigestLog, tag: BatchTag, batch: Any, n_samples: int) -> None:
        """Note the digest of a batch; a stage of its own."""
        lane = self.lane
        start_ns, cpu_ns = lane.now_ns(), lane.cpu_ns()
        digests.add(tag.batch, tag.epoch, batch, n_samples)
        self.ended_ns = lane.now_ns()
        self.recorder.emit(
            Kind.VERIFY, start_ns, self.ended_ns, -1, lane.cpu_ns() - cpu_ns, tag.batch, tag.epoch,
            -1, self.recorder.string(DIGEST),
        )  # fmt: skip

    def finish(self) -> BatchTag | None:
        """End the batch, made or failed; return its tag, None if it is not recorded."""
        tag = self.tag
        if tag is None:
            return None
        self.end_samples()
        makers.maker, self._outer = self._outer, None
        if self._io is not None:
            self._count_reads(*self._io, tag)
        self.tag, outer = None, makers.maker
        if outer is not None and outer.tag is not None:  # inside of whose sample this one was made
            outer.lane.position = outer._sample_position
        return tag

    def _count_reads(self, reads: ProcessIo, queue: RunQueue, tag: BatchTag) -> None:
        """Record what was read since the last look; of short batches, several have one look."""
        end_ns = self.lane.now_ns()
        if end_ns < self._io_due_ns:
            self._uncounted = tag
            return
        self._uncounted = None
        self._io_due_ns = end_ns + self._io_every_ns
        reads.emit(self.recorder, tag.batch, tag.epoch)
        queue.emit(self.recorder, tag.batch, tag.epoch)

    def count_last_reads(self) -> None:
        """Record what was read for the last batches, at the end of this process."""
        tag, self._io_due_ns = self._uncounted, 0
        if tag is not None and self._io is not None:
            self._count_reads(*self._io, tag)


class _Samples:
    """The indices of a batch as the fetcher takes them: it needs no more of a list than this."""

    __slots__ = ("_index", "_maker")

    def __init__(self, index: Sequence[Any], maker: BatchRecorder) -> None:
        self._index = index
        self._maker = maker

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Any]:
        maker = self._maker
        for number in self._index:
            maker.sample(number)
            yield number
        maker.end_sample()


def n_samples_of(index: Any) -> int:
    """Return how many samples an index asks for; what is no plain list may be lazy: it is one."""
    return max(len(index), 1) if type(index) in (list, tuple) else 1


def _takes_one_by_one(dataset: Any) -> bool:
    """Return whether the fetcher, or torch's ``Subset``, takes indices one by one."""
    if isinstance(dataset, IterableDataset):
        return True
    if type(dataset) is Subset:
        return _takes_one_by_one(dataset.dataset)
    return not getattr(dataset, "__getitems__", None)


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of the tensors and arrays in a batch; -1 where they cannot be told."""
    total, known, items = 0, False, [batch]
    for item in items:  # which grows
        kind = type(item)
        if kind is TENSOR or isinstance(item, TENSOR):
            known = True
            total += item.nbytes if item.layout is STRIDED else 0
        # Only plain containers, and named tuples: looking at others may have effects.
        elif kind is list or kind is dict:
            items.extend(item if kind is list else item.values())
        elif isinstance(item, tuple) and (kind is tuple or hasattr(kind, "_fields")):
            items.extend(tuple.__iter__(item))
        elif isinstance(item, (np.ndarray, np.generic)):
            known = True
            total += item.nbytes
        elif kind in (bytes, bytearray):
            known = True
            total += len(item)
        if len(items) > ITEMS_LIMIT:
            return -1
    return total if known else -1
