"""A job on more ranks: the same with ample storage as without a bound, exact where it is short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scaling_runs import make_run

from iobench.analysis.replay.loader_run import LoaderRule
from iobench.findings.scaling.demand import RankDemand, rank_demand
from iobench.findings.scaling.job_simulation import (
    DrawnSteps,
    bounded_steps,
    draw_steps,
    free_steps,
    is_free,
)
from iobench.findings.scaling.target import SharedStorage

MS = 1_000_000
RULES = (LoaderRule.SERIAL, LoaderRule.POOL, LoaderRule.THREADS)


def drawn(read_ms: np.ndarray, **times_ms: object) -> DrawnSteps:
    """Return steps of known batches; what is not named takes no time."""
    fields = ("served", "rest", "submit", "transit", "pickup", "compute")
    zero = np.zeros(read_ms.shape)
    return DrawnSteps(
        read_ns=read_ms * float(MS),
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
    free = free_steps(demand, steps)
    bounded = bounded_steps(demand, steps)
    assert is_free(steps, free)
    np.testing.assert_allclose(bounded.asked_ns, free.asked_ns, rtol=1e-9, atol=10)
    np.testing.assert_allclose(bounded.held_ns, free.held_ns, rtol=1e-9, atol=10)


def test_reads_share_storage_alike() -> None:
    demand = demand_of(LoaderRule.SERIAL, 0, 0)
    # 10 and 30 ms of storage: half each until the small one has its 10, at 20; then all of it.
    steps = drawn(np.zeros((1, 2)), served=[[10.0, 30.0]], compute=[[0.0, 5.0]])
    found = bounded_steps(demand, steps)
    assert found.held_ns == pytest.approx([40 * MS])
    steps = replace(steps, compute_ns=np.array([[100.0 * MS, 0.0]]))
    found = bounded_steps(demand, steps)
    assert found.asked_ns == pytest.approx([0, 120 * MS])


def test_what_is_asked_for_at_once_is_found_out() -> None:
    demand = demand_of(LoaderRule.SERIAL, 0, 0)

    def was_free(served: float) -> bool:
        steps = drawn(np.full((3, 4), 40.0), served=served)
        return is_free(steps, free_steps(demand, steps))

    assert was_free(0)
    assert was_free(10)
    assert not was_free(10.1)
    assert not was_free(41)


def test_draws_repeat_with_their_seed_and_keep_neighbours() -> None:
    numbers = np.arange(64)
    demand = rank_demand([make_run(read_ms=numbers + 1, nbytes=numbers)])
    storage = SharedStorage(bytes_per_s=1e9)

    def draw(seed: int, ranks: int = 3) -> DrawnSteps:
        return draw_steps(demand, storage, ranks=ranks, n_steps=24, seed=seed)

    first = draw(1)
    np.testing.assert_array_equal(first.nbytes, draw(1).nbytes)
    assert (first.nbytes != draw(2).nbytes).any()
    np.testing.assert_array_equal(first.read_ns, (first.nbytes + 1) * MS)
    within = np.diff(first.nbytes[:8], axis=0) % 64
    assert (within == 1).all()
    np.testing.assert_allclose(first.served_ns, first.nbytes)
