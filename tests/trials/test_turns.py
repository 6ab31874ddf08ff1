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
def test_every_arm_has_every_place_equally_often(n_arms: int) -> None:
    orders = [turn_order(n_arms, round) for round in range(2 * n_arms)]
    assert all(sorted(order) == list(range(n_arms)) for order in orders)
    places = Counter((place, arm) for order in orders for place, arm in enumerate(order))
    assert set(places.values()) == {2}
    assert len(places) == n_arms**2


@given(st.integers(2, 7))
def test_neighbours_come_before_each_other_equally_often(n_arms: int) -> None:
    orders = [turn_order(n_arms, round) for round in range(2 * n_arms)]
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert all(pairs[one, other] == pairs[other, one] for one, other in pairs)


def test_costs_are_told_by_arm_and_round() -> None:
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


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_is_no_time_is_refused(cost: float) -> None:
    with pytest.raises(TrialError, match=r"candidate, round 1: took .* s, expected a time"):
        interleave([lambda _: 1.0, lambda _: cost], 2, names=["base", "candidate"])


def test_a_failing_arm_ends_it_with_its_name_and_round() -> None:
    asked: list[int] = []

    def fails_in_second(round: int) -> float:
        asked.append(round)
        if round == 1:
            raise FileNotFoundError(2, "No such file", "gone.nc")
        return 1.0

    with pytest.raises(TrialError, match=r"arm 2, round 2: .*gone\.nc"):
        interleave([lambda _: 1.0, fails_in_second], 9)
    assert asked == [0, 1]


def test_an_interrupt_passes() -> None:
    ended: list[int] = []

    def interrupted(round: int) -> float:
        if round == 2:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        interleave([interrupted], 5, finished=ended.append)
    assert ended == [0, 1]


@pytest.mark.parametrize(("n_arms", "rounds"), [(0, 3), (2, 0)])
def test_nothing_to_do_is_refused(n_arms: int, rounds: int) -> None:
    with pytest.raises(OptionError, match="expected one of each at least"):
        interleave([lambda _: 1.0] * n_arms, rounds)
