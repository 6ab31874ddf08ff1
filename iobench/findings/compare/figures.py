"""Runs set side by side: their figures, the ratios with intervals, and what else was different."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from iobench.analysis.intervals import Blocks, Interval, block_ratio, paired_ratio
from iobench.analysis.step_sums import (
    BUSY,
    EXPOSED,
    FEWEST_TURNS,
    StepSums,
    of_turns,
    pair_rounds,
)
from iobench.errors import OptionError
from iobench.findings.compare.comparable import (
    OTHER_BATCH,
    OTHER_STEP,
    other_machine,
    refuse,
    withheld,
)
from iobench.findings.compare.compared_run import OF_MACHINE, MeasuredRun, measure_run, total_of
from iobench.findings.compare.samples_compared import compare_samples
from iobench.json_files import read_json
from iobench.json_keys import HIDDEN, INLINE, figure
from iobench.json_keys import key as named
from iobench.runs.folders import run_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iobench.analysis.exposure_figures import Window
    from iobench.findings.compare.samples_compared import SamplesComparison


COMPARISON_VERSION: Final = 2
MOST: Final = 8
"""Runs, or groups of them, that fit beside each other."""
MOST_GROUPED: Final = 64
NOT_CONFIGURED: Final = {*OF_MACHINE, "seed"}
"""What runs of one configuration may differ in: where they were made, and in which order."""


TURNS, WITHIN, BETWEEN = "turns", "stretches", "runs"
"""What intervals are of: turns of one job, stretches of each run, runs of one configuration."""
MEMORIES: Final = 2.0
"""A stretch shorter than so many times what steps remember makes intervals too short."""
PER_STEP, PER_BATCH, PER_SAMPLE = "steps", "batches", "samples"
NS_PER_S: Final = 1e9


class ComparedFigure(msgspec.Struct, frozen=True):
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
    JSON_KEYS: ClassVar = {
        "key": named("figure"),
        "interval": INLINE,
    }


class PairComparison(msgspec.Struct, frozen=True):
    """A run, or a group of them, against the first.

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

    run: str
    figures: tuple[ComparedFigure, ...]
    basis: str
    n_cells: tuple[int, int]
    n_turns: tuple[int, int]
    forgetful_from: tuple[int | None, int | None]
    other_machine: tuple[str, ...]
    withheld: tuple[str, ...]
    JSON_KEYS: ClassVar = {
        "withheld": HIDDEN,
    }


class ComparedRun(msgspec.Struct, frozen=True):
    """One run of a comparison, or several of one configuration.

    Parameters
    ----------
    members : tuple of MeasuredRun
        At least one.
    """

    members: tuple[MeasuredRun, ...]

    @property
    def name(self) -> str:
        """What was given: its directory, or those of all."""
        return ", ".join(member.name for member in self.members)

    @property
    def first(self) -> MeasuredRun:
        """The one whose configuration stands for all."""
        return self.members[0]

    @property
    def facts(self) -> dict[str, Any]:
        """What may explain a difference, by name; a list of what several runs do not share."""
        told = [member.told for member in self.members]
        found = {}
        for name in dict.fromkeys(name for each in told for name in each):
            values = [each.get(name) for each in told]
            alike = all(value == values[0] for value in values)
            found[name] = values[0] if alike else values
        return found


class Comparison(msgspec.Struct, frozen=True):
    """Runs, and each of them against the first.

    Parameters
    ----------
    runs : tuple of ComparedRun
        Two or more.
    pairs : tuple of PairComparison
        One for each run but the first.
    samples : tuple of SamplesComparison
        The same; empty for groups of runs.
    waved : tuple of str
        Why they would not have been compared, had nobody insisted.
    window : str
        What part of the runs figures are of, as `Exposure` knows it: the first that all have.
    """

    runs: tuple[ComparedRun, ...]
    pairs: tuple[PairComparison, ...]
    samples: tuple[SamplesComparison, ...]
    waved: tuple[str, ...]
    window: Window
    grouped: bool
    JSON_KEYS: ClassVar = {
        "runs": HIDDEN,
        "pairs": named("comparisons"),
    }

    @figure
    def schema_version(self) -> int:
        """Of the JSON of a comparison."""
        return COMPARISON_VERSION

    @figure
    def interleaved(self) -> bool:
        """Whether all runs took turns with the first."""
        return all(pair.basis == TURNS for pair in self.pairs)

    @figure
    def steady(self) -> bool:
        """Whether figures are of the steady state."""
        return self.window == "steady"

    @figure.named("runs")
    def members(self) -> tuple[MeasuredRun, ...]:
        """Every run; of groups each of theirs, with the number of its ``group`` from 0."""
        return tuple(
            replace(member, group=number if self.grouped else None)
            for number, run in enumerate(self.runs)
            for member in run.members
        )

    @figure
    def differences(self) -> dict[str, tuple[Any, ...]]:
        """What is not the same in all runs, by name, with the value of each; None if untold."""
        facts = [run.facts for run in self.runs]
        names = dict.fromkeys(name for each in facts for name in each)
        found = {name: tuple(each.get(name) for each in facts) for name in names}
        return {
            name: values
            for name, values in found.items()
            if any(value != values[0] for value in values)
            or (self.grouped and any(isinstance(value, list) for value in values))
        }


def compare_runs(paths: Sequence[Path], *, anyway: bool = False, group: bool = False) -> Comparison:
    """Read runs, and set them side by side.

    Parameters
    ----------
    paths : sequence of Path
        Run directories, or folders of runs made in turns.
    anyway : bool
        Compare also what is refused otherwise, and show the figures withheld.
    group : bool
        Take runs of one configuration together: intervals are then of what differs between runs.

    Raises
    ------
    OptionError
        If there are too few or too many runs.
    ProfileError
        If one cannot be analysed, or comparing them would say nothing.
    """
    found = [each for path in paths for each in _ordered(run_paths(path))]
    most = MOST_GROUPED if group else MOST
    if not 2 <= len(found) <= most:
        raise OptionError(
            f"iobench compare: expected 2 to {most} runs, got {len(found)}; --quarterly makes one "
            "table of any number"
        )
    measured = [measure_run(path) for path in found]
    waved = refuse(measured, anyway=anyway)
    runs = _grouped(measured) if group else [ComparedRun((each,)) for each in measured]
    members = [member for run in runs for member in run.members]
    parts: tuple[Window, ...] = ("recurring", "steady", "whole")
    window = next(each for each in parts if all(run.sums[each] is not None for run in members))
    first, *others = runs
    return Comparison(
        runs=tuple(runs),
        pairs=tuple(
            _compare_pair(first.members, other.members, window=window, anyway=anyway)
            for other in others
        ),
        samples=()
        if group
        else tuple(compare_samples(first.first.seen, other.first.seen) for other in others),
        waved=waved,
        window=window,
        grouped=group,
    )


def _ordered(paths: tuple[Path, ...]) -> list[Path]:
    """Return the runs of a folder in the order they were asked for."""
    if len(paths) == 1:
        return list(paths)

    def position(path: Path) -> int:
        try:
            value = read_json(path / "run.json", finite=True).get("position", 0)
        except (OSError, ValueError, AttributeError):
            return 0  # whoever opens it says what is wrong
        return value if isinstance(value, int) else 0

    return sorted(paths, key=position)


def _grouped(runs: Sequence[MeasuredRun]) -> list[ComparedRun]:
    groups: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        told = {name: value for name, value in run.told.items() if name not in NOT_CONFIGURED}
        groups.setdefault(json.dumps(told, sort_keys=True, default=str), []).append(run)
    few = next((members[0] for members in groups.values() if len(members) < 2), None)
    if few is not None:
        raise OptionError(
            f"--group: {few.name} is the only run of its configuration{_unlike(few, runs)}; "
            "expected two or more of each. Leave --group out, or name more runs"
        )
    if not 2 <= len(groups) <= MOST:
        raise OptionError(
            f"--group: these runs have {len(groups)} configuration(s), expected 2 to {MOST}"
        )
    return [ComparedRun(tuple(members)) for members in groups.values()]


def _unlike(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> str:
    """Return in what a run differs from the one of another configuration that is most like it."""
    told = [
        [
            f"{name} {run.told.get(name, 'unknown')}, not {other.told.get(name, 'unknown')}"
            for name in dict.fromkeys((*run.told, *other.told))
            if name not in NOT_CONFIGURED and run.told.get(name) != other.told.get(name)
        ]
        for other in runs
        if other is not run
    ]
    least = min(told, key=len)
    return f" ({'; '.join(least)})"


class _Asked(msgspec.Struct, frozen=True):
    """How a figure follows from sums, and what it depends on."""

    key: str
    name: str
    unit: str
    amount: str
    weight: str
    stage: str = ""
    factor: float = 1.0
    of_loop: bool = True

    def value(self, sums: StepSums) -> float | None:
        """Return the figure of a run; None where it is unknown."""
        blocks = sums.blocks(self.amount, self.weight)
        found = None if blocks is None else blocks.value
        return None if found is None else found * self.factor


def _compare_pair(
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
        there = min(len(each.rounds["batches"]) for each in (a_all, b_all))
        n_turns = 0, there if there > 1 else 0
        if len(turns) >= FEWEST_TURNS:
            basis = TURNS
            n_turns = len(turns), there
            a, b = (of_turns(each, turns) for each in (a_all, b_all))
    figures = []
    for asked in _asked(a_all, b_all, reasons, by_step=_same_steps(*first, *other)):
        why = "" if anyway else _why(asked, reasons)
        blocks = [each.blocks(asked.amount, asked.weight) for each in (a, b)]
        interval = Interval(None)
        if not why and blocks[0] is not None and blocks[1] is not None:
            interval = _interval(blocks[0], blocks[1], basis)
        values = asked.value(a), asked.value(b)
        figures.append(
            ComparedFigure(asked.key, asked.name, asked.unit, asked.stage, values, interval, why)
        )
    return PairComparison(
        run=", ".join(each.name for each in other),
        figures=tuple(figures),
        basis=basis,
        n_cells=(len(a.stretches["batches"]), len(b.stretches["batches"])),
        n_turns=n_turns,
        forgetful_from=(_forgetful_from(first, a, basis), _forgetful_from(other, b, basis)),
        other_machine=tuple(
            dict.fromkeys(name for x in first for y in other for name in other_machine(x, y))
        ),
        withheld=reasons,
    )


def _forgetful_from(runs: Sequence[MeasuredRun], sums: StepSums, basis: str) -> int | None:
    n_cells = len(sums.stretches["batches"])
    if basis != WITHIN or n_cells == 1:
        return None
    needed = ceil(MEMORIES * sums.memory * n_cells)
    return needed if sums.n_batches / len(runs[0].exposures) < needed else None


def _interval(a: Blocks, b: Blocks, basis: str) -> Interval:
    if basis == TURNS:
        return paired_ratio(a, b)
    return block_ratio(a, b, in_order=basis == WITHIN)


def _sums(runs: Sequence[MeasuredRun], window: Window) -> StepSums:
    found = [sums for run in runs if (sums := run.sums[window]) is not None]
    return found[0] if len(runs) == 1 else total_of(found)


def _same_steps(*runs: MeasuredRun) -> bool:
    """Tell whether steps of the optimiser are known to take as many batches in all runs."""
    found = {run.batches_per_step for run in runs}
    return len(found) == 1 and None not in found


def _asked(
    a: StepSums, b: StepSums, reasons: tuple[str, ...], *, by_step: bool
) -> Iterator[_Asked]:
    samples = all("samples" in each.stretches for each in (a, b))
    of_loop, one = (PER_STEP, "step") if by_step else (PER_BATCH, "batch")
    if samples and OTHER_BATCH in reasons:
        of_loop, one = PER_SAMPLE, "sample"
    else:
        yield _Asked("step_ns", f"time per {one}", "ns", "wall", of_loop)
    if samples:
        yield _Asked("sample_ns", "time per sample", "ns", "wall", "samples")
    yield _Asked("compute_ns", f"compute per {one}", "ns", "compute", of_loop)
    yield _Asked("wait_ns", f"wait per {one}", "ns", "wait", of_loop)
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
            PER_SAMPLE if samples else PER_BATCH, stage, of_loop=False,
        )  # fmt: skip
    several = by_step and a.total("steps") != a.total("batches")
    if of_loop == PER_STEP and not several:
        one = "batch"
    for stage in stages:
        name = f"{stage}, exposed per {one}"
        yield _Asked(f"{EXPOSED}{stage}", name, "ns", f"{EXPOSED}{stage}", of_loop, stage)


def _exposed(sums: StepSums, stage: str) -> float:
    batches = sums.total("batches") or 1.0
    return (sums.total(f"{EXPOSED}{stage}") or 0.0) / batches


def _why(asked: _Asked, reasons: tuple[str, ...]) -> str:
    if OTHER_BATCH in reasons and asked.weight in (PER_STEP, PER_BATCH):
        return OTHER_BATCH
    return OTHER_STEP if OTHER_STEP in reasons and asked.of_loop else ""
