"""When a conversion has paid, and what waiting costs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.subjects.advice.advising import bill_of
from iobench.subjects.advice.figures import BreakEven, Circumstances, Cost

SECONDS = st.floats(1e-3, 1e9)


def test_what_saves_nothing_never_pays_and_what_is_unknown_stays_so() -> None:
    spent, unknown = Cost(100.0), Cost(None)
    assert BreakEven.of(spent, 60.0, 20.0) == BreakEven(5.0, False, 2.5)
    assert BreakEven.of(spent, 60.0, 0.0).never
    assert BreakEven.of(unknown, 60.0, -10.0) == BreakEven(None, True, None)
    assert BreakEven.of(unknown, 60.0, 20.0) == BreakEven(None, False, None)
    assert BreakEven.of(spent, None, None) == BreakEven(None, False, None)
    assert BreakEven.of(Cost(0.0), 60.0, 20.0).epochs == 0


@given(spent_s=SECONDS, after_s=SECONDS, saved_s=SECONDS)
def test_at_break_even_both_trainings_have_taken_equally_long(spent_s, after_s, saved_s) -> None:
    epochs = BreakEven.of(Cost(spent_s), after_s + saved_s, saved_s).epochs
    assert epochs is not None
    both = epochs * (after_s + saved_s)
    assert spent_s + epochs * after_s == pytest.approx(both, rel=1e-6)


def test_the_bill_counts_each_sample_once_and_each_start_on_every_rank() -> None:
    steady = SimpleNamespace()
    run = SimpleNamespace(startup_ns=[36e9])
    way = SimpleNamespace(sample_ns=2e9, wait_fraction=0.5, window=steady, steady=steady, run=run)
    here = Circumstances(n_samples_all=3600)
    many = bill_of(way, here, 8, 10)  # type: ignore[arg-type]
    # Ranks share the samples: only their starts are there as often as they are.
    assert many.idle_hours == pytest.approx(10 + 8 * 10 * 0.01)
    assert many.all_hours == pytest.approx(20 + 8 * 10 * 0.01)
    timed = Circumstances(n_samples_all=3600, idle_fraction=0.25)
    one = bill_of(way, timed, 1, 1)  # type: ignore[arg-type]
    assert (one.idle_hours, one.all_hours, one.on_device) == (0.5, 2.0, True)
