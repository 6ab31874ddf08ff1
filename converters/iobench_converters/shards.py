"""Shards: made stack by stack, written beside the store, moved into place, noted in the journal."""

from __future__ import annotations

import dataclasses
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.datasets import SampleProducer
from iobench.stores import (
    ALL_SAMPLES,
    EncodedStack,
    Encoding,
    ExactWriter,
    GriddedFormat,
    SampleMeasure,
    ShardInfo,
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
    from iobench.stores import ConversionPlan, Encode, Label, Notice, ShardMoments
    from iobench_converters.journal import Journal


class StackFigures(NamedTuple):
    """What is known of a stack of samples before it is written."""

    moments: ShardMoments
    encoded: EncodedStack | None  # as the format has it; None of one that takes samples


@dataclass(frozen=True)
class Conversion:
    """What any process needs to write any shard of a store. Picklable."""

    request: StoreRequest  # with an absolute path, and all ranges of its encoding known
    plan: ConversionPlan  # which samples go into which shard

    @property
    def stored_spec(self) -> SampleSpec:
        """What a sample of the store is."""
        spec = self.plan.spec
        encoding = self.request.encoding
        return spec if encoding is None else encoding.stored_spec(spec)

    def with_encoding(self, encoding: Encoding | None) -> Conversion:
        """Return it with samples stored so."""
        request = msgspec.structs.replace(self.request, encoding=encoding)
        return dataclasses.replace(self, request=request)

    def with_ranges(self, tally: Tally, notice: Notice) -> Conversion:
        """Return it with all ranges known: after a pass over the samples, if it needs one."""
        encoding, spec = self.request.encoding, self.plan.spec
        unknown = () if encoding is None else encoding.unknown_ranges(spec)
        if encoding is None or not unknown:
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

    @cached_property
    def measure(self) -> SampleMeasure:
        """What takes the moments of samples as they are stored."""
        encoding = self.request.encoding
        encoded = () if encoding is None else encoding.encoder(self.plan.spec).names
        return SampleMeasure(self.stored_spec, encoded)

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
        fmt = self.request.fmt
        if self.plan.sample_grid and isinstance(fmt, GriddedFormat):
            fmt = fmt.on_grid(self.plan.sample_grid, n_samples=self.plan.full_n_samples)
        writer = fmt.writer(
            folder,
            self.stored_spec,
            shard=number,
            options=self.plan.options,
            n_samples=self.plan.full_n_samples,
        )
        if isinstance(writer, ExactWriter):
            writer.announce(len(self.plan.shard(number)))
        return writer


class StackFinisher:
    """Encodes and measures stacks of samples, in the threads that make them."""

    def __init__(self, conversion: Conversion, tally: Tally) -> None:
        request = conversion.request
        self._conversion, self._tally = conversion, tally
        encoding, fmt = request.encoding, request.fmt
        self._encoder = None if encoding is None else encoding.encoder(conversion.plan.spec)
        self._members = split_members(request.index.splits, len(request.index))
        self._measure = conversion.measure
        encoder = getattr(fmt, "encoder", None)
        self._encode: Encode | None = encoder and encoder(
            conversion.stored_spec, conversion.plan.options
        )

    def __call__(self, stack: SampleStack) -> SampleStack:
        """Return the stack as it is stored, with its figures."""
        rows = stack.rows
        moments_of_errors = None
        if self._encoder is not None:
            with self._tally.timed("encode"):
                label = self._conversion.label(stack.numbers)
                rows, moments_of_errors = self._encoder.encode(rows, label)
            self._tally.add_nbytes("encode", sum(each.nbytes for each in rows.values()))
        with self._tally.timed("statistics"):
            moments = {ALL_SAMPLES: self._measure.of(rows, moments_of_errors)}
            for name, members in self._members.items():
                own = members[np.asarray(stack.numbers)]
                if own.all():
                    moments[name] = moments[ALL_SAMPLES][: self._measure.n_own]
                elif own.any():
                    moments[name] = self._measure.of({n: each[own] for n, each in rows.items()})
        encoded = None
        if self._encode is not None:
            with self._tally.timed("write"):
                encoded = self._encode(rows)
        return replace(stack, rows=rows, figures=StackFigures(moments, encoded))


class ShardDrain:
    """Closes finished shards in a thread, while the next one is written.

    A shard is closed by flushing it to disk, moving its files into place and noting it. At most
    one is waiting for that. As a context manager it waits at the end, whatever happened.
    """

    def __init__(
        self,
        conversion: Conversion,
        journal: Journal,
        tally: Tally,
        finished: Callable[[int, ShardInfo], None],
    ) -> None:
        self._store = conversion.request.path
        self._journal, self._tally, self._finished = journal, tally, finished
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-close")
        self._last: Future[None] | None = None

    def __enter__(self) -> ShardDrain:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True)

    def put(self, number: int, folder: Path, writer: Writer, moments: ShardMoments) -> None:
        """Take a shard whose samples are all written."""
        self.wait()
        self._last = self._thread.submit(self._close, number, folder, writer, moments)

    def wait(self) -> None:
        """Wait for the shard put last; raise what went wrong with it."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _close(self, number: int, folder: Path, writer: Writer, moments: ShardMoments) -> None:
        try:
            with self._tally.timed("write"):
                info = writer.close()
                info = replace(
                    info,
                    checksums=array("I", info.checksums),
                    moments=moments,
                )
                _move(info, folder, self._store)
                self._journal.add(number, info)
        except BaseException:
            writer.abort()
            raise
        finally:
            self._journal.clear(folder)
        self._tally.add_nbytes("write", sum(file.nbytes for file in info.shard.files))
        self._finished(number, info)


def write_shard(
    conversion: Conversion,
    number: int,
    stacks: Iterator[SampleStack],
    *,
    journal: Journal,
    drain: ShardDrain,
    tally: Tally,
    advance: Callable[[int], bool],
) -> bool:
    """Write one shard, and leave it to the drain; return whether to go on after it."""
    folder: Path | None = None
    writer: Writer | None = None
    n_samples = len(conversion.plan.shard(number))
    moments: list[ShardMoments] = []
    goes_on = True
    try:
        folder = journal.work_folder()
        writer = conversion.writer(folder, number)
        done = 0
        while done < n_samples and goes_on:
            stack = next(stacks)
            with tally.timed("write"):
                _append(writer, stack)
            done += len(stack)
            moments.append(stack.figures.moments)
            goes_on = advance(len(stack))
            del stack
        drain.put(number, folder, writer, merge_shard_moments(moments))
    except BaseException:
        if writer is not None:
            writer.abort()
        if folder is not None:
            journal.clear(folder)
        raise
    return goes_on


def _append(writer: Writer, stack: SampleStack) -> None:
    encoded = stack.figures.encoded
    if encoded is not None and isinstance(writer, ShardWriter):
        writer.append_stack(encoded)
        return
    for place in range(len(stack)):
        writer.append({name: rows[place, ...] for name, rows in stack.rows.items()})


def _move(info: ShardInfo, folder: Path, path: Path) -> None:
    """Move the files of a shard to where the manifest will say they are."""
    folders = {path}
    with storage_errors(path, resumable=True):
        for file in info.shard.files:
            target = path / file.name
            if target.parent not in folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                folders |= {target.parent}
            (folder / file.name).replace(target)
        for each in folders:
            sync_directory(each)
