"""What ENS-10's files hold: variables, dates, years, grid, and where they are published."""

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
    "SURFACE_TASK",
    "SURFACE_VARIABLES",
    "TARGET_URL",
    "TERMS",
    "GribField",
    "Grid",
    "UnetTask",
    "forecast_url",
    "parse_dates",
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
class GribField:
    """One field: cfgrib's name, ECMWF's parameter number, units, range of values, level in hPa.

    At a pressure level the name has it, too: ``z500``. At the surface the level is 0.
    """

    name: str
    param_id: int
    units: str
    low: float
    high: float
    level: int = 0


# In the order cfgrib decodes them. Ranges: normalisation table of spcl/ens10.
SURFACE_VARIABLES = (
    GribField("sst", 34, "K", 260.0, 305.0),
    GribField("tcw", 136, "kg m**-2", 0.0, 60.0),
    GribField("tcwv", 137, "kg m**-2", 0.0, 60.0),
    GribField("cp", 143, "m", 0.0, 0.04),
    GribField("msl", 151, "Pa", 97000.0, 110000.0),
    GribField("tcc", 164, "(0 - 1)", 0.0, 1.0),
    GribField("u10", 165, "m s**-1", -13.0, 11.0),
    GribField("v10", 166, "m s**-1", -10.0, 15.0),
    GribField("t2m", 167, "K", 218.0, 304.0),
    GribField("tp", 228, "m", 0.0, 0.07),
    GribField("skt", 235, "K", 210.0, 310.0),
)


@dataclass(frozen=True, slots=True)
class UnetTask:
    """One of the D2.3 U-Net's tasks: what it read, and what it was to say.

    Parameters
    ----------
    dtype : str
        ``sfc`` or ``pl``, as upstream.
    variables : tuple of GribField
        What a sample is made of, all at one level.
    target, target_units : str
        Name of the target in a sample, and its units.
    target_variable, target_url : str
        Its name in ERA5's file, and where that is.
    """

    dtype: str
    variables: tuple[GribField, ...]
    target: str
    target_units: str
    target_variable: str
    target_url: str

    @property
    def channels(self) -> tuple[str, ...]:
        """Mean and deviation of each variable."""
        return tuple(f"{v.name}_{moment}" for v in self.variables for moment in ("mean", "std"))

    @property
    def level(self) -> int:
        """In hPa; 0 at the surface."""
        return self.variables[0].level


SURFACE_TASK = UnetTask("sfc", SURFACE_VARIABLES, "t2m", "K", "t2m", TARGET_URL)
CHANNELS = SURFACE_TASK.channels


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


def forecast_url(date: str, dtype: str) -> str:
    """Return where the file of a start date (``MMDD``) is published, of ``sfc`` or ``pl``."""
    return f"{BUCKET_URL}/output.{dtype}.2018{date}"


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
