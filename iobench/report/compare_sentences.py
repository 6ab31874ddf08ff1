"""What a comparison's figures are worth, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.analysis.intervals import BLOCKS
from iobench.analysis.step_sums import FEWEST_TURNS
from iobench.report import units
from iobench.report.comparable import OTHER_BATCH, OTHER_STEP
from iobench.report.compare_figures import BETWEEN, TURNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.report.compare_figures import PairComparison
    from iobench.report.compared_runs import Comparison

__all__ = ["CAUTIONS", "NO_DIFFERENCE", "pair_lines", "run_lines"]

NO_DIFFERENCE: Final = "no difference that these runs can show"
APART: Final = "These runs were made one after the other"
FEW_TURNS: Final = "These runs took turns, but too few"
MACHINE: Final = "Other machine"
WITHHELD: Final = "Withheld"
MEMORY: Final = "Steps"
MIND: Final = "Mind"
CAUTIONS: Final = (APART, FEW_TURNS, MACHINE, MEMORY, MIND, WITHHELD)
"""How lines begin that caution."""
REASONS: Final = {
    OTHER_BATCH: "batches have other sizes, so that a step is another amount of work",
    OTHER_STEP: (
        "the emulated compute of a sample takes another time, from which waits, rates and all that "
        "is exposed follow"
    ),
}
AT_LEAST: Final = BLOCKS[-1][0]
FEW_RUNS: Final = 4


def pair_lines(found: Comparison, pair: PairComparison, a: str, b: str) -> list[str]:
    """Return what a run's ratios to the first are of, and what they do not say."""
    lines = [_basis(pair, a, b)]
    judged = [each for each in pair.figures if each.interval.low is not None]
    if judged:
        lines.append(
            f"differs: no means {NO_DIFFERENCE}, since the interval holds 1. At 95 % one interval "
            "in 20 misses, so that of many rows one may differ by chance."
        )
    for name, needed in zip((a, b), pair.forgetful_from, strict=True):
        if needed is not None:
            lines.append(
                f"{MEMORY} of {name} depend on each other for long: its intervals are rather too "
                f"short, until it has {units.count(needed)} steps or more."
            )
    same = _all_the_same(pair)
    if same:
        lines.append(same)
    if pair.other_machine:
        lines.append(_machine(pair, b))
    if any(each.withheld for each in pair.figures):
        whys = dict.fromkeys(REASONS[each.withheld] for each in pair.figures if each.withheld)
        lines.append(f"{WITHHELD}: {'; '.join(whys)}. --anyway shows them all the same.")
    elif pair.withheld:
        lines.append(f"{MIND} that {'; '.join(REASONS[each] for each in pair.withheld)}.")
    return lines


def _basis(pair: PairComparison, a: str, b: str) -> str:
    n_a, n_b = pair.n_cells
    if pair.basis == TURNS:
        used, there = pair.n_turns
        rest = f" of {there}" if there > used else ""
        return (
            f"{a} and {b} took turns in one job: ratios are of {used}{rest} turns, paired, so that "
            "what the machine did to both alike is not in them."
        )
    if pair.basis == BETWEEN:
        few = " So few of them make wide intervals." if min(n_a, n_b) < FEW_RUNS else ""
        return (
            f"Intervals are of what differs between runs of one configuration: {units.count(n_a)} "
            f"of {a}, {units.count(n_b)} of {b}.{few}"
        )
    if pair.n_turns[1]:
        what = (
            f"{FEW_TURNS} ({units.count(pair.n_turns[1])}): paired, which leaves out what the "
            f"machine did to both, are {units.count(FEWEST_TURNS)} turns or more with a steady "
            "step in each. Run more batches."
        )
    else:
        what = _apart()
    if min(n_a, n_b) == 1:
        short = " and ".join(name for name, n in ((a, n_a), (b, n_b)) if n == 1)
        what += f" {short} is too short for one: expected {AT_LEAST} steps or more."
    return what


def _apart() -> str:
    return (
        f"{APART}: an interval holds what varies within a run, not what differs between runs, "
        "days or machines, often more than a change gains. What takes turns tells: "
        "iobench profile --format a,b, or iobench check -- COMMAND --against -- COMMAND."
    )


def _all_the_same(pair: PairComparison) -> str:
    """Return the sentence where nothing of the whole loop differs; else nothing."""
    loop = [each for each in pair.figures if not each.stage and each.interval.value is not None]
    if loop and all(each.interval.differs is False for each in loop):
        return f"Of the whole loop there is {NO_DIFFERENCE}."
    return ""


def _machine(pair: PairComparison, b: str) -> str:
    if pair.other_machine == ("host",):
        return f"{MACHINE}: {b} ran on another host of the same make."
    named = ", ".join(name.removesuffix("_nbytes") for name in pair.other_machine)
    return f"{MACHINE}: {b} ran elsewhere ({named}), the ratios are of machine and run together."


def run_lines(found: Comparison, names: Sequence[str]) -> list[str]:
    """Return what is to be known of single runs."""
    lines = []
    for name, run in zip(names, found.runs, strict=True):
        for member in run.members:
            who = f"{name} ({member.name})" if len(run.members) > 1 else name
            if member.unclosed:
                many = units.count(len(member.unclosed))
                lines.append(
                    f"{who}: {many} of its processes were killed or are still at work; what they "
                    "had written is compared."
                )
            missing = [each for one in member.exposures for each in one.missing_workers]
            if missing:
                lines.append(
                    f"{who}: {units.count(len(missing))} of its processes left no spans; what was "
                    "waited for is partly unknown."
                )
    if found.grouped:
        lines.append("Whether samples are the same is told of single runs only: leave --group out.")
    return lines
