"""The driver that makes a store of a dataset: shard by shard, by one process or many, resumable.

Killed at any moment, the same call goes on and leaves the same bytes. The parts: `making` makes
samples, `shards` writes one shard of them, `journal` notes it, `running` goes over all shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.datasets import Dataset, Progress, SampleIndex, no_progress
from iobench.errors import OptionError, StorageError
from iobench.stores import (
    Encoding,
    Format,
    Notice,
    Store,
    Tally,
    claim,
    find_writer,
    make_item,
    plan_conversion,
    read_manifest,
    remove_claims_of_the_dead,
)
from iobench_converters.running import EXIT_RESUMABLE, ConversionRun, is_finished
from iobench_converters.shards import Conversion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["convert"]


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
    encoding: Encoding | None = None,
    memory_nbytes: int = 256 << 20,
    tally: Tally | None = None,
    together: bool = False,
    hash_sources: bool = False,
    scheduler: str | None = None,
) -> Store:
    """Return the finished store at ``path``, writing what is missing of it.

    The arguments and errors are those of `iobench.stores.Converter`.
    """
    if limit_s is not None and (together or scheduler is not None):
        raise OptionError("a limit of time is for one process: leave it out, or work alone")
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
        encoding=encoding,
        hash_sources=hash_sources,
    )
    path = path.absolute()
    run = ConversionRun(
        Conversion(dataset, index, fmt, path, tuple(files), plan, encoding, workers, memory_nbytes),
        tally=tally or Tally(),
        progress=progress or no_progress,
        notice=notice or _say_nothing,
        wait_s=wait_s,
    )
    if not is_finished(path, plan) or run.journal.exists():
        is_part = limit_s is not None or len(plan.samples) < len(index)
        try:
            make_item(path, kind="probe" if is_part else "store", title=plan.title)
            if scheduler is not None:
                _run_scheduled(run, scheduler, wait_s=wait_s, notice=notice)
            elif together:
                _run_together(run, wait_s=wait_s, notice=notice)
            else:
                _run_alone(run, wait_s=wait_s, notice=notice)
        except StorageError as error:
            error.exit_code = EXIT_RESUMABLE
            raise
    remove_claims_of_the_dead(path)  # of one killed between the manifest and its last step
    return fmt.open(path, read_manifest(path))


def _run_alone(run: ConversionRun, *, wait_s: float | None, notice: Notice | None) -> None:
    """Hold the whole store from the beginning to the end."""
    path, plan = run.conversion.path, run.plan
    with claim(path, wait_s=wait_s, notice=notice) as held:
        if not is_finished(path, plan):
            run.begin(held)
            run.write(is_alone=True)
            held.check()
            if not is_finished(path, plan):
                run.finish(held)
        run.journal.remove()


def _run_together(run: ConversionRun, *, wait_s: float | None, notice: Notice | None) -> None:
    """Hold the whole store only to begin and to finish, one shard at a time in between."""
    is_alone = find_writer(run.conversion.path) is None
    _begin(run, wait_s=wait_s, notice=notice)
    if not is_finished(run.conversion.path, run.plan):
        run.write(is_alone=is_alone)
    _finish(run, wait_s=wait_s)


def _run_scheduled(
    run: ConversionRun, scheduler: str, *, wait_s: float | None, notice: Notice | None
) -> None:
    """Let the workers of a scheduler write the shards."""
    from iobench_converters.on_dask import write_on_dask

    _begin(run, wait_s=wait_s, notice=notice)
    if not is_finished(run.conversion.path, run.plan):
        write_on_dask(run, scheduler)
    _finish(run, wait_s=wait_s)


def _begin(run: ConversionRun, *, wait_s: float | None, notice: Notice | None) -> None:
    path, plan = run.conversion.path, run.plan
    if not is_finished(path, plan) and not run.join():
        with claim(path, wait_s=wait_s, notice=notice) as held:
            if not is_finished(path, plan):
                run.begin(held)


def _finish(run: ConversionRun, *, wait_s: float | None) -> None:
    path, plan = run.conversion.path, run.plan
    if not is_finished(path, plan):
        with claim(path, wait_s=wait_s) as held:
            if not is_finished(path, plan):
                run.finish(held)
    run.journal.remove()


def _say_nothing(line: str) -> None:
    """Show nothing."""
