"""The driver that makes a store of a dataset: shard by shard, resumable.

Killed at any moment, the same call goes on and leaves the same bytes. `SampleProducer` makes
samples, `shards` writes them, `journal` notes it, here all shards are gone over.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from iobench.datasets import Progress, no_progress, requested_samples
from iobench.errors import OptionError, StorageError, StoreError
from iobench.stores import (
    MANIFEST_NAME,
    Budget,
    Manifest,
    Notice,
    SampleMeasure,
    ShardInfo,
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
from iobench_converters.journal import Journal, PlanMark
from iobench_converters.shards import write_shards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.samples import SampleSpec
    from iobench.stores import ConversionPlan, Label

EXIT_RESUMABLE = 75


class ConversionRun:
    """What one process does of a conversion."""

    def __init__(
        self,
        plan: ConversionPlan,
        *,
        tally: Tally | None = None,
        progress: Progress | None = None,
        notice: Notice | None = None,
    ) -> None:
        self.plan, self.request = plan, plan.request
        self.path = self.request.path
        self.encoding = self.request.encoding  # with all ranges, once it has begun
        self.journal = Journal(self.path, plan)
        self.tally = tally or Tally()
        self.notice = notice or (lambda _: None)
        self._progress = progress or no_progress
        self.budget = Budget(self.request.limit_s)
        self.infos: dict[int, ShardInfo] = {}
        self._n_done = 0
        self._mark: PlanMark | None = None

    @property
    def stored_spec(self) -> SampleSpec:
        """What a sample of the store is."""
        spec = self.request.index.spec
        return spec if self.encoding is None else self.encoding.stored_spec(spec)

    @property
    def measure(self) -> SampleMeasure:
        """What takes the moments of samples as they are stored."""
        encoding, spec = self.encoding, self.request.index.spec
        encoded = () if encoding is None else encoding.encoder(spec).names
        return SampleMeasure(self.stored_spec, encoded)

    def label(self, numbers: Sequence[int]) -> Label:
        """Return what names the samples of a stack."""
        return lambda row: f"{self.request.dataset.name} sample {numbers[row]}"

    def advance(self, n_samples: int = 0) -> None:
        """Take note of samples that were written."""
        self._n_done += n_samples
        self._progress(self._n_done, len(self.plan.samples))

    def is_finished(self) -> bool:
        """Whether the store is there and finished; raise StoreError if it is of another plan."""
        if not (self.path / MANIFEST_NAME).exists():
            return False
        result = read_manifest(self.path)
        if result.plan != self.plan.digest:
            raise StoreError(
                f"{self.path} holds a store made from something else (source files, samples or "
                f"options differ): {result.dataset} as {result.format}; remove it or choose "
                "another folder"
            )
        return True

    def join(self) -> bool:
        """Take up what was begun; False if nothing was."""
        self._mark = self.journal.mark()
        if self._mark is not None and self.encoding is not None:
            self.encoding = replace(self.encoding, ranges=self._mark.ranges)
        return self._mark is not None

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
                named = ((stack.rows, self.label(stack.numbers)) for stack in stacks)
                self.encoding = self.encoding.learn(spec, named)
        self._mark = self.journal.begin({} if self.encoding is None else self.encoding.ranges)

    def collect(self, numbers: Sequence[int]) -> list[int]:
        """Look for shards that are there already; return the numbers of the others."""
        for number in numbers:
            if number not in self.infos and (info := self.journal.find(number)) is not None:
                self.infos[number] = info
        self._n_done = sum(info.shard.n_samples for info in self.infos.values())
        return [number for number in numbers if number not in self.infos]

    def write(self) -> None:
        """Write the shards of this process that are not there."""
        self.journal.tidy()
        part, n_parts = self.request.part
        missing = self.collect(range(part - 1, self.plan.n_shards, n_parts))
        if n_there := len(self.infos):
            self.tally.n_resumed += n_there
            self.notice(f"resuming {self.path}: {n_there} of {self.plan.n_shards} shards done")
        n_samples = sum(len(self.plan.shard(number)) for number in missing)
        check_room(self.path, n_samples * self.stored_spec.nbytes)
        if not missing:
            return
        if self.request.scheduler is None:
            write_shards(self, missing)
        else:
            from iobench_converters.on_dask import write_on_dask

            write_on_dask(self, missing, self.request.scheduler)

    def take(self, number: int, tallied: Mapping[str, Any]) -> None:
        """Take note of a shard that another machine wrote for us, and of its time."""
        self.tally.merge(tallied)
        if self.collect([number]):
            raise StoreError(
                f"{self.path}: shard {number} was written elsewhere and is not here; "
                "do the workers see this folder?"
            )
        self.advance()

    def finish(self) -> bool:
        """Write checksums and manifest if all shards are there; the lock of the store is held."""
        plan, request = self.plan, self.request
        is_limited = request.limit_s is not None and bool(self.infos)
        if not is_limited and self.collect(range(plan.n_shards)):
            return False
        assert self._mark is not None
        self.journal.check_sources(self._mark)
        infos = [self.infos[number] for number in sorted(self.infos)]
        statistics, lossy = self.measure.merged(info.moments for info in infos)
        checksums = array("I")
        for info in infos:
            checksums.extend(info.checksums)
        manifest = Manifest(
            format=request.fmt.name,
            format_version=request.fmt.version,
            spec=self.stored_spec,
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
            self.path,
            request.fmt,
            manifest,
            checksums=checksums,
            n_samples=plan.full_n_samples,
            index=request.index,
            dataset=request.dataset,
        )
        return True


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
    part, n_parts = request.part
    if not 1 <= part <= n_parts:
        raise OptionError(f"--part {part}/{n_parts}: expected K/N, K from 1 to N")
    if request.limit_s is not None and (n_parts > 1 or request.scheduler is not None):
        raise OptionError("a limit of time is for one process: no parts and no scheduler")
    plan = replace(request, path=request.path.absolute()).plan()
    run = ConversionRun(plan, tally=tally, progress=progress, notice=notice)
    # What is finished may still have what a killed process had to remove.
    if not run.is_finished() or run.journal.exists() or was_locked(run.path):
        is_part = request.limit_s is not None or len(plan.samples) < len(request.index)
        try:
            make_item(run.path, kind="probe" if is_part else "store", title=plan.title)
            is_finished = _write_alone(run) if n_parts == 1 else _write_part(run)
        except StorageError as error:
            error.exit_code = EXIT_RESUMABLE
            raise
        if not is_finished:
            return None
    return request.fmt.open(run.path, read_manifest(run.path))


def _write_alone(run: ConversionRun) -> bool:
    """Hold the store from the beginning to the end."""
    with locked(run.path, wait_s=run.request.wait_s, notice=run.notice) as lock:
        if not run.is_finished():
            run.begin()
            run.write()
            lock.check()
            run.finish()
        run.journal.remove()
    return True


def _write_part(run: ConversionRun) -> bool:
    """Hold a part of the store, and the whole to begin and to finish it."""
    request = run.request
    with locked(run.path, wait_s=request.wait_s, notice=run.notice):
        if run.is_finished():
            return True
        run.begin()
    name = f"part-{request.part[0]}.lock"
    with locked(run.journal.folder, name=name, wait_s=request.wait_s, notice=run.notice) as lock:
        run.write()
        lock.check()
    with locked(run.path, wait_s=request.wait_s, notice=run.notice) as lock:
        if not run.is_finished():
            if not run.finish():
                return False
            lock.check()
            run.journal.remove()
    return True
