"""Runs as comparisons need them: their steps summed, rank by rank, and no span kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.epochs import epoch_figures, epoch_times
from iobench.analysis.job_figures import job_of_ranks
from iobench.analysis.run import Run
from iobench.analysis.step_sums import EXPOSED, StepSums, add_sums, step_sums
from iobench.findings.batch_digests import delivered_samples
from iobench.findings.metrics.figures import last_figures
from iobench.findings.utilisation.figures import mean_utilisation, utilisation
from iobench.json_keys import HIDDEN, figure, key
from iobench.recording.this_process import THREAD_VARIABLES, VERSIONED
from iobench.report.script_lines import SHORT_HASH
from iobench.report.units import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iobench.analysis.epochs import EpochTime
    from iobench.analysis.exposure_figures import Exposure, PartExposure, Window
    from iobench.analysis.job_figures import JobTime
    from iobench.findings.batch_digests import DeliveredSamples
    from iobench.findings.utilisation.figures import Utilisation
    from iobench.runs.run_facts import RunFacts

FACTS: Final = (
    "dataset", "format", "spelled", "pipeline", "framework", "workers", "threads", "prefetch",
    "batch_size", "sample_nbytes", "n_samples", "stand_in", "tiny", "seed", "window", "windows",
    "split", "options", "detail", "digests", "darshan", "iobench_version",
)  # fmt: skip
"""What of a configuration can make figures differ, by its name in ``run.json``."""
OF_MACHINE: Final = ("host", "system", "python", "cpus", "cpu_model", "memory_nbytes")


class PartFigures(msgspec.Struct, frozen=True):
    """A part of a run, for JSON; what is unknown is None.

    Parameters
    ----------
    batches : int
        Of all ranks.
    wall_s : float
        Of a rank, on average.
    wait_fraction, wait_per_step_s, wait_per_batch_s : float or None
        The wait as a share of the time, of a step of the optimiser, and of a batch.
    exposed_fraction : mapping of str to float
        Of the time, by stage.
    """

    batches: int
    wall_s: float
    wait_fraction: float | None
    wait_per_step_s: float | None
    wait_per_batch_s: float | None
    samples_per_s: float | None
    bytes_per_s: float | None
    exposed_fraction: Mapping[str, float]


class MeasuredRun(msgspec.Struct, frozen=True):
    """One run, all of its training processes together.

    Parameters
    ----------
    name : str
        Its directory, as given.
    exposures : tuple of Exposure
        By rank, without the wait of each step; at least one.
    utilisation : Utilisation or None
        By the formula of MLPerf Storage, the mean of its ranks; None where nothing was delivered.
    sums : mapping of str to StepSums or None
        By part of the run, as `Exposure.part` has them: of all ranks, with ``loop``, the wall time
        of one of them on average, beside the sums that `StepSums` has. None unless all ranks have
        such a part with a batch.
    unclosed, damaged : tuple of str
        Processes that were killed or are still running, and those with spans that cannot be read.
    group : int or None
        Which of several configurations it is of, where runs of one are taken together.
    epochs : tuple of EpochTime
        What each epoch of its first training process took; none of one of many.
    figures : mapping of str to float or None
        Energy, and a script's own figures in the last epoch, as `last_figures` has them.
    """

    name: str
    config: Mapping[str, Any]
    facts: RunFacts
    exposures: tuple[Exposure, ...]
    utilisation: Utilisation | None
    sums: Mapping[Window, StepSums | None]
    seen: DeliveredSamples
    unclosed: tuple[str, ...]
    damaged: tuple[str, ...]
    group: int | None = None
    epochs: tuple[EpochTime, ...] = ()
    figures: Mapping[str, float | None] = msgspec.field(default_factory=dict)
    JSON_KEYS: ClassVar = {
        "name": key("run"),
        "config": HIDDEN,
        "facts": HIDDEN,
        "exposures": HIDDEN,
        "utilisation": key("mlperf_utilisation"),
        "sums": HIDDEN,
        "seen": HIDDEN,
        "unclosed": HIDDEN,
        "damaged": HIDDEN,
    }

    @figure
    def job(self) -> JobTime | None:
        """Where the time of a script's job went; None of others."""
        known = [each.job for each in self.exposures if each.job is not None]
        return job_of_ranks(known) if known else None

    @figure
    def ranks(self) -> int:
        """Training processes."""
        return len(self.exposures)

    @figure
    def recurring(self) -> PartFigures | None:
        """A script's whole epochs after the first; None without."""
        return _part_figures(self.sums["recurring"])

    @figure
    def steady(self) -> PartFigures | None:
        """The steady state; None of a run too short for one."""
        return _part_figures(self.sums["steady"])

    @figure
    def whole(self) -> PartFigures | None:
        """All that was kept of the run."""
        return _part_figures(self.sums["whole"])

    def parts(self, window: Window) -> tuple[PartExposure, ...]:
        """Return a part of the run of those ranks that have it."""
        found = (each.part(window) for each in self.exposures)
        return tuple(part for part in found if part is not None)

    @figure.named("folded_batches")
    def n_folded(self) -> int:
        """Batches before all others, of which there are sums only."""
        return sum(each.n_folded for each in self.exposures)

    @property
    def lost_spans(self) -> int:
        """Spans that were not written, or cannot be read."""
        return sum(each.lost_spans for each in self.exposures)

    @property
    def batches_per_step(self) -> int | None:
        """Batches of a step of the optimiser; None where its ranks do not report the same."""
        told = {each.steps.batches_per_step if each.steps else None for each in self.exposures}
        return told.pop() if len(told) == 1 else None

    @property
    def told(self) -> dict[str, Any]:
        """What may explain a difference, by name; what it does not report is missing."""
        config, exposure = self.config, self.exposures[0]
        machine = self.facts.machine
        found = {name: config[name] for name in FACTS if config.get(name) not in (None, {}, [])}
        found |= {"workers": exposure.workers, "prefetch": exposure.prefetch}
        for name in ("dataset", "framework", "batch_size"):
            if getattr(self.facts, name) is not None:
                found[name] = getattr(self.facts, name)
        if self.batches_per_step is not None:
            found["batches_per_step"] = self.batches_per_step
        if self.facts.compute.step_ns is not None:
            found["step_ns"] = self.facts.compute.step_ns
        if self.facts.device is not None:
            title = self.facts.device.title
            found["device"] = (
                f"{self.facts.device.name} ({title})" if title else self.facts.device.name
            )
        if self.facts.cache.asked is not None:
            found["cache"] = self.facts.cache.asked
        if self.facts.is_script and config.get("command"):
            found["script"] = config["command"]
        found |= self._environment()
        found["ranks"] = len(self.exposures)
        found["folded_batches"] = self.n_folded
        return found | {name: machine[name] for name in OF_MACHINE if machine.get(name) is not None}

    def _environment(self) -> dict[str, str]:
        """Return commit, versions and settings of threads; nothing that was not looked for."""
        commit, found = self.facts.commit, {}
        if commit is not None and commit.hash is not None:
            found["commit"] = commit.hash[:SHORT_HASH]
        if versions := self.facts.versions:
            found |= {name: versions.get(name, "not imported") for name in VERSIONED}
        if settings := self.facts.thread_settings:
            found |= {name: settings.get(name, "not set") for name in THREAD_VARIABLES}
        return found


def measure_run(path: Path, name: str | None = None) -> MeasuredRun:
    """Read a run directory and analyse it, one training process after another.

    Raises
    ------
    ProfileError
        If it cannot be read or analysed.
    """
    run = Run(path)
    n_cells: dict[Window, int] = {}
    parts: dict[Window, list[StepSums | None]] = {"recurring": [], "steady": [], "whole": []}
    exposures: list[Exposure] = []
    used = []
    epochs: tuple[EpochTime, ...] = ()
    unclosed: list[str] = []
    damaged: list[str] = []
    for measured in run:
        for window, sums in parts.items():
            part = step_sums(measured, window, n_cells.get(window))
            if part is not None:
                n_cells.setdefault(window, len(part.stretches["batches"]))
            sums.append(part)
        if not exposures and not measured.is_one_of_many:
            epochs = epoch_times(measured.cached(epoch_figures))
        exposures.append(measured.exposure.without_waits())
        used.append(utilisation(measured))
        unclosed += [each.name for each in measured.all_processes if not each.closed]
        damaged += [each.name for each in measured.all_processes if each.damaged]
    facts = run.about
    if facts.is_script:
        facts = facts.with_loaders(exposures[0].loaders)
    return MeasuredRun(
        name=str(path) if name is None else name,
        config=run.config,
        facts=facts,
        exposures=tuple(exposures),
        utilisation=mean_utilisation(used),
        sums={window: _joined(each) for window, each in parts.items()},
        seen=delivered_samples(run),
        unclosed=tuple(unclosed),
        damaged=tuple(damaged),
        epochs=epochs,
        figures=last_figures(run),
    )


def _joined(parts: list[StepSums | None]) -> StepSums | None:
    """Return the sums of all ranks; None unless all have steps."""
    known = [part for part in parts if part is not None]
    if not known or len(known) != len(parts):
        return None
    added = add_sums(known)
    return replace(
        added,
        stretches=dict(added.stretches) | {"loop": added.stretches["wall"] / len(known)},
        rounds=dict(added.rounds) | {"loop": added.rounds["wall"]} if added.rounds else {},
    )


def total_of(runs: list[StepSums]) -> StepSums:
    """Return sums in which each run is one cell: what then varies is what differs between runs.

    A sum that one of them does not know is not known.
    """
    names = dict.fromkeys(name for run in runs for name in run.stretches)
    cells = {
        name: np.array([run.total(name) or 0.0 for run in runs])
        for name in names
        if ":" in name or all(name in run.stretches for run in runs)
    }
    return StepSums(cells, {}, None)


def _part_figures(sums: StepSums | None) -> PartFigures | None:
    if sums is None:
        return None
    batches, wall, wait, loop = (
        sums.total(name) or 0.0 for name in ("batches", "wall", "wait", "loop")
    )
    steps = sums.total("steps")

    def per_s(name: str) -> float | None:
        amount = sums.total(name)
        return None if amount is None or not loop else amount * 1e9 / loop

    return PartFigures(
        batches=int(batches),
        wall_s=seconds(int(loop)),
        wait_fraction=wait / wall if wall else None,
        wait_per_step_s=wait / steps / 1e9 if steps else None,
        wait_per_batch_s=wait / batches / 1e9 if batches else None,
        samples_per_s=per_s("samples"),
        bytes_per_s=per_s("nbytes"),
        exposed_fraction={
            stage: share / wall
            for stage in sums.stages
            if wall and (share := sums.total(f"{EXPOSED}{stage}"))
        },
    )
