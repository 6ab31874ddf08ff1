"""Shards: made stack by stack, written beside the store, moved into place, noted in the journal."""

from __future__ import annotations

from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from iobench.datasets import requested_samples
from iobench.stores import (
    ALL_SAMPLES,
    EncodedStack,
    ShardPlan,
    ShardWriter,
    merge_shard_moments,
    split_members,
    storage_errors,
    sync_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iobench.datasets import SampleStack
    from iobench.stores import ShardInfo, ShardMoments
    from iobench_converters.convert import ConversionRun


class StackFigures(NamedTuple):
    """What is known of a stack of samples before it is written."""

    moments: ShardMoments
    encoded: EncodedStack  # as the format has it


def write_shards(run: ConversionRun, numbers: Sequence[int]) -> None:
    """Write some shards of a conversion, as long as there is time.

    A shard is closed (flushed to disk, moved into place, noted) in a thread, while the next one is
    written; at most one is waiting for that.
    """
    plan, journal, tally = run.plan, run.journal, run.tally
    producer = requested_samples(
        run.request,
        tally=tally,
        finish=_finisher(run),
        is_over=lambda: run.budget.spent,
        notice=run.notice,
    )
    closing: Future[None] | None = None
    with producer, ThreadPoolExecutor(1, thread_name_prefix="iobench-close") as closer:
        stacks = producer.stacks([plan.shard(number) for number in numbers])
        try:
            for number in numbers:
                folder, writer = journal.make_folder(), None
                try:
                    left = len(plan.shard(number))
                    shard = ShardPlan(number, left, plan.full_n_samples, plan.sample_grid)
                    writer = plan.request.fmt.writer(
                        folder, run.stored_spec, shard, plan.request.options
                    )
                    moments: list[ShardMoments] = []
                    while left and not (moments and run.budget.spent):
                        figures: StackFigures = next(stacks).figures
                        with tally.timed("write"):
                            writer.append(figures.encoded)
                        moments.append(figures.moments)
                        n_samples = len(figures.encoded.checksums)
                        del figures  # nothing holds it when the next one is made
                        run.advance(n_samples)
                        left -= n_samples
                    if closing is not None:
                        closing.result()
                    merged = merge_shard_moments(moments)
                    closing = closer.submit(_close, run, number, writer, folder, merged)
                except BaseException:
                    if writer is not None:
                        writer.abort()
                    journal.clear(folder)
                    raise
                if run.budget.spent:
                    break
            if closing is not None:
                closing.result()
        finally:
            stacks.close()


def _finisher(run: ConversionRun) -> Callable[[SampleStack], SampleStack]:
    """Return what encodes and measures stacks, in the threads that make them."""
    index, fmt, tally, measure = run.request.index, run.request.fmt, run.tally, run.measure
    encoder = None if run.encoding is None else run.encoding.encoder(index.spec)
    members = split_members(index.splits, len(index))
    encode = fmt.encoder(run.stored_spec, run.request.options)

    def finish(stack: SampleStack) -> SampleStack:
        rows, lossy = stack.rows, None
        if encoder is not None:
            with tally.timed("encode"):
                rows, lossy = encoder.encode(rows, run.label(stack.numbers))
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
            figures = StackFigures(moments, encode(rows))
        return replace(stack, rows={}, figures=figures)

    return finish


def _close(
    run: ConversionRun, number: int, writer: ShardWriter, folder: Path, moments: ShardMoments
) -> None:
    try:
        with run.tally.timed("write"):
            info = writer.close()
            info = replace(info, checksums=array("I", info.checksums), moments=moments)
            _move(info, folder, run.path)
            run.journal.add(number, info)
    except BaseException:
        writer.abort()
        raise
    finally:
        run.journal.clear(folder)
    run.tally.add_nbytes("write", sum(file.nbytes for file in info.shard.files))
    run.infos[number] = info
    run.tally.n_written += 1


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
