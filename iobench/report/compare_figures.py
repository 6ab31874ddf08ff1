"""The figures of a comparison and their ratios: what text, plots and JSON all show."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.intervals import Blocks, Interval, block_ratio, paired_ratio
from iobench.analysis.step_sums import (
    BUSY,
    EXPOSED,
    FEWEST_TURNS,
    StepSums,
    of_turns,
    pair_rounds,
)
from iobench.report.comparable import OTHER_BATCH, OTHER_STEP, other_machine, withheld
from iobench.report.measured_runs import MeasuredRun, total_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.figures import Window

__all__ = [
    "BETWEEN",
    "TURNS",
    "WITHIN",
    "ComparedFigure",
    "PairComparison",
    "compare_pair",
]

TURNS, WITHIN, BETWEEN = "turns", "stretches", "runs"
"""What intervals are of: turns of one job, stretches of each run, runs of one configuration."""
MEMORIES: Final = 2.0
"""A stretch shorter than so many times what steps remember makes intervals too short."""
PER_STEP, PER_SAMPLE = "steps", "samples"
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of two runs.

    Parameters
    ----------
    key : str
        ``step_ns``, ``busy:read``, ...: unique in a comparison.
    name : str
        What people read.
    unit : str
        ``"ns"``, ``"per_s"``, ``"bytes_per_s"`` or ``"fraction"``.
    stage : str
        ``""`` where it is of the whole loop.
    values : tuple of float or None
        Of the first run, and of the other.
    interval : Interval
        Of the second to the first.
    withheld : str
        Why they cannot be compared, and are not; ``""`` where they can.
    """

    key: str
    name: str
    unit: str
    stage: str
    values: tuple[float | None, float | None]
    interval: Interval
    withheld: str = ""


@dataclass(frozen=True, slots=True)
class PairComparison:
    """A run against the first.

    Parameters
    ----------
    figures : tuple of ComparedFigure
        Those of the whole loop, then busy time by stage, then exposed time by stage.
    basis : str
        `TURNS`, `WITHIN` or `BETWEEN`.
    n_cells : tuple of int
        Turns (or groups of them), stretches or runs, of the first and of the other; 1 of a run
        too short to be cut.
    n_turns : tuple of int
        Turns that are paired, and those that the rounds of the shorter run would make; of runs
        that took too few of them, 0 and how many they took.
    forgetful_from : tuple of int or None
        Of stretches, for each run: how many steps it takes until stretches have forgotten each
        other, where it is shorter than that; else None.
    other_machine : tuple of str
        What of the machines differs.
    withheld : tuple of str
        Why some figures are not shown.
    """

    figures: tuple[ComparedFigure, ...]
    basis: str
    n_cells: tuple[int, int]
    n_turns: tuple[int, int]
    forgetful_from: tuple[int | None, int | None]
    other_machine: tuple[str, ...]
    withheld: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a figure follows from sums, and what it depends on."""

    key: str
    name: str
    unit: str
    amount: str
    weight: str
    stage: str = ""
    factor: float = 1.0
    of_loop: bool = True


def compare_pair(
    first: Sequence[MeasuredRun], other: Sequence[MeasuredRun], *, window: Window, anyway: bool
) -> PairComparison:
    """Return the figures of two runs, or of two groups of them, and their ratios.

    Runs whose rounds took turns are paired turn by turn, and figures that are not per sample, or
    follow from another emulated step, are withheld unless that is waved aside.
    """
    reasons = withheld(first[0], other[0])
    a_all, b_all = _sums(first, window), _sums(other, window)
    a, b, basis, n_turns = a_all, b_all, WITHIN, (0, 0)
    if len(first) > 1 or len(other) > 1:
        basis = BETWEEN
    elif (turns := pair_rounds(a_all, b_all)) is not None:
        there = min(len(each.rounds["steps"]) for each in (a_all, b_all))
        n_turns = 0, there if there > 1 else 0
        if len(turns) >= FEWEST_TURNS:
            basis = TURNS
            n_turns = len(turns), there
            a, b = (of_turns(each, turns) for each in (a_all, b_all))
    figures = []
    for asked in _asked(a_all, b_all, reasons):
        why = "" if anyway else _why(asked, reasons)
        cells = [_cells(each, asked) for each in (a, b)]
        values = [_value(each, asked) for each in (a, b)]
        interval = Interval(None)
        if not why and cells[0] is not None and cells[1] is not None:
            interval = _interval(cells[0], cells[1], basis)
        figures.append(
            ComparedFigure(
                asked.key,
                asked.name,
                asked.unit,
                asked.stage,
                (values[0], values[1]),
                interval,
                why,
            )
        )
    return PairComparison(
        figures=tuple(figures),
        basis=basis,
        n_cells=(len(a.stretches["steps"]), len(b.stretches["steps"])),
        n_turns=n_turns,
        forgetful_from=(_forgetful_from(first, a, basis), _forgetful_from(other, b, basis)),
        other_machine=tuple(
            dict.fromkeys(name for x in first for y in other for name in other_machine(x, y))
        ),
        withheld=reasons,
    )


def _forgetful_from(runs: Sequence[MeasuredRun], sums: StepSums, basis: str) -> int | None:
    n_cells = len(sums.stretches["steps"])
    if basis != WITHIN or n_cells == 1:
        return None
    needed = ceil(MEMORIES * sums.memory * n_cells)
    return needed if sums.n_steps / len(runs[0].exposures) < needed else None


def _interval(a: Blocks, b: Blocks, basis: str) -> Interval:
    if basis == TURNS:
        return paired_ratio(a, b)
    return block_ratio(a, b, in_order=basis == WITHIN)


def _sums(runs: Sequence[MeasuredRun], window: Window) -> StepSums:
    found = [sums for run in runs if (sums := run.sums[window]) is not None]
    return found[0] if len(runs) == 1 else total_of(found)


def _asked(a: StepSums, b: StepSums, reasons: tuple[str, ...]) -> Iterator[_Asked]:
    samples = all("samples" in each.stretches for each in (a, b))
    per = PER_SAMPLE if samples and OTHER_BATCH in reasons else PER_STEP
    one = "sample" if per == PER_SAMPLE else "step"
    if per == PER_STEP:
        yield _Asked("step_ns", "time of a step", "ns", "wall", "steps")
    if samples:
        yield _Asked("sample_ns", "time per sample", "ns", "wall", "samples")
    yield _Asked("compute_ns", f"compute of a {one}", "ns", "compute", per)
    yield _Asked("wait_ns", f"wait of a {one}", "ns", "wait", per)
    if samples:
        rate = _Asked("samples_per_s", "samples/s", "per_s", "samples", "loop", factor=NS_PER_S)
        yield rate
    if all("nbytes" in each.stretches for each in (a, b)):
        yield _Asked("bytes_per_s", "loaded", "bytes_per_s", "nbytes", "loop", factor=NS_PER_S)
    yield _Asked("wait_fraction", "exposed share", "fraction", "wait", "wall")
    stages = sorted(
        {*a.stages, *b.stages},
        key=lambda stage: (-max(_exposed(each, stage) for each in (a, b)), stage),
    )
    each_one = "sample" if samples else "batch"
    for stage in stages:
        yield _Asked(
            f"{BUSY}{stage}", f"{stage}, busy per {each_one}", "ns", f"{BUSY}{stage}",
            PER_SAMPLE if samples else PER_STEP, stage, of_loop=False,
        )  # fmt: skip
    of_one = "sample" if per == PER_SAMPLE else "batch"
    for stage in stages:
        name = f"{stage}, exposed per {of_one}"
        yield _Asked(f"{EXPOSED}{stage}", name, "ns", f"{EXPOSED}{stage}", per, stage)


def _exposed(sums: StepSums, stage: str) -> float:
    steps = sums.total("steps") or 1.0
    return (sums.total(f"{EXPOSED}{stage}") or 0.0) / steps


def _why(asked: _Asked, reasons: tuple[str, ...]) -> str:
    if OTHER_BATCH in reasons and asked.weight == PER_STEP:
        return OTHER_BATCH
    return OTHER_STEP if OTHER_STEP in reasons and asked.of_loop else ""


def _cells(sums: StepSums, asked: _Asked) -> Blocks | None:
    weights = sums.stretches.get(asked.weight)
    if weights is None:
        return None
    return Blocks(sums.stretches.get(asked.amount, np.zeros(len(weights))), weights)


def _value(sums: StepSums, asked: _Asked) -> float | None:
    """Return the figure; a stage that a run does not have took no time."""
    cells = _cells(sums, asked)
    found = None if cells is None else cells.value
    return None if found is None else found * asked.factor
