"""What ens5mini's files hold: variables, levels, years, grid, and where they are published."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.errors import OptionError
from iobench_maelstrom.ens10.schema import ALL_DATES, BUCKET_URL, Grid

__all__ = [
    "ALL_MONTHS",
    "ALL_YEARS",
    "CHANNELS",
    "DIMS",
    "GRID",
    "LEAD_HOURS",
    "LEVELS",
    "MEMBERS",
    "PRESSURE_VARIABLES",
    "STEPS",
    "PressureVariable",
    "dates_of",
    "month_url",
    "parse_months",
]

ALL_MONTHS = tuple(f"{month:02}" for month in range(1, 13))
ALL_YEARS = range(1998, 2008)
MEMBERS = 5
STEPS = (0, 24)
LEAD_HOURS = 24
"""The last step there is; ENS-10's U-Net reads its last one, too."""
LEVELS = (1000, 925, 850, 700, 500, 400, 300, 200, 100, 50, 10)
"""Pressure in hPa, in the files' order."""
DIMS = ("number", "time", "step", "isobaricInhPa", "latitude", "longitude")
GRID = Grid(40, 80, 0.5)
"""Europe: 60 to 40.5 north, 0 to 39.5 east."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PressureVariable:
    """One variable on pressure levels: cfgrib's name, units, range of values at each level."""

    name: str
    units: str
    long_name: str
    ranges: tuple[Range, ...]


def _low_and_high(low: Range, high: Range) -> tuple[Range, ...]:
    """Return 850 hPa's range for the levels up to 700 hPa, 500 hPa's for those above."""
    return tuple(low if level >= 700 else high for level in LEVELS)


# 850 and 500 hPa: normalisation table of spcl/ens10. The other levels are assumptions, after the
# standard atmosphere.
PRESSURE_VARIABLES = (
    PressureVariable(
        "z",
        "m**2 s**-2",
        "Geopotential",
        (
            (-1500, 3500), (4500, 9500), (10000, 15500), (26000, 31500), (48200, 58000),
            (64000, 75000), (82000, 95500), (106000, 122000), (148000, 164000), (189000, 205000),
            (285000, 310000),
        ),
    ),
    PressureVariable(
        "t",
        "K",
        "Temperature",
        (
            (245, 310), (243, 304), (240, 299), (235, 288), (230, 269), (222, 258), (212, 244),
            (200, 233), (190, 228), (188, 230), (200, 260),
        ),
    ),
    PressureVariable(
        "q",
        "kg kg**-1",
        "Specific humidity",
        tuple(
            (0.0, high)
            for high in (22e-3, 19e-3, 15e-3, 1e-2, 4e-3, 2e-3, 8e-4, 15e-5, 5e-6, 4e-6, 5e-6)
        ),
    ),
    PressureVariable(
        "w", "Pa s**-1", "Vertical velocity", _low_and_high((-1.2, 1.8), (-0.7, 1.4))
    ),
    PressureVariable("d", "s**-1", "Divergence", _low_and_high((-1.9e-4, 1.6e-4), (-5e-5, 8e-5))),
    PressureVariable("u", "m s**-1", "U component of wind", _low_and_high((-16, 17.5), (-7, 27))),
    PressureVariable("v", "m s**-1", "V component of wind", _low_and_high((-10, 16), (-7, 7))),
)  # fmt: skip
CHANNELS = tuple(
    f"{variable.name}{level}_{moment}"
    for variable in PRESSURE_VARIABLES
    for level in LEVELS
    for moment in ("mean", "std")
)


def month_url(month: str) -> str:
    """Return where the file of a month (``MM``) is published."""
    return f"{BUCKET_URL}/toy/ens5mini.{month}.nc"


def dates_of(month: str) -> tuple[str, ...]:
    """Return the start dates (``MMDD``) of a month: ENS-10's, each in all years."""
    return tuple(date for date in ALL_DATES if date[:2] == month)


def parse_months(text: str) -> tuple[str, ...]:
    """Return the months (``MM``) in a comma list of ``MM``, ``MMDD`` or ``YYYYMMDD``.

    Only the month counts, as upstream: a file holds all starts of its month in ten years.

    Raises
    ------
    OptionError
        If one of them names no month.
    """
    months = set()
    for entry in text.split(","):
        date = entry.strip()
        month = {8: date[4:6], 4: date[:2], 2: date}.get(len(date), "")
        if month not in ALL_MONTHS or not date.isdigit():
            raise OptionError(
                f"date {date!r}: expected MM, MMDD or YYYYMMDD, separated by commas, with MM one "
                f"of {' '.join(ALL_MONTHS)}"
            )
        months.add(month)
    return tuple(sorted(months))
