"""What application A5's two tiers hold: variables, months, splits, and the options that choose.

Sources: climetlab-maelstrom-downscaling 0.4.0 (months, splits, URLs, size of tier 2), the demo
notebook of tier 1 and the loader's configuration of tier 2 in downscaling_benchmark (variables,
channels). Ranges of values are those of stand-ins alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from iobench.errors import OptionError

__all__ = ["TIERS", "Channels", "Field", "Request", "Tier", "parse_request"]

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap5"
SPLIT_NAMES = {"training": "train", "validation": "validation", "testing": "test"}
"""Upstream's names of splits, and what they are called in a `SampleIndex`."""


@dataclass(frozen=True, slots=True)
class Field:
    """A variable: its name, units, a range of values for stand-ins; ``static`` may lack time."""

    name: str
    units: str
    low: float
    high: float
    static: bool = False


@dataclass(frozen=True, slots=True)
class Channels:
    """The variables of a sample, in order."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Each variable once."""
        return tuple(dict.fromkeys((*self.inputs, *self.targets)))


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier of the data set.

    Parameters
    ----------
    number : int
        1 or 2.
    dims : tuple of str
        Time and the two of a field.
    shape : tuple of int
        Of a field.
    step_hours : int
        Between samples.
    fields : tuple of Field
        All variables a file may have.
    variants : mapping of str to Channels
        What samples are made of, by name; a file that has the variables of several gives the
        first.
    per_point : tuple of str
        Variables normalised per grid point over time; the others over all their values.
    splits : mapping of str to tuple of str
        Months (``YYYY-MM``) by upstream's name.
    augmented : mapping of str to (str, str)
        Upstream's names of single files: the file's name and its split.
    """

    number: int
    dims: tuple[str, str, str]
    shape: tuple[int, int]
    step_hours: int
    fields: tuple[Field, ...]
    variants: Mapping[str, Channels]
    per_point: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    augmented: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return f"maelstrom-downscaling-tier{self.number}"

    @property
    def months(self) -> tuple[str, ...]:
        """All months, ascending."""
        return tuple(sorted(month for split in self.splits.values() for month in split))

    def month_url(self, month: str) -> str:
        """Return where a month's file is published."""
        return f"{BUCKET_URL}/tier-{self.number}/downscaling_tier{self.number}_{month}.nc"

    def split_of(self, month: str) -> str:
        """Return the split (train, validation, test) a month belongs to; "" for none."""
        names = (SPLIT_NAMES[name] for name, months in self.splits.items() if month in months)
        return next(names, "")


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for: months, upstream's name of a split or file, a variant; or ""."""

    months: tuple[str, ...] = ()
    dataset: str = ""
    variant: str = ""


ALIAS = "maelstrom-downscaling"


def parse_request(tier: Tier, options: Mapping[str, str], *, of_alias: bool = False) -> Request:
    """Return what options ask for.

    ``of_alias``: they were given to `ALIAS`, which knows ``tier``, too, and took it off them.

    Raises
    ------
    OptionError
        For an unknown option or value, listing the valid ones, and for ``months`` together with
        ``dataset`` (upstream then ignores the months).
    """
    known = ("months", "dataset", *(("variant",) if len(tier.variants) > 1 else ()))
    for name in options:
        if name not in known:
            who = f"{ALIAS} knows tier, and" if of_alias else f"{tier.name} knows"
            of_tier = f" with tier {tier.number}" if of_alias else ""
            raise OptionError(f"option {name!r}: {who} {', '.join(known)}{of_tier}")
    if "months" in options and "dataset" in options:
        raise OptionError("months and dataset choose the same thing: give one of them")
    _check_choice(options, "dataset", (*tier.splits, *tier.augmented))
    _check_choice(options, "variant", tier.variants)
    months = _parse_months(tier, options["months"]) if "months" in options else ()
    return Request(months, options.get("dataset", ""), options.get("variant", ""))


def _check_choice(options: Mapping[str, str], name: str, choices: Iterable[str]) -> None:
    if name in options and options[name] not in choices:
        raise OptionError(f"{name} {options[name]!r}: expected one of {', '.join(choices)}")


def _parse_months(tier: Tier, text: str) -> tuple[str, ...]:
    """Return the months in a comma list of ``YYYY-MM`` or, as upstream, ``YYYY-MM-DD``."""
    found = set()
    for entry in text.split(","):
        match = re.fullmatch(r"(\d{4}-\d\d)(-\d\d)?", entry.strip())
        if match is None or match[1] not in tier.months:
            raise OptionError(
                f"months {entry.strip()!r}: expected YYYY-MM or YYYY-MM-DD, separated by commas, "
                f"in one of {_in_words(tier.months)}"
            )
        found.add(match[1])
    return tuple(sorted(found))


def _in_words(months: Iterable[str]) -> str:
    """Return months as runs within a year: ``2016-04..2016-09, 2017-04..2017-09``."""
    runs: list[list[str]] = []
    for month in months:
        if runs and _number(month) == _number(runs[-1][-1]) + 1:
            runs[-1].append(month)
        else:
            runs.append([month])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else run[0] for run in runs)


def _number(month: str) -> int:
    return int(month[:4]) * 12 + int(month[5:])


def _months(years: Iterable[int], months: Iterable[int]) -> tuple[str, ...]:
    of_year = tuple(months)
    return tuple(f"{year}-{month:02}" for year in years for month in of_year)


_SUMMER, _WHOLE_YEAR = range(4, 10), range(1, 13)
_TEMPERATURES = tuple(
    Field(name, "K", low, high)
    for name, low, high in (
        ("t2m_in", 248.0, 312.0),
        ("t137_in", 248.0, 312.0),
        ("t135_in", 248.0, 311.0),
        ("t131_in", 247.0, 310.0),
        ("t127_in", 246.0, 308.0),
        ("t122_in", 244.0, 304.0),
        ("t115_in", 238.0, 296.0),
    )
)
_TIER2_FIELDS = (
    *_TEMPERATURES,
    Field("sp_in", "Pa", 82_000.0, 104_000.0),
    Field("slhf_in", "J m-2", -1.5e6, 2.0e5),
    Field("sshf_in", "J m-2", -1.2e6, 4.0e5),
    Field("u10_in", "m s-1", -18.0, 18.0),
    Field("v10_in", "m s-1", -18.0, 18.0),
    Field("blh_in", "m", 15.0, 3_000.0),
    Field("z_in", "m", -10.0, 2_600.0, static=True),
    Field("lsm_in", "1", 0.0, 1.0, static=True),
    Field("fr_land_tar", "1", 0.0, 1.0, static=True),
    Field("t_2m_tar", "K", 246.0, 314.0),
    Field("hsurf_tar", "m", -10.0, 3_600.0, static=True),
)
_TIER2_TARGETS = ("t_2m_tar", "hsurf_tar")


def _tier2_channels(*left_out: str) -> Channels:
    """Return all variables but those left out, the target's topography first, as upstream."""
    without = (*left_out, *_TIER2_TARGETS)
    predictors = (each.name for each in _TIER2_FIELDS if each.name not in without)
    return Channels(("hsurf_tar", *predictors), _TIER2_TARGETS)


TIERS = {
    1: Tier(
        number=1,
        dims=("time", "lat", "lon"),
        shape=(96, 128),
        step_hours=12,
        fields=(
            Field("t2m_in", "K", 255.0, 312.0),
            Field("z_in", "", -10.0, 2_600.0, static=True),
            Field("z_tar", "", -10.0, 3_600.0, static=True),
            Field("t2m_tar", "K", 253.0, 314.0),
        ),
        variants={"unet": Channels(("t2m_in", "z_in", "z_tar"), ("t2m_tar", "z_tar"))},
        per_point=("t2m_in", "t2m_tar"),
        splits={
            "training": _months(range(2016, 2020), _SUMMER),
            "validation": _months((2020,), (5, 7, 8)),
            "testing": _months((2020,), (4, 6, 9)),
        },
        augmented={
            f"{name}_aug": (f"{BUCKET_URL}/tier-1/downscaling_tier1_{short}_aug.nc", split)
            for name, short, split in (
                ("training", "train", "train"),
                ("validation", "val", "validation"),
                ("testing", "test", "test"),
            )
        },
    ),
    2: Tier(
        number=2,
        dims=("time", "rlat", "rlon"),
        shape=(96, 120),
        step_hours=1,
        fields=_TIER2_FIELDS,
        variants={
            "benchmark_t2m": _tier2_channels("t137_in"),
            "published": _tier2_channels("lsm_in", "fr_land_tar"),
        },
        per_point=(),
        splits={
            "training": _months(range(1995, 2017), _WHOLE_YEAR),
            "validation": _months((2017,), _WHOLE_YEAR),
            "testing": _months((2018,), _WHOLE_YEAR),
        },
    ),
}
