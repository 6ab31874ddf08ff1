"""A run on more ranks: closed forms, properties, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import pool

from iobench.analysis.run import Run
from iobench.errors import ProfileError
from iobench.findings.scaling import RankDemand, SharedStorage, rank_demand, scaling_curve
from iobench.recording.kinds import Kind

MS = 1_000_000
NBYTES = 4_000_000


def demand_of(
    *, n: int = 64, read_ms: object = 10.0, decode_ms: float = 0.0, step_ms: float = 25.0,
    nbytes: float = NBYTES, **how: Any,
) -> RankDemand:  # fmt: skip
    """Return a run of n batches, by a pool of two workers or, with none, by the loop itself."""
    reads_ns = np.broadcast_to(np.rint(np.asarray(read_ms) * MS), n).astype(np.int64).tolist()
    durations = [[read_ns, round(decode_ms * MS), 0] for read_ns in reads_ns]
    sketch = pool(durations, step_ns=round(step_ms * MS), **{"workers": 2, **how})
    sketch.config["batch_size"] = 1
    for span in sketch.spans:
        if span["kind"] == Kind.READ:
            span["nbytes"] = round(nbytes)
    return rank_demand(Run(sketch.data()))


DEMAND = demand_of()


@pytest.mark.long
def test_ranks_saturate_a_bandwidth_or_requests_at_what_they_ask_for() -> None:
    # 4 MB, one read, every 25 ms: 64 ranks ask for 10.24 GB/s in 2,560 reads.
    for storage, by in (
        (SharedStorage(bytes_per_s=10.24e9), "bandwidth"),
        (SharedStorage(bytes_per_s=10.24e9, reads_per_s=1e9), "bandwidth"),
        (SharedStorage(bytes_per_s=1e15, reads_per_s=2560), "reads"),
    ):
        curve = scaling_curve(DEMAND, storage, [32, 64, 128])
        assert curve.saturation is not None
        assert (curve.saturation.ranks, curve.saturation.by) == (64, by)
        half, full, twice = curve.points
        assert half.samples_per_s == pytest.approx(32 / 0.025)
        assert half.exposed_fraction == pytest.approx(0, abs=1e-9)
        assert half.storage_fraction == pytest.approx(0.5)
        assert full.samples_per_s == pytest.approx(64 / 0.025, rel=0.01)
        assert twice.samples_per_s == pytest.approx(64 / 0.025, rel=0.01)
        assert twice.exposed_fraction == twice.efficiency == pytest.approx(0.5, abs=0.01)


def test_a_loop_that_loads_reads_when_all_others_do() -> None:
    demand = demand_of(workers=0, decode_ms=5)
    point = scaling_curve(demand, SharedStorage(bytes_per_s=1e9), [16]).points[0]
    # 16 x 4 ms to read, 5 to decode, a step of 25.
    assert point.step_ns == 94 * MS
    assert point.exposed_fraction == pytest.approx(69 / 94)


def test_the_sanity_example_of_mlperf_hpc() -> None:
    """Table 9: 7700 GB / 256 processes / 2.36 GB/s is 12.8 s of an epoch of 99.6 s: hidden."""
    n_batches = 200  # an epoch of each process
    nbytes = 7700e9 / 256 / n_batches
    read_ms, storage = nbytes / 2.36e9 * 1e3, SharedStorage(bytes_per_s=256 * 2.36e9)
    epoch = {"n": n_batches, "read_ms": read_ms, "nbytes": nbytes}
    curve = scaling_curve(demand_of(workers=1, step_ms=99.6e3 / n_batches, **epoch), storage, [256])
    (point,) = curve.points
    assert point.step_ns * n_batches == pytest.approx(99.6e9)
    assert point.exposed_fraction == pytest.approx(0, abs=1e-9)
    assert point.storage_fraction == pytest.approx(12.8 / 99.6, rel=0.01)
    assert curve.saturation is not None
    assert curve.saturation.ranks == pytest.approx(256 * 99.6 / 12.8, rel=0.01)
    serial = demand_of(workers=0, step_ms=(99.6e3 - 12.8e3) / n_batches, **epoch)
    (shown,) = scaling_curve(serial, storage, [256]).points
    assert shown.exposed_fraction == pytest.approx(12.8 / 99.6, rel=0.01)


def test_a_step_waits_for_the_slowest_of_all_ranks() -> None:
    slow = np.where(np.arange(2000) % 20 == 0, 110.0, 10.0)
    slow = np.random.default_rng(0).permutation(slow)
    demand = demand_of(workers=0, n=2000, read_ms=slow, step_ms=90)
    for point in scaling_curve(demand, SharedStorage(), [1, 8, 64]).points:
        assert point.step_ns / MS == pytest.approx(100 + 100 * (1 - 0.95**point.ranks), rel=0.03)


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    workers=st.integers(0, 3),
    prefetch=st.integers(1, 3),
    ranks=st.integers(2, 12),
    load=st.floats(0.2, 3.0),
)
def test_no_step_is_faster_than_its_bounds_and_more_bandwidth_never_harms(
    seed: int, workers: int, prefetch: int, ranks: int, load: float
) -> None:
    random = np.random.default_rng(seed)
    demand = demand_of(
        workers=workers, prefetch=prefetch, read_ms=random.gamma(2, 5, 64), decode_ms=6,
        step_ms=random.uniform(5, 40),
    )  # fmt: skip
    demanded_per_s = ranks * NBYTES / 0.025
    steps: list[int] = []
    for factor in (1.0, 1.5):
        bytes_per_s = factor * demanded_per_s / load
        (point,) = scaling_curve(demand, SharedStorage(bytes_per_s=bytes_per_s), [ranks]).points
        assert point.step_ns >= point.free_step_ns
        assert ranks * NBYTES / point.step_ns * 1e9 <= bytes_per_s * (1 + 1e-6)
        assert 0 <= point.exposed_fraction <= 1
        steps.append(point.step_ns)
    assert steps[1] <= steps[0]


def test_a_run_that_does_not_say_its_bytes_is_refused() -> None:
    with pytest.raises(ProfileError, match="64 of its batches read; give --bytes-per-sample"):
        demand_of(nbytes=-1)
