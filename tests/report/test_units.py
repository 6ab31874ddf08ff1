"""Units: nothing is rounded away, nothing unknown is shown as a number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.report import units

SIZES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


@pytest.mark.parametrize(
    ("unit", "texts"),
    [
        ("duration", {
            None: "unknown", 0: "0", 7: "7 ns", 999_499: "999 us", 999_500: "1.00 ms",
            21_120_000: "21.1 ms", 999_600_000: "1.00 s", 2_400_000_000_000: "2,400 s",
        }),
        ("fraction", {
            None: "unknown", 0: "0 %", 0.0001: "< 0.1 %", 0.0049: "0.5 %", 0.0996: "10 %",
            0.88: "88 %", 0.9949: "99 %", 0.996: "99.6 %", 0.9997: "> 99.9 %", 1: "100 %",
        }),
        ("byte_rate", {None: "unknown", 0: "0 B/s", 1_236_000_000: "1.24 GB/s"}),
        ("ratio", {None: "unknown", 0: "0", 12.34: "12.3", 0.00001: "< 0.001"}),
        ("epochs", {0.004: "< 0.1", 0.4: "0.4", 2.345: "2.3", 12345.0: "12,000"}),
    ],
)  # fmt: skip
def test_a_quantity_is_said_in_three_digits(unit: str, texts: dict[Any, str]) -> None:
    say = getattr(units, unit)
    assert {value: say(value) for value in texts} == texts


@given(st.integers(min_value=1, max_value=10**15))
def test_duration_is_within_its_last_digit(ns: int) -> None:
    number, unit = units.duration(ns).split()
    shown = float(number.replace(",", "")) * SIZES[unit]
    assert shown > 0
    assert abs(shown - ns) <= 0.0051 * ns


@given(st.floats(min_value=0, max_value=1))
def test_only_all_is_100_and_only_nothing_is_0(value: float) -> None:
    assert (units.fraction(value) == "100 %") == (value == 1)
    assert (units.fraction(value) == "0 %") == (value == 0)


@given(st.lists(st.one_of(st.none(), st.integers(min_value=0, max_value=10**14)), min_size=1))
def test_a_column_tells_zero_unknown_and_little_apart(values_ns: list[int | None]) -> None:
    unit, texts = units.durations(values_ns)
    for value, text in zip(values_ns, texts, strict=True):
        assert (text == "unknown") == (value is None)
        assert (text == "0") == (value == 0)
        if value and not text.startswith("<"):
            assert float(text.replace(",", "")) * SIZES[unit] == pytest.approx(
                value, abs=0.0051 * SIZES[unit] + 0.5
            )
