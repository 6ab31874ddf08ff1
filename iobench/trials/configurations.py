"""A profile's configuration changed by what is advised, and both run in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.analysis.intervals import round_ratio
from iobench.analysis.run import exposure
from iobench.errors import TrialError
from iobench.findings.advice.commands import SETTINGS
from iobench.findings.advice.figures import TriedChange
from iobench.profiling.profile_run import profile
from iobench.runs.reading import open_profile
from iobench.staging.stage import stage
from iobench.trials.interleaving import interleave

if TYPE_CHECKING:
    from iobench.findings.advice.figures import AdvisedChange, LoadingWay
    from iobench.findings.advice.levers import Candidate
    from iobench.profiling.config import RunConfig
    from iobench.sources.request import Screen

TRIAL_S: Final = 3.0
"""Seconds of steady state that each turn takes at most."""
TRIAL_BATCHES: Final = 200


def baseline_config(config: RunConfig, baseline: LoadingWay) -> RunConfig:
    """Return the configuration that measures one way of loading alone, briefly."""
    framework = baseline.framework
    if baseline.given is not None:
        config = config.of_store(baseline.given)
    else:
        formats = (baseline.format,) if baseline.format else config.formats[:1]
        config = replace(config, stores=(), formats=formats)
    return replace(
        config,
        pipelines=(baseline.pipeline,),
        framework=framework if framework in config.frameworks else config.frameworks[0],
        batches=config.batches or TRIAL_BATCHES,
        duration_s=min(config.duration_s or TRIAL_S, TRIAL_S),
        epochs=None,
        out=None,
        darshan=("off",),
    )


def changed_config(config: RunConfig, candidate: Candidate) -> RunConfig | None:
    """Return the configuration with a change made; None where a profile cannot make it."""
    settings = candidate.settings
    if "stage" in candidate.settings:
        # A trial copies a store; of original files a profile has to be told where the copy is.
        is_store = bool(config.stores) and not config.formats
        return config if is_store else None
    if not settings or not settings.keys() <= {*SETTINGS, "store"}:
        return None
    if "store" in settings:
        config = config.of_store(str(settings["store"]))
    created: dict[str, Any] = {
        name: settings[name]
        for name in ("framework", "workers", "prefetch", "cache")
        if name in settings
    }
    if "pipeline" in settings:
        created["pipelines"] = (str(settings["pipeline"]),)
    if "format" in settings:
        created["formats"] = (str(settings["format"]),)
        if settings["format"] != "source":
            created["pipelines"] = ("own",)
    return replace(config, **created)


def try_changes(
    config: RunConfig,
    changes: Sequence[AdvisedChange],
    folder: Path,
    screen: Screen,
    *,
    rounds: int,
) -> list[TriedChange]:
    """Run the baseline, each change, and the baseline again, in turns.

    Parameters
    ----------
    config : RunConfig
        Of the baseline, as `baseline_config` returns it.
    changes : sequence of AdvisedChange
        All of which `changed_config` can make.
    folder : Path
        Where the run directories go; it is made.
    rounds : int
        Turns of each; from 6 on the interval is one of 95 %.

    Raises
    ------
    TrialError
        If a run fails, or delivers nothing.
    OptionError
        If there is no round.
    """
    with ExitStack() as created:
        configs, staging_s = [config], []
        for change in changes:
            changed, copied = changed_config(config, change.candidate), None
            if changed is None:
                raise TrialError(
                    f"{', '.join(change.candidate.settings)}: no option of iobench profile, so "
                    "that it cannot be tried here"
                )
            if "stage" in change.candidate.settings:  # copies of a trial go again with it
                own = TemporaryDirectory(
                    prefix="iobench-trial-", dir=str(change.candidate.settings["stage"])
                )
                copied = stage(config.stores[0], created.enter_context(own), notice=screen.note)
                changed = changed.of_store(str(copied.path))
            configs.append(changed)
            staging_s.append(None if copied is None else copied.seconds)
        tried = _try_in_turns(config, configs, changes, folder, screen, rounds)
    return [replace(each, staging_s=took) for each, took in zip(tried, staging_s, strict=True)]


def _try_in_turns(
    config: RunConfig,
    configs: Sequence[RunConfig],
    changes: Sequence[AdvisedChange],
    folder: Path,
    screen: Screen,
    rounds: int,
) -> list[TriedChange]:
    names = ["baseline", *(_spelled(change.candidate.settings) for change in changes)]
    arms = [
        _arm(each, folder / f"{number}", name, screen)
        for number, (each, name) in enumerate(zip(configs, names, strict=True))
    ]
    again = _arm(config, folder / "again", "baseline", screen)
    _arm(config, folder / "warm-up", "baseline", screen)(0)  # what only a first run pays for
    return changes_in_turns(arms, again, names, changes, screen, rounds)


def changes_in_turns(
    arms: Sequence[Callable[[int], float]],
    again: Callable[[int], float],
    names: Sequence[str],
    changes: Sequence[AdvisedChange],
    screen: Screen,
    rounds: int,
) -> list[TriedChange]:
    """Run the baseline, each change, and the baseline again; return what each change saved."""
    costs = interleave(
        [*arms, again],
        rounds,
        names=[*names, "baseline again"],
        finished=lambda round: screen.note(f"round {round + 1} of {rounds} of the trial"),
    )
    first, last = costs[0], costs[-1]
    return [
        TriedChange.of(change, round_ratio(first, cost, last))
        for change, cost in zip(changes, costs[1:-1], strict=True)
    ]


def _spelled(settings: Mapping[str, str | int]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())


class _QuietScreen:
    """Notes of the same profile in every round would hide those of the trial."""

    def __init__(self, screen: Screen) -> None:
        self.progress = screen.progress

    def note(self, text: str) -> None:
        """Say nothing."""


def _arm(config: RunConfig, folder: Path, name: str, screen: Screen) -> Callable[[int], float]:
    quiet = _QuietScreen(screen)

    def run(round: int) -> float:
        return time_of_sample(profile(replace(config, out=folder / f"{round}"), quiet), name)

    return run


def time_of_sample(run: Path, name: str) -> float:
    """Return the seconds that a sample took in the part of a run that is judged.

    Raises
    ------
    TrialError
        If it delivered none.
    """
    window = exposure(open_profile(run)).judged
    if not window.n_samples or not window.wall_ns:
        raise TrialError(f"{run}: {name} delivered no samples to time")
    return window.wall_ns / window.n_samples / 1e9
