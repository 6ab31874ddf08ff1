"""Arms in turns: what drifts on a machine meets all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from iobench.analysis.intervals import LEAST_ROUNDS, round_ratio
from iobench.errors import IobenchError, TrialError
from iobench.findings.advice.proposals import Settings, TriedChange

if TYPE_CHECKING:
    from iobench.sources.request import Screen

Arm = Callable[[int], float]
"""Works in a round of that number, and returns the seconds that a sample, or a step, took."""


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
    """Let all arms work once in each round; return what each cost in seconds, by arm and round."""
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


def try_in_turns(
    arms: Sequence[Arm],
    changes: Sequence[tuple[str, Settings, float | None]],
    rounds: int,
    screen: Screen,
) -> list[TriedChange]:
    """Return what changes save: title, settings and seconds of staging of each.

    The arms are the baseline, those of the changes, and the baseline again: it tells the noise, and
    works only where there are rounds enough to do so.
    """
    names = ["baseline", *(title for title, *_ in changes), "baseline again"]
    if rounds < LEAST_ROUNDS:
        arms, names = arms[:-1], names[:-1]
    costs = interleave(
        arms,
        rounds,
        names=names,
        finished=lambda round: screen.note(f"round {round + 1} of {rounds} of the trial"),
    )
    again = costs[0] if rounds < LEAST_ROUNDS else costs[-1]
    ratios = [round_ratio(costs[0], cost, again) for cost in costs[1 : len(changes) + 1]]
    return [
        TriedChange(
            title=title,
            settings=settings,
            rounds=rounds,
            saved_fraction=_saved(ratio.change.value) or 0.0,
            low_fraction=_saved(ratio.change.high),
            high_fraction=_saved(ratio.change.low),
            band_low_fraction=_saved(ratio.again.high),
            band_high_fraction=_saved(ratio.again.low),
            is_noise=ratio.is_noise,
            staging_s=staging_s,
        )
        for (title, settings, staging_s), ratio in zip(changes, ratios, strict=True)
    ]


def _saved(quotient: float | None) -> float | None:
    return None if quotient is None else 1 - quotient
