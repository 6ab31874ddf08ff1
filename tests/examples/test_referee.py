"""The referee of rules: a few of its simulated schedules, with iobench's rule and the others'."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import referee

# What iobench names, and what the rule of Ray Data does.
CASES = {
    "no workers": ("read", "read"),
    "four workers": ("read", "decode"),
    "slow reads, as they come": ("read", "decode"),
    "one read of 400 ms": ("read", "read"),
    "all hidden": ("", ""),
    "every tenth decode slow": ("decode", "decode"),
    "workers start each epoch": ("startup", "read"),
    "a thread a stage, 10/4/4": ("read", "preprocess"),
    "a validation waits": ("read", "read"),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", CASES)
def test_the_referee_knows_what_is_right_of_a_schedule(name: str) -> None:
    build = referee.SIMULATED[name]
    rank, truth = referee.simulated(build), referee.truth_of(build)
    trace = referee.trace_of(rank)
    ours, rays = CASES[name]
    assert truth.right == ({ours} if ours else set())
    assert sum(truth.sizes.values()) == pytest.approx(truth.wait_ns, rel=0.02, abs=2e6)
    sizes, wait_ns = referee.ours(rank, trace)
    assert sizes is not None
    assert sum(sizes.values()) == wait_ns == truth.wait_ns == trace.wait_ns
    if ours:
        assert max(sizes, key=sizes.__getitem__) == ours
        assert sizes[ours] == pytest.approx(truth.sizes[ours], abs=0.05 * truth.wall_ns)
        by_ray = referee.ray_data(rank, trace)[0] or {}
        assert max(by_ray, key=by_ray.__getitem__) == rays
