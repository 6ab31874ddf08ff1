"""The order of samples: permutations that nobody has to store, and the plans of batches."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import OptionError
from iobench.loaders.ring.order import (
    BLOCK,
    MIXED_BLOCKS,
    SORTED_LIMIT,
    BatchOrder,
    BatchPlan,
    Permutation,
    drawn_below,
    plan_batches,
)


@given(
    n=st.one_of(st.integers(1, 300), st.integers(SORTED_LIMIT - 2, SORTED_LIMIT + 300)),
    seed=st.integers(0, 1 << 40),
    epoch=st.integers(0, 1000),
)
def test_every_thing_comes_once(n, seed, epoch):
    found = Permutation(n, seed=seed, epoch=epoch).at(np.arange(n))
    assert np.array_equal(np.sort(found), np.arange(n))


@given(n=st.one_of(st.integers(1, 300), st.integers(SORTED_LIMIT, 1 << 40)), data=st.data())
def test_a_thing_is_found_at_its_place(n, data):
    permutation = Permutation(n, seed=5, epoch=2)
    place = data.draw(st.integers(0, n - 1))
    (thing,) = permutation.at(np.array([place])).tolist()
    assert permutation.place_of(thing) == place


def test_orders_of_a_few_are_all_there_and_about_as_often():
    counts = Counter(
        tuple(Permutation(4, seed=seed, epoch=0).at(np.arange(4)).tolist()) for seed in range(4800)
    )
    assert len(counts) == 24
    assert min(counts.values()) > 140  # of 200; five standard deviations are 70
    assert max(counts.values()) < 270


@pytest.mark.parametrize("n", [20_000, 200_000])
def test_orders_of_many_look_random(n):
    first = Permutation(n, seed=1, epoch=0).at(np.arange(n))
    second = Permutation(n, seed=1, epoch=1).at(np.arange(n))
    for a, b in [(first, np.arange(n)), (first[:-1], first[1:]), (first, second)]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / n**0.5
    # Neighbours that stay neighbours, and things that stay in place: Poisson, 2 and 1 expected.
    assert np.count_nonzero(np.abs(np.diff(first)) == 1) < 12
    assert np.count_nonzero(first == np.arange(n)) < 10
    parts = np.bincount(first[: n // 10] * 10 // n, minlength=10)
    assert ((parts - n / 100) ** 2 / (n / 100)).sum() < 40  # chi-square, nine degrees


def test_all_places_of_patches_are_as_likely():
    drawn = drawn_below((6, 10), np.arange(6000), seed=0, epoch=0)
    counts = np.zeros((6, 10))
    np.add.at(counts, (drawn[:, 0], drawn[:, 1]), 1)
    expected = 6000 / 60
    assert ((counts - expected) ** 2 / expected).sum() < 110  # 59 degrees of freedom: p = 6e-5
    assert not np.array_equal(drawn, drawn_below((6, 10), np.arange(6000), seed=0, epoch=1))
    some = drawn_below((6, 10), np.array([17, 3]), seed=0, epoch=0)
    assert np.array_equal(some, drawn[[17, 3]])


@pytest.mark.parametrize("shuffle", [True, "blocks:1", "blocks:64", False])
def test_the_order_of_a_billion_takes_no_memory_and_no_work_for_each(monkeypatch, shuffle):
    n = 1_000_000_007
    computed = []
    at = Permutation.at
    monkeypatch.setattr(
        Permutation, "at", lambda self, places: (computed.append(len(places)), at(self, places))[1]
    )
    tracemalloc.start()
    order = BatchOrder(n, 512, shuffle=shuffle, seed=7)
    found = [order.samples(3, batch) for batch in (0, 1, 2, len(order) // 2, len(order) - 1)]
    batches = plan_batches(n, 512, seed=7, shuffle=bool(shuffle))
    found += [np.array(next(batches).samples) for _ in range(3)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert sum(computed) < 10 * BLOCK * MIXED_BLOCKS
    assert [len(part) for part in found] == [512] * 4 + [n % 512] + [512] * 3
    assert all(0 <= part.min() <= part.max() < n for part in found)


@given(
    n=st.integers(1, 200),
    batch_size=st.integers(1, 20),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    shuffle=st.sampled_from([False, True, "blocks:3"]),
)
def test_ranks_share_the_batches_of_one_order(n, batch_size, world_size, drop_last, shuffle):
    options = {"shuffle": shuffle, "seed": 2}
    alone = BatchOrder(n, batch_size, **options)
    batches = [alone.samples(4, i).tolist() for i in range(len(alone))]
    if drop_last:
        batches = [batch for batch in batches if len(batch) == batch_size]
        batches = batches[: len(batches) // world_size * world_size]
    options |= {"drop_last": drop_last, "world_size": world_size}
    try:
        ranks = [BatchOrder(n, batch_size, rank=rank, **options) for rank in range(world_size)]
    except OptionError:
        assert not batches
        return
    assert len({len(rank) for rank in ranks}) == 1
    found = [rank.samples(4, number).tolist() for number in range(len(ranks[0])) for rank in ranks]
    assert found == [batches[i % len(batches)] for i in range(len(found))]
    assert len(found) >= len(batches)


def test_batches_across_blocks_are_those_of_the_whole():
    order = BatchOrder(20_000, 3000, shuffle=True, seed=1)
    whole = Permutation(20_000, seed=1, epoch=0).at(np.arange(20_000))
    for number in (2, 0, 6, 1):
        assert np.array_equal(order.samples(0, number), whole[number * 3000 : number * 3000 + 3000])


@given(
    n=st.integers(1, 3000),
    block=st.integers(1, 400),
    seed=st.integers(0, 99),
    size=st.integers(1, 50),
)
def test_blocks_come_whole_and_each_sample_once(n, block, seed, size):
    order = BatchOrder(n, size, shuffle=f"blocks:{block}", seed=seed)
    found = np.concatenate([order.samples(1, batch) for batch in range(len(order))])
    assert np.array_equal(np.sort(found), np.arange(n))
    # Every stretch of as many blocks as are mixed has all of their samples, and no others.
    blocks = found // block
    seen = np.unique(blocks, return_index=True)[1]
    last = n - 1 - np.unique(blocks[::-1], return_index=True)[1]
    assert (last - seen < MIXED_BLOCKS * block).all()
    assert np.array_equal(order.samples(1, len(order) - 1), found[(len(order) - 1) * size :])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "blocks:0"}, "shuffle='blocks:0': expected True, False or 'blocks:N'"),
        ({"shuffle": "yes"}, "shuffle='yes'"),
        ({"shuffle": 1}, "shuffle=1: expected True"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"n_samples": 0}, "no samples"),
        ({"drop_last": True, "batch_size": 11}, "drop_last leaves no batch"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        BatchOrder(**{"n_samples": 10, "batch_size": 2, **options})


# -- of a measured run: without end ----------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 5), st.booleans())
def test_batches_of_one_size_visit_every_sample_once_an_epoch(n, batch_size, seed, shuffle):
    batches = list(islice(plan_batches(n, batch_size, seed=seed, shuffle=shuffle), 2 * n))
    assert {len(batch.samples) for batch in batches} == {batch_size}
    assert [batch.batch for batch in batches] == list(range(2 * n))
    assert [batch.epoch for batch in batches] == [i * batch_size // n for i in range(2 * n)]
    stream = [sample for batch in batches for sample in batch.samples]
    for start in range(0, len(stream) - n + 1, n):
        assert sorted(stream[start : start + n]) == list(range(n))


@pytest.mark.parametrize("has_epochs", [False, True])
def test_a_limit_is_kept_over_rounds_which_end_with_the_epoch_if_something_comes_before(has_epochs):
    epochs, rounds = [], []
    before = (lambda: epochs.append(None)) if has_epochs else None
    plan = BatchPlan(plan_batches(6, 2), limit=8, before_epoch=before)
    while not plan.finished:
        plan.start_round()
        rounds.append(([batch.batch for batch in plan.take(2)], len(epochs)))
    if has_epochs:
        assert rounds == [([0, 1], 1), ([2], 1), ([3, 4], 2), ([5], 2), ([6, 7], 3)]
    else:
        assert rounds == [([0, 1], 0), ([2, 3], 0), ([4, 5], 0), ([6, 7], 0)]


def test_a_plan_tells_the_order_in_parts_before_its_batches(monkeypatch):
    monkeypatch.setattr("iobench.loaders.ring.order.MOST_PLANNED", 8)
    monkeypatch.setattr("iobench.loaders.ring.order.BLOCK", 4)
    parts: list[list[int]] = []
    batches = plan_batches(20, 3, seed=1, drawn=lambda part: parts.append(part.tolist()))
    planned = [sample for _ in range(7) for sample in next(batches).samples]
    assert [len(part) for part in parts] == [8, 8, 4, 8]
    assert [sample for part in parts for sample in part][:21] == planned  # one of the next epoch
