"""A run on more ranks: closed forms, properties, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_runs import make_run
from schedules import pool

from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.errors import ProfileError
from iobench.findings.scaling.curve import simulate_ranks
from iobench.findings.scaling.demand import rank_demand
from iobench.findings.scaling.figures import Saturation, ScalingCurve, ScalingPoint
from iobench.findings.scaling.target import SharedStorage
from iobench.recording.kinds import Kind

MS = 1_000_000


def measured(
    *,
    n: int = 64,
    read_ms: object = 10.0,
    decode_ms: float = 5.0,
    step_ms: float = 25.0,
    nbytes: float = 4_000_000,
    batch_size: int = 1,
    **how: Any,
) -> RecordedRun:
    """Return a run of n batches, by a pool of two workers or, with none, by the loop itself."""
    reads_ns = np.broadcast_to(np.rint(np.asarray(read_ms) * MS), n).astype(np.int64).tolist()
    durations = [[read_ns, round(decode_ms * MS), 0] for read_ns in reads_ns]
    sketch = pool(durations, step_ns=round(step_ms * MS), **{"workers": 2, **how})
    sketch.config["batch_size"] = batch_size
    for span in sketch.spans:
        if span["kind"] == Kind.READ:
            span["nbytes"] = round(nbytes)
    (run,) = recorded_runs(Run(sketch.profile()).of_rank())
    return run


# Without decoding: batches that all ranks decode at the same time leave storage idle meanwhile.
DEMAND = rank_demand([measured(decode_ms=0)])
RULES = (LoaderRule.SERIAL, LoaderRule.POOL, LoaderRule.THREADS)


def curve_of(storage: SharedStorage, ranks: list[int], **options: object) -> ScalingCurve:
    return simulate_ranks(DEMAND, storage, ranks, n_seeds=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [LoaderRule.POOL, LoaderRule.THREADS])
def test_ranks_saturate_a_bandwidth_at_what_they_ask_for(rule: LoaderRule) -> None:
    demand = rank_demand([make_run(rule=rule, decode_ms=0)])
    # 4 MB every 25 ms: 64 ranks ask for 10.24 GB/s.
    curve = simulate_ranks(demand, SharedStorage(bytes_per_s=10.24e9), [32, 64, 128], n_seeds=1)
    assert curve.saturation == Saturation(64, "bandwidth")
    half, full, twice = curve.first_epoch
    assert half.samples_per_s.median == pytest.approx(32 / 0.025)
    assert half.exposed_fraction.median == pytest.approx(0, abs=1e-9)
    assert half.storage_fraction == pytest.approx(0.5)
    assert full.samples_per_s.median == pytest.approx(64 / 0.025, rel=0.01)
    assert twice.samples_per_s.median == pytest.approx(10.24e9 / 4e6, rel=0.01)
    assert twice.exposed_fraction.median == pytest.approx(0.5, abs=0.01)
    assert twice.efficiency == pytest.approx(0.5, abs=0.01)
    assert twice.bytes_per_s == pytest.approx(10.24e9, rel=0.01)


def test_the_smaller_of_two_bounds_counts_whichever_it_is() -> None:
    both = curve_of(SharedStorage(bytes_per_s=10.24e9, reads_per_s=1e9), [128])
    one = curve_of(SharedStorage(bytes_per_s=10.24e9), [128])
    assert both.first_epoch == one.first_epoch


def test_no_number_of_ranks_saturates_what_asks_for_nothing() -> None:
    demand = rank_demand([measured(nbytes=0)])
    curve = simulate_ranks(demand, SharedStorage(bytes_per_s=1.0), [1, 8], n_seeds=1)
    assert curve.saturation == Saturation(None, "bandwidth")
    assert curve.first_epoch[1].efficiency == pytest.approx(1)


def test_the_sanity_example_of_mlperf_hpc() -> None:
    """Table 9: 7700 GB / 256 processes / 2.36 GB/s is 12.8 s of an epoch of 99.6 s: hidden."""
    n_batches = 200  # an epoch of each process
    nbytes = 7700e9 / 256 / n_batches
    read_ms = nbytes / 2.36e9 * 1e3
    assert read_ms * n_batches == pytest.approx(12.8e3, rel=0.005)
    demand = rank_demand(
        [
            measured(
                n=n_batches,
                workers=1,
                read_ms=read_ms,
                decode_ms=0,
                step_ms=99.6e3 / n_batches,
                nbytes=nbytes,
            )
        ]
    )
    storage = SharedStorage(bytes_per_s=256 * 2.36e9)
    curve = simulate_ranks(demand, storage, [256], n_seeds=1)
    (point,) = curve.first_epoch
    assert point.step_ns * n_batches == pytest.approx(99.6e9)
    assert point.exposed_fraction.median == pytest.approx(0, abs=1e-9)
    assert point.storage_fraction == pytest.approx(12.8 / 99.6, rel=0.01)
    assert curve.saturation is not None
    assert curve.saturation.ranks == pytest.approx(256 * 99.6 / 12.8, rel=0.01)
    serial = rank_demand([measured(workers=0, read_ms=read_ms, decode_ms=0, nbytes=nbytes,
                                   step_ms=(99.6e3 - 12.8e3) / n_batches)])  # fmt: skip
    (shown,) = simulate_ranks(serial, storage, [256], n_seeds=1).first_epoch
    assert shown.exposed_fraction.median == pytest.approx(12.8 / 99.6, rel=0.01)


def test_a_step_waits_for_the_slowest_of_all_ranks() -> None:
    slow = np.where(np.arange(2000) % 20 == 0, 110.0, 10.0)
    slow = np.random.default_rng(0).permutation(slow)
    demand = rank_demand([measured(workers=0, n=2000, read_ms=slow, decode_ms=0, step_ms=90)])
    curve = simulate_ranks(demand, SharedStorage(), [1, 8, 64])
    for point in curve.first_epoch:
        expected = 100 + 100 * (1 - 0.95**point.ranks)
        assert point.step_ns / MS == pytest.approx(expected, rel=0.03)
        assert point.samples_per_s.low <= point.samples_per_s.median <= point.samples_per_s.high


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rule=st.sampled_from(RULES),
    ranks=st.integers(2, 12),
    load=st.floats(0.2, 3.0),
)
def test_nothing_is_faster_than_its_bounds_and_more_bandwidth_never_harms(
    seed: int, rule: LoaderRule, ranks: int, load: float
) -> None:
    random = np.random.default_rng(seed)
    demand = rank_demand(
        [
            make_run(
                rule=rule,
                workers=int(random.integers(1, 4)),
                read_ms=random.gamma(2, 5, 64),
                decode_ms=random.gamma(2, 3, 64),
                step_ms=random.uniform(5, 40),
                nbytes=random.uniform(1e6, 9e6, 64),
            )
        ]
    )
    asked_per_s = ranks * float(demand.nbytes.mean()) / 0.025
    points: list[ScalingPoint] = []
    for factor in (1.0, 1.5):
        storage = SharedStorage(bytes_per_s=factor * asked_per_s / load)
        (point,) = simulate_ranks(demand, storage, [ranks], n_seeds=1).first_epoch
        points.append(point)
        assert point.step_ns >= 0.98 * point.free_step_ns
        assert point.bytes_per_s <= 1.03 * (storage.bytes_per_s or 0)
        assert 0 <= point.exposed_fraction.median <= 1
    assert points[1].step_ns <= 1.03 * points[0].step_ns


def test_more_ranks_load_no_fewer_samples_and_are_no_more_efficient() -> None:
    random = np.random.default_rng(1)
    demand = rank_demand([measured(read_ms=random.gamma(2, 10, 64))])
    curve = simulate_ranks(demand, SharedStorage(bytes_per_s=2e9), [1, 4, 32])
    rates = [point.samples_per_s.median for point in curve.first_epoch]
    shares = [point.exposed_fraction.median for point in curve.first_epoch]
    assert all(after >= 0.99 * before for before, after in pairwise(rates))
    assert all(after >= before - 0.01 for before, after in pairwise(shares))


def test_in_a_job_the_step_is_that_of_who_waited_least_for_the_others() -> None:
    fast = make_run(n=32, read_ms=10, step_ms=np.r_[[40.0] * 16, [25.0] * 16])
    slow = make_run(n=40, read_ms=20, step_ms=np.r_[[25.0] * 16, [30.0] * 24])
    demand = rank_demand([fast, slow])
    assert demand.n_ranks == 2
    assert demand.starts == (0, 32, 72)
    assert (demand.compute_ns == 25 * MS).all()
    assert set(demand.read_ns / MS) == {10.0, 20.0}


def test_the_model_tells_what_it_misses() -> None:
    exact = curve_of(SharedStorage(bytes_per_s=1e6), [1], measured_step_ns=25 * MS)
    assert exact.model_error_fraction == pytest.approx(0)
    off = curve_of(SharedStorage(), [1], measured_step_ns=20 * MS)
    assert off.model_error_fraction == pytest.approx(0.25)
    assert curve_of(SharedStorage(), [1]).model_error_fraction is None


def test_reading_among_other_things_is_what_is_done_off_the_cpu() -> None:
    cpu = np.stack([np.full(64, 3 * MS), np.full(64, 5 * MS)], axis=1)
    fused = rank_demand([make_run(stages=("fused:read+decode", "preprocess"), cpu_ns=cpu)])
    assert (fused.read_ns == 7 * MS).all()
    assert (fused.rest_ns == 8 * MS).all()
    assert not fused.reading_known
    unknown = rank_demand([make_run(stages=("fused:read+decode", "preprocess"))])
    assert (unknown.read_ns == 10 * MS).all()


def test_what_others_did_with_a_batch_keeps_no_worker_busy() -> None:
    beside = np.stack([np.zeros(64, np.int64), np.full(64, 2 * MS)], axis=1)
    demand = rank_demand([make_run(beside_ns=beside, gap_ns=np.full(64, MS))])
    assert (demand.rest_ns == 4 * MS).all()
    assert (demand.transit_ns == 2 * MS).all()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rule": LoaderRule.STREAM}, "cannot be simulated on more ranks"),
        ({"nbytes": -1}, "how many bytes 64 of its batches read; give --bytes-per-sample"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(ProfileError, match=told):
        rank_demand([make_run(**changed)])


def test_it_is_known_whether_the_loader_kept_to_the_order() -> None:
    assert DEMAND.in_order
    uneven = np.where(np.arange(64) % 5 == 0, 90.0, 5.0)
    assert not rank_demand([measured(), measured(read_ms=uneven, in_order=False)]).in_order


def test_a_run_without_compute_only_waits() -> None:
    demand = rank_demand([measured(step_ms=0)])
    curve = simulate_ranks(demand, SharedStorage(bytes_per_s=4e8), [1, 4], n_seeds=1)
    assert [point.exposed_fraction.median for point in curve.first_epoch] == [1.0, 1.0]


def test_thousands_of_ranks_are_simulated() -> None:
    (point,) = curve_of(SharedStorage(bytes_per_s=50e9), [1024]).first_epoch
    assert point.samples_per_s.median == pytest.approx(12_500, rel=0.02)
