"""From a run directory to what advice needs: ways of loading, the machine, the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from iobench.analysis import measure_rank
from iobench.analysis.advice import Circumstances, LoadingWay, StoreProbe
from iobench.analysis.device import device_exposure
from iobench.analysis.replay import RecordedRun, recorded_runs
from iobench.analysis.replay.demands import machine_of
from iobench.analysis.step_sums import step_sums
from iobench.report.facts import RunFacts

if TYPE_CHECKING:
    from iobench.analysis import Exposure
    from iobench.analysis.step_sums import StepSums
    from iobench.profiles import Profile

__all__ = ["AdviceInput", "advice_input"]

TODAY: Final = ("upstream", "climetlab")
"""Pipelines that are how an application loads now: everything is compared with them."""


@dataclass(frozen=True, slots=True)
class AdviceInput:
    """What `iobench.analysis.advice.advise` is asked about, and what its words need.

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
    """

    run: str
    ways: tuple[LoadingWay, ...]
    circumstances: Circumstances
    facts: RunFacts
    ranks: int = 1
    idle_fraction: float | None = None
    n_loaders: int = 1


@dataclass(frozen=True, slots=True)
class _Measured:
    """One run directory, of the rank that waits longest."""

    profile: Profile
    facts: RunFacts
    exposure: Exposure
    way: LoadingWay
    n_loaders: int


def advice_input(run: str, profiles: Sequence[Profile]) -> AdviceInput | None:
    """Return what advice on a run is made of; None where no batch was delivered.

    Parameters
    ----------
    run : str
        The run directory, for messages.
    profiles : sequence of Profile
        Its ways of loading; of one run of several training processes one for each rank.
    """
    by_path: dict[str, _Measured] = {}
    for profile in profiles:  # of many ranks one after the other, and only the worst is kept
        each = _measured(profile)
        if each is None:
            continue
        path = str(profile.path)
        worst = by_path.get(path)
        if worst is None or each.exposure.whole.wait_ns > worst.exposure.whole.wait_ns:
            by_path[path] = each
    if not by_path:
        return None
    measured = sorted(by_path.values(), key=_place)
    baseline = measured[0]
    device = device_exposure(baseline.profile, baseline.exposure.rank)
    idle = None
    if device is not None and baseline.exposure.whole.wall_ns:
        idle = min(1.0, device.total_ns / baseline.exposure.whole.wall_ns)
    return AdviceInput(
        run=run,
        ways=tuple(each.way for each in measured),
        circumstances=_circumstances(baseline, has_device=device is not None),
        facts=baseline.facts,
        ranks=max(1, len(baseline.profile.ranks)),
        idle_fraction=idle,
        n_loaders=baseline.n_loaders,
    )


def _place(measured: _Measured) -> tuple[bool, bool, int]:
    """Return where a way stands: how an application loads today, then the original files."""
    position = measured.profile.config.get("position", 0)
    return (
        measured.way.pipeline not in TODAY,
        measured.way.store is not None,
        position if isinstance(position, int) else 0,
    )


def _measured(profile: Profile) -> _Measured | None:
    rank = profile.rank if len(profile.ranks) > 1 else None
    found = measure_rank(profile, rank=rank)
    exposure = found.exposure
    if not exposure.has_consumer:
        return None
    runs = recorded_runs(profile, rank=rank)
    if not runs:
        return None
    run = max(runs, key=lambda each: each.wait_ns)
    facts = RunFacts.from_config(profile.config)
    if facts.is_script:
        facts = facts.with_loaders(exposure.loaders)
    sums = step_sums(found, steady=exposure.steady is not None)
    return _Measured(profile, facts, exposure, _way(run, facts, exposure, sums), len(runs))


def _way(
    run: RecordedRun, facts: RunFacts, exposure: Exposure, sums: StepSums | None
) -> LoadingWay:
    store = None
    if facts.store_n_samples and facts.store_nbytes:
        store = StoreProbe(
            n_samples=facts.store_n_samples,
            nbytes=facts.store_nbytes,
            convert_s=facts.convert_s,
            n_samples_all=facts.n_samples_all or facts.store_n_samples,
        )
    return LoadingWay(
        label=facts.label or run.name,
        format=facts.format or "",
        framework=facts.framework or "",
        pipeline=facts.pipeline,
        run=run if run.batch_size else replace(run, batch_size=facts.batch_size),
        whole=exposure.whole,
        steady=exposure.steady,
        sums=sums,
        store=store,
    )


def _circumstances(baseline: _Measured, *, has_device: bool) -> Circumstances:
    facts, config = baseline.facts, baseline.profile.config
    cpus = _number(facts.machine.get("cpus"))
    memory = facts.machine.get("memory_nbytes")
    return Circumstances(
        cpus=None if cpus is None else max(1, cpus // _ranks_here(baseline.profile)),
        memory_nbytes=_number(memory),
        n_samples_all=facts.n_samples_all
        or _number(config.get("n_samples_all"))
        or (_samples_of_epoch(baseline) if facts.is_script else None),
        sample_nbytes=facts.sample_nbytes or _sample_nbytes(baseline.exposure),
        files_nbytes=_number(config.get("files_nbytes")),
        resident_fraction=facts.resident_fraction_before,
        cold_fraction=baseline.exposure.whole.cold_fraction,
        has_device=has_device,
        is_script=facts.is_script,
        own_order=config.get("own_order") is True,
        machine=machine_of(baseline.profile),
    )


def _ranks_here(profile: Profile) -> int:
    """Return how many training processes share the machine of this one."""
    here = {process.host for process in profile.processes}
    return max(1, sum(told.role == "consumer" and told.host in here for told in profile.facts))


def _samples_of_epoch(measured: _Measured) -> int | None:
    """Return what the loader of a script handed out in a round of its own, over all ranks.

    None where a round was cut off, or where there are several loaders.
    """
    exposure, run = measured.exposure, measured.way.run
    rounds = len(run.startup_ns)
    if exposure.n_unfinished_rounds or len(exposure.loaders) > 1 or not run.shutdown_ns.all():
        return None
    if not run.batch_size or not rounds:
        return None
    return round(len(run) / rounds) * run.batch_size * max(1, len(measured.profile.ranks))


def _sample_nbytes(exposure: Exposure) -> int | None:
    whole = exposure.whole
    if not whole.n_samples or not whole.nbytes:
        return None
    return whole.nbytes // whole.n_samples


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
