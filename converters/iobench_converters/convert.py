"""The driver that makes a store of a dataset: claimed, in order, shard by shard, resumable.

Finished shards are listed in a journal inside the store's folder; the manifest comes last and the
journal goes. Killed at any moment, the same call goes on and leaves the same bytes.
"""

from __future__ import annotations

import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from iobench.datasets import Dataset, Progress, SampleIndex, make_sample, no_progress
from iobench.errors import StorageError, StoreError
from iobench.stores import (
    MANIFEST_NAME,
    Budget,
    Claim,
    ConversionPlan,
    Format,
    Manifest,
    Notice,
    ShardInfo,
    Store,
    Writer,
    claim,
    finish_store,
    make_item,
    plan_conversion,
    read_manifest,
    storage_errors,
)
from iobench_converters.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from iobench.samples import Sample

__all__ = ["convert"]

EXIT_RESUMABLE = 75


def convert(
    dataset: Dataset,
    index: SampleIndex,
    fmt: Format,
    path: Path,
    *,
    samples: Sequence[int] | None = None,
    options: Mapping[str, str] | None = None,
    files: Sequence[Path] = (),
    shard_nbytes: int = 1 << 30,
    limit_nbytes: int | None = None,
    limit_s: float | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    notice: Notice | None = None,
    wait_s: float | None = None,
) -> Store:
    """Return the finished store at ``path``, writing what is missing of it.

    The arguments and errors are those of `iobench.stores.Converter`. At most ``workers + 1``
    samples are in memory at once, the one being written among them.
    """
    plan = plan_conversion(
        dataset,
        index,
        fmt,
        samples=samples,
        options=options,
        files=files,
        shard_nbytes=shard_nbytes,
        limit_nbytes=limit_nbytes,
        limit_s=limit_s,
    )
    path = path.absolute()
    journal = Journal(path)
    if _is_finished(path, plan) and not journal.exists():
        return fmt.open(path, read_manifest(path))
    is_part = limit_s is not None or len(plan.samples) < len(index)
    make_item(path, kind="probe" if is_part else "store", title=f"{plan.dataset} as {plan.format}")
    with claim(path, wait_s=wait_s, notice=notice) as held:
        if not _is_finished(path, plan):
            run = _Run(dataset, index, fmt, path, plan, held)
            run.convert(
                workers=workers if getattr(dataset, "thread_safe", False) else 1,
                progress=progress or no_progress,
                notice=notice,
            )
        journal.remove()
    return fmt.open(path, read_manifest(path))


def _is_finished(path: Path, plan: ConversionPlan) -> bool:
    """Whether the store is there and finished; raise StoreError if it is of another plan."""
    if not (path / MANIFEST_NAME).exists():
        return False
    if read_manifest(path).plan != plan.digest:
        raise StoreError(
            f"{path} holds a store made from something else (source files, samples or options "
            "differ); remove it or choose another --store-dir"
        )
    return True


class _Run:
    """One conversion from claim to manifest."""

    def __init__(
        self,
        dataset: Dataset,
        index: SampleIndex,
        fmt: Format,
        path: Path,
        plan: ConversionPlan,
        held: Claim,
    ) -> None:
        self.dataset = dataset
        self.index = index
        self.fmt = fmt
        self.path = path
        self.plan = plan
        self.held = held

    def convert(self, *, workers: int, progress: Progress, notice: Notice | None) -> None:
        """Write what is missing, then the checksums, then the manifest."""
        journal = Journal(self.path)
        finished = journal.resume(self.plan)
        if finished and notice is not None:
            notice(f"resuming {self.path}: {len(finished)} of {len(self.plan.shards)} shards done")
        n_done = sum(info.shard.n_samples for info in finished)
        self._check_room(len(self.plan.samples) - n_done)
        todo = self.plan.samples[n_done:]
        made = made_samples(self.dataset, self.index, todo, workers=workers)
        try:
            total = len(self.plan.samples)
            budget = Budget(self.plan.limit_s)
            while n_done < total and not (finished and budget.spent):
                number = len(finished)
                count = len(self.plan.shards[number])
                info = self._write_shard(
                    number, made, count=count, budget=budget, done=n_done, progress=progress
                )
                self.held.check()
                journal.add(number, info)
                finished.append(info)
                n_done += info.shard.n_samples
                if info.shard.n_samples < count:
                    break
        finally:
            made.close()
        self.held.check()
        self._finish(finished, n_done)

    def _write_shard(
        self,
        number: int,
        made: Iterator[Sample],
        *,
        count: int,
        budget: Budget,
        done: int,
        progress: Progress,
    ) -> ShardInfo:
        writer = self.fmt.writer(
            self.path,
            self.plan.spec,
            shard=number,
            options=self.plan.options,
            n_samples=len(self.plan.shards[0]),
        )
        try:
            for position in range(count):
                if position and budget.spent:
                    break
                self._append(writer, next(made), self.plan.samples[done + position])
                progress(done + position + 1, len(self.plan.samples))
            return writer.close()
        except BaseException:
            writer.abort()
            raise

    def _append(self, writer: Writer, sample: Sample, number: int) -> None:
        self.plan.spec.check(sample, where=f"{self.plan.dataset} sample {number}")
        writer.append(sample)

    def _finish(self, finished: Sequence[ShardInfo], n_samples: int) -> None:
        manifest = Manifest(
            format=self.plan.format,
            format_version=self.plan.format_version,
            spec=self.plan.spec,
            shards=tuple(info.shard for info in finished),
            samples=self.plan.samples[:n_samples],
            dataset=self.plan.dataset,
            plan=self.plan.digest,
            options=self.plan.options,
            provenance=self.plan.provenance,
            normalisation=self.plan.normalisation,
        )
        finish_store(
            self.path,
            self.fmt,
            manifest,
            checksums=[crc for info in finished for crc in info.checksums],
            n_samples=len(self.plan.shards[0]),
        )

    def _check_room(self, n_samples: int) -> None:
        needed = n_samples * self.plan.spec.nbytes
        with storage_errors(self.path):
            free = shutil.disk_usage(self.path).free
        if free < needed:
            error = StorageError(
                f"{self.path}: {needed} bytes are needed, {free} are free; free some space or "
                "choose another --store-dir"
            )
            error.exit_code = EXIT_RESUMABLE
            raise error


def made_samples(
    dataset: Dataset, index: SampleIndex, samples: Sequence[int], *, workers: int
) -> Generator[Sample, None, None]:
    """Yield the samples of these numbers in order, made by ``workers`` threads a little ahead."""
    pending: deque[Future[Sample]] = deque()
    pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="iobench-convert")
    try:
        for number in samples:
            pending.append(pool.submit(make_sample, dataset, index.where[number]))
            if len(pending) > max(1, workers):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
