"""A job on more ranks: the same with ample storage as without a bound, exact where it is short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_runs import make_run

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.subjects.scaling.demand import RankDemand, rank_demand
from iobench.subjects.scaling.job_simulation import (
    DrawnSteps,
    bounded_steps,
    draw_steps,
    free_steps,
    is_free,
)
from iobench.subjects.scaling.target import SharedStorage

MS = 1_000_000
RULES = (LoaderRule.SERIAL, LoaderRule.POOL, LoaderRule.THREADS)


def drawn(read_ms: np.ndarray, **times_ms: object) -> DrawnSteps:
    """Return steps of known batches; what is not named takes no time."""
    fields = ("served", "linked", "rest", "submit", "transit", "pickup", "compute")
    zero = np.zeros(read_ms.shape)
    return DrawnSteps(
        read_ns=read_ms * float(MS),
        read_cpu_ns=zero,
        nbytes=zero,
        reads=zero,
        **{f"{name}_ns": zero + np.asarray(times_ms.get(name, 0.0)) * MS for name in fields},
    )


def demand_of(rule: LoaderRule, workers: int, prefetch: int) -> RankDemand:
    return rank_demand([make_run(rule=rule, workers=workers, prefetch=prefetch)])


@given(
    seed=st.integers(0, 10_000),
    rule=st.sampled_from(RULES),
    workers=st.integers(1, 4),
    prefetch=st.integers(1, 3),
    ranks=st.integers(1, 5),
)
def test_with_ample_storage_both_are_the_same(
    seed: int, rule: LoaderRule, workers: int, prefetch: int, ranks: int
) -> None:
    random = np.random.default_rng(seed)
    demand = demand_of(rule, workers, prefetch)
    shape = (30, ranks)
    steps = drawn(
        random.uniform(1, 60, shape),
        rest=random.uniform(0, 20, shape),
        submit=random.uniform(0, 1, shape),
        transit=random.uniform(0, 2, shape),
        pickup=random.uniform(0, 1, shape),
        compute=random.uniform(0, 30, shape),
        served=1e-9,
    )
    free = free_steps(demand, steps, 2.0 * MS)
    bounded = bounded_steps(demand, steps, 2.0 * MS, 1)
    assert is_free(steps, free, 1)
    np.testing.assert_allclose(bounded.asked_ns, free.asked_ns, rtol=1e-9, atol=10)
    np.testing.assert_allclose(bounded.held_ns, free.held_ns, rtol=1e-9, atol=10)


def test_reads_share_storage_alike() -> None:
    demand = demand_of(LoaderRule.SERIAL, 0, 0)
    # 10 and 30 ms of storage: half each until the small one has its 10, at 20; then all of it.
    steps = drawn(np.zeros((1, 2)), served=[[10.0, 30.0]], compute=[[0.0, 5.0]])
    found = bounded_steps(demand, steps, 0.0, 1)
    assert found.held_ns == pytest.approx([40 * MS])
    steps = replace(steps, compute_ns=np.array([[100.0 * MS, 0.0]]))
    found = bounded_steps(demand, steps, 0.0, 1)
    assert found.asked_ns == pytest.approx([0, 120 * MS])


def test_what_is_asked_for_at_once_is_found_out() -> None:
    demand = demand_of(LoaderRule.SERIAL, 0, 0)

    def was_free(served: float, linked: float, ranks_per_host: int) -> bool:
        steps = drawn(np.full((3, 4), 40.0), served=served, linked=linked)
        return is_free(steps, free_steps(demand, steps, 0.0), ranks_per_host)

    assert was_free(10, 0, 1)
    assert not was_free(10.1, 0, 1)
    assert was_free(0, 20, 2)
    assert not was_free(0, 20.1, 2)
    assert not was_free(0, 41, 1)


def test_draws_repeat_with_their_seed_and_keep_neighbours() -> None:
    numbers = np.arange(64)
    demand = rank_demand([make_run(read_ms=numbers + 1, nbytes=numbers)])
    storage = SharedStorage(bytes_per_s=1e9)

    def draw(seed: int, ranks: int = 3) -> DrawnSteps:
        return draw_steps(demand, storage, ranks=ranks, n_steps=24, hit_fraction=0, seed=seed)

    first = draw(1)
    np.testing.assert_array_equal(first.nbytes, draw(1).nbytes)
    assert (first.nbytes != draw(2).nbytes).any()
    np.testing.assert_array_equal(first.read_ns, (first.nbytes + 1) * MS)
    within = np.diff(first.nbytes[:8], axis=0) % 64
    assert (within == 1).all()
    np.testing.assert_allclose(first.served_ns, first.nbytes)


def test_samples_in_the_cache_ask_nothing_of_storage() -> None:
    demand = rank_demand([make_run(batch_size=10)])
    storage = SharedStorage(bytes_per_s=1e9, reads_per_s=1e6, read_latency_ns=MS)
    draws = {
        hit: draw_steps(demand, storage, ranks=50, n_steps=40, hit_fraction=hit, seed=0)
        for hit in (0.0, 0.3, 1.0)
    }
    assert draws[0.0].nbytes.mean() == 4_000_000
    assert draws[0.3].nbytes.mean() == pytest.approx(0.7 * 4_000_000, rel=0.02)
    assert not draws[1.0].served_ns.any()
    assert (draws[0.0].read_ns == 20 * MS).all()
    assert (draws[1.0].read_ns == 10 * MS).all()
