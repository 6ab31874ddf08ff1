"""Application A6: wind power production; the names its data sets have in CliMetLab.

No step time is published for it: profiles need ``--compute``, or compute nothing.
"""

from __future__ import annotations

import datetime

from iobench.errors import OptionError
from iobench_maelstrom.power.clustering import ClusteringFields
from iobench_maelstrom.power.features import PowerFeatures
from iobench_maelstrom.power.production import LevelConstants, Production
from iobench_maelstrom.power.schema import (
    LEVEL_TYPES,
    TURBINES,
    check_options,
    parse_days,
    parse_number,
)
from iobench_maelstrom.power.weather import WeatherFields

__all__ = [
    "constants_a_b",
    "power",
    "power_production",
    "weather_model_level",
    "weather_pressure_level",
    "weather_surface_level",
]

TURBINE_NUMBERS = tuple(turbine.number for turbine in TURBINES)
DEFAULT_MODEL_LEVEL = "133"


def power(**options: str) -> PowerFeatures:
    """Return the dataset ``maelstrom-power``, the training sample.

    Parameters
    ----------
    wind_turbine_id : {"1", "2", "3", "4"}, optional
        By default 1.
    date : str, optional
        Days, ``YYYY-MM-DD``, separated by commas. By default all whose files are at hand.
    model_level : str, optional
        From 128 to 137, by default 133: about 100 m above ground.

    Raises
    ------
    OptionError, UnknownNameError
        For any other value or option.
    """
    check_options(PowerFeatures.name, options, ("wind_turbine_id", "date", "model_level"))
    level = options.get("model_level", DEFAULT_MODEL_LEVEL)
    return PowerFeatures(
        parse_number("wind_turbine_id", options.get("wind_turbine_id", "1"), TURBINE_NUMBERS),
        days=_days(options),
        model_level=parse_number("model_level", level, LEVEL_TYPES["model"].levels),
    )


def power_production(**options: str) -> Production:
    """Return the dataset ``maelstrom-power-production``.

    Parameters
    ----------
    wind_turbine_id : {"1", "2", "3", "4"}, optional
        Which turbine; by default 1, as ``maelstrom-power``. Upstream has no default.

    Raises
    ------
    OptionError, UnknownNameError
        For any other value or option.
    """
    check_options(Production.name, options, ("wind_turbine_id",))
    number = options.get("wind_turbine_id", "1")
    return Production(parse_number("wind_turbine_id", number, TURBINE_NUMBERS))


def constants_a_b(**options: str) -> LevelConstants:
    """Return the dataset ``maelstrom-constants-a-b``; it has no options.

    Raises
    ------
    UnknownNameError
        For any option.
    """
    check_options(LevelConstants.name, options, ())
    return LevelConstants()


def weather_model_level(**options: str) -> WeatherFields:
    """Return the dataset ``maelstrom-weather-model-level``.

    Parameters
    ----------
    date : str, optional
        Days, ``YYYY-MM-DD``, separated by commas. By default all whose files are at hand.

    Raises
    ------
    OptionError, UnknownNameError
        For any other value or option.
    """
    return _weather("model", options)


def weather_pressure_level(**options: str) -> WeatherFields | ClusteringFields:
    """Return the dataset ``maelstrom-weather-pressure-level``.

    Parameters
    ----------
    date : str, optional
        Days, ``YYYY-MM-DD``, separated by commas. By default all whose files are at hand.
    sample : {"fields", "clustering"}, optional
        All fields, or the 25 channels of deep clustering (z, r, t, u, v on five levels), of ERA5's
        file ``era5_pl_1964_2023_12.nc`` where it is at hand.
    crop : {"moving", "centre", "none"}, optional
        What clustering takes of the grid: 0.8 of it, by default from a place that follows from the
        time; or all.

    Raises
    ------
    OptionError, UnknownNameError
        For any other value or option.
    """
    name, kind = "maelstrom-weather-pressure-level", options.get("sample", "fields")
    if kind == "clustering":
        check_options(name, options, ("date", "sample", "crop"))
        return ClusteringFields(days=_days(options), crop=options.get("crop", "moving"))
    if kind != "fields":
        raise OptionError(f"sample {kind!r}: expected fields or clustering")
    if "crop" in options:
        raise OptionError("crop: fields are not cropped; give --option sample=clustering with it")
    return _weather("pressure", options, "sample", "crop")


def weather_surface_level(**options: str) -> WeatherFields:
    """Return the dataset ``maelstrom-weather-surface-level``.

    Parameters
    ----------
    date : str, optional
        Days, ``YYYY-MM-DD``, separated by commas. By default all whose files are at hand.

    Raises
    ------
    OptionError, UnknownNameError
        For any other value or option.
    """
    return _weather("surface", options)


def _weather(kind: str, options: dict[str, str], *more: str) -> WeatherFields:
    name = f"maelstrom-weather-{kind}-level"
    check_options(name, options, ("date", *more))
    return WeatherFields(name, LEVEL_TYPES[kind], days=_days(options))


def _days(options: dict[str, str]) -> tuple[datetime.date, ...]:
    return parse_days(options["date"]) if "date" in options else ()
