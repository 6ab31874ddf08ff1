"""Smooth random weather for stand-ins of application A1, with the moments of the real one."""

from __future__ import annotations

import datetime

import numpy as np
from numpy.typing import NDArray

from iobench_maelstrom.yr.schema import PREDICTORS, STATIC_PREDICTORS

__all__ = ["NordicWeather"]

Field = NDArray[np.float32]

N_MODES = 5
DRIFT_POINTS_PER_HOUR = 20
"""Weather moves by some 5 m/s on a grid of 1 km."""
RELIEF, MODEL_RELIEF, ANALYSIS, BIAS, WEATHER, LOCAL = range(6)
"""First part of the random key: which family of patterns."""
MEAN = {each.name: each.mean for each in (*PREDICTORS, *STATIC_PREDICTORS)}
STD = {each.name: each.std for each in (*PREDICTORS, *STATIC_PREDICTORS)}
TARGET_MEAN, TARGET_STD = 5.517, (0.485, 0.378)


class NordicWeather:
    """Makes fields as sums of a few smooth patterns, each shifted along its rows.

    Parameters
    ----------
    seed, version : int
        The random numbers' seed.
    n_y, n_x : int
        The grid.
    """

    def __init__(self, seed: int, version: int, n_y: int, n_x: int) -> None:
        self.key = (seed, version)
        self.shape = (n_y, n_x)
        self.modes = [_mode(self._random(99, number), n_y, n_x) for number in range(N_MODES)]

    def static(self, date: str) -> Field:
        """Return what does not change with lead time, shape (y, x, static_predictor)."""
        relief = self._patterns(4, 0, RELIEF)
        model_relief = relief + 0.1 * self._patterns(2, 0, MODEL_RELIEF)
        fields = {
            "altitude": np.where(relief > 0, _skewed(relief, "altitude"), 0),
            "analysis_std": _skewed(self._patterns(3, 0, ANALYSIS, int(date)), "analysis_std"),
            "bias_recent": _scaled(self._patterns(3, 0, BIAS, int(date)), "bias_recent"),
            "land_area_fraction": np.clip(0.45 + 2 * relief, 0, 1),
            "model_altitude": np.where(
                model_relief > -0.1, _skewed(model_relief, "model_altitude"), 0
            ),
            "model_laf": np.clip(0.43 + 1.5 * model_relief, 0, 1),
        }
        return np.stack([fields[each.name] for each in STATIC_PREDICTORS], axis=-1).astype("f4")

    def forecast(self, date: str, hours: int, altitude: Field) -> tuple[Field, Field, Field]:
        """Return predictors, shape (y, x, predictor), and mean and deviation of the target."""
        drift = hours * DRIFT_POINTS_PER_HOUR
        weather = {
            each.name: self._patterns(3, drift, WEATHER, number, int(date))
            for number, each in enumerate(PREDICTORS)
        }
        spread = np.exp(0.3 * weather["bias_yesterday"])
        raw = _season(date, hours) + 3.5 * weather["air_temperature_2m"] - 0.005 * altitude
        low = (MEAN["air_temperature_2m"] - MEAN["air_temperature_0.1_2m"]) * spread
        high = (MEAN["air_temperature_0.9_2m"] - MEAN["air_temperature_2m"]) * spread
        fields = {
            "air_temperature_0.1_2m": raw - low,
            "air_temperature_0.9_2m": raw + high,
            "air_temperature_2m": raw,
            "bias_yesterday": _scaled(weather["bias_yesterday"], "bias_yesterday"),
            "cloud_area_fraction": np.clip(0.75 + weather["cloud_area_fraction"], 0, 1),
            "precipitation_amount": np.maximum(
                _skewed(weather["precipitation_amount"], "precipitation_amount") - 0.02, 0
            ),
            "x_wind_10m": _scaled(weather["x_wind_10m"], "x_wind_10m"),
            "y_wind_10m": _scaled(weather["y_wind_10m"], "y_wind_10m"),
        }
        predictors = np.empty((*self.shape, len(PREDICTORS)), dtype=np.float32)
        for number, each in enumerate(PREDICTORS):
            predictors[..., number] = fields[each.name]
        local = self._patterns(2, 0, LOCAL, int(date), hours)
        offset = np.float32(TARGET_MEAN - MEAN["air_temperature_2m"])
        return predictors, raw + offset + 0.9 * local, _lognormal(local, *TARGET_STD)

    def _patterns(self, count: int, drift: int, *key: int) -> Field:
        """Return the sum of ``count`` patterns shifted by ``drift``, of about unit deviation."""
        random = self._random(*key)
        numbers = random.choice(N_MODES, size=count, replace=False)
        shifts = (random.integers(self.shape[1], size=count) + drift) % self.shape[1]
        weights = random.standard_normal(count)
        weights /= np.linalg.norm(weights)
        total = np.zeros(self.shape, dtype=np.float32)
        for number, shift, weight in zip(numbers, shifts, weights, strict=True):
            total += self.modes[number][:, shift : shift + self.shape[1]] * np.float32(weight)
        return total

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([*self.key, *key])


def _mode(random: np.random.Generator, n_y: int, n_x: int) -> Field:
    """Return a smooth pattern of unit deviation, twice side by side so that a shift is a slice."""
    spectrum = np.fft.rfft2(random.standard_normal((n_y, n_x)))
    along = np.arange(spectrum.shape[1])[None, :] / n_x
    across = np.fft.fftfreq(n_y)[:, None]
    wave_number = np.hypot(along, across) * max(n_y, n_x)
    spectrum /= np.maximum(wave_number, 2.0) ** 2
    spectrum[0, 0] = 0
    pattern = np.fft.irfft2(spectrum, s=(n_y, n_x))
    pattern /= pattern.std()
    return np.concatenate([pattern, pattern], axis=1).astype(np.float32)


def _scaled(pattern: Field, name: str) -> Field:
    return np.float32(MEAN[name]) + np.float32(STD[name]) * pattern


def _skewed(pattern: Field, name: str) -> Field:
    return _lognormal(pattern, MEAN[name], STD[name])


def _lognormal(pattern: Field, mean: float, std: float) -> Field:
    """Return positive values of that mean and deviation, if the pattern is normal."""
    variance = np.log1p((std / mean) ** 2)
    shape, centre = np.float32(np.sqrt(variance)), np.float32(np.log(mean) - variance / 2)
    values: Field = np.exp(centre + shape * pattern)
    return values


def _season(date: str, hours: int) -> np.float32:
    """Return the mean temperature of a time of year and day."""
    day = datetime.datetime.strptime(date, "%Y%m%d").timetuple().tm_yday
    of_year = np.cos(2 * np.pi * (day - 30) / 365)
    of_day = np.cos(2 * np.pi * (hours - 9) / 24)
    return np.float32(MEAN["air_temperature_2m"] + 0.55 - 8 * of_year + 1.5 * of_day)
