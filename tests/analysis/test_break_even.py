"""When what is spent once, converting or staging, has paid for itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from iobench.analysis.break_even import BreakEven, FullConversion, predict_full_conversion
from iobench.analysis.exposure_figures import PartExposure

SECONDS = st.floats(1e-3, 1e9)
WINDOW = PartExposure(
    wall_ns=2_000_000_000,
    wait_ns=0,
    compute_ns=2_000_000_000,
    n_batches=10,
    n_samples=20,
    nbytes=None,
    stages=(),
    compute_stages=(),
    waits_ns=(),
    wait=None,
    read_nbytes=None,
    cold_fraction=None,
    overhead_fraction=None,
)
PROBE = {"n_samples": 1000, "probe_n_samples": 10, "probe_nbytes": 70, "probe_convert_s": 2.0}


@pytest.mark.parametrize(
    ("source_ns", "convert_s", "saved_s", "epochs"),
    [
        (12_000_000_000, 2.0, 500.0, 0.4),  # 0.6 s a sample against 0.1 s
        (12_000_000_000, None, 500.0, None),
        (2_000_000_000, 2.0, 0.0, None),
        (None, 2.0, None, None),
    ],
)
def test_the_probe_is_scaled_to_all_samples_and_pays_back_by_what_an_epoch_saves(
    source_ns, convert_s, saved_s, epochs
) -> None:
    source = None if source_ns is None else replace(WINDOW, wall_ns=source_ns)
    known = {**PROBE, "probe_convert_s": convert_s}
    full = predict_full_conversion(**known, source=source, store=WINDOW)
    whole_s = None if convert_s is None else 100 * convert_s
    assert full == FullConversion(1000, 7000, whole_s, pytest.approx(saved_s), epochs)


@given(spent_s=SECONDS, after_s=SECONDS, saved_s=SECONDS)
def test_at_break_even_both_trainings_have_taken_equally_long(spent_s, after_s, saved_s) -> None:
    epochs = BreakEven.of(spent_s, after_s + saved_s, saved_s).epochs
    assert epochs is not None
    both = epochs * (after_s + saved_s)
    assert spent_s + epochs * after_s == pytest.approx(both, rel=1e-6)
    assert BreakEven.of(spent_s, after_s, -saved_s).never
