"""When a conversion has paid, MLPerf HPC's staging model, and what waiting costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.advice.break_even import BreakEven, StagedRun, bill_of

MLPERF_HPC = [  # MLPerf HPC v0.7 (arXiv:2110.11466), staging in minutes, T_staging / T_epoch
    ("CosmoFlow Cori-GPU-64", 16.49, 2.55),
    ("CosmoFlow ABCI-512", 0.76, 2.27),
    ("CosmoFlow ABCI-2048", 0.20, 1.56),
    ("CosmoFlow Fugaku-512", 1.55, 0.64),
    ("CosmoFlow Fugaku-8192", 3.77, 3.59),
    ("CosmoFlow Fugaku-16384", 0.88, 4.93),
    ("DeepCAM ABCI-1024", 2.20, 5.55),
    ("DeepCAM ABCI-1024 open", 1.96, 5.45),
]
SECONDS = st.floats(1e-3, 1e9)


@pytest.mark.parametrize(("name", "minutes", "ratio"), MLPERF_HPC)
def test_the_published_ratios_follow_from_staging_and_epoch(name, minutes, ratio) -> None:
    epoch_s = minutes * 60 / ratio
    staged = StagedRun(minutes * 60, epoch_s)
    assert staged.ratio == pytest.approx(ratio)
    # Staging is worth as many epochs as the ratio says: after so many it is half of the time.
    assert staged.staging_fraction(ratio) == pytest.approx(0.5)
    assert staged.time_to_solution_s(ratio) == pytest.approx(2 * minutes * 60)


def test_deepcam_shows_what_faster_staging_would_be_worth() -> None:
    closed, opened = (StagedRun(m * 60, m * 60 / r) for _, m, r in MLPERF_HPC[-2:])
    saved = closed.time_to_solution_s(10) - opened.time_to_solution_s(10)
    assert saved == pytest.approx(60 * (2.20 - 1.96 + 10 * (2.20 / 5.55 - 1.96 / 5.45)))


def test_what_saves_nothing_never_pays_and_what_is_unknown_stays_so() -> None:
    assert BreakEven(100.0, 60.0, 40.0).epochs == 5.0
    assert math.isinf(BreakEven(100.0, 60.0, 60.0).epochs or 0)
    assert math.isinf(BreakEven(None, 60.0, 70.0).epochs or 0)
    assert BreakEven(None, 60.0, 40.0).epochs is None
    assert BreakEven(100.0, None, 40.0).epochs is None
    assert BreakEven(0.0, 60.0, 40.0).epochs == 0
    assert BreakEven(100.0, 60.0, 40.0).staged == StagedRun(100.0, 40.0)
    assert BreakEven(None, 60.0, 40.0).staged is None


@given(spent_s=SECONDS, after_s=SECONDS, saved_s=SECONDS)
def test_at_break_even_both_trainings_have_taken_equally_long(spent_s, after_s, saved_s) -> None:
    found = BreakEven(spent_s, after_s + saved_s, after_s)
    if not found.saved_s:
        return  # lost in rounding
    assert found.epochs is not None
    staged = StagedRun(spent_s, after_s)
    both = found.epochs * (after_s + saved_s)
    assert staged.time_to_solution_s(found.epochs) == pytest.approx(both, rel=1e-6)


@pytest.mark.parametrize(("staging_s", "epoch_s"), [(-1, 1), (1, 0), (math.inf, 1), (1, math.nan)])
def test_a_staging_that_takes_no_time_at_all_is_refused(staging_s, epoch_s) -> None:
    with pytest.raises(ValueError, match="expected staging"):
        StagedRun(staging_s, epoch_s)


def test_the_bill_counts_each_sample_once_and_each_start_on_every_rank() -> None:
    given_ = {"n_samples": 3600, "sample_wall_ns": 2e9, "sample_idle_ns": 1e9, "on_device": False}
    one = bill_of(ranks=1, epochs=1, start_ns=0, **given_)
    assert (one.idle_hours, one.all_hours) == (1.0, 2.0)
    # Ranks share the samples: only their starts are there as often as they are.
    many = bill_of(ranks=8, epochs=10, start_ns=36e9, **given_)
    assert many.idle_hours == pytest.approx(10 + 8 * 10 * 0.01)
    assert many.all_hours == pytest.approx(20 + 8 * 10 * 0.01)
    with pytest.raises(ValueError, match="one rank"):
        bill_of(ranks=0, epochs=1, start_ns=0, **given_)
