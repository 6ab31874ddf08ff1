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


def test_the_probe_is_scaled_to_all_samples_and_pays_back_by_what_an_epoch_saves() -> None:
    source = replace(WINDOW, wall_ns=12_000_000_000)  # 0.6 s a sample against 0.1 s
    full = predict_full_conversion(**PROBE, source=source, store=WINDOW)
    assert full == FullConversion(1000, 7000, 200.0, pytest.approx(500.0), pytest.approx(0.4))


@pytest.mark.parametrize(
    ("source", "convert_s"),
    [(None, 2.0), (WINDOW, 2.0), (replace(WINDOW, n_samples=None), 2.0)],
)
def test_what_is_not_known_or_never_pays_has_no_payback(source, convert_s) -> None:
    full = predict_full_conversion(
        **{**PROBE, "probe_convert_s": convert_s}, source=source, store=WINDOW
    )
    assert full.payback_epochs is None


def test_a_probe_that_was_there_already_has_no_time() -> None:
    full = predict_full_conversion(
        **{**PROBE, "probe_convert_s": None},
        source=replace(WINDOW, wall_ns=12_000_000_000),
        store=WINDOW,
    )
    assert (full.convert_s, full.payback_epochs) == (None, None)
    assert full.nbytes == 7000


@given(spent_s=SECONDS, after_s=SECONDS, saved_s=SECONDS)
def test_at_break_even_both_trainings_have_taken_equally_long(spent_s, after_s, saved_s) -> None:
    epochs = BreakEven.of(spent_s, after_s + saved_s, saved_s).epochs
    assert epochs is not None
    both = epochs * (after_s + saved_s)
    assert spent_s + epochs * after_s == pytest.approx(both, rel=1e-6)
    assert BreakEven.of(spent_s, after_s, -saved_s).never
