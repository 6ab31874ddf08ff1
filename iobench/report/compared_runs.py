"""Runs set side by side: figures of each, what was different about them, and whose samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from iobench.analysis import compare_samples, mean_utilisation
from iobench.errors import OptionError
from iobench.profiles import open_profile, open_profiles, run_paths
from iobench.report.run_report import make_reports

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iobench.analysis import PartExposure, SamplesComparison, Utilisation
    from iobench.report.run_report import RunReport

__all__ = ["ComparedRun", "Comparison", "compare_runs"]

FACTS: Final = (
    "dataset", "format", "pipeline", "framework", "workers", "threads", "prefetch", "batch_size",
    "seed", "window", "split", "detail", "darshan", "iobench_version",
)  # fmt: skip
"""What of a configuration can make figures differ, by its name in ``run.json``."""
OF_MACHINE: Final = ("host", "system", "python", "cpus", "memory_nbytes")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a comparison, all of its training processes together.

    Parameters
    ----------
    name : str
        Its directory, as given.
    reports : tuple of RunReport
        By rank; at least one.
    utilisation : Utilisation or None
        By the formula of MLPerf Storage, the mean of its ranks; None where nothing was delivered.
    """

    name: str
    reports: tuple[RunReport, ...]
    utilisation: Utilisation | None

    def windows(self, *, steady: bool) -> tuple[PartExposure, ...]:
        """Return the steady states of its ranks (those that have one), or all of their runs."""
        if not steady:
            return tuple(report.exposure.whole for report in self.reports)
        found = (report.exposure.steady for report in self.reports)
        return tuple(window for window in found if window is not None)

    @property
    def has_steady(self) -> bool:
        """Whether all ranks reached a steady state."""
        return len(self.windows(steady=True)) == len(self.reports)

    @property
    def facts(self) -> dict[str, Any]:
        """What may explain a difference, by name; what it does not tell is missing."""
        config = self.reports[0].config
        machine = config.get("machine") or {}
        exposure = self.reports[0].exposure
        found = {name: config[name] for name in FACTS if config.get(name) is not None}
        found |= {"workers": exposure.workers, "prefetch": exposure.prefetch}
        if self.reports[0].facts.batch_size is not None:
            found["batch_size"] = self.reports[0].facts.batch_size
        compute = config.get("compute")
        if isinstance(compute, dict):
            found["step_ns"] = (compute.get("forward_ns") or 0) + (compute.get("backward_ns") or 0)
        found["ranks"] = len(self.reports)
        return found | {name: machine[name] for name in OF_MACHINE if machine.get(name) is not None}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs, and the samples of each against those of the first.

    Parameters
    ----------
    runs : tuple of ComparedRun
        Two or more.
    samples : tuple of SamplesComparison
        One for each run but the first.
    """

    runs: tuple[ComparedRun, ...]
    samples: tuple[SamplesComparison, ...]

    @property
    def steady(self) -> bool:
        """Whether figures can be of steady states: all runs have one."""
        return all(run.has_steady for run in self.runs)

    @property
    def differences(self) -> dict[str, tuple[Any, ...]]:
        """What is not the same in all runs, by name, with the value of each; None if untold."""
        facts = [run.facts for run in self.runs]
        names = dict.fromkeys(name for each in facts for name in each)
        found = {name: tuple(each.get(name) for each in facts) for name in names}
        return {
            name: values
            for name, values in found.items()
            if any(value != values[0] for value in values)
        }


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Read runs, and set them side by side.

    Parameters
    ----------
    paths : sequence of Path
        Run directories, two or more.

    Raises
    ------
    OptionError
        If one holds several runs, as of formats that took turns.
    ProfileError
        If one cannot be analysed.
    """
    for path in paths:
        held = run_paths(path)
        if len(held) > 1:
            names = ", ".join(str(each) for each in held)
            raise OptionError(f"{path}: holds several runs; name two of {names}")
    runs = tuple(_run(path) for path in paths)
    profiles = [open_profile(run_paths(path)[0]) for path in paths]
    first, *others = profiles
    return Comparison(runs, tuple(compare_samples(first, other) for other in others))


def _run(path: Path) -> ComparedRun:
    reports = make_reports(open_profiles(run_paths(path)[0]))
    found = [report.utilisation for report in reports if report.utilisation is not None]
    return ComparedRun(str(path), reports, mean_utilisation(found) if found else None)
