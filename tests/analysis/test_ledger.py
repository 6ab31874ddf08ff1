"""Sums of the ledger over any groups of deliveries, and splitting a wait in proportion."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedules import epochs, pool

from iobench.analysis.ledger import TABLES, apportion
from iobench.analysis.run import Run

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


stages = st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=1, max_size=6)


@given(st.lists(stages, min_size=1, max_size=3), st.integers(0, 2), st.integers(0, 60), st.data())
def test_sums_over_groups_are_those_of_their_deliveries(rounds, workers, step_ns, data):
    made = [pool(each, workers=workers, step_ns=step_ns) for each in rounds]
    run = Run(epochs(made).data()).of_rank()
    n = len(run.deliveries)
    group = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=n, max_size=n)))
    for table in TABLES:
        rows = getattr(run.ledger, table)
        found = run.ledger.sum(group, table, 5)
        assert found.shape == (5, len(run.ledger.stages))
        for number in range(5):
            assert (found[number] == rows[:-1][group == number].sum(axis=0)).all()
            assert (found[number] == run.ledger.sum(group == number, table)).all()
    waits = np.bincount(run.deliveries.of_epoch, run.deliveries.wait_ns)
    assert (run.ledger.sum(run.deliveries.of_epoch, "exposed_ns").sum(axis=1) == waits).all()
