"""Quantities as people read them; the only place of the package that rounds.

Unknown is ``"unknown"``, zero is ``"0"``, and what is neither is never rounded to nothing or to
everything. Bytes are decimal, as storage is sold and bandwidth is quoted: 1 GB is 10**9 B.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "unknown"


def _steps(prefixes: str, unit: str) -> tuple[tuple[str, int], ...]:
    """Return a unit with its prefixes, each a thousand of the one before."""
    return tuple((f"{each}{unit}".strip(), 1000**power) for power, each in enumerate(prefixes))


DURATIONS: Final = _steps("num ", "s")
JOULES: Final = _steps("um kM", "J")
BYTES: Final = _steps(" kMGTP", "B")


def duration(ns: float | None) -> str:
    """Return a time in three digits and the unit that suits it, e.g. ``"21.1 ms"``."""
    return UNKNOWN if ns is None else _scaled(ns, DURATIONS)


def durations(
    values_ns: Sequence[float | None], *, unit: str | None = None
) -> tuple[str, list[str]]:
    """Return one unit for a column of times, and each time in it with the same decimals.

    The unit is the one given, else that of the largest time. Times have three decimals, or two
    where the largest is 100 or more; one too short for them is ``"<0.01"``, not zero.
    """
    largest = max((abs(value) for value in values_ns if value is not None), default=0)
    fitting = [name for name, size in DURATIONS if largest >= size]
    unit = unit or (fitting or ["ns"])[-1]
    size = dict(DURATIONS)[unit]
    decimals = 0 if size == 1 else 3 if largest < 100 * size else 2
    return unit, [_in_column(value, size, decimals) for value in values_ns]


def seconds(ns: int) -> float:
    """Return nanoseconds as seconds, unrounded: what ``_s`` keys of JSON hold."""
    return ns / 1_000_000_000


def nanoseconds(value_s: float) -> int:
    """Return seconds, as publications print them, as the nearest nanosecond."""
    return round(value_s * 1_000_000_000)


def moment(wall_ns: int) -> str:
    """Return a time of day, nanoseconds since 1970, e.g. ``"2026-11-22 10:11 UTC"``."""
    return f"{datetime.fromtimestamp(wall_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"


def joules(j: float | None) -> str:
    """Return an energy in three digits and the unit that suits it, e.g. ``"1.24 kJ"``."""
    return UNKNOWN if j is None else _scaled(j * 1e6, JOULES, zero="0 J")


def nbytes(value: float | None) -> str:
    """Return bytes in three digits and a decimal unit, e.g. ``"22.9 MB"``."""
    return UNKNOWN if value is None else _scaled(value, BYTES)


def byte_rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth, e.g. ``"1.24 GB/s"``."""
    return UNKNOWN if bytes_per_s is None else f"{_scaled(bytes_per_s, BYTES, zero='0 B')}/s"


def ratio(value: float | None) -> str:
    """Return a quotient or a rate in three digits, e.g. ``"1.20"``."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.001:
        return "< 0.001"
    return _three_digits(value) if value else "0"


def fraction(value: float | None) -> str:
    """Return a share of one in per cent, e.g. ``"88 %"``; ``"0 %"`` and ``"100 %"`` are exact."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.001:
        return "< 0.1 %"
    if 0.999 < value < 1:
        return "> 99.9 %"
    percent = 100 * value
    one_decimal = 0 < percent < 9.95 or 99.5 <= percent < 100
    return f"{percent:.{1 if one_decimal else 0}f} %"


def signed_fraction(value: float | None) -> str:
    """Return how far something is off, in per cent with its sign, e.g. ``"-1.6 %"``."""
    if value is None:
        return UNKNOWN
    percent = 100 * value
    if abs(percent) < 0.05:
        return "0.0 %"
    return f"{percent:+.{1 if abs(percent) < 9.95 else 0}f} %"


def count(value: int | None) -> str:
    """Return a number of things, with a comma at thousands."""
    return UNKNOWN if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """Return a number in three significant digits, e.g. ``"0.00391"`` or ``"1.2e-07"``."""
    return UNKNOWN if value is None else f"{value:.3g}"


def epochs(value: float) -> str:
    """Return a number of epochs in two digits, never more exact than its parts."""
    return "< 0.1" if 0 < value < 0.1 else f"{float(f'{value:.1e}'):,.6g}"


def _scaled(value: float, units: Sequence[tuple[str, int]], *, zero: str = "0") -> str:
    if value == 0:
        return zero
    if value < 0:
        return f"-{_scaled(-value, units, zero=zero)}"
    # 999.6 is shown as 1000, so the next unit begins where rounding reaches it.
    unit, size = next((pair for pair in units if value < 999.5 * pair[1]), units[-1])
    if size == 1:
        return f"{value:.0f} {unit}" if value >= 1 else f"< 1 {unit}"
    return f"{_three_digits(value / size)} {unit}"


def _three_digits(value: float) -> str:
    for limit, decimals in ((9.995, 2), (99.95, 1)):
        if value < limit:
            return f"{value:.{decimals}f}" if value >= 0.1 else f"{value:.3f}"
    return f"{value:,.0f}"


def _in_column(value: float | None, size: int, decimals: int) -> str:
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    text = f"{value / size:,.{decimals}f}"
    return text if float(text.replace(",", "")) else f"<{10**-decimals:.{decimals}f}"
