"""Splitting a wait in proportion, in whole nanoseconds."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.ledger import apportion

weights = st.lists(st.integers(0, 10**13), min_size=1, max_size=8)


def test_the_largest_remainders_are_rounded_up():
    assert apportion(10, [6, 5, 6]) == [4, 3, 3]
    assert apportion(2, [1, 5, 4]) == [0, 1, 1]
    assert apportion(0, [0, 0]) == [0, 0]


@given(weights, st.data())
def test_parts_add_up_stay_within_a_nanosecond_and_below_their_weight(weights, data):
    amount = data.draw(st.integers(0, sum(weights)))
    parts = apportion(amount, weights)
    assert sum(parts) == amount
    for part, weight in zip(parts, weights, strict=True):
        assert 0 <= part <= weight
        assert abs(part - Fraction(amount * weight, max(sum(weights), 1))) < 1
