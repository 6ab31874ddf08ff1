"""What is predicted to be gained, held against runs of other batches with the change made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drawn_schedules import SHAPES, STAGES, held
from simulator import Schedule, simulated_run

from iobench.findings.faster_stages import faster_stages
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun

MS = 1_000_000


@pytest.mark.long
def test_the_error_that_is_printed_is_not_smaller_than_what_is_obtained():
    changes = [STAGES[:1], STAGES[1:3], STAGES]
    found = [each for seed in range(24) for each in held(seed, changes, n_batches=120)]
    assert {each.shape for each in found} == {*SHAPES} - {"stream"}
    told = [each for each in found if each.predicted.low is not None]
    assert len(told) > 0.9 * len(found)
    assert sum(each.holds for each in told) >= 0.9 * len(told)
    # Nor is it so large that it says nothing: half of them are within a quarter of the time.
    widths = [each.predicted.high - each.predicted.low for each in told]
    assert np.median(widths) < 0.25


@pytest.mark.parametrize(("halved", "least"), [("read", 0.29), ("decode", 0.14), ("collate", 0.04)])
def test_four_workers_gain_in_the_steady_state_what_halving_a_stage_obtains(halved, least):
    stages = (Kind.READ, Kind.DECODE, Kind.COLLATE)
    times = np.array([60.0, 30.0, 10.0])

    def run_of(work: np.ndarray) -> RankRun:
        tiled = np.tile(work * MS, (120, 1))
        schedule = Schedule(stages, tiled, np.full(120, 15 * MS), workers=4, prefetch=2)
        return simulated_run(schedule).open().of_rank()

    before = run_of(times)
    names = [kind.spelled for kind in stages]
    after = run_of(np.where(np.array(names) == halved, times / 2, times))
    gains = faster_stages(before)
    assert gains is not None
    steady = [each.exposure.steady for each in (before, after)]
    each_ns = [part.wall_ns / part.n_batches for part in steady if part is not None]
    obtained = 1 - each_ns[1] / each_ns[0]
    payoff = gains.gains[halved]
    assert obtained > least
    assert payoff.saved_fraction == pytest.approx(obtained, abs=0.01)
    assert payoff.low_fraction is not None
    assert payoff.high_fraction is not None
    assert payoff.low_fraction <= obtained <= payoff.high_fraction
