"""Shards: made stack by stack, written beside the store, moved into place, noted in the journal."""

from __future__ import annotations

import dataclasses
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from iobench.datasets import SampleProducer
from iobench.stores import (
    ALL_SAMPLES,
    EncodedStack,
    Encoding,
    GriddedFormat,
    SampleMeasure,
    ShardWriter,
    StoreRequest,
    Tally,
    Writer,
    merge_shard_moments,
    split_members,
    storage_errors,
    sync_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iobench.datasets import SampleStack
    from iobench.samples import SampleSpec
    from iobench.stores import ConversionPlan, Encode, Label, Notice, ShardInfo, ShardMoments
    from iobench_converters.journal import Journal


class StackFigures(NamedTuple):
    """What is known of a stack of samples before it is written."""

    moments: ShardMoments
    encoded: EncodedStack | None  # as the format has it; None of one that takes samples


@dataclass(frozen=True)
class Conversion:
    """What any process needs to write any shard of a store. Picklable."""

    request: StoreRequest  # with an absolute path
    plan: ConversionPlan  # which samples go into which shard

    @property
    def stored_spec(self) -> SampleSpec:
        """What a sample of the store is."""
        encoding, spec = self.request.encoding, self.plan.spec
        return spec if encoding is None else encoding.stored_spec(spec)

    @cached_property
    def measure(self) -> SampleMeasure:
        """What takes the moments of samples as they are stored."""
        encoding = self.request.encoding
        encoded = () if encoding is None else encoding.encoder(self.plan.spec).names
        return SampleMeasure(self.stored_spec, encoded)

    def with_encoding(self, encoding: Encoding) -> Conversion:
        """Return it with samples stored so."""
        return dataclasses.replace(self, request=replace(self.request, encoding=encoding))

    def with_ranges(self, tally: Tally, notice: Notice) -> Conversion:
        """Return it with all ranges known: after a pass over the samples, if it needs one."""
        encoding, spec = self.request.encoding, self.plan.spec
        if encoding is None or not (unknown := encoding.unknown_ranges(spec)):
            return self
        notice(
            f"the range of {', '.join(unknown)} for int16 is not given: all samples are read once "
            "to find it; --range VAR=LOW:HIGH spares that"
        )
        with self.producer(tally) as producer:
            stacks = producer.stacks([self.plan.samples])
            named = ((stack.rows, self.label(stack.numbers)) for stack in stacks)
            return self.with_encoding(encoding.learn(spec, named))

    def label(self, numbers: Sequence[int]) -> Label:
        """Return what names the samples of a stack."""
        return lambda row: f"{self.request.dataset.name} sample {numbers[row]}"

    def producer(
        self,
        tally: Tally,
        *,
        finish: Callable[[SampleStack], SampleStack] | None = None,
        is_over: Callable[[], bool] | None = None,
        notice: Notice | None = None,
    ) -> SampleProducer:
        """Return what makes the samples."""
        request = self.request
        return SampleProducer(
            request.dataset,
            request.index,
            workers=request.workers,
            memory_nbytes=request.memory_nbytes,
            scratch=request.scratch,
            passes=request.passes,
            tally=tally,
            finish=finish,
            is_over=is_over,
            notice=notice,
            at_once=self.plan.chunk_samples,
        )

    def writer(self, folder: Path, number: int) -> Writer:
        """Return the writer of one shard into a folder."""
        fmt, n_samples = self.request.fmt, self.plan.full_n_samples
        if self.plan.sample_grid and isinstance(fmt, GriddedFormat):
            fmt = fmt.on_grid(self.plan.sample_grid, n_samples=n_samples)
        writer = fmt.writer(
            folder, self.stored_spec, shard=number, options=self.plan.options, n_samples=n_samples
        )
        if isinstance(writer, ShardWriter):
            writer.expected = len(self.plan.shard(number))
        return writer

    def finisher(self, tally: Tally) -> Callable[[SampleStack], SampleStack]:
        """Return what encodes and measures stacks, in the threads that make them."""
        request, measure = self.request, self.measure
        encoder = None if request.encoding is None else request.encoding.encoder(self.plan.spec)
        members = split_members(request.index.splits, len(request.index))
        own_encoder = getattr(request.fmt, "encoder", None)
        encode: Encode | None = own_encoder and own_encoder(self.stored_spec, self.plan.options)

        def finish(stack: SampleStack) -> SampleStack:
            rows, lossy, encoded = stack.rows, None, None
            if encoder is not None:
                with tally.timed("encode"):
                    rows, lossy = encoder.encode(rows, self.label(stack.numbers))
                tally.add_nbytes("encode", sum(each.nbytes for each in rows.values()))
            with tally.timed("statistics"):
                moments = {ALL_SAMPLES: measure.of(rows, lossy)}
                for name, is_member in members.items():
                    own = is_member[np.asarray(stack.numbers)]
                    if own.all():
                        moments[name] = moments[ALL_SAMPLES][: measure.n_own]
                    elif own.any():
                        moments[name] = measure.of({n: each[own] for n, each in rows.items()})
            if encode is not None:
                with tally.timed("write"):
                    encoded = encode(rows)
            return replace(stack, rows=rows, figures=StackFigures(moments, encoded))

        return finish


def write_shards(
    conversion: Conversion,
    numbers: Sequence[int],
    *,
    journal: Journal,
    tally: Tally,
    notice: Notice,
    is_over: Callable[[], bool],
    advance: Callable[[int], None],
    finished: Callable[[int, ShardInfo], None],
) -> None:
    """Write some shards, as long as it is not over.

    A shard is closed (flushed to disk, moved into place, noted) in a thread, while the next one is
    written; at most one is waiting for that.
    """
    producer = conversion.producer(
        tally, finish=conversion.finisher(tally), is_over=is_over, notice=notice
    )
    closing: Future[None] | None = None
    with producer, ThreadPoolExecutor(1, thread_name_prefix="iobench-close") as closer:
        stacks = producer.stacks([conversion.plan.shard(number) for number in numbers])
        try:
            for number in numbers:
                folder, writer = journal.work_folder(), None
                try:
                    journal.make(folder)
                    writer = conversion.writer(folder, number)
                    left = len(conversion.plan.shard(number))
                    moments: list[ShardMoments] = []
                    while left and not (moments and is_over()):
                        n_samples, found = _append_next(writer, stacks, tally)
                        moments.append(found)
                        advance(n_samples)
                        left -= n_samples
                    if closing is not None:
                        closing.result()
                    shard = number, writer, folder, merge_shard_moments(moments)
                    closing = closer.submit(
                        _close, *shard, journal=journal, tally=tally, finished=finished
                    )
                except BaseException:
                    if writer is not None:
                        writer.abort()
                    journal.clear(folder)
                    raise
                if is_over():
                    break
            if closing is not None:
                closing.result()
        finally:
            stacks.close()


def _append_next(
    writer: Writer, stacks: Iterator[SampleStack], tally: Tally
) -> tuple[int, ShardMoments]:
    """Write the next stack; return its samples and moments. Nothing holds it afterwards."""
    stack = next(stacks)
    figures: StackFigures = stack.figures
    with tally.timed("write"):
        if figures.encoded is not None and isinstance(writer, ShardWriter):
            writer.append_stack(figures.encoded)
        else:
            for place in range(len(stack)):
                writer.append({name: rows[place, ...] for name, rows in stack.rows.items()})
    return len(stack), figures.moments


def _close(
    number: int,
    writer: Writer,
    folder: Path,
    moments: ShardMoments,
    *,
    journal: Journal,
    tally: Tally,
    finished: Callable[[int, ShardInfo], None],
) -> None:
    try:
        with tally.timed("write"):
            info = writer.close()
            info = replace(info, checksums=array("I", info.checksums), moments=moments)
            _move(info, folder, journal.store)
            journal.add(number, info)
    except BaseException:
        writer.abort()
        raise
    finally:
        journal.clear(folder)
    tally.add_nbytes("write", sum(file.nbytes for file in info.shard.files))
    finished(number, info)


def _move(info: ShardInfo, folder: Path, path: Path) -> None:
    """Move the files of a shard to where the manifest will say they are."""
    folders = {path}
    with storage_errors(path, resumable=True):
        for file in info.shard.files:
            target = path / file.name
            if target.parent not in folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                folders.add(target.parent)
            if target != folder / file.name:
                (folder / file.name).replace(target)
        for each in folders:
            sync_directory(each)
