"""Two commands in turns, the second one twice: what ``iobench check`` runs, and stops in time."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from iobench.analysis.intervals import LEAST_ROUNDS, round_ratio
from iobench.errors import OptionError, TrialError
from iobench.subjects.check.gates import PairedGate, can_decide, rounds_to_decide
from iobench.trials.command_arms import CommandArm
from iobench.trials.interleaving import interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

N_ARMS = 3
WARM_UPS = 1
"""Rounds that do not count: the first one finds other caches than all that follow."""


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
    rounds : int
        That count, after one that does not.
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
