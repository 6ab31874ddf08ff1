"""Made-up atmospheric columns for stand-ins: smooth profiles in the published ranges.

A profile is the logistic function of a sum of a few waves over the levels, whose amplitudes vary
smoothly from column to column (or, for shuffled columns, do not).
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
from numpy.typing import NDArray

from iobench_maelstrom.radiation.schema import INPUTS, LENGTHS

ATMOSPHERE_VERSION = 1
"""Counts up when the same seed gives other values."""
N_LEVELS, N_HALF_LEVELS = LENGTHS["level"], LENGTHS["half_level"]
N_WAVES = 8
COLUMNS_PER_WEATHER = 96
SOLAR_IRRADIANCE = 1360.9  # at the mean distance of the sun, W m-2
AEROSOL_MAXIMA = (
    7.8123e-9, 3.0669e-7, 3.7261e-7, 1.1695e-7, 3.8302e-7, 5.0795e-7,
    3.5257e-7, 2.9532e-7, 1.507e-8, 3.9049e-8, 2.6712e-8, 4.7422e-10,
)  # fmt: skip
WELL_MIXED = ("co2_vmr", "n2o_vmr", "ch4_vmr", "o2_vmr", "cfc11_vmr", "cfc12_vmr")
ABSENT = ("hcfc22_vmr", "ccl4_vmr")

Field = NDArray[np.float32]
Columns = dict[str, Field]


def solar_irradiance(day_of_year: int) -> float:
    """Return the irradiance at the top of the atmosphere, W m-2: largest in early January."""
    return float(SOLAR_IRRADIANCE * (1 + 0.034 * np.cos(2 * np.pi * (day_of_year - 3) / 365)))


class Atmosphere:
    """``n_columns`` columns that follow from ``key`` alone.

    Parameters
    ----------
    key : sequence of int
        Seed, and what tells this file from the others.
    n_columns : int
        How many there are.
    shuffled : bool
        Whether neighbouring columns have nothing in common.
    """

    def __init__(self, key: tuple[int, ...], n_columns: int, *, shuffled: bool) -> None:
        self._key = (ATMOSPHERE_VERSION, *key)
        self._n_columns = n_columns
        self._shuffled = shuffled
        self._known: dict[str, Field] = {}

    def inputs(self, start: int, stop: int) -> Columns:
        """Return the inputs of columns ``start`` to ``stop``, float32, but for the irradiance."""
        part = slice(start, stop)
        inputs = self._surface(part) | self._gases(part) | self._clouds(part)
        inputs["cos_solar_zenith_angle"] = self._sun(part)
        inputs["pressure_hl"] = self._pressure(part)
        warmth = _levels(N_HALF_LEVELS) * self._share("temperature_hl", part, N_HALF_LEVELS)
        inputs["temperature_hl"] = np.float32(190) + np.float32(140) * warmth
        return {name: values.astype(np.float32, copy=False) for name, values in inputs.items()}

    def outputs(self, start: int, stop: int) -> Columns:
        """Return pressure and fluxes at half levels, the latter weaker or stronger downwards."""
        part = slice(start, stop)
        height = _levels(N_HALF_LEVELS)
        shares = {
            name: self._share(name, part, N_HALF_LEVELS)
            for name in ("flux_dn_sw", "flux_up_sw", "flux_dn_lw", "flux_up_lw")
        }
        down = (SOLAR_IRRADIANCE * self._sun(part))[:, None] * (
            1 - np.float32(0.8) * height * shares["flux_dn_sw"]
        )
        outputs = {
            "pressure_hl": self._pressure(part),
            "flux_dn_sw": down,
            "flux_up_sw": down * (np.float32(0.1) + np.float32(0.6) * shares["flux_up_sw"]),
            "flux_dn_lw": 450 * height * (np.float32(0.5) + np.float32(0.5) * shares["flux_dn_lw"]),
            "flux_up_lw": 200 + 300 * shares["flux_up_lw"],
        }
        return {name: values.astype(np.float32, copy=False) for name, values in outputs.items()}

    def _sun(self, part: slice) -> Field:
        """Return the cosine of the sun's zenith angle, 0 at night."""
        sun: Field = np.float32(0.9976) * np.clip(2 * self._share("sun", part, 1)[:, 0] - 0.8, 0, 1)
        return sun

    def _surface(self, part: slice) -> Columns:
        one = self._share("latitude", part, 1)[:, 0]
        albedo = self._share("sw_albedo", part, LENGTHS["sw_albedo_band"])
        return {
            "lat": 180 * one - 90,
            "lon": 360 * self._share("longitude", part, 1)[:, 0],
            "skin_temperature": 220 + 124 * self._share("skin_temperature", part, 1)[:, 0],
            "sw_albedo": albedo,
            "sw_albedo_direct": np.float32(0.95) * albedo,
            "lw_emissivity": np.float32(0.9)
            + np.float32(0.1) * self._share("lw_emissivity", part, LENGTHS["lw_emissivity_band"]),
            "overlap_param": np.float32(0.9932)
            * np.sqrt(self._share("overlap_param", part, LENGTHS["level_interface"])),
        }

    def _gases(self, part: slice) -> Columns:
        height = _levels(N_LEVELS)
        gases = {
            "q": height**4 * self._share("q", part, N_LEVELS) * np.float32(INPUTS["q"].high),
            "o3_mmr": (1 - height) ** 2
            * self._share("o3_mmr", part, N_LEVELS)
            * np.float32(INPUTS["o3_mmr"].high),
        }
        for name in WELL_MIXED:
            share = np.float32(0.96) + np.float32(0.04) * self._share(name, part, N_LEVELS)
            gases[name] = share * np.float32(INPUTS[name].high)
        for name in ABSENT:
            gases[name] = np.zeros((part.stop - part.start, N_LEVELS), dtype=np.float32)
        aerosols = [
            np.float32(high) * height**2 * self._share(f"aerosol {number}", part, N_LEVELS)
            for number, high in enumerate(AEROSOL_MAXIMA)
        ]
        gases["aerosol_mmr"] = np.stack(aerosols, axis=-1)
        return gases

    def _clouds(self, part: slice) -> Columns:
        cover = np.clip(3 * self._share("cloud_fraction", part, N_LEVELS) - 2, 0, 1)
        warm = _levels(N_LEVELS) > 0.6
        clouds = {"cloud_fraction": cover}
        for name, here in (("liquid", warm), ("ice", ~warm)):
            water, radius = INPUTS[f"q_{name}"], INPUTS[f"re_{name}"]
            content = cover**2 * self._share(water.name, part, N_LEVELS)
            clouds[water.name] = np.float32(water.high) * content * here
            size = np.float32(0.3) + np.float32(0.7) * self._share(radius.name, part, N_LEVELS)
            clouds[radius.name] = np.float32(radius.high) * size
        return clouds

    def _pressure(self, part: slice) -> Field:
        """Return pressure at half levels, strictly increasing downwards."""
        surface = 50_000 + 57_193 * self._share("pressure_hl", part, 1)
        share = 1e-5 + (1 - 1e-5) * _levels(N_HALF_LEVELS).astype(np.float64) ** 2
        return (surface * share).astype(np.float32)

    def _share(self, name: str, part: slice, n_levels: int) -> Field:
        """Return smooth values between 0 and 1, shape (columns of the part, levels)."""
        if name not in self._known:
            self._known[name] = self._amplitudes(name)
        waves = self._known[name][part] @ _waves(n_levels)
        np.negative(waves, out=waves)
        np.exp(waves, out=waves)
        waves += 1
        share: Field = np.reciprocal(waves, out=waves)
        return share

    def _amplitudes(self, name: str) -> Field:
        random = np.random.default_rng([*self._key, zlib.crc32(name.encode())])
        if self._shuffled:
            return random.standard_normal((self._n_columns, N_WAVES), dtype=np.float32)
        knots = random.standard_normal((self._n_columns // COLUMNS_PER_WEATHER + 3, N_WAVES))
        places = np.arange(self._n_columns) / COLUMNS_PER_WEATHER
        before = places.astype(int)
        weight = (0.5 - 0.5 * np.cos(np.pi * (places - before)))[:, None]
        smooth: Field = (knots[before] * (1 - weight) + knots[before + 1] * weight).astype(
            np.float32
        )
        return smooth


def _levels(count: int) -> Field:
    """Return how far down each level is, from 0 at the top to 1 at the ground."""
    return np.linspace(0, 1, count, dtype=np.float32)


@functools.cache
def _waves(count: int) -> Field:
    numbers = np.arange(N_WAVES)[:, None]
    waves: Field = (np.cos(np.pi * numbers * _levels(count)) / (1 + numbers)).astype(np.float32)
    return waves
