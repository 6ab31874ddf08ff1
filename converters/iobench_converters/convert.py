"""The driver that makes a store of a dataset: shard by shard, by one process or many, resumable.

Killed at any moment, the same call goes on and leaves the same bytes. The parts: `Maker` makes
samples, `shards` writes one shard of them, `journal` notes it, here all shards are gone over.
"""

from __future__ import annotations

import copy
import threading
from array import array
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from iobench.datasets import Progress, no_progress
from iobench.errors import OptionError, StorageError, StoreClaimedError, StoreError
from iobench.stores import (
    MANIFEST_NAME,
    Budget,
    Manifest,
    Notice,
    ShardInfo,
    Store,
    StoreRequest,
    Tally,
    check_room,
    claim,
    find_writer,
    finish_store,
    make_item,
    merge_errors,
    merge_shards,
    read_manifest,
    remove_claims_of_the_dead,
)
from iobench_converters.journal import Journal, PlanMark
from iobench_converters.shards import Conversion, ShardDrain, write_shard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.datasets import Maker
    from iobench.stores import Claim


EXIT_RESUMABLE = 75
POLL_S = 0.2


class ConversionRun:
    """What one process does of a conversion."""

    def __init__(
        self,
        conversion: Conversion,
        *,
        tally: Tally,
        progress: Progress,
        notice: Notice,
    ) -> None:
        self.conversion = conversion
        self.plan = conversion.plan
        self.path = conversion.request.path
        self.wait_s = conversion.request.wait_s
        self.journal = Journal(self.path, self.plan)
        self._tally = tally
        self._progress = progress
        self.notice = notice
        self._budget = Budget(self.plan.limit_s)
        self._infos: dict[int, ShardInfo] = {}
        self._n_done = 0
        self._mark: PlanMark | None = None

    def is_finished(self) -> bool:
        """Whether the store is there and finished; raise StoreError if it is of another plan."""
        if not (self.path / MANIFEST_NAME).exists():
            return False
        found = read_manifest(self.path)
        if found.plan != self.plan.digest:
            raise StoreError(
                f"{self.path} holds a store made from something else (source files, samples or "
                f"options differ): {found.dataset} as {found.format}; remove it or choose another "
                "folder"
            )
        return True

    def join(self) -> bool:
        """Take up what was begun; False if nothing was."""
        self._mark = self.journal.mark(self.conversion.request.files)
        if self._mark is None:
            return False
        self.journal.check_bytes(self.conversion.request.files)
        encoding = self.conversion.request.encoding
        if encoding is not None:
            pairs = {name: (low, high) for name, (low, high) in self._mark.ranges.items()}
            self.conversion = self.conversion.with_encoding(replace(encoding, ranges=pairs))
        return True

    def begin(self, held: Claim) -> None:
        """Take up what was begun, or begin; the claim on the store is held."""
        if not self.join():
            self.conversion = self.conversion.with_ranges(self._tally, self.notice)
            encoding = self.conversion.request.encoding
            ranges = {} if encoding is None else encoding.ranges
            self._mark = self.journal.begin(self.conversion.request.files, str(held.holder), ranges)

    def write(self, *, is_alone: bool) -> None:
        """Write the shards that nobody else writes, and return when all are there.

        ``is_alone`` says that no other process is writing any, so that the room they would need
        can be told.
        """
        self.journal.tidy()
        missing = self.collect()
        if is_alone:
            self._check_room()
        if missing:
            self._write(missing)

    def write_one(self, number: int, tally: Tally) -> None:
        """Write one shard, unless it is there; wait if another process is at it.

        Threads may call it at once, and what it costs does not depend on how many shards there
        are.
        """
        one = copy.copy(self)
        one._tally, one._infos, one._n_done = tally, {}, 0
        if not one._is_elsewhere(number):
            one._write([number])

    def collect(self) -> list[int]:
        """Look for shards that are there already; return the numbers of the others."""
        for number in range(self.plan.n_shards):
            info = self.journal.find(number)
            if info is not None:
                self._infos[number] = info
        self._n_done = sum(info.shard.n_samples for info in self._infos.values())
        if self._infos:
            self._tally.count(resumed=len(self._infos))
            self.notice(
                f"resuming {self.path}: {len(self._infos)} of {self.plan.n_shards} shards done"
            )
        return [number for number in range(self.plan.n_shards) if number not in self._infos]

    def take(self, number: int, tallied: Mapping[str, Any]) -> None:
        """Take note of a shard that another machine wrote for us, and of its time."""
        self._tally.merge(tallied)
        info = self.journal.find(number)
        if info is None:
            raise StoreError(
                f"{self.path}: shard {number} was written elsewhere and is not here; "
                "do the workers see this folder?"
            )
        self._infos[number] = info
        self._advance(info.shard.n_samples)

    def finish(self, held: Claim) -> None:
        """Write checksums and manifest of a store whose shards are all there."""
        if self._mark is not None:
            self.journal.check_sources(self._mark, self.conversion.request.files)
        infos = [self._infos[number] for number in sorted(self._infos)]
        n_samples = sum(info.shard.n_samples for info in infos)
        plan = self.plan
        measure = self.conversion.measure
        statistics, errors = merge_shards(measure, (info.moments for info in infos))
        manifest = Manifest(
            format=plan.format,
            format_version=plan.format_version,
            spec=self.conversion.stored_spec,
            shards=tuple(info.shard for info in infos),
            samples=plan.samples[:n_samples],
            dataset=plan.dataset,
            plan=plan.digest,
            options=plan.options,
            provenance=plan.provenance,
            normalisation=plan.normalisation,
            lossy=_quality(infos, errors),
            statistics=statistics,
            sample_grid=plan.sample_grid,
        )
        checksums = array("I")
        for info in infos:
            checksums.extend(info.checksums)
        held.check()
        self.journal.sweep()
        finish_store(
            self.path,
            self.conversion.request.fmt,
            manifest,
            checksums=checksums,
            n_samples=plan.full_n_samples,
            index=self.conversion.request.index,
            dataset=self.conversion.request.dataset,
        )

    def _write(self, missing: list[int]) -> None:
        maker = self.conversion.maker(self._tally, n_done=self._n_done)
        try:
            with ShardDrain(self.conversion, self.journal, self._tally, self._add) as drain:
                self._write_missing(missing, maker, drain)
                self._wait(drain)
        finally:
            maker.close()

    def _write_missing(self, missing: list[int], maker: Maker, drain: ShardDrain) -> None:
        """Pass over the missing shards until none is left: others may drop theirs."""
        waiting: Budget | None = None
        while missing:
            maker.expect([self.plan.shard(number) for number in missing])
            for number in missing:
                if self._n_done and self._budget.spent:
                    return
                self._attempt(number, maker, drain)
            self._wait(drain)
            left = [number for number in missing if number not in self._infos]
            if not left or self._budget.spent or self.is_finished():
                return
            if len(left) < len(missing):
                waiting = None
            elif waiting is None:
                waiting = Budget(self.wait_s)
                self.notice(f"waiting for {self._others(left)} in {self.path}")
            elif waiting.spent:
                raise StoreClaimedError(
                    f"{self.path}: waited long enough for {self._others(left)}; run "
                    "the command again"
                )
            else:
                threading.Event().wait(POLL_S)
            missing = left

    def _attempt(self, number: int, maker: Maker, drain: ShardDrain) -> None:
        """Write a shard, unless it is there or another process holds it."""
        if self._is_elsewhere(number):
            return
        try:
            held = self.journal.claim(number)
        except FileNotFoundError as error:
            if self.is_finished():
                return
            raise StoreError(
                f"{self.path}: its journal was removed while it was being written; convert again"
            ) from error
        if held is None:
            return
        # Somebody may have written it, and all the rest, between the look and the claim.
        if self._is_elsewhere(number) or self.is_finished():
            self.journal.leave(held)
            return
        try:
            write_shard(
                self.conversion,
                number,
                held,
                journal=self.journal,
                maker=maker,
                drain=drain,
                tally=self._tally,
                advance=self._advance,
            )
        except StoreClaimedError as error:
            self._lost(error)

    def _wait(self, drain: ShardDrain) -> None:
        try:
            drain.wait()
        except StoreClaimedError as error:
            self._lost(error)

    def _lost(self, error: StoreClaimedError) -> None:
        """Go on after another process took a shard over: it will be there in the end."""
        self.notice(str(error))
        self._n_done = sum(info.shard.n_samples for info in self._infos.values())

    def _advance(self, n_samples: int) -> bool:
        self._n_done += n_samples
        self._progress(self._n_done, len(self.plan.samples))
        return not self._budget.spent

    def _is_elsewhere(self, number: int) -> bool:
        info = self.journal.find(number)
        if info is None:
            return False
        self._infos[number] = info
        self._n_done += info.shard.n_samples
        self._tally.count(elsewhere=1)
        self._progress(self._n_done, len(self.plan.samples))
        return True

    def _add(self, number: int, info: ShardInfo) -> None:
        self._infos[number] = info
        self._tally.count(written=1)

    def _others(self, numbers: Sequence[int]) -> str:
        holder = self.journal.holder(numbers[0]) or "another process"
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        return f"{holder}, which writes shard {numbers[0]}{more}"

    def _check_room(self) -> None:
        nbytes = (len(self.plan.samples) - self._n_done) * self.conversion.stored_spec.nbytes
        check_room(self.path, nbytes, self.plan.n_shards - len(self._infos))


def convert(
    request: StoreRequest,
    *,
    progress: Progress | None = None,
    notice: Notice | None = None,
    tally: Tally | None = None,
) -> Store:
    """Return the finished store that is asked for, writing what is missing of it.

    Arguments and errors are those of `iobench.stores.Converter`.
    """
    is_shared = request.together or request.scheduler is not None
    if request.limit_s is not None and is_shared:
        raise OptionError("a limit of time is for one process: leave it out, or work alone")
    request, plan = replace(request, path=request.path.absolute()), request.plan()
    run = ConversionRun(
        Conversion(request, plan),
        tally=tally or Tally(),
        progress=progress or no_progress,
        notice=notice or _say_nothing,
    )
    if not run.is_finished() or run.journal.exists():
        is_part = request.limit_s is not None or len(plan.samples) < len(request.index)
        try:
            make_item(run.path, kind="probe" if is_part else "store", title=plan.title)
            _write_shared(run) if is_shared else _write_alone(run)
        except StorageError as error:
            error.exit_code = EXIT_RESUMABLE
            raise
    remove_claims_of_the_dead(run.path)  # of one killed between the manifest and its last step
    return request.fmt.open(run.path, read_manifest(run.path))


def _quality(infos: Sequence[ShardInfo], errors: Mapping[str, Any]) -> dict[str, Any]:
    """Return what became of each variable that is stored with fewer bits."""
    largest = merge_errors(*(info.lossy for info in infos))
    return {name: {**largest.get(name, {}), **told} for name, told in errors.items()}


def _write_alone(run: ConversionRun) -> None:
    """Hold the whole store from the beginning to the end."""
    with claim(run.path, wait_s=run.wait_s, notice=run.notice) as held:
        if not run.is_finished():
            run.begin(held)
            run.write(is_alone=True)
            held.check()
            if not run.is_finished():
                run.finish(held)
        run.journal.remove()


def _write_shared(run: ConversionRun) -> None:
    """Hold the whole store only to begin and to finish; shards are held one at a time.

    Here, or by the workers of a scheduler.
    """
    is_alone = find_writer(run.path) is None
    if not run.is_finished() and not run.join():
        with claim(run.path, wait_s=run.wait_s, notice=run.notice) as held:
            if not run.is_finished():
                run.begin(held)
    if not run.is_finished():
        scheduler = run.conversion.request.scheduler
        if scheduler is None:
            run.write(is_alone=is_alone)
        else:
            from iobench_converters.on_dask import write_on_dask

            write_on_dask(run, scheduler)
    if not run.is_finished():
        with claim(run.path, wait_s=run.wait_s) as held:
            if not run.is_finished():
                run.finish(held)
    run.journal.remove()


def _say_nothing(line: str) -> None:
    """Show nothing."""
