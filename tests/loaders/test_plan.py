"""Plans: every sample once an epoch, handed out round by round."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import OptionError
from iobench.loaders.ring.order import BatchPlan, plan_batches


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 5), st.booleans())
def test_each_epoch_visits_every_sample_once(n_samples, batch_size, seed, shuffle):
    batches = plan_batches(n_samples, batch_size, seed=seed, shuffle=shuffle)
    stream = [s for batch in islice(batches, 2 * n_samples) for s in batch.samples]
    for start in range(0, len(stream) - n_samples + 1, n_samples):
        assert sorted(stream[start : start + n_samples]) == list(range(n_samples))


@given(st.integers(1, 40), st.integers(1, 15))
def test_all_batches_have_one_size_and_count_up(n_samples, batch_size):
    batches = list(islice(plan_batches(n_samples, batch_size), 20))
    assert [len(batch.samples) for batch in batches] == [batch_size] * 20
    assert [batch.batch for batch in batches] == list(range(20))
    assert [batch.epoch for batch in batches] == [n * batch_size // n_samples for n in range(20)]


@pytest.mark.parametrize(("n_samples", "batch_size"), [(0, 1), (4, 0), (4, -1)])
def test_nothing_to_plan_is_an_error(n_samples, batch_size):
    with pytest.raises(OptionError):
        plan_batches(n_samples, batch_size)


def test_a_limit_is_kept_over_rounds():
    plan = BatchPlan(plan_batches(6, 2), limit=5)
    rounds = [[batch.batch for batch in plan.take(2)] for _ in range(4)]
    assert rounds == [[0, 1], [2, 3], [4], []]
    assert plan.finished


def test_rounds_end_with_the_epoch_where_something_comes_before_it():
    epochs = []
    plan = BatchPlan(plan_batches(6, 2), limit=8, before_epoch=lambda: epochs.append(None))
    rounds = []
    while not plan.finished:
        plan.start_round()
        rounds.append(([batch.batch for batch in plan.take(2)], len(epochs)))
    assert rounds == [([0, 1], 1), ([2], 1), ([3, 4], 2), ([5], 2), ([6, 7], 3)]


def test_a_plan_tells_the_order_in_parts_before_its_batches(monkeypatch):
    monkeypatch.setattr("iobench.loaders.ring.order.MOST_PLANNED", 8)
    monkeypatch.setattr("iobench.loaders.ring.order.BLOCK", 4)
    told: list[int] = []
    sizes = []

    def drawn(part):
        sizes.append(len(part))
        told.extend(part.tolist())

    batches = plan_batches(20, 3, seed=1, drawn=drawn)
    planned = [sample for _ in range(7) for sample in next(batches).samples]
    assert sizes == [8, 8, 4, 8]
    assert told[:21] == planned  # one sample of the next epoch
