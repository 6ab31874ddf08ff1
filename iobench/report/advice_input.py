"""From a run directory to what advice needs: ways of loading, the machine, the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from iobench.analysis.advice.advising import advise
from iobench.analysis.advice.figures import Advice, Circumstances, LoadingWay, StoreProbe
from iobench.analysis.device import device_exposure
from iobench.analysis.replay.replay import machine_of
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.step_sums import PARTS, step_sums

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.analysis.figures import Exposure, Window
    from iobench.analysis.replay.loader_run import RecordedRun
    from iobench.analysis.run import RankRun, Run
    from iobench.analysis.step_sums import StepSums
    from iobench.profiles.contents import Profile
    from iobench.profiles.run_facts import RunFacts

__all__ = [
    "AdviceInput",
    "MeasuredWay",
    "advice_input",
    "advice_of",
    "measured_way",
    "measured_ways",
]

TODAY: Final = ("upstream", "climetlab")
"""Pipelines that are how an application loads now: everything is compared with them."""


@dataclass(frozen=True, slots=True)
class AdviceInput:
    """What `advise` is asked about, and what its words need.

    Parameters
    ----------
    run : str
        The run directory.
    ways : tuple of LoadingWay
        The baseline first.
    circumstances : Circumstances
    facts : RunFacts
        Of the baseline.
    ranks : int
        Training processes of the run.
    idle_fraction : float or None
        Share of the time in which the devices had nothing to do for want of input.
    n_loaders : int
        Of the rank that waits longest.
    n_folded : int
        Batches of that rank before those it is about, of which there are sums only.
    """

    run: str
    ways: tuple[LoadingWay, ...]
    circumstances: Circumstances
    facts: RunFacts
    ranks: int = 1
    idle_fraction: float | None = None
    n_loaders: int = 1
    n_folded: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredWay:
    """A way of loading, and the circumstances of its run: of one training process.

    Parameters
    ----------
    path : Path
        Of the run directory: several training processes have one.
    way : LoadingWay
    circumstances : Circumstances
    facts : RunFacts
    position : int
        Among the ways of loading that took turns.
    ranks, n_loaders, n_folded : int
    idle_fraction : float or None
        As `AdviceInput` has them.
    """

    path: Path
    way: LoadingWay
    circumstances: Circumstances
    facts: RunFacts
    position: int
    ranks: int
    n_loaders: int
    idle_fraction: float | None
    n_folded: int = 0

    @property
    def place(self) -> tuple[bool, bool, int]:
        """Where it stands: how an application loads today, then the original files."""
        return self.way.pipeline not in TODAY, self.way.store is not None, self.position


def advice_input(run: str, measured: Iterable[MeasuredWay | None]) -> AdviceInput | None:
    """Return what advice on a run is made of; None where no batch was delivered.

    Parameters
    ----------
    run : str
        The run directory, for messages.
    measured : iterable of MeasuredWay or None
        Its ways of loading; of one run of several training processes one for each rank, of which
        the one that waits longest is taken.
    """
    by_path: dict[Path, MeasuredWay] = {}
    for each in measured:
        if each is None:
            continue
        worst = by_path.setdefault(each.path, each)
        if each.way.whole.wait_ns > worst.way.whole.wait_ns:
            by_path[each.path] = each
    ways = sorted(by_path.values(), key=lambda each: each.place)
    if not ways:
        return None
    baseline = ways[0]
    return AdviceInput(
        run=run,
        ways=tuple(each.way for each in ways),
        circumstances=baseline.circumstances,
        facts=baseline.facts,
        ranks=baseline.ranks,
        idle_fraction=baseline.idle_fraction,
        n_loaders=baseline.n_loaders,
        n_folded=baseline.n_folded,
    )


def advice_of(given: AdviceInput, *, ranks: int | None = None, epochs: int = 1) -> Advice:
    """Return the advice on a run, for its bill of so many ranks and epochs."""
    return advise(
        given.ways,
        given.circumstances,
        ranks=given.ranks if ranks is None else ranks,
        epochs=epochs,
        idle_fraction=given.idle_fraction,
        n_loaders=given.n_loaders,
    )


def measured_ways(runs: Iterable[Run]) -> Iterator[MeasuredWay | None]:
    """Yield how each training process of runs loads, one after the other."""
    for run in runs:
        for each in run:
            yield measured_way(each, recorded_runs(each))


def measured_way(found: RankRun, runs: Sequence[RecordedRun]) -> MeasuredWay | None:
    """Return how a training process loads: of several loaders, that which is waited for most.

    Parameters
    ----------
    found : RankRun
    runs : sequence of RecordedRun
        What its loaders did.
    """
    exposure, profile = found.exposure, found.whole
    if not exposure.has_consumer or not runs:
        return None
    run = max(runs, key=lambda each: each.wait_ns)
    facts = found.about
    device, wall_ns = device_exposure(profile, exposure.rank), exposure.whole.wall_ns
    parts = {part: sums for part in PARTS if (sums := step_sums(found, part)) is not None}
    way = _way(run, facts, exposure, parts)
    return MeasuredWay(
        path=profile.path,
        way=way,
        circumstances=_circumstances(profile, facts, exposure, run, has_device=device is not None),
        facts=facts,
        position=int(facts.position or 0),
        ranks=max(1, len(profile.ranks)),
        n_loaders=len(runs),
        n_folded=exposure.n_folded,
        idle_fraction=min(1.0, device.total_ns / wall_ns) if device and wall_ns else None,
    )


def _way(
    run: RecordedRun, facts: RunFacts, exposure: Exposure, sums: Mapping[Window, StepSums]
) -> LoadingWay:
    store = None
    told = facts.store
    if told is not None and told.n_samples and told.nbytes:
        store = StoreProbe(
            n_samples=told.n_samples,
            nbytes=told.nbytes,
            convert_s=told.convert_s,
            n_samples_all=told.n_samples_all or told.n_samples,
        )
    return LoadingWay(
        label=facts.label or run.name,
        format=facts.format or "",
        framework=facts.framework or "",
        pipeline=facts.pipeline,
        run=run if run.batch_size else replace(run, batch_size=facts.batch_size),
        whole=exposure.whole,
        steady=exposure.steady,
        recurring=exposure.recurring,
        sums=sums,
        store=store,
    )


def _circumstances(
    profile: Profile, facts: RunFacts, exposure: Exposure, run: RecordedRun, *, has_device: bool
) -> Circumstances:
    cpus = _number(facts.machine.get("cpus"))
    return Circumstances(
        cpus=None if cpus is None else max(1, cpus // _ranks_here(profile)),
        memory_nbytes=_number(facts.machine.get("memory_nbytes")),
        n_samples_all=(facts.store.n_samples_all if facts.store is not None else None)
        or facts.n_samples_all
        or (_samples_of_epoch(profile, exposure, run) if facts.is_script else None),
        sample_nbytes=facts.sample_nbytes or _sample_nbytes(exposure),
        files_nbytes=facts.files_nbytes,
        resident_fraction=facts.cache.resident_fraction_before,
        cold_fraction=exposure.whole.cold_fraction,
        has_device=has_device,
        is_script=facts.is_script,
        own_order=facts.own_order,
        machine=machine_of(profile),
        loop_fraction=exposure.loop_fraction,
    )


def _ranks_here(profile: Profile) -> int:
    """Return how many training processes share the machine of this one."""
    here = {process.host for process in profile.processes}
    return max(1, sum(told.role == "consumer" and told.host in here for told in profile.facts))


def _samples_of_epoch(profile: Profile, exposure: Exposure, run: RecordedRun) -> int | None:
    """Return what the loader of a script handed out in a round of its own, over all ranks.

    None where a round was cut off, or where there are several loaders.
    """
    rounds = len(run.startup_ns)
    if exposure.n_unfinished_rounds or len(exposure.loaders) > 1 or not run.shutdown_ns.all():
        return None
    if not run.batch_size or not rounds or run.is_part:
        return None
    return round(len(run) / rounds) * run.batch_size * max(1, len(profile.ranks))


def _sample_nbytes(exposure: Exposure) -> int | None:
    whole = exposure.whole
    if not whole.n_samples or not whole.nbytes:
        return None
    return whole.nbytes // whole.n_samples


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
