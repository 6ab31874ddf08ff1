"""First and last dates of a range, spelled as anemoi-datasets' ``open_dataset`` takes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from iobench.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECOND = np.timedelta64(1, "s")
ROUNDING = 2.0**-30
"""So that 10 % of 30 dates are 3, whatever floating point makes of it; as in anemoi-datasets."""

# Years, months and days with or without dashes, then a time of day, which is one second.
SPELLING = re.compile(
    r"(?P<year>\d{4})(?:-?(?P<month>\d{2})(?:-?(?P<day>\d{2})"
    r"(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2})?))?)?)?"
)
SHARE = re.compile(r"(?P<share>\d+(?:\.\d*)?)%")


class Period(msgspec.Struct, frozen=True):
    """A year, month, day or second; or a share of the dates, from the first."""

    begin: np.datetime64
    end: np.datetime64  # its first and last second; ``NaT`` for a share
    percent: float  # the share, NaN for a period

    def first(self, dates: NDArray[np.datetime64]) -> np.datetime64:
        """Return from when dates are taken if this is their start."""
        if np.isnan(self.percent):
            return self.begin
        number = int(self.percent * len(dates) / 100 - ROUNDING)
        found: np.datetime64 = dates[min(max(number, 0), len(dates) - 1)]
        return found

    def last(self, dates: NDArray[np.datetime64]) -> np.datetime64:
        """Return until when dates are taken if this is their end."""
        if np.isnan(self.percent):
            return self.end
        number = int(self.percent * len(dates) / 100 + ROUNDING) - 1
        found: np.datetime64 = dates[min(max(number, 0), len(dates) - 1)]
        return found


def parse_period(option: str, text: str) -> Period:
    """Return what ``option=text`` means."""
    nat = np.datetime64("NaT", "s")
    share = SHARE.fullmatch(text)
    if share and 0 <= float(share["share"]) <= 100:
        return Period(nat, nat, float(share["share"]))
    found = SPELLING.fullmatch(text)
    try:
        if found:
            begin, end = _ends(**found.groupdict())
            return Period(begin, end, np.nan)
    except ValueError:
        pass  # a month 13, or a 30 February
    raise OptionError(
        f"{option}={text}: expected a date such as 2020, 2020-01, 2020-01-31, "
        "2020-01-31T06:00:00, or a share such as 80%"
    )


def _ends(
    year: str, month: str | None, day: str | None, time: str | None
) -> tuple[np.datetime64, np.datetime64]:
    """Return the first and the last second of a period."""
    spelled = "-".join(part for part in (year, month, day) if part)
    if time:
        second = np.datetime64(f"{spelled}T{time}", "s")
        return second, second
    unit: Literal["D", "M", "Y"] = "D" if day else "M" if month else "Y"
    period = np.datetime64(spelled, unit)
    following = (period + np.timedelta64(1, unit)).astype("datetime64[s]")
    return period.astype("datetime64[s]"), following - SECOND
