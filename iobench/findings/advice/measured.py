"""From a training process of a run to what advice needs: how it loads, the machine, the data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.intervals import PARTS, step_sums
from iobench.analysis.replay.replay import machine_of
from iobench.analysis.replay.runs import reported_loaders
from iobench.analysis.storage_reads import epoch_nbytes
from iobench.findings.advice.figures import Circumstances, LoadingWay, StoreProbe
from iobench.findings.storage import storage_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.replay.loader_run import LoaderRun
    from iobench.analysis.run import RankRun
    from iobench.runs.run_facts import RunFacts

TODAY: Final = ("upstream", "climetlab")
"""Pipelines that are how an application loads now: everything is compared with them."""


class MeasuredRank(msgspec.Struct, frozen=True):
    """What one training process did, as far as something may be advised on it.

    Parameters
    ----------
    path : Path
        Of the run directory: several training processes have one.
    position : int
        Among the ways of loading that took turns.
    exposure : Exposure
        Without the wait of every step.
    way : LoadingWay or None
        None where no loader delivered a batch, or it was not looked at.
    """

    path: Path
    position: int
    exposure: Exposure
    circumstances: Circumstances
    way: LoadingWay | None

    @property
    def facts(self) -> RunFacts:
        """What its run was."""
        return self.circumstances.facts

    @property
    def wait_fraction(self) -> float | None:
        """Exposed share of the time judged; None where no batch was delivered."""
        judged = self.exposure.judged
        return judged.wait_fraction if judged.n_batches else None


def measured_rank(found: RankRun, runs: Sequence[LoaderRun]) -> MeasuredRank:
    """Return how a training process loads: of several loaders, by that which is waited for most.

    Parameters
    ----------
    runs : sequence of LoaderRun
        What its loaders did.
    """
    exposure, profile = found.exposure, found
    facts = found.about
    run = max(runs, key=lambda each: each.wait_ns) if exposure.has_consumer and runs else None
    return MeasuredRank(
        path=profile.path,
        position=int(facts.position or 0),
        exposure=exposure.without_waits(),
        circumstances=_circumstances(found, facts, run, n_loaders=len(runs)),
        way=None if run is None else _way(found, facts, run),
    )


def reported_rank(found: RankRun) -> MeasuredRank:
    """Return what a report advises on: a part of each loader."""
    return measured_rank(found, found.cached(reported_loaders))


def ways_of(measured: Iterable[MeasuredRank]) -> tuple[tuple[LoadingWay, ...], Circumstances]:
    """Return the ways of loading that took turns, the baseline first, and its circumstances.

    Of one run of several training processes that which waits longest is taken. The baseline is how
    an application loads today, else what loads the original files.
    """
    by_path: dict[Path, tuple[LoadingWay, MeasuredRank]] = {}
    for each in measured:
        method = each.way
        if method is None:
            continue
        if each.path not in by_path or method.whole.wait_ns > by_path[each.path][0].whole.wait_ns:
            by_path[each.path] = method, each
    methods = sorted(
        by_path.values(),
        key=lambda told: (
            told[0].pipeline not in TODAY,
            told[0].store is not None,
            told[1].position,
        ),
    )
    return tuple(mode for mode, _ in methods), methods[0][
        1
    ].circumstances if methods else Circumstances()


def _way(found: RankRun, facts: RunFacts, run: LoaderRun) -> LoadingWay:
    exposure, known, store = found.exposure, facts.store, None
    if known is not None and known.n_samples and known.nbytes:
        n_samples_all = known.n_samples_all or known.n_samples
        sizes = known.n_samples, known.nbytes, known.convert_s, n_samples_all
        store = StoreProbe(*sizes, target=known.target, path=known.path)
    return LoadingWay(
        label=facts.label or run.name,
        format=facts.layout or "",
        framework=facts.framework or "",
        pipeline="" if facts.is_script else facts.pipeline,
        run=run if run.batch_size else replace(run, batch_size=facts.batch_size),
        whole=exposure.whole,
        steady=exposure.steady,
        recurring=exposure.recurring,
        sums={part: sums for part in PARTS if (sums := step_sums(found, part)) is not None},
        store=store,
    )


def _circumstances(
    found: RankRun, facts: RunFacts, run: LoaderRun | None, *, n_loaders: int
) -> Circumstances:
    if run is None:
        return Circumstances(facts=facts)
    profile, exposure = found.job or found, found.exposure
    whole, store = exposure.whole, facts.store
    cpus = _number(facts.machine.get("cpus"))
    here = {process.host for process in profile.processes}
    ranks_here = sum(known.role == "consumer" and known.host in here for known in profile.facts)
    n_samples_all = (None if store is None else store.n_samples_all) or facts.n_samples_all
    if not n_samples_all and facts.is_script:
        n_samples_all = _samples_of_epoch(found, run)
    counted = whole.nbytes // whole.n_samples if whole.n_samples and whole.nbytes else None
    return Circumstances(
        facts=facts,
        cpus=None if cpus is None else max(1, cpus // max(1, ranks_here)),
        memory_nbytes=_number(facts.machine.get("memory_nbytes")),
        n_samples_all=n_samples_all,
        sample_nbytes=facts.sample_nbytes or counted,
        files_nbytes=facts.files_nbytes,
        resident_fraction=facts.cache.resident_fraction_before,
        cold_fraction=whole.cold_fraction,
        own_order=facts.own_order,
        machine=machine_of(profile),
        loop_fraction=exposure.loop_fraction,
        folder=_folder(found),
        epoch_nbytes=epoch_nbytes(found) if facts.is_script else None,
        epochs=len(found.deliveries.complete_epochs) or None if facts.is_script else None,
        n_loaders=n_loaders,
        n_summed=exposure.n_summed,
    )


def _folder(found: RankRun) -> str | None:
    """Return what all files that were read have in common, of a script those that spans name."""
    near = found.about.near
    if near is None or near.folder is not None or not found.about.is_script:
        return None if near is None else near.folder
    storage = found.cached(storage_of)
    if storage is None or not storage.bytes:
        return None
    rows = storage.bytes
    files = [row for row in rows if row.name.startswith("/")]
    # What a script reads beside its data, as settings, may lie elsewhere.
    far = [row for row in files if near.mount_of(row.name) is not None]
    for matching_files in (far, files):
        nbytes = sum(row.requested_nbytes or 0 for row in matching_files)
        if 2 * nbytes > (rows[0].requested_nbytes or 0):
            return os.path.commonpath([row.name for row in matching_files])
    return None


def _samples_of_epoch(found: RankRun, run: LoaderRun) -> int | None:
    """Return what the loader of a script handed out in a round of its own, over all ranks.

    None where a round was cut off, or where there are several loaders.
    """
    exposure, rounds = found.exposure, len(run.startup_ns)
    if exposure.n_unfinished_rounds or len(exposure.loaders) > 1 or not run.shutdown_ns.all():
        return None
    if not run.batch_size or not rounds or run.is_part:
        return None
    return round(len(run) / rounds) * run.batch_size * max(1, len(found.ranks))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
