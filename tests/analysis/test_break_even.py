"""When what is spent once, converting or staging, has paid for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.epoch_cost import BreakEven

SECONDS = st.floats(1e-3, 1e9)


@given(spent_s=SECONDS, after_s=SECONDS, saved_s=SECONDS)
def test_at_break_even_both_trainings_have_taken_equally_long(spent_s, after_s, saved_s) -> None:
    epochs = BreakEven.of(spent_s, after_s + saved_s, saved_s).epochs
    assert epochs is not None
    both = epochs * (after_s + saved_s)
    assert spent_s + epochs * after_s == pytest.approx(both, rel=1e-6)
    assert BreakEven.of(spent_s, after_s, -saved_s).never
