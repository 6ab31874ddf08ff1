"""Arms in turns: what drifts on a machine meets all of them alike."""

from __future__ import annotations


def turn_order(n_arms: int, round: int) -> tuple[int, ...]:
    """Return in which order the arms take their turns in a round.

    Over ``2 * n_arms`` rounds each has each place twice, and is as often before its neighbour as
    after it.
    """
    first = round // 2 % n_arms
    order = [(first + place) % n_arms for place in range(n_arms)]
    return tuple(order if round % 2 == 0 else order[::-1])
