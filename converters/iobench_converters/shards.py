"""One shard: claimed, made, written aside, moved into place, noted in the journal."""

from __future__ import annotations

import dataclasses
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from iobench.datasets import Maker, UsedBytes
from iobench.errors import StoreClaimedError
from iobench.stores import (
    Claim,
    EncodedSample,
    Encoding,
    ExactWriter,
    GriddedFormat,
    MeasuredSamples,
    SampleMeasure,
    ShardInfo,
    ShardStatistics,
    ShardWriter,
    StoreRequest,
    Tally,
    VariableRows,
    Writer,
    free_nbytes,
    merge_errors,
    split_members,
    storage_errors,
    sync_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from iobench.samples import Sample, SampleSpec
    from iobench.stores import ConversionPlan, Errors, Notice, ShardMoments
    from iobench_converters.journal import Journal

    Found = tuple[Errors, ShardMoments]
    """What is known of the values of a shard's samples."""


@dataclass(frozen=True, slots=True)
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
        return dataclasses.replace(
            self, request=msgspec.structs.replace(self.request, encoding=encoding)
        )

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
        maker = self.with_encoding(None).maker(tally, takes_moments=False)
        made = maker.batches(self.plan.samples)

        def named() -> Iterator[tuple[str, Sample]]:
            numbers = iter(self.plan.samples)
            for samples in made:
                for sample in samples:
                    yield f"{self.request.dataset.name} sample {next(numbers)}", sample

        try:
            return self.with_encoding(encoding.learn(spec, named()))
        finally:
            made.close()
            maker.close()

    def statistics(self, number: int, maker: Maker) -> ShardStatistics:
        """Return what adds up the values of the samples of one shard, which ``maker`` makes."""
        members = split_members(self.request.index.splits, self.plan.shard(number))
        return ShardStatistics(self.measure, members, maker.start_statistics)

    @property
    def measure(self) -> SampleMeasure:
        """What takes the moments of samples as they are stored."""
        encoding = self.request.encoding
        encoded = () if encoding is None else encoding.encoder(self.plan.spec).names
        return SampleMeasure(self.stored_spec, encoded)

    def maker(self, tally: Tally, *, takes_moments: bool = True, n_done: int = 0) -> Maker:
        """Return what makes the samples, as they are stored; so many of them are there."""
        request, encoding = self.request, self.request.encoding
        free = free_nbytes(request.path)
        needed = (len(self.plan.samples) - n_done) * self.stored_spec.nbytes
        by_variable = takes_moments and request.check_container()
        encoder = None if encoding is None else encoding.encoder(self.plan.spec)
        return Maker(
            request.dataset,
            request.index,
            workers=request.workers,
            memory_nbytes=request.memory_nbytes,
            tally=tally,
            encoder=encoder,
            measure=self.measure if takes_moments else None,
            spill_folder=request.path,
            spill_nbytes=0 if free is None else max(0, free - needed),
            by_variable=by_variable,
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
        self._conversion = conversion
        self._journal = journal
        self._tally = tally
        self._finished = finished
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-close")
        self._last: Future[None] | None = None
        self._noted: Sequence[Any] = ()

    def __enter__(self) -> ShardDrain:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True)

    def put(self, number: int, held: Claim, writer: Writer, found: Found, used: UsedBytes) -> None:
        """Take a shard whose samples are all written; it is released in the end."""
        try:
            self.wait()
        except BaseException:
            writer.abort()
            self._journal.leave(held)
            raise
        self._last = self._thread.submit(self._close, number, held, writer, found, used)

    def wait(self) -> None:
        """Wait for the shard put last; raise what went wrong with it."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _close(
        self, number: int, held: Claim, writer: Writer, found: Found, used: UsedBytes
    ) -> None:
        path, room = self._conversion.request.path, held.file.parent / held.holder.token
        try:
            with self._tally.timed("write"):
                info = writer.close()
                checksums = array("I", info.checksums)
                lossy, moments = found
                info = replace(info, checksums=checksums, lossy=lossy, moments=moments)
                held.check()
                _move(info, room, path)
                # What was put aside for several shards was read for the first of them.
                self._noted = used.noted or self._noted
                self._journal.add(number, info, self._noted)
        except BaseException as error:
            writer.abort()
            _check_loss(error, held)
            raise
        finally:
            self._journal.leave(held)
        self._tally.add_nbytes("write", sum(file.nbytes for file in info.shard.files))
        self._finished(number, info)


def write_shard(
    conversion: Conversion,
    number: int,
    held: Claim,
    *,
    journal: Journal,
    maker: Maker,
    drain: ShardDrain,
    tally: Tally,
    advance: Callable[[int], bool],
) -> None:
    """Write one shard whose claim is held, and leave it to the drain."""
    writer: Writer | None = None
    try:
        writer = conversion.writer(journal.scratch(held), number)
        by_variable = isinstance(writer, ShardWriter) and writer.is_by_variable
        made = maker.batches(conversion.plan.shard(number), by_variable=by_variable)
    except BaseException as error:
        if writer is not None:
            writer.abort()
        _drop(error, held, journal)
        raise
    lossy: Errors = {}
    statistics = conversion.statistics(number, maker)
    used = UsedBytes(conversion.request.files)
    used.start()
    try:
        for samples in made:
            if isinstance(samples, VariableRows):
                assert isinstance(writer, ShardWriter)
                with tally.timed("write"):
                    writer.append_variable(samples.name, samples.rows)
                statistics.add_variable(samples)
                n_written = len(samples) if samples.is_last else 0
                del samples
                if n_written and not advance(n_written):
                    break
                continue
            with tally.timed("write"):
                _append(writer, samples)
            with tally.timed("statistics"):
                statistics.add(samples)
            if conversion.request.encoding is not None:
                encoded = (each for each in samples if isinstance(each, EncodedSample))
                lossy = merge_errors(lossy, *(each.errors for each in encoded))
            n_written = len(samples)
            del samples
            if not advance(n_written):
                break
    except BaseException as error:
        writer.abort()
        _drop(error, held, journal)
        raise
    finally:
        made.close()
        used.stop()
    drain.put(number, held, writer, (lossy, statistics.finish()), used)


def _append(writer: Writer, samples: Sequence[Sample]) -> None:
    rows = samples.rows if isinstance(samples, MeasuredSamples) else None
    if rows is not None and isinstance(writer, ShardWriter):
        writer.append_rows(samples, rows)
        return
    for sample in samples:
        writer.append(sample)


def _drop(error: BaseException, held: Claim, journal: Journal) -> None:
    """Leave a shard that cannot be written; raise StoreClaimedError if it is not ours any more."""
    try:
        _check_loss(error, held)
    finally:
        journal.leave(held)


def _check_loss(error: BaseException, held: Claim) -> None:
    """Raise StoreClaimedError if a file is missing because somebody removed our folder."""
    folder = held.file.parent
    if isinstance(error, FileNotFoundError) and str(error.filename).startswith(str(folder.parent)):
        held.check()  # says who took it over
        raise StoreClaimedError(
            f"{folder} was removed while it was being written; run the command again"
        ) from error


def _move(info: ShardInfo, room: Path, path: Path) -> None:
    """Move the files of a shard to where the manifest will say they are."""
    folders = {path}
    with storage_errors(path, resumable=True):
        for file in info.shard.files:
            target = path / file.name
            if target.parent not in folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                folders |= {target.parent}
            (room / file.name).replace(target)
        for folder in folders:
            sync_directory(folder)
