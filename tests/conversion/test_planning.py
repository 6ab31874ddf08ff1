"""The planner is arithmetic: what holds for any source, target and probe."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.conversion.forecast import (
    KnownSource,
    KnownTarget,
    MeasuredProbe,
    plan,
)
from iobench.recording.epoch_reads import LoadRates

NBYTES = st.integers(1, 1 << 40)
SECONDS = st.floats(1e-9, 1e4, allow_nan=False)

sources = st.builds(
    KnownSource,
    n_samples=st.integers(1, 10**7),
    unknown_ranges=st.sampled_from([(), ("t",)]),
)
chunked = st.builds(
    lambda source, read, times: replace(source, read_nbytes=read, times=times),
    sources,
    NBYTES,
    st.floats(1, 8),
)
targets = st.builds(
    KnownTarget,
    shard_n_samples=st.integers(1, 10**6),
    memory_nbytes=NBYTES,
    free_nbytes=st.integers(0, 1 << 60),
    step_s=st.none() | st.just(0.0) | SECONDS,
)
probes = st.builds(
    MeasuredProbe,
    n_samples=st.integers(1, 10**4),
    convert_s=SECONDS,
    store_nbytes=NBYTES,
    sample_read_nbytes=st.integers(0, 1 << 40),
    source=st.builds(LoadRates, SECONDS, SECONDS, SECONDS),
    store_sample_s=SECONDS,
)


@given(sources | chunked, targets, probes)
def test_what_holds_for_every_plan(source, target, probe) -> None:
    planned = plan(source, target, probe)
    assert planned.n_shards * planned.shard_n_samples >= planned.n_samples
    assert (planned.n_shards - 1) * planned.shard_n_samples < planned.n_samples
    assert planned.passes >= source.n_looks or planned.in_nbytes == 0
    assert planned.passes - 1 <= planned.read_amplification <= planned.passes + 1e-6
    assert planned.read_amplification >= 1
    assert planned.convert_s >= 0
    assert planned.fits == (planned.free_needed_nbytes <= target.free_nbytes)
    assert (planned.saved_s is None) == (target.step_s is None)
    epochs = planned.payback_epochs
    if epochs is not None:
        first_saved_s = planned.saved_s + planned.first_epoch_s - planned.epoch_s
        first, later = min(epochs, 1) * first_saved_s, max(0, epochs - 1) * planned.saved_s
        assert first + later == pytest.approx(planned.convert_s)
    json.dumps(planned.to_dict(), allow_nan=False)


@given(sources, targets, probes, st.integers(2, 50))
def test_twice_the_samples_take_twice_as_much(source, target, probe, times) -> None:
    once = plan(source, target, probe)
    more = replace(source, n_samples=times * source.n_samples)
    all_of_it = plan(more, target, probe)
    assert all_of_it.in_nbytes == pytest.approx(times * once.in_nbytes, rel=1e-12)
    assert all_of_it.out_nbytes == pytest.approx(times * once.out_nbytes, rel=1e-12, abs=times)
    assert all_of_it.convert_s == pytest.approx(times * once.convert_s)
    assert all_of_it.read_amplification == pytest.approx(once.read_amplification)


@given(chunked, targets, probes)
def test_a_look_at_every_value_reads_all_again(source, target, probe) -> None:
    once, twice = (
        plan(replace(source, unknown_ranges=names), target, probe) for names in ((), ("t",))
    )
    assert twice.in_nbytes == pytest.approx(2 * once.in_nbytes, abs=1)
    assert twice.passes >= once.passes + 1
    assert twice.convert_s == pytest.approx(2 * once.convert_s)


@given(sources, targets, probes)
def test_a_training_that_hides_both_saves_nothing(source, target, probe) -> None:
    slow = replace(target, step_s=2 * max(probe.source.sample_s, probe.store_sample_s))
    planned = plan(source, slow, probe)
    assert planned.saved_s == 0
    assert planned.payback_epochs is None


@given(sources, targets, probes)
def test_what_is_done_needs_no_room_and_no_time(source, target, probe) -> None:
    fresh = plan(source, target, probe)
    done = replace(target, nbytes_there=fresh.out_nbytes)
    planned = plan(source, done, probe)
    if fresh.out_nbytes:
        assert (planned.free_needed_nbytes, planned.convert_s) == (0, 0)
    assert planned.out_nbytes == fresh.out_nbytes


def test_figures_of_a_conversion_told_by_hand() -> None:
    planned = plan(
        KnownSource(
            n_samples=1000,
            read_nbytes=2_000_000_000,
            times=1.5,
            scratch_nbytes=90_000_000,
        ),
        KnownTarget(
            shard_n_samples=250,
            memory_nbytes=256_000_000,
            free_nbytes=5_000_000_000,
            step_s=0.01,
        ),
        MeasuredProbe(
            n_samples=10,
            convert_s=0.15,
            start_s=0.05,
            store_nbytes=40_001_000,
            sample_read_nbytes=2_000_000,
            source=LoadRates(0.0, 0.0, 0.05),
            store_sample_s=0.0005,
        ),
    )
    assert (planned.n_shards, planned.in_nbytes, planned.passes) == (4, 3_000_000_000, 2)
    assert planned.read_amplification == 1.5
    assert planned.out_nbytes == 4_000_100_000
    assert planned.scratch_nbytes == 90_000_000
    assert planned.convert_s == pytest.approx(0.05 + 100 * 0.1)
    # 50 s of loading beside 10 s of steps, then 0.5 s that hide behind them.
    assert planned.saved_s == pytest.approx(40)
    assert planned.payback_epochs == pytest.approx(10.05 / 40)
    assert math.isclose(planned.load_store_s, 0.5)
    assert planned.fits
