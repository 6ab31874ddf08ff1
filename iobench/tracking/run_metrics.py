"""What is told of a run to whoever keeps experiments: parameters, metrics by epoch, tags."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.diagnosis import diagnose
from iobench.analysis.epochs import epoch_figures
from iobench.masking import mask_line
from iobench.report.sentences import verdict_sentence
from iobench.report.units import seconds
from iobench.tracking.legal_names import PREFIX, cut, legal_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iobench.analysis.epochs import EpochFigures
    from iobench.analysis.exposure_figures import Exposure, PartExposure, StepStatistics
    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData
    from iobench.runs.run_facts import RunFacts

EPOCH_MARK: Final = f"{PREFIX}epoch/batches"
"""A metric that every epoch has: where it is, with the same value, all of the epoch is."""
MS_PER_S: Final = 1000
NS_PER_MS: Final = 1_000_000


class EpochMetrics(msgspec.Struct, frozen=True):
    """The metrics of one epoch.

    Parameters
    ----------
    epoch : int
        The step they are told at.
    time_ms : int
        When it ended, since 1970.
    metrics : dict
        By name; times in seconds.
    """

    epoch: int
    time_ms: int
    metrics: dict[str, float]

    @property
    def mark(self) -> float:
        """What tells whether it has grown since it was told."""
        return self.metrics[EPOCH_MARK]


class RunContents(msgspec.Struct, frozen=True):
    """What is told of one training process of a run.

    Parameters
    ----------
    name : str
        What it is called among those of the same run directory; ``""`` of the only one.
    parameters : dict
        Texts, none longer than servers take.
    cut : tuple of str
        Parameters that were too long.
    totals : dict
        Metrics of the whole run.
    start_ms, end_ms : int
        Since 1970.
    """

    name: str
    parameters: dict[str, str]
    cut: tuple[str, ...]
    epochs: tuple[EpochMetrics, ...]
    totals: dict[str, float]
    tags: dict[str, str]
    start_ms: int
    end_ms: int


def run_contents(measured: RankRun, *, name: str = "") -> RunContents:
    """Return what is told of one training process.

    Parameters
    ----------
    name : str
        What it is called among those of the same run directory; ``""`` of the only one.

    Raises
    ------
    ProfileError
        If what it waited for cannot be told.
    """
    profile, exposure = measured, measured.exposure
    epochs = measured.cached(epoch_figures)
    stages = [row.stage for row in exposure.whole.stages]
    stages += [row.stage for row in exposure.whole.compute_stages]
    names = legal_names(dict.fromkeys(stages))
    to_wall_ns = _to_wall_ns(measured)
    facts = measured.about
    parameters, too_long = _parameters(facts, exposure)
    spans = measured.spans
    return RunContents(
        name=name,
        parameters=parameters,
        cut=too_long,
        epochs=tuple(
            EpochMetrics(
                each.epoch,
                _ms(each.end_ns + to_wall_ns),
                _epoch_metrics(each, names),
            )
            for each in epochs
        ),
        totals=_totals(exposure, names),
        tags=_tags(profile, exposure, facts),
        start_ms=_ms(int(spans["start_ns"].min()) + to_wall_ns) if len(spans) else 0,
        end_ms=_ms(int(spans["end_ns"].max()) + to_wall_ns) if len(spans) else 0,
    )


def _to_wall_ns(profile: RunData) -> int:
    """Return by how much the wall clock is ahead of the clock of the spans."""
    for process in profile.processes:
        if process.anchors:
            return process.anchors[0].wall_ns - process.anchors[0].monotonic_ns
    return 0


def _ms(wall_ns: int) -> int:
    return max(wall_ns // NS_PER_MS, 0)


def _statistics(name: str, found: StepStatistics | None) -> dict[str, float | None]:
    """Return the five figures of D2.3 under a name, in seconds."""
    if found is None:
        return {}
    times = {
        "min": found.min_ns,
        "mean": found.mean_ns,
        "median": found.median_ns,
        "max": found.max_ns,
        "stdev": found.stdev_ns,
    }
    return {f"{name}/{key}": None if ns is None else ns / 1e9 for key, ns in times.items()}


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {
        f"{PREFIX}{name}": float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }


def _per_second(amount: int | None, wall_ns: int) -> float | None:
    return None if amount is None or not wall_ns else amount / seconds(wall_ns)


def _epoch_metrics(epoch: EpochFigures, names: Mapping[str, str]) -> dict[str, float]:
    part, validation = epoch.training or epoch.part, epoch.validation
    metrics: dict[str, float | None] = {
        "epoch/wall_s": seconds(part.wall_ns),
        "epoch/batches_s": seconds(epoch.batches_ns),
        "epoch/wait_s": seconds(part.wait_ns),
        "epoch/compute_s": seconds(part.compute_ns),
        "epoch/exposed_fraction": part.wait_fraction,
        "epoch/batches": part.n_batches,
        "epoch/samples": part.n_samples,
        "epoch/samples_per_s": _per_second(part.n_samples, part.wall_ns),
        "epoch/bytes_per_s": _per_second(part.nbytes, part.wall_ns),
        "epoch/validation_s": None if validation is None else seconds(validation.wall_ns),
        "epoch/validation_wait_s": None if validation is None else seconds(validation.wait_ns),
        "epoch/complete": float(epoch.complete),
        **_statistics("batch_s", epoch.batch),
        **_statistics("exposed_io_s", epoch.wait),
        **_statistics("step_s", epoch.step),
        **_statistics("step_exposed_io_s", epoch.step_wait),
        **_statistics("forward_s", epoch.forward),
        **_statistics("backward_s", epoch.backward),
    }
    for of_stages, what in (
        (epoch.busy, "busy_s"),
        (epoch.exposed, "exposed_s"),
        (epoch.computed, "compute_s"),
    ):
        for stage, found in of_stages.items():
            metrics |= _statistics(f"{names[stage]}/{what}", found)
    return _known(metrics)


def _totals(exposure: Exposure, names: Mapping[str, str]) -> dict[str, float]:
    metrics: dict[str, float | None] = {"lost_spans": exposure.lost_spans}
    if exposure.is_script:
        metrics["run/loop_fraction"] = exposure.loop_fraction
    metrics |= _window("run", exposure.whole)
    if exposure.folded is not None:
        metrics |= {
            "folded/batches": exposure.folded.n_batches,
            "folded/wait_s": seconds(exposure.folded.wait_ns),
            "folded/wall_s": seconds(exposure.folded.wall_ns),
        }
    for name in ("steady", "recurring"):
        part = exposure.part(name)
        if part is not None:
            metrics |= _window(name, part)
    for row in exposure.whole.stages:
        metrics[f"run/{names[row.stage]}/busy_s"] = seconds(row.busy_ns)
        metrics[f"run/{names[row.stage]}/exposed_s"] = seconds(row.exposed_ns)
    return _known(metrics)


def _window(name: str, window: PartExposure) -> dict[str, float | None]:
    figures = {
        "wall_s": seconds(window.wall_ns),
        "wait_s": seconds(window.wait_ns),
        "compute_s": seconds(window.compute_ns),
        "exposed_fraction": window.wait_fraction,
        "accelerator_utilisation": window.accelerator_utilisation,
        "batches": window.n_batches,
        "samples": window.n_samples,
        "samples_per_s": _per_second(window.n_samples, window.wall_ns),
        "bytes_per_s": _per_second(window.nbytes, window.wall_ns),
        "cold_fraction": window.cold_fraction,
        "overhead_fraction": window.overhead_fraction,
    }
    return {f"{name}/{key}": value for key, value in figures.items()}


def _parameters(facts: RunFacts, exposure: Exposure) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what the run was, as texts; and which of them were cut."""
    step = facts.compute
    told: dict[str, Any] = {
        "dataset": facts.dataset,
        "format": facts.layout,
        "pipeline": None if facts.is_script else facts.pipeline,
        "framework": facts.framework,
        "workers": exposure.workers,
        "threads": facts.threads,
        "batch_size": facts.batch_size,
        "batches_per_step": None if exposure.steps is None else exposure.steps.batches_per_step,
        "prefetch": exposure.prefetch,
        "n_samples": facts.n_samples,
        "sample_nbytes": facts.sample_nbytes,
        "stand_in": facts.stand_in,
        "cache": facts.cache.asked,
        "compute_forward_s": None if step.forward_ns is None else seconds(step.forward_ns),
        "compute_backward_s": None if step.backward_ns is None else seconds(step.backward_ns),
        "rank": exposure.rank,
        "world_size": facts.world_size,
        "launcher": facts.launcher or None,
        "steps": None if facts.steps is None else f"{facts.steps[0]}:{facts.steps[1]}",
        "command": facts.command,
        "name": facts.name,
        "commit": None if facts.commit is None else facts.commit.hash,
        **{f"version/{key}": value for key, value in facts.versions.items()},
        **{f"threads/{key}": value for key, value in facts.thread_settings.items()},
        **{f"machine/{key}": value for key, value in facts.machine.items()},
    }
    for each in exposure.loaders if facts.is_script else ():
        told[f"loader-{each.number}" if each.number is not None else "loader"] = (
            f"{each.framework} {each.kind} of {each.name}: {each.workers} workers, "
            f"prefetch {each.prefetch}, batch size {each.batch_size}"
        )
    parts = {key: "/".join(legal_names(key.split("/")).values()) for key in told}
    found, too_long = {}, []
    for key, value in told.items():
        if value is None or value == "":
            continue
        found[PREFIX + parts[key]], was_cut = cut(mask_line(str(value)))
        if was_cut:
            too_long.append(PREFIX + parts[key])
    return found, tuple(too_long)


def _tags(profile: RunData, exposure: Exposure, facts: RunFacts) -> dict[str, str]:
    tags = {
        "iobench.version": version("iobench"),
        "iobench.run": profile.path.name,
        "iobench.verdict": verdict_sentence(diagnose(exposure)),
        "iobench.recorded_by": facts.iobench_version,
        "iobench.missing": ", ".join(exposure.missing_workers) or None,
    }
    return {key: cut(mask_line(value))[0] for key, value in tags.items() if value}
