"""The figures of a comparison, each as one value for a run: what text and JSON both show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.analysis import PartExposure
    from iobench.report.compared_runs import ComparedRun

__all__ = [
    "bytes_per_s",
    "n_batches",
    "samples_per_s",
    "stage_fractions",
    "wait_fraction",
    "wait_per_step_ns",
    "wall_ns",
]


def wall_ns(run: ComparedRun, *, steady: bool) -> int:
    """Return the longest of the ranks' walls."""
    return max((window.wall_ns for window in run.windows(steady=steady)), default=0)


def n_batches(run: ComparedRun, *, steady: bool) -> int:
    """Return the batches of all ranks."""
    return sum(window.n_batches for window in run.windows(steady=steady))


def wait_fraction(run: ComparedRun, *, steady: bool) -> float | None:
    """Return the exposed share of the time of all ranks; None without time or batches."""
    windows = run.windows(steady=steady)
    all_ns = sum(window.wall_ns for window in windows)
    if not all_ns or not n_batches(run, steady=steady):
        return None
    return sum(window.wait_ns for window in windows) / all_ns


def samples_per_s(run: ComparedRun, *, steady: bool) -> float | None:
    """Return the samples of all ranks over the longest wall; None where they are unknown."""
    return _per_s(run, [window.n_samples for window in run.windows(steady=steady)], steady=steady)


def bytes_per_s(run: ComparedRun, *, steady: bool) -> float | None:
    """Return the bytes of all ranks over the longest wall; None where they are unknown."""
    return _per_s(run, [window.nbytes for window in run.windows(steady=steady)], steady=steady)


def wait_per_step_ns(run: ComparedRun, *, steady: bool) -> int | None:
    """Return the mean wait of a step; None without one."""
    windows = run.windows(steady=steady)
    waits = [(window.wait.mean_ns, window.wait.n_steps) for window in windows if window.wait]
    n_steps = sum(n for _, n in waits)
    return sum(mean * n for mean, n in waits) // n_steps if n_steps else None


def stage_fractions(run: ComparedRun, *, steady: bool) -> dict[str, float]:
    """Return what share of the time of all ranks was waited for each stage."""
    windows: tuple[PartExposure, ...] = run.windows(steady=steady)
    all_ns = sum(window.wall_ns for window in windows)
    found: dict[str, int] = {}
    for window in windows:
        for stage, exposed_ns in window.exposed_ns.items():
            found[stage] = found.get(stage, 0) + exposed_ns
    return {stage: ns / all_ns for stage, ns in found.items() if ns} if all_ns else {}


def _per_s(run: ComparedRun, amounts: list[int | None], *, steady: bool) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    all_ns = wall_ns(run, steady=steady)
    if len(known) != len(amounts) or not known or not all_ns:
        return None
    return sum(known) * 1_000_000_000 / all_ns
