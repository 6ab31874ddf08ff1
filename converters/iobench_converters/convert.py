"""The driver that makes a store of a dataset: shard by shard, resumable.

Killed at any moment, the same call goes on and leaves the same bytes. `shards` makes and writes
samples, `journal` notes it, here all shards are gone over and the store is finished.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from iobench.errors import StorageError, StoreError
from iobench.stores import (
    MANIFEST_NAME,
    Manifest,
    Notice,
    Store,
    StoreRequest,
    Tally,
    check_room,
    finish_store,
    locked,
    make_item,
    read_manifest,
    was_locked,
)
from iobench_converters.on_dask import write_on_dask
from iobench_converters.shards import ConversionRun

if TYPE_CHECKING:
    from iobench.datasets import Progress

EXIT_RESUMABLE: Final = 75


def convert(
    request: StoreRequest,
    *,
    progress: Progress | None = None,
    notice: Notice | None = None,
    tally: Tally | None = None,
) -> Store | None:
    """Return the finished store that is asked for, writing what is missing of it.

    None where other parts of it are not finished. Arguments and errors are those of
    `iobench.stores.Converter`.
    """
    plan = replace(request, path=request.path.absolute()).plan()
    run = ConversionRun(plan, tally=tally, progress=progress, notice=notice)
    # What is finished may still have what a killed process had to remove.
    if not _is_finished(run) or run.journal.folder.exists() or was_locked(run.path):
        is_part = request.limit_s is not None or len(plan.samples) < len(request.index)
        make_item(run.path, kind="probe" if is_part else "store", title=plan.title)
        try:
            if not _complete(run):
                return None
        except StorageError as error:
            error.exit_code = EXIT_RESUMABLE
            raise
    return request.fmt.open(run.path, read_manifest(run.path))


def _complete(run: ConversionRun) -> bool:
    """Write what is missing and finish the store; False where others write parts of it.

    The store is locked to begin and to finish it, and all the while where it has one part.
    """
    hold = partial(locked, notice=run.notice)
    part, n_parts = run.request.part
    with hold(run.path) as lock:
        if not _is_finished(run):
            run.begin()
            if n_parts == 1:
                _write(run)
                lock.check()
                _finish(run)
        if n_parts == 1:
            run.journal.remove()
        if _is_finished(run):
            return True
    with hold(run.journal.folder, name=f"part-{part}.lock") as lock:
        _write(run)
        lock.check()
    with hold(run.path) as lock:
        if not _is_finished(run):
            if not _finish(run):
                return False
            lock.check()
            run.journal.remove()
    return True


def _is_finished(run: ConversionRun) -> bool:
    """Whether the store is there and finished; raise StoreError if it is of another plan."""
    if not (run.path / MANIFEST_NAME).exists():
        return False
    manifest = read_manifest(run.path)
    if manifest.plan != run.plan.digest:
        raise StoreError(
            f"{run.path} holds a store made from something else (source files, samples or "
            f"options differ): {manifest.dataset} as {manifest.format}; remove it or choose "
            "another folder"
        )
    return True


def _write(run: ConversionRun) -> None:
    """Write the shards of this process that are not there."""
    run.journal.tidy()
    part, n_parts = run.request.part
    missing = run.collect(range(part - 1, run.plan.n_shards, n_parts))
    if n_there := len(run.infos):
        run.tally.n_resumed += n_there
        run.notice(f"resuming {run.path}: {n_there} of {run.plan.n_shards} shards done")
    n_samples = sum(len(run.plan.shard(number)) for number in missing)
    check_room(run.path, n_samples * run.stored_spec.nbytes)
    if missing and run.request.scheduler is not None:
        write_on_dask(run, missing, run.request.scheduler)
    elif missing:
        run.write(missing)


def _finish(run: ConversionRun) -> bool:
    """Write checksums and manifest if all shards are there; the lock of the store is held."""
    plan, request = run.plan, run.request
    is_limited = request.limit_s is not None and bool(run.infos)
    if not is_limited and run.collect(range(plan.n_shards)):
        return False
    assert run.mark is not None
    run.journal.check_sources(run.mark)
    infos = [run.infos[number] for number in sorted(run.infos)]
    statistics, lossy = run.measure.merged(info.moments for info in infos)
    checksums = array("I")
    for info in infos:
        checksums.extend(info.checksums)
    manifest = Manifest(
        format=request.fmt.name,
        format_version=request.fmt.version,
        spec=run.stored_spec,
        shards=tuple(info.shard for info in infos),
        samples=plan.samples[: sum(info.shard.n_samples for info in infos)],
        dataset=request.dataset.name,
        plan=plan.digest,
        options=request.options,
        provenance=plan.provenance,
        normalisation=plan.normalisation,
        lossy=lossy,
        statistics=statistics,
        sample_grid=plan.sample_grid,
    )
    finish_store(
        run.path,
        request.fmt,
        manifest,
        checksums=checksums,
        n_samples=plan.full_n_samples,
        index=request.index,
        dataset=request.dataset,
    )
    return True
