"""Application A5: downscaling of 2 m temperature; a sample is one time step, z-scored.

Sources: climetlab-maelstrom-downscaling 0.4.0 (months, splits, URLs), the demo notebook of tier 1,
the loader's configuration of tier 2 in downscaling_benchmark (variables, channels).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from iobench.datasets import (
    Axis,
    ChannelGroup,
    FileKey,
    Key,
    Option,
    PublishedStep,
    Recipe,
    RecipeVariable,
    Split,
    recipe_variables,
)
from iobench.errors import OptionError
from iobench_maelstrom.climetlab_plugin import PluginFiles

if TYPE_CHECKING:
    from iobench.datasets import NetcdfFile, PluginCall

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap5"
HOME_PAGE = "https://git.ecmwf.int/projects/MLFET/repos/maelstrom-downscaling-ap5"
MONTHS_TEXT = "Months as upstream, YYYY-MM-DD or YYYY-MM, separated by commas; all required."
SCORED: dict[str, Any] = {"dtype": "f8", "zscore": "all"}
SUMMER, WHOLE_YEAR = range(4, 10), range(1, 13)


def months_of(years: Iterable[int], months: Iterable[int]) -> tuple[str, ...]:
    """Return months of years as ``2016-04``."""
    of_year = tuple(months)
    return tuple(f"{year}-{month:02}" for year in years for month in of_year)


def months_key(known: Sequence[str]) -> Key:
    """Return the key of months: ``YYYY-MM`` or, as upstream, ``YYYY-MM-DD``."""
    return Key("months", known, MONTHS_TEXT, partial(re.sub, r"^(\d{4}-\d\d)-\d\d$", r"\1"))


class Downscaling(PluginFiles, Recipe):
    """What both tiers of application A5 have in common; see `Recipe`."""

    number: int
    example = "months=2016-04-01"
    terms_of_use = f"{HOME_PAGE}/browse/climetlab-maelstrom-downscaling-ap5/LICENSE"

    def plugin_calls(self, keys: Sequence[FileKey]) -> list[PluginCall]:
        return [self.call({"months": [f"{key['months']}-01" for key in keys]}, keys)]


class DownscalingTier1(Downscaling):
    """Tier 1: IFS, 00 and 12 UTC, summers of 2016 to 2020."""

    number = 1
    name = "maelstrom-downscaling-tier1"
    title = "2 m temperature downscaled, tier 1: IFS, 00 and 12 UTC (MAELSTROM A5)"
    url = f"{BUCKET_URL}/tier-1/downscaling_tier1_{{months}}.nc"
    keys = (months_key(months_of(range(2016, 2021), SUMMER)),)
    axes = (
        Axis("time"),
        Axis("lat", 96, 54.5, -0.1, "degrees_north"),
        Axis("lon", 128, 4.0, 0.1, "degrees_east"),
    )
    fields = (
        RecipeVariable("t2m_in", "K", 255.0, 312.0, dtype="f8", zscore="point", noise=0.88),
        RecipeVariable(
            "z_in", "", -10.0, 2_600.0, dtype="f8", is_static=True, zscore="all", noise=1
        ),
        RecipeVariable(
            "z_tar", "", -10.0, 3_600.0, dtype="f8", is_static=True, zscore="all", noise=0.99
        ),
        RecipeVariable("t2m_tar", "K", 253.0, 314.0, dtype="f8", zscore="point", noise=0.87),
    )
    channel_groups = (
        ChannelGroup("inputs", ("t2m_in", "z_in", "z_tar")),
        ChannelGroup("targets", ("t2m_tar", "z_tar"), role="target"),
    )
    splits = (
        Split("train", months_of(range(2016, 2020), SUMMER)),
        Split("validation", months_of((2020,), (5, 7, 8))),
        Split("test", months_of((2020,), (4, 6, 9))),
    )
    step_hours = 12
    tiny = ("2019-04", "2020-04", "2020-05")
    tiny_steps = 0
    ordinary = (*months_of((2019,), SUMMER), *months_of((2020,), SUMMER))
    attributes = (
        *Downscaling.attributes,
        ("CDO", "Climate Data Operators version 1.9.8 (https://mpimet.mpg.de/cdo)"),
        ("NCO", "netCDF Operators version 4.9.5"),
    )

    def stored_dims(self, each: RecipeVariable) -> tuple[str, ...]:
        return self.dims_of(each)


def _tier2_inputs(*left_out: str) -> tuple[str, ...]:
    """Return all variables but those left out, the target's topography first, as upstream."""
    without = (*left_out, *TIER2_TARGETS)
    return ("hsurf_tar", *(each.name for each in TIER2_FIELDS if each.name not in without))


TIER2_FIELDS = (
    *recipe_variables(
        ("t2m_in", "K", 248.0, 312.0, 0.88),
        ("t137_in", "K", 248.0, 312.0, 0.88),
        ("t135_in", "K", 248.0, 311.0, 0.88),
        ("t131_in", "K", 247.0, 310.0, 0.88),
        ("t127_in", "K", 246.0, 308.0, 0.87),
        ("t122_in", "K", 244.0, 304.0, 0.87),
        ("t115_in", "K", 238.0, 296.0, 0.89),
        ("sp_in", "Pa", 82_000.0, 104_000.0, 0.89),
        ("slhf_in", "J m-2", -1.5e6, 2.0e5, 0.86),
        ("sshf_in", "J m-2", -1.2e6, 4.0e5, 0.86),
        ("u10_in", "m s-1", -18.0, 18.0, 0.88),
        ("v10_in", "m s-1", -18.0, 18.0, 0.88),
        ("blh_in", "m", 15.0, 3_000.0, 0.88),
        **SCORED,
    ),
    *recipe_variables(
        ("z_in", "m", -10.0, 2_600.0, 0.88),
        ("lsm_in", "1", 0.0, 1.0, 0.02),
        ("fr_land_tar", "1", 0.0, 1.0, 0.04),
        **SCORED,
        is_static=True,
    ),
    *recipe_variables(("t_2m_tar", "K", 246.0, 314.0, 0.88), **SCORED),
    *recipe_variables(("hsurf_tar", "m", -10.0, 3_600.0, 0.9), **SCORED, is_static=True),
)
TIER2_TARGETS = ("t_2m_tar", "hsurf_tar")
VARIANTS = {
    "benchmark_t2m": _tier2_inputs("t137_in"),
    "published": _tier2_inputs("lsm_in", "fr_land_tar"),
}


class DownscalingTier2(Downscaling):
    """Tier 2: ERA5 to COSMO-REA6, hourly, 1995 to 2018."""

    number = 2
    name = "maelstrom-downscaling-tier2"
    title = "2 m temperature downscaled, tier 2: ERA5 to COSMO-REA6, hourly (MAELSTROM A5)"
    url = f"{BUCKET_URL}/tier-2/downscaling_tier2_{{months}}.nc"
    keys = (months_key(months_of(range(1995, 2019), WHOLE_YEAR)),)
    axes = (
        Axis("time"),
        Axis("rlat", 96, -5.0, 0.055, "degrees"),
        Axis("rlon", 120, -9.0, 0.055, "degrees"),
    )
    fields = TIER2_FIELDS
    splits = (
        Split("train", months_of(range(1995, 2017), WHOLE_YEAR)),
        Split("validation", months_of((2017,), WHOLE_YEAR)),
        Split("test", months_of((2018,), WHOLE_YEAR)),
    )
    options = (
        Option(
            "variant",
            "benchmark_t2m: 16 channels, with the land masks and without t137_in; published: the "
            "15 of the files' first version. By default the first whose variables the files have.",
            values=tuple(VARIANTS),
        ),
    )
    published = PublishedStep(
        forward_ns=200_000_000,
        backward_ns=0,
        batch_size=32,
        batches_per_step=6,  # five for the critic, one for the generator
        source=(
            "MAELSTROM D2.3, A5: WGAN, tier 2, Keras on TensorFlow 2.6, one A100 40 GB; 200 ms per "
            "effective batch of 192, the whole step, in which I/O was not measured separately: at "
            "most"
        ),
        sample_nbytes=(16 + 2) * 96 * 120 * 4,
        tables={
            "D2.3, A5, TensorFlow, batches of 192": {
                "batch": (0.17573, 0.19720, 0.20007, 39.25604, 0.09329)
            }
        },
    )
    tiny = ("2016-01", "2017-01", "2018-01")
    tiny_steps = 48
    ordinary = ("2015-01", "2016-07", "2017-04", "2018-10")
    ordinary_steps = 168

    def channel_groups_of(self, first: NetcdfFile) -> tuple[ChannelGroup, ...]:
        """Return the channels of the variant asked for, else of the first the file can give."""
        variant = self.chosen["variant"] or next(
            (name for name, inputs in VARIANTS.items() if set(inputs) <= set(first.variables)),
            list(VARIANTS)[-1],
        )
        targets = ChannelGroup("targets", TIER2_TARGETS, role="target")
        return ChannelGroup("inputs", VARIANTS[variant]), targets


def downscaling(**options: str) -> Downscaling:
    """Return tier 1 or 2, whose name and title say which."""
    number = options.pop("tier", "2")
    if number not in ("1", "2"):
        raise OptionError(f"tier {number!r}: expected 1 or 2")
    dataset: Downscaling = (DownscalingTier1 if number == "1" else DownscalingTier2)(**options)
    other = f"--option tier={3 - dataset.number} takes the other"
    dataset.title += f"; maelstrom-downscaling took tier {number}, {other}"
    return dataset
