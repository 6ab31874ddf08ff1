"""Arms in turns: every arm has every place, and a failure says whose it was and when."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import OptionError, TrialError
from iobench.trials.interleaving import interleave, turn_order


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
    costs = interleave([one, other, one], 3, finished=told.append)
    assert costs == [[10, 11, 12], [20, 21, 22], [10, 11, 12]]
    assert told == [0, 1, 2]
    assert [name for name, _ in asked[:3]] == ["one", "other", "one"]
    assert Counter(asked) == {("one", n): 2 for n in range(3)} | {("other", n): 1 for n in range(3)}


def _failing(round: int) -> float:
    if round == 1:
        raise FileNotFoundError(2, "No such file", "gone.nc")
    return 1.0


@pytest.mark.parametrize(
    ("arms", "rounds", "error", "text"),
    [
        (
            [lambda _: 1.0, lambda _: -1.0],
            2,
            TrialError,
            "round 1: took -1.0 s, expected a time",
        ),
        ([lambda _: 1.0, lambda _: float("nan")], 2, TrialError, "round 1: took nan s"),
        ([lambda _: 1.0, _failing], 9, TrialError, r"arm 2, round 2: .*gone\.nc"),
        ([], 3, OptionError, "expected one of each at least"),
        ([lambda _: 1.0] * 2, 0, OptionError, "expected one of each at least"),
    ],
)
def test_what_is_no_trial_is_refused(arms, rounds, error, text):
    with pytest.raises(error, match=text):
        interleave(arms, rounds)
