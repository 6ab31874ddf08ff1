"""What ENS-10's surface files hold: variables, dates, years, grid, and where they are published."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from iobench.errors import OptionError

__all__ = [
    "ALL_DATES",
    "ALL_YEARS",
    "CHANNELS",
    "CITATION",
    "GRID",
    "LEAD_HOURS",
    "MEMBERS",
    "STEPS",
    "SURFACE_VARIABLES",
    "TARGET_URL",
    "TERMS",
    "Grid",
    "SurfaceVariable",
    "parse_dates",
    "surface_url",
]

BUCKET_URL = "https://storage.ecmwf.europeanweather.cloud/MAELSTROM_AP4"
TARGET_URL = f"{BUCKET_URL}/era5/ERA5_sfc_t2m.nc"
"""No location is published for the target: beside the forecasts, in a folder of its own."""
TERMS = "https://github.com/spcl/climetlab-maelstrom-ens10/blob/main/ENS10_LICENCE.txt"
"""Of use, as the plugin prints them; they hold for ens5mini, too."""
CITATION = "https://arxiv.org/abs/2005.08748"
"""What the plugin's documentation points to; it asks for no other."""
LEAD_HOURS = 48
"""The step the D2.3 U-Net read; its target is the field at the forecast's start plus this."""
STEPS = (0, 24, 48)
MEMBERS = 10
ALL_YEARS = range(1998, 2018)
FIRST_TEST_YEAR = 2016


@dataclass(frozen=True, slots=True)
class SurfaceVariable:
    """One surface field: cfgrib's name, ECMWF's parameter number, units, range of values."""

    name: str
    param_id: int
    units: str
    low: float
    high: float


# In the order cfgrib decodes them. Ranges: normalisation table of spcl/ens10.
SURFACE_VARIABLES = (
    SurfaceVariable("sst", 34, "K", 260.0, 305.0),
    SurfaceVariable("tcw", 136, "kg m**-2", 0.0, 60.0),
    SurfaceVariable("tcwv", 137, "kg m**-2", 0.0, 60.0),
    SurfaceVariable("cp", 143, "m", 0.0, 0.04),
    SurfaceVariable("msl", 151, "Pa", 97000.0, 110000.0),
    SurfaceVariable("tcc", 164, "(0 - 1)", 0.0, 1.0),
    SurfaceVariable("u10", 165, "m s**-1", -13.0, 11.0),
    SurfaceVariable("v10", 166, "m s**-1", -10.0, 15.0),
    SurfaceVariable("t2m", 167, "K", 218.0, 304.0),
    SurfaceVariable("tp", 228, "m", 0.0, 0.07),
    SurfaceVariable("skt", 235, "K", 210.0, 310.0),
)
CHANNELS = tuple(
    f"{variable.name}_{moment}" for variable in SURFACE_VARIABLES for moment in ("mean", "std")
)


@dataclass(frozen=True, slots=True)
class Grid:
    """A global regular grid, north to south, from Greenwich eastwards."""

    n_latitudes: int
    n_longitudes: int
    spacing: float

    @property
    def shape(self) -> tuple[int, int]:
        """Latitudes and longitudes."""
        return self.n_latitudes, self.n_longitudes

    @property
    def n_points(self) -> int:
        """Points of one field."""
        return self.n_latitudes * self.n_longitudes


GRID = Grid(361, 720, 0.5)


def _mondays_and_thursdays() -> tuple[str, ...]:
    first = datetime.date(2018, 1, 1)
    days = (first + datetime.timedelta(days=number) for number in range(365))
    return tuple(f"{day:%m%d}" for day in days if day.weekday() in (0, 3))


ALL_DATES = _mondays_and_thursdays()
"""The 105 start dates (``MMDD``): Mondays and Thursdays of 2018, after which files are named."""


def surface_url(date: str) -> str:
    """Return where the surface file of a start date (``MMDD``) is published."""
    return f"{BUCKET_URL}/output.sfc.2018{date}"


def parse_dates(text: str) -> tuple[str, ...]:
    """Return the start dates (``MMDD``) in a comma list of ``MMDD`` or ``YYYYMMDD``.

    The year is ignored, as upstream: a file holds the same day of 20 years.

    Raises
    ------
    OptionError
        If one of them is not a start date of the data set.
    """
    dates = []
    for entry in text.split(","):
        date = entry.strip()
        if len(date) == 8:
            date = date[4:]
        if date not in ALL_DATES:
            raise OptionError(
                f"date {entry.strip()!r}: expected MMDD or YYYYMMDD, separated by commas, with "
                f"MMDD one of {' '.join(ALL_DATES)}"
            )
        dates.append(date)
    return tuple(sorted(set(dates)))
