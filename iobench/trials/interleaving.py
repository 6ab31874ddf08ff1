"""Arms in turns: what drifts on a machine meets all of them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.errors import IobenchError, TrialError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Arm = Callable[[int], float]
    """Does its work of a round, by its number; returns what it cost, in seconds."""


def turn_order(n_arms: int, round: int) -> tuple[int, ...]:
    """Return in which order the arms take their turns in a round.

    Over ``2 * n_arms`` rounds each has each place twice, and is as often before its neighbour as
    after it.
    """
    first = round // 2 % n_arms
    order = [(first + place) % n_arms for place in range(n_arms)]
    return tuple(order if round % 2 == 0 else order[::-1])


def interleave(
    arms: Sequence[Arm],
    rounds: int,
    *,
    names: Sequence[str],
    finished: Callable[[int], None],
) -> list[list[float]]:
    """Let all arms do their work once in each round; return what each cost, by arm and round."""
    costs: list[list[float]] = [[] for _ in arms]
    for round in range(rounds):
        for index in turn_order(len(arms), round):
            try:
                costs[index].append(arms[index](round))
            except (IobenchError, OSError) as error:
                why = " ".join(str(error).split())
                raise TrialError(f"{names[index]}, round {round + 1}: {why}") from error
        finished(round)
    return costs
