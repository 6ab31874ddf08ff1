"""Arms in turns: every arm has every place, and a failure says whose it was and when."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import TrialError
from iobench.trials.configurations import interleave
from iobench.trials.interleaving import turn_order


@given(st.integers(1, 7))
def test_every_arm_has_every_place_equally_often(n_arms):
    orders = [turn_order(n_arms, round) for round in range(2 * n_arms)]
    assert all(sorted(order) == list(range(n_arms)) for order in orders)
    places = Counter((place, arm) for order in orders for place, arm in enumerate(order))
    assert set(places.values()) == {2}
    assert len(places) == n_arms**2
    next_to = Counter(pair for order in orders for pair in pairwise(order))
    assert all(next_to[b, a] == n for (a, b), n in next_to.items())


def test_costs_are_told_by_arm_and_round():
    asked: list[tuple[str, int]] = []

    def one(round: int) -> float:
        asked.append(("one", round))
        return 10.0 + round

    def other(round: int) -> float:
        asked.append(("other", round))
        return 20.0 + round

    told: list[int] = []
    costs = interleave([one, other, one], 3, names=["a", "b", "a"], finished=told.append)
    assert costs == [[10, 11, 12], [20, 21, 22], [10, 11, 12]]
    assert told == [0, 1, 2]
    assert [name for name, _ in asked[:3]] == ["one", "other", "one"]
    assert Counter(asked) == {("one", n): 2 for n in range(3)} | {("other", n): 1 for n in range(3)}


def test_a_failure_says_whose_it_was_and_when():
    def failing(round: int) -> float:
        if round == 1:
            raise FileNotFoundError(2, "No such file", "gone.nc")
        return 1.0

    with pytest.raises(TrialError, match=r"other, round 2: .*gone\.nc"):
        interleave([lambda _: 1.0, failing], 9, names=["one", "other"], finished=lambda _: None)
