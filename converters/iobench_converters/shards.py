"""What one process does of a conversion: shards made stack by stack, and noted in the journal.

A shard is written beside the store, moved into place, and noted.
"""

from __future__ import annotations

from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from iobench.datasets import Progress, no_progress, requested_samples
from iobench.errors import StoreError
from iobench.stores import (
    ALL_SAMPLES,
    Budget,
    EncodedStack,
    Notice,
    SampleMeasure,
    ShardInfo,
    ShardPlan,
    Tally,
    merge_shard_moments,
    storage_errors,
    sync_directory,
)
from iobench_converters.journal import Journal, PlanMark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iobench.datasets import SampleStack
    from iobench.samples import SampleSpec
    from iobench.stores import ConversionPlan, Label, ShardMoments, ShardWriter


class ConversionRun:
    """The conversion of a plan, as far as this process knows and does it."""

    def __init__(
        self,
        plan: ConversionPlan,
        *,
        tally: Tally | None = None,
        progress: Progress | None = None,
        notice: Notice | None = None,
    ) -> None:
        self.plan, self.request, self.path = plan, plan.request, plan.request.path
        self.encoding = self.request.encoding  # with all ranges, once it has begun
        self.journal = Journal(self.path, plan)
        self.tally = tally or Tally()
        self.notice = notice or (lambda _: None)
        self._progress = progress or no_progress
        self._budget = Budget(self.request.limit_s)
        self.infos: dict[int, ShardInfo] = {}
        self._n_done = 0
        self.mark: PlanMark | None = None

    @property
    def stored_spec(self) -> SampleSpec:
        """What a sample of the store is."""
        spec = self.request.index.spec
        return spec if self.encoding is None else self.encoding.stored_spec(spec)

    @property
    def measure(self) -> SampleMeasure:
        """What takes the moments of samples as they are stored."""
        spec = self.request.index.spec
        encoded = () if self.encoding is None else self.encoding.encoder(spec).names
        return SampleMeasure(self.stored_spec, encoded)

    def join(self) -> bool:
        """Take up what was begun; False if nothing was."""
        self.mark = self.journal.mark()
        if self.mark is not None and self.encoding is not None:
            self.encoding = replace(self.encoding, ranges=self.mark.ranges)
        return self.mark is not None

    def begin(self) -> None:
        """Take up what was begun, or begin; the lock of the store is held."""
        if self.join():
            return
        spec = self.request.index.spec
        if self.encoding is not None and (unknown := self.encoding.unknown_ranges(spec)):
            self.notice(
                f"the range of {', '.join(unknown)} for int16 is not given: all samples are read "
                "once to find it; --range VAR=LOW:HIGH spares that"
            )
            with requested_samples(self.request, tally=self.tally) as producer:
                stacks = producer.stacks([self.plan.samples])
                named = ((stack.rows, self._label(stack.numbers)) for stack in stacks)
                self.encoding = self.encoding.learn(spec, named)
        self.mark = self.journal.begin({} if self.encoding is None else self.encoding.ranges)

    def collect(self, numbers: Sequence[int]) -> list[int]:
        """Look for shards that are there already; return the numbers of the others."""
        for number in numbers:
            if number not in self.infos and (info := self.journal.find(number)) is not None:
                self.infos[number] = info
        self._n_done = sum(info.shard.n_samples for info in self.infos.values())
        return [number for number in numbers if number not in self.infos]

    def take(self, number: int, tallied: Mapping[str, Any]) -> None:
        """Take note of a shard that another machine wrote for us, and of its time."""
        self.tally.merge(tallied)
        if self.collect([number]):
            raise StoreError(
                f"{self.path}: shard {number} was written elsewhere and is not here; "
                "do the workers see this folder?"
            )
        self._advance(0)

    def write(self, numbers: Sequence[int]) -> None:
        """Write some shards, as long as there is time.

        A shard is closed (flushed to disk, moved into place, noted) in a thread, while the next one
        is written; at most one is waiting for that.
        """
        producer = requested_samples(
            self.request,
            tally=self.tally,
            finish=self._finisher(),
            is_over=lambda: self._budget.spent,
            notice=self.notice,
        )
        pending: Future[None] | None = None
        parts = [self.plan.shard(number) for number in numbers]
        with (
            producer,
            ThreadPoolExecutor(1, thread_name_prefix="iobench-close") as closer,
            closing(producer.stacks(parts)) as stacks,
        ):
            for number, samples in zip(numbers, parts, strict=True):
                plan = self.plan
                shard = ShardPlan(number, len(samples), plan.full_n_samples, plan.sample_grid)
                folder, writer = self.journal.make_folder(), None
                try:
                    writer = self.request.fmt.writer(
                        folder, self.stored_spec, shard, self.request.options
                    )
                    moments = merge_shard_moments(self._written(stacks, writer, len(samples)))
                    if pending is not None:
                        pending.result()
                except BaseException:
                    if writer is not None:
                        writer.abort()
                    self.journal.clear(folder)
                    raise
                pending = closer.submit(self._close, number, writer, folder, moments)
                if self._budget.spent:
                    break
            if pending is not None:
                pending.result()

    def _written(
        self, stacks: Iterator[SampleStack], writer: ShardWriter, left: int
    ) -> Iterator[ShardMoments]:
        """Write the samples of a shard, one at least; yield the moments of each stack."""
        while left:
            moments, encoded = next(stacks).figures
            with self.tally.timed("write"):
                writer.append(encoded)
            n_samples = len(encoded.checksums)
            del encoded  # nothing holds it when the next one is made
            self._advance(n_samples)
            left -= n_samples
            yield moments
            if self._budget.spent:
                return

    def _finisher(self) -> Callable[[SampleStack], SampleStack]:
        """Return what encodes and measures stacks, in the threads that make them."""
        index, fmt, tally, measure = self.request.index, self.request.fmt, self.tally, self.measure
        encoder = None if self.encoding is None else self.encoding.encoder(index.spec)
        members = {name: np.zeros(len(index), dtype=bool) for name in index.splits}
        members.pop(ALL_SAMPLES, None)  # one called so has no statistics of its own
        for name, is_member in members.items():
            is_member[np.asarray(index.splits[name], dtype=np.int64)] = True
        encode = fmt.encoder(self.stored_spec, self.request.options)

        def finish(stack: SampleStack) -> SampleStack:
            rows, lossy = stack.rows, None
            if encoder is not None:
                with tally.timed("encode"):
                    rows, lossy = encoder.encode(rows, self._label(stack.numbers))
                tally.add_nbytes("encode", sum(each.nbytes for each in rows.values()))
            with tally.timed("statistics"):
                moments = {ALL_SAMPLES: measure.of(rows, lossy)}
                for name, is_member in members.items():
                    own = is_member[np.asarray(stack.numbers)]
                    if own.all():
                        moments[name] = moments[ALL_SAMPLES][: measure.n_own]
                    elif own.any():
                        moments[name] = measure.of({n: each[own] for n, each in rows.items()})
            with tally.timed("write"):
                encoded: EncodedStack = encode(rows)
            return replace(stack, rows={}, figures=(moments, encoded))

        return finish

    def _close(self, number: int, writer: ShardWriter, folder: Path, moments: ShardMoments) -> None:
        try:
            with self.tally.timed("write"):
                info = writer.close()
                info = replace(info, checksums=array("I", info.checksums), moments=moments)
                self._move(info, folder)
                self.journal.add(number, info)
        except BaseException:
            writer.abort()
            raise
        finally:
            self.journal.clear(folder)
        self.tally.add_nbytes("write", sum(file.nbytes for file in info.shard.files))
        self.infos[number] = info
        self.tally.n_written += 1

    def _move(self, info: ShardInfo, folder: Path) -> None:
        """Move the files of a shard to where the manifest will say they are."""
        folders = {self.path}
        with storage_errors(self.path, resumable=True):
            for file in info.shard.files:
                target = self.path / file.name
                if target.parent not in folders:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    folders.add(target.parent)
                if target != folder / file.name:
                    (folder / file.name).replace(target)
            for each in folders:
                sync_directory(each)

    def _label(self, numbers: Sequence[int]) -> Label:
        """Return what names the samples of a stack."""
        return lambda row: f"{self.request.dataset.name} sample {numbers[row]}"

    def _advance(self, n_samples: int) -> None:
        self._n_done += n_samples
        self._progress(self._n_done, len(self.plan.samples))
