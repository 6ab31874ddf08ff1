"""How a training process loads, its machine and its data: what advice is made from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.diagnosis import HIDDEN_FRACTION
from iobench.analysis.intervals import PARTS, StepSums, step_sums
from iobench.analysis.replay.replay import Machine, machine_of
from iobench.analysis.replay.runs import reported_loaders
from iobench.analysis.storage_reads import epoch_nbytes
from iobench.findings.storage import storage_of

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Exposure, PartExposure
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.analysis.run import RankRun
    from iobench.runs.run_facts import RunFacts, StoreFacts

TODAY: Final = ("upstream", "climetlab")
"""Pipelines that are how an application loads now: everything is compared with them."""
CACHED_FRACTION: Final = 0.99
"""Share of the files in the page cache from which on all was read from memory."""
HARDLY_COLD: Final = 0.05
"""A share of the bytes that came from storage too small to be what workers wait for."""


class Loading(msgspec.Struct, frozen=True, kw_only=True):
    """How one training process loaded, as it was measured; None is unknown.

    Parameters
    ----------
    path : Path
        Of the run directory: several training processes have one.
    exposure : Exposure
        Without the wait of every step.
    run : LoaderRun or None
        Of the loader that is waited for most; None where no loader delivered a batch.
    sums : mapping of str to StepSums
        Of each part that the run has, to compare it with other runs.
    cpus : int or None
        Usable ones, for this rank.
    n_samples_all : int or None
        Samples of the whole dataset: an epoch.
    machine : Machine or None
        What the workers and the loop share in a replay.
    folder : str or None
        What has all files in it that were read.
    epoch_nbytes, epochs : int or None
        Read in an epoch of a script, over all its processes; its whole epochs.
    """

    path: Path
    facts: RunFacts
    exposure: Exposure
    run: LoaderRun | None = None
    sums: Mapping[str, StepSums] = msgspec.field(default_factory=dict)
    cpus: int | None = None
    n_samples_all: int | None = None
    machine: Machine | None = None
    folder: str | None = None
    epoch_nbytes: int | None = None
    epochs: int | None = None
    n_loaders: int = 1

    @property
    def loader(self) -> LoaderRun:
        """The loader that is waited for most."""
        if self.run is None:
            raise ValueError(f"{self.path}: no loader delivered a batch")
        return self.run

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.facts.label or self.loader.name

    @property
    def format(self) -> str:
        """The format as ``--format`` spells it, options and all; empty where unknown."""
        return self.facts.layout or ""

    @property
    def framework(self) -> str:
        """What loads; empty where unknown."""
        return self.facts.framework or ""

    @property
    def pipeline(self) -> str:
        """What makes samples of the original files; empty of a script."""
        return "" if self.facts.is_script else self.facts.pipeline

    @property
    def store(self) -> StoreFacts | None:
        """The store that it reads, of a known size; None for original files."""
        store = self.facts.store
        return store if store is not None and store.n_samples and store.nbytes else None

    @property
    def named_store(self) -> str | None:
        """How the finished store that it reads is named; None where it is none."""
        return None if self.store is None else self.store.target

    @property
    def judged(self) -> PartExposure:
        """The part that shows what a long training sees."""
        return self.exposure.judged

    @property
    def sample_ns(self) -> float | None:
        """Wall time of a sample; None where samples were not counted."""
        part = self.judged
        return part.wall_ns / part.n_samples if part.n_samples else None

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch over all samples."""
        sample_ns, n = self.sample_ns, self.n_samples_all
        return None if sample_ns is None or not n else sample_ns * n / 1e9

    @property
    def wait_fraction(self) -> float | None:
        """Share of its time that the training loop waits; None where no batch was delivered."""
        return self.judged.wait_fraction if self.judged.n_batches else None

    @property
    def is_hidden(self) -> bool:
        """Whether it waits so little that faster loading is worth no work."""
        return (self.wait_fraction or 0.0) < HIDDEN_FRACTION

    @property
    def sample_nbytes(self) -> int | None:
        """Bytes of a finished sample."""
        whole = self.exposure.whole
        counted = whole.nbytes // whole.n_samples if whole.n_samples and whole.nbytes else None
        return self.facts.sample_nbytes or counted

    @property
    def memory_nbytes(self) -> int | None:
        """Memory of the machine."""
        return _number(self.facts.machine.get("memory_nbytes"))

    @property
    def files_nbytes(self) -> int | None:
        """What an epoch over all samples reads: of a store all of it."""
        store = self.store
        if store is None or not store.n_samples:
            return self.facts.files_nbytes
        return (store.nbytes or 0) * (store.n_samples_all or store.n_samples) // store.n_samples

    @property
    def is_cached(self) -> bool:
        """Whether it read everything from memory."""
        cold = self.exposure.whole.cold_fraction
        resident = self.facts.cache.resident_fraction_before or 0.0
        return cold == 0.0 or (cold is None and resident >= CACHED_FRACTION)

    @property
    def waits_for_storage(self) -> bool:
        """Whether time off the CPU may be storage's: if hardly any was cold, CPUs were short."""
        cold = self.exposure.whole.cold_fraction
        return not self.is_cached if cold is None else cold > HARDLY_COLD


def loading_of(rank: RankRun, runs: Sequence[LoaderRun]) -> Loading:
    """Return how a training process loads; ``runs`` are what its loaders did."""
    facts, exposure = rank.about, rank.exposure
    if not exposure.has_consumer or not runs:
        return Loading(path=rank.path, facts=facts, exposure=exposure.without_waits())
    run = max(runs, key=lambda each: each.wait_ns)
    job = rank.job or rank
    hosts = {process.host for process in job.processes}
    ranks_here = sum(each.role == "consumer" and each.host in hosts for each in job.facts)
    cpus = _number(facts.machine.get("cpus"))
    store, is_script = facts.store, facts.is_script
    n_samples_all = (None if store is None else store.n_samples_all) or facts.n_samples_all
    return Loading(
        path=rank.path,
        facts=facts,
        exposure=exposure.without_waits(),
        run=run if run.batch_size else replace(run, batch_size=facts.batch_size),
        sums={part: sums for part in PARTS if (sums := step_sums(rank, part)) is not None},
        cpus=None if cpus is None else max(1, cpus // max(1, ranks_here)),
        n_samples_all=n_samples_all or (_samples_of_epoch(rank, run) if is_script else None),
        machine=machine_of(job),
        folder=_folder(rank),
        epoch_nbytes=epoch_nbytes(rank) if is_script else None,
        epochs=len(rank.deliveries.complete_epochs) or None if is_script else None,
        n_loaders=len(runs),
    )


def reported_loading(rank: RankRun) -> Loading:
    """Return what a report advises on: a part of each loader."""
    return loading_of(rank, rank.cached(reported_loaders))


def baseline_first(measured: Iterable[Loading]) -> list[Loading]:
    """Return what took turns, the baseline first.

    Of one run of several training processes that which waits longest is taken. The baseline is how
    an application loads today, else what loads the original files.
    """
    by_path: dict[Path, Loading] = {}
    for each in measured:
        other = by_path.get(each.path)
        if each.run is None:
            continue
        if other is None or each.exposure.whole.wait_ns > other.exposure.whole.wait_ns:
            by_path[each.path] = each

    def order(each: Loading) -> tuple[bool, bool, int]:
        return each.pipeline not in TODAY, each.store is not None, int(each.facts.position or 0)

    return sorted(by_path.values(), key=order)


def _folder(rank: RankRun) -> str | None:
    """Return what all files that were read have in common, of a script those that spans name."""
    near = rank.about.near
    if near is None or near.folder is not None or not rank.about.is_script:
        return None if near is None else near.folder
    storage = rank.cached(storage_of)
    rows = () if storage is None else storage.bytes
    files = [row for row in rows if row.name.startswith("/")]
    # What a script reads besides its data, as settings, may lie elsewhere.
    far = [row for row in files if near.mount_of(row.name) is not None]
    for some in (far, files):
        nbytes = sum(row.requested_nbytes or 0 for row in some)
        if rows and 2 * nbytes > (rows[0].requested_nbytes or 0):
            return os.path.commonpath([row.name for row in some])
    return None


def _samples_of_epoch(rank: RankRun, run: LoaderRun) -> int | None:
    """Return what the only loader of a script handed out in a whole pass, over all ranks."""
    exposure, passes = rank.exposure, len(run.startup_ns)
    if exposure.n_unfinished_rounds or len(exposure.loaders) > 1 or not run.shutdown_ns.all():
        return None
    if not run.batch_size or not passes or run.is_part:
        return None
    return round(len(run) / passes) * run.batch_size * max(1, len(rank.ranks))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
