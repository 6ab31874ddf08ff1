"""What ``iobench check`` and its pytest fixture do, without a command line."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from iobench.analysis.intervals import LEAST_ROUNDS, round_ratio
from iobench.analysis.run import Run
from iobench.errors import OptionError, ProfileError, TrialError
from iobench.profiles.folders import run_paths
from iobench.subjects.check.counting import counts_of
from iobench.subjects.check.counts import (
    Counts,
    compare_counts,
    expected_counts,
    read_counts,
    write_counts,
)
from iobench.subjects.check.exposed_share import exposed_share
from iobench.subjects.check.gates import (
    CountsGate,
    GrowthGate,
    PairedGate,
    ShareGate,
    can_decide,
    rounds_to_decide,
    unlike_machines,
)
from iobench.trials.command_arms import CommandArm
from iobench.trials.interleaving import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iobench.analysis.run import RankRun

__all__ = ["compare_commands", "gate_counts", "gate_growth", "gate_shares", "keep_counts"]

ONLY_RUN = "run"
"""What a run is called that is alone in its directory."""
N_ARMS = 3
WARM_UPS = 1
"""Rounds that do not count: the first one finds other caches than all that follow."""


def gate_counts(run: Path, counts: Path) -> tuple[CountsGate, ...]:
    """Hold the counts of a run, or of each of several formats, against a file.

    Raises
    ------
    ProfileError, MissingFileError, FileFormatError
        If there is no run whose counts repeat, or no file of counts.
    """
    expected, runs = read_counts(counts), _named_runs(run)
    gates = []
    for name, opened in runs:
        if name not in expected:
            raise ProfileError(
                f"{counts}: expects nothing of {name}, only of {', '.join(expected) or 'no run'}; "
                "rewrite it with --update"
            )
        gates.append(CountsGate(name, compare_counts(expected[name], counts_of(opened))))
    if left := sorted({*expected} - {name for name, _ in runs}):
        raise ProfileError(
            f"{counts}: expects {', '.join(left)} too, which {run} does not have; profile all "
            "formats, or rewrite it with --update"
        )
    return tuple(gates)


def keep_counts(run: Path, counts: Path, *, memory: bool = True) -> dict[str, Counts]:
    """Write the counts of a run to a file; what is in it already is replaced.

    Parameters
    ----------
    run, counts : Path
    memory : bool
        Whether the run's processes did nothing else, so that their memory is its own.

    Raises
    ------
    ProfileError
        If there is no run whose counts repeat, or it did not come to its end.
    StorageError
        If the file cannot be written.
    """
    found = {}
    for name, opened in _named_runs(run):
        told = counts_of(opened)
        processes = opened.profile.processes
        if any(each.role == "consumer" and not each.closed for each in processes):
            raise ProfileError(
                f"{opened.path}: a training process was killed or is still at work, so that its "
                "counts are chance; expected a run that came to its end"
            )
        found[name] = expected_counts(told, memory=memory)
    write_counts(counts, found)
    return found


def gate_shares(run: Path, limit: float) -> tuple[ShareGate, ...]:
    """Hold the exposed share of each training process of each format against a limit."""
    return tuple(
        ShareGate(_name(name, each), exposed_share(each), limit)
        for name, opened in _named_runs(run)
        for each in opened
    )


def gate_growth(
    run: Path, stored: Path, margin: float, *, any_machine: bool = False
) -> tuple[GrowthGate, ...]:
    """Hold the exposed time per sample of a run against that of one that was kept.

    Raises
    ------
    OptionError
        If they were measured on machines that are not alike, unless ``any_machine`` says so; or if
        they are of other datasets, or have other formats or training processes.
    """
    new, old = dict(_named_runs(run)), dict(_named_runs(stored))
    if new.keys() != old.keys():
        raise OptionError(
            f"{stored}: has {', '.join(old)}, but {run} has {', '.join(new)}; "
            "expected the same formats"
        )
    gates = []
    for name, opened in new.items():
        before = old[name]
        datasets = [each.about.dataset for each in (opened, before)]
        if datasets[0] != datasets[1]:
            raise OptionError(
                f"{stored}: is of {datasets[1]}, {run} of {datasets[0]}; expected one"
            )
        unlike = unlike_machines(opened.about.machine, before.about.machine)
        if unlike and not any_machine:
            raise OptionError(
                f"{stored}: was measured on another machine ({'; '.join(unlike)}); compare times "
                "of like machines, or say --any-machine"
            )
        if opened.ranks != before.ranks:
            raise OptionError(
                f"{stored}: has {len(before)} training processes, {run} {len(opened)}"
            )
        for each in opened:
            found, kept = exposed_share(each), exposed_share(before.of_rank(each.rank))
            if "whole" not in (found.window, kept.window) and found.window != kept.window:
                has, lacks = (stored, run) if kept.window == "recurring" else (run, stored)
                raise OptionError(
                    f"{has}: has whole epochs after the first, whose start-up counts, and {lacks} "
                    "has none; expected as many epochs in both"
                )
            gates.append(GrowthGate(_name(name, each), found, kept, margin))
    return tuple(gates)


def compare_commands(
    command: Sequence[str],
    reference: Sequence[str],
    *,
    rounds: int,
    margin: float,
    by_cpu: bool = False,
    ran: Callable[[int, int], None] | None = None,
    arm: Callable[..., CommandArm] = CommandArm,
) -> PairedGate:
    """Run two commands, and the second one again, in turns; stop where nothing can follow any more.

    Parameters
    ----------
    command, reference : sequence of str
    rounds : int
        That count, after one that does not.
    margin : float
    by_cpu : bool
        Compare CPU time.
    ran : callable, optional
        Called after each run of a command with how many there were, and how many there are at most.
    arm : callable
        Makes what runs a command, as `CommandArm`.

    Raises
    ------
    OptionError
        If so few rounds can never decide.
    TrialError
        If a command fails, or takes no time.
    """
    if rounds < LEAST_ROUNDS:
        raise OptionError(
            f"--rounds {rounds}: so few have no interval of 95 % and can decide nothing; give "
            f"{LEAST_ROUNDS} or more"
        )
    of_command, of_reference = arm(command, by_cpu=by_cpu), arm(reference, by_cpu=by_cpu)
    most, n_ran = N_ARMS * (rounds + WARM_UPS), 0
    ratios: list[float] = []
    again: list[float] = []

    def counted(run: Callable[[int], float]) -> Callable[[int], float]:
        def run_counted(round: int) -> float:
            nonlocal n_ran
            cost = run(round)
            n_ran += 1
            if ran is not None:
                ran(n_ran, most)
            return cost

        return run_counted

    def is_settled(round: int, costs: tuple[float, ...]) -> bool:
        if round < WARM_UPS:
            return False
        if min(costs) <= 0:
            raise TrialError("a command took no time that can be measured; expected longer ones")
        ratios.append(costs[0] / costs[1])
        again.append(costs[2] / costs[1])
        if len(ratios) < LEAST_ROUNDS:  # it has to be said what noise is, and how many would do
            return False
        return not can_decide(ratios, again, rounds=rounds, margin=margin)

    new, old, beside = (
        costs[WARM_UPS:]
        for costs in interleave(
            [counted(of_command), counted(of_reference), counted(of_reference)],
            rounds + WARM_UPS,
            names=["the command", "the reference", "the reference again"],
            finished=is_settled,
        )
    )
    return PairedGate(
        command=tuple(command),
        reference=tuple(reference),
        paired=round_ratio(old, new, beside),
        command_s=statistics.median(new),
        reference_s=statistics.median(old),
        margin=margin,
        by_cpu=by_cpu,
        planned=rounds,
        enough=rounds_to_decide(ratios, again, margin=margin),
    )


def _named_runs(run: Path) -> list[tuple[str, Run]]:
    """Return the runs in a directory: one, or one for each format by its name."""
    paths = run_paths(run)
    if paths == (run,):
        return [(ONLY_RUN, Run.open(run))]
    return [(path.name, Run.open(path)) for path in paths]


def _name(name: str, run: RankRun) -> str:
    return name if run.is_alone else f"{name}, rank {run.rank}"
