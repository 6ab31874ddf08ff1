"""A profile's configuration changed by what is advised, and both run in turns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from iobench.analysis.run import exposure
from iobench.errors import TrialError
from iobench.findings.advice.loading import SETTINGS
from iobench.profiling.config import RunConfig
from iobench.profiling.profile_run import profile
from iobench.runs.reading import open_profile
from iobench.staging.stage import stage
from iobench.trials.interleaving import try_in_turns

if TYPE_CHECKING:
    from iobench.findings.advice.loading import Loading
    from iobench.findings.advice.proposals import AdvisedChange, Settings, TriedChange
    from iobench.sources.request import Screen
    from iobench.trials.interleaving import Arm

TRIAL_S: Final = 3.0
"""Seconds that each turn of the baseline takes."""
TRIAL_BATCHES: Final = 200
LEAST_BATCHES: Final = 12


def baseline_config(config: RunConfig, baseline: Loading) -> RunConfig:
    """Return the configuration that measures a baseline alone, briefly."""
    part = baseline.judged  # all arms load equally many: of a slow one more would be ready at first
    batches = max(LEAST_BATCHES, round(TRIAL_S * 1e9 * part.n_batches / part.wall_ns))
    if baseline.named_store is not None:
        config = config.of_store(baseline.named_store)
    else:
        formats = (baseline.format,) if baseline.format else config.formats[:1]
        config = replace(config, stores=(), formats=formats)
    framework = baseline.framework
    return replace(
        config,
        pipelines=(baseline.pipeline,),
        framework=framework if framework in config.frameworks else config.frameworks[0],
        batches=min(batches, config.batches or TRIAL_BATCHES),
        duration_s=None,
        epochs=None,
        out=None,
        darshan=("off",),
    )


def changed_config(config: RunConfig, settings: Settings) -> RunConfig | None:
    """Return the configuration with a change made; None where a profile cannot make it."""
    if "stage" in settings:
        # A trial copies a store; of original files a profile has to be told where the copy is.
        return config if config.stores and not config.formats else None
    if not settings or not settings.keys() <= {*SETTINGS, "store"}:
        return None
    if "format" in settings and not config.targets:  # nothing to make samples of
        return None
    if "store" in settings:
        config = config.of_store(str(settings["store"]))
    changed: dict[str, Any] = {
        name: value for name, value in settings.items() if name in RunConfig.__struct_fields__
    }
    if "pipeline" in settings:
        changed["pipelines"] = (str(settings["pipeline"]),)
    if "format" in settings:
        changed["formats"] = (str(settings["format"]),)
        if settings["format"] != "source":
            changed["pipelines"] = ("own",)
    return replace(config, **changed)


def try_changes(
    config: RunConfig,
    changes: Sequence[AdvisedChange],
    folder: Path,
    screen: Screen,
    *,
    rounds: int,
) -> list[TriedChange]:
    """Run the baseline, each change that `changed_config` can make, and the baseline again."""
    # Notes of the same profile in every round would hide those of the trial.
    quiet: Any = SimpleNamespace(progress=screen.progress, note=lambda text: None)
    tried: list[tuple[str, Settings, float | None]] = []
    arms = [_arm(config, folder / "baseline", "baseline", quiet)]
    with ExitStack() as copies:  # those of a trial go with it
        for number, change in enumerate(changes, 1):
            changed, seconds = changed_config(config, change.settings), None
            if changed is None:
                raise TrialError(
                    f"{', '.join(change.settings)}: no option of iobench profile, so that it "
                    "cannot be tried here"
                )
            if "stage" in change.settings:
                place = str(change.settings["stage"])
                own = copies.enter_context(TemporaryDirectory(prefix="iobench-trial-", dir=place))
                copied = stage(config.stores[0], own, notice=screen.note)
                changed, seconds = changed.of_store(str(copied.path)), copied.seconds
            arms.append(_arm(changed, folder / f"{number}", change.title, quiet))
            tried.append((change.title, change.settings, seconds))
        arms.append(_arm(config, folder / "again", "baseline", quiet))
        _arm(config, folder / "warm-up", "baseline", quiet)(0)  # what only a first run pays for
        return try_in_turns(arms, tried, rounds, screen)


def _arm(config: RunConfig, folder: Path, name: str, quiet: Screen) -> Arm:
    """Return what profiles once more and returns the seconds that a sample took."""

    def run(round: int) -> float:
        path = profile(replace(config, out=folder / f"{round}"), quiet)
        part = exposure(open_profile(path)).judged
        if not part.n_samples or not part.wall_ns:
            raise TrialError(f"{path}: {name} delivered no samples to time")
        return part.wall_ns / part.n_samples / 1e9

    return run
