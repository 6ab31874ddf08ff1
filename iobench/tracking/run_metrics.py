"""What is logged of a training process: parameters, metrics by epoch and of the whole, tags."""

from __future__ import annotations

import hashlib
import math
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iobench.analysis.diagnosis import diagnosis_of
from iobench.analysis.epochs import epoch_figures
from iobench.masking import mask_line
from iobench.report.sentences import verdict_sentence
from iobench.report.units import seconds
from iobench.runs.run_facts import PUBLISHED_FIGURES

if TYPE_CHECKING:
    from iobench.analysis.epochs import EpochFigures
    from iobench.analysis.exposure_figures import Exposure, PartExposure, StepStatistics
    from iobench.analysis.run import RankRun

PREFIX: Final = "iobench/"
"""Before every name: a training run that is joined has parameters and metrics of its own."""
LONGEST_NAME: Final = 200
"""MLflow takes 250 characters; the rest is for what is put behind."""
LONGEST_VALUE: Final = 500
"""Of a parameter. MLflow takes 6000 today, servers that are still in use 500."""
LONGEST_TAG: Final = 5000  # as all servers take: of the verdict, all sentences
ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_.-]+")
Metrics = dict[str, float | None]


class EpochMetrics(msgspec.Struct, frozen=True):
    """The metrics of one epoch by name, in seconds, and when it ended (ms since 1970)."""

    epoch: int
    time_ms: int
    metrics: dict[str, float]


class RunContents(msgspec.Struct, frozen=True):
    """What is logged of one training process; times are ms since 1970."""

    key: str  # the same whenever it is logged
    title: str
    name: str  # "" of the only process
    parameters: dict[str, str]
    epochs: tuple[EpochMetrics, ...]
    totals: dict[str, float]
    tags: dict[str, str]
    start_ms: int
    end_ms: int

    @property
    def full_name(self) -> str:
        """What people call it."""
        return f"{self.title} {self.name}".strip()


def run_contents(run: RankRun, title: str = "", name: str = "") -> RunContents:
    """Return what is logged of one training process."""
    spans = run.spans
    first = next((each for each in run.processes if each.anchors), None)
    anchor = None if first is None else first.anchors[0]
    # By how much the wall clock is ahead of the clock of the spans.
    ahead_ns = 0 if anchor is None else anchor.wall_ns - anchor.monotonic_ns

    def wall_ms(ns: int) -> int:
        return max(int(ns + ahead_ns) // 1_000_000, 0)

    tags = {
        "iobench.version": version("iobench"),
        "iobench.run": run.path.name,
        "iobench.verdict": verdict_sentence(diagnosis_of(run)),
    }
    identity = (first and first.boot_id, first and first.pid, anchor and anchor.wall_ns, name)
    return RunContents(
        key=hashlib.sha256(repr(identity).encode()).hexdigest()[:32],
        title=title,
        name=name,
        parameters=_parameters(run),
        epochs=tuple(
            EpochMetrics(each.epoch, wall_ms(each.end_ns), _epoch_metrics(each))
            for each in run.cached(epoch_figures)
        ),
        totals=_totals(run.exposure),
        tags={key: mask_line(value)[:LONGEST_TAG] for key, value in tags.items()},
        start_ms=wall_ms(spans["start_ns"].min()) if len(spans) else 0,
        end_ms=wall_ms(spans["end_ns"].max()) if len(spans) else 0,
    )


def legal_name(text: str) -> str:
    """Return a part of a name that all servers take: of a stage, kind and label with a dot."""
    return ILLEGAL.sub("_", text.replace(":", ".", 1)).strip(".")[:LONGEST_NAME] or "_"


def _known(metrics: Metrics) -> dict[str, float]:
    return {
        f"{PREFIX}{name}": float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }


def _statistics(name: str, times: StepStatistics | None) -> Metrics:
    """Return the five figures of D2.3 under a name, in seconds."""
    if times is None:
        return {}
    figures = {each: getattr(times, f"{each}_ns") for each in PUBLISHED_FIGURES}
    return {f"{name}/{each}": None if ns is None else ns / 1e9 for each, ns in figures.items()}


def _part(name: str, part: PartExposure) -> Metrics:
    """Return the figures of an epoch, or of another part of a run."""
    return {
        f"{name}/wall_s": seconds(part.wall_ns),
        f"{name}/wait_s": seconds(part.wait_ns),
        f"{name}/compute_s": seconds(part.compute_ns),
        f"{name}/exposed_fraction": part.wait_fraction,
        f"{name}/batches": part.n_batches,
        f"{name}/samples": part.n_samples,
        f"{name}/samples_per_s": part.samples_per_s,
        f"{name}/bytes_per_s": part.bytes_per_s,
    }


def _epoch_metrics(epoch: EpochFigures) -> dict[str, float]:
    validation = epoch.validation
    metrics: Metrics = {
        **_part("epoch", epoch.training or epoch.part),
        "epoch/validation_s": None if validation is None else seconds(validation.wall_ns),
        "epoch/validation_wait_s": None if validation is None else seconds(validation.wait_ns),
        "epoch/complete": float(epoch.complete),
    }
    times = {
        "batch_s": epoch.batch, "exposed_io_s": epoch.wait,
        "forward_s": epoch.forward, "backward_s": epoch.backward,
        **{f"{legal_name(stage)}/busy_s": each for stage, each in epoch.busy.items()},
        **{f"{legal_name(stage)}/exposed_s": each for stage, each in epoch.exposed.items()},
    }  # fmt: skip
    for name, each in times.items():
        metrics |= _statistics(name, each)
    return _known(metrics)


def _totals(exposure: Exposure) -> dict[str, float]:
    metrics: Metrics = {"lost_spans": exposure.lost_spans}
    for name, part in (("run", exposure.whole), ("steady", exposure.steady)):
        if part is not None:
            metrics |= _part(name, part)
            metrics[f"{name}/accelerator_utilisation"] = part.accelerator_utilisation
    for row in exposure.whole.stages:
        metrics[f"run/{legal_name(row.stage)}/busy_s"] = seconds(row.busy_ns)
        metrics[f"run/{legal_name(row.stage)}/exposed_s"] = seconds(row.exposed_ns)
    return _known(metrics)


def _parameters(run: RankRun) -> dict[str, str]:
    """Return what the run was, as texts."""
    facts, exposure = run.about, run.exposure
    values: dict[str, Any] = {
        "dataset": facts.dataset,
        "framework": facts.framework,
        "threads": facts.threads,
        "batch_size": facts.batch_size,
        "n_samples": facts.n_samples,
        "stand_in": facts.stand_in,
        "world_size": facts.world_size,
        "command": facts.command,
        "name": facts.name,
        "format": facts.layout,
        "pipeline": None if facts.is_script else facts.pipeline,
        "workers": exposure.workers,
        "prefetch": exposure.prefetch,
        "cache": facts.cache.state,
        "rank": exposure.rank,
        "commit": None if facts.commit is None else facts.commit.hash,
        **{f"version/{key}": value for key, value in facts.versions.items()},
        **{f"threads/{key}": value for key, value in facts.thread_settings.items()},
        **{f"machine/{key}": value for key, value in facts.machine.items()},
    }
    return {
        PREFIX + "/".join(map(legal_name, key.split("/"))): mask_line(str(value))[:LONGEST_VALUE]
        for key, value in values.items()
        if value is not None and value != ""
    }
