"""What the radiation files (A3) hold and where they are published: variables, ranges, names.

Names are those of climetlab-maelstrom-radiation 0.7.5; ranges those of its normalisation file.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

__all__ = [
    "ALBEDO_BANDS",
    "BUCKET_URL",
    "COLUMNS_PER_FILE",
    "DATES",
    "EMISSIVITY_BANDS",
    "FLUXES",
    "INPUTS",
    "LICENCE",
    "N_AEROSOLS",
    "N_HALF_LEVELS",
    "N_INTERFACES",
    "N_LEVELS",
    "PATCHES",
    "POSITIONS",
    "PRESSURE",
    "SHARED",
    "SOLVERS",
    "SUBSETS",
    "TERMS_OF_USE",
    "TIMESTEPS",
    "ColumnVariable",
    "FilePair",
    "files_of",
    "split_of_date",
]

BUCKET_URL = "https://object-store.os-api.cci1.ecmwf.int/maelstrom-ap3"
LICENCE = "CC BY 4.0, https://apps.ecmwf.int/datasets/licences/general/"
TERMS_OF_USE = (
    "By downloading data from this dataset, you agree to the terms and conditions defined at "
    "https://apps.ecmwf.int/datasets/licences/general/"
)
"""Upstream names no citation."""
COLUMNS_PER_FILE = 16960
N_LEVELS, N_HALF_LEVELS, N_INTERFACES = 137, 138, 136
N_AEROSOLS, ALBEDO_BANDS, EMISSIVITY_BANDS = 12, 6, 2
SOLVERS = {
    "tripleclouds": "triplecloud_outputs",
    "mcica": "rad4NN_outputs",
    "3dcorrection": "3dcorrection_outputs",
    "spartacus": "spartacus_outputs",
}
"""Radiation schemes, and how the names of their outputs begin."""
TIMESTEPS = tuple(range(0, 3501, 125))
PATCHES = tuple(range(16))
DATES_2020 = tuple(
    f"{datetime.date(2020, 1, 1) + datetime.timedelta(days=30 * number):%Y%m%d}"
    for number in range(13)
)
DATES = (*DATES_2020, "20190131", "20190531", "20190829", "20191028")


@dataclass(frozen=True, slots=True)
class ColumnVariable:
    """One variable of a column: its dimensions without ``column``, units, largest value.

    ``dims`` are in the order of the samples; a file may hold another one. ``sure``: whether their
    names are known; others follow ecRad and may differ in a real file.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    units: str
    high: float = 1.0
    sure: bool = True


def _on_levels(name: str, units: str, high: float) -> ColumnVariable:
    return ColumnVariable(name, ("level",), (N_LEVELS,), units, high)


def _on_half_levels(name: str, units: str, high: float) -> ColumnVariable:
    return ColumnVariable(name, ("half_level",), (N_HALF_LEVELS,), units, high)


def _in_bands(name: str, dim: str, count: int) -> ColumnVariable:
    return ColumnVariable(name, (dim,), (count,), "1", sure=False)


ON_LEVELS = (
    _on_levels("q", "kg kg-1", 3.0285e-2),
    _on_levels("o3_mmr", "kg kg-1", 1.7511e-5),
    _on_levels("co2_vmr", "mol mol-1", 4.2584e-4),
    _on_levels("n2o_vmr", "mol mol-1", 3.3271e-7),
    _on_levels("ch4_vmr", "mol mol-1", 2.0503e-6),
    _on_levels("o2_vmr", "mol mol-1", 0.20944),
    _on_levels("cfc11_vmr", "mol mol-1", 8.6566e-10),
    _on_levels("cfc12_vmr", "mol mol-1", 4.9748e-10),
    _on_levels("hcfc22_vmr", "mol mol-1", 0.0),
    _on_levels("ccl4_vmr", "mol mol-1", 0.0),
    _on_levels("cloud_fraction", "1", 1.0),
    ColumnVariable(
        "aerosol_mmr", ("level", "aerosol_type"), (N_LEVELS, N_AEROSOLS), "kg kg-1", 5.0795e-7
    ),
    _on_levels("q_liquid", "kg kg-1", 4.3274e-3),
    _on_levels("q_ice", "kg kg-1", 1.2222e-2),
    _on_levels("re_liquid", "m", 3.0e-5),
    _on_levels("re_ice", "m", 1.0068e-4),
)
ON_HALF_LEVELS = (
    _on_half_levels("temperature_hl", "K", 330.898),
    _on_half_levels("pressure_hl", "Pa", 107193.5),
)
ON_INTERFACES = (
    ColumnVariable("overlap_param", ("level_interface",), (N_INTERFACES,), "1", 0.9932, sure=False),
)
SCALARS = (
    ColumnVariable("skin_temperature", (), (), "K", 344.121),
    ColumnVariable("cos_solar_zenith_angle", (), (), "1", 0.9976),
    _in_bands("sw_albedo", "sw_albedo_band", ALBEDO_BANDS),
    _in_bands("sw_albedo_direct", "sw_albedo_band", ALBEDO_BANDS),
    _in_bands("lw_emissivity", "lw_emissivity_band", EMISSIVITY_BANDS),
    ColumnVariable("solar_irradiance", (), (), "W m-2", 1407.193),
)
INPUTS = {
    variable.name: variable for variable in (*ON_LEVELS, *ON_HALF_LEVELS, *ON_INTERFACES, *SCALARS)
}
"""In the order of upstream's grouped arrays."""
POSITIONS = {
    name: ColumnVariable(name, (), (), units)
    for name, units in (("lat", "degrees_north"), ("lon", "degrees_east"))
}
FLUXES = {
    name: _on_half_levels(name, "W m-2", 1407.0)
    for name in ("flux_dn_sw", "flux_up_sw", "flux_dn_lw", "flux_up_lw")
}
PRESSURE = INPUTS["pressure_hl"]
SHARED = "solar_irradiance"
"""The variable that all columns of a file share; upstream broadcasts it."""


@dataclass(frozen=True, slots=True, order=True)
class FilePair:
    """One patch of one time step: a file of inputs, and one of outputs for each solver."""

    date: str
    timestep: int
    patch: int

    def input_url(self) -> str:
        """Return where the inputs are published."""
        return self._url("rad4NN_inputs")

    def output_url(self, solver: str) -> str:
        """Return where a solver's outputs are published."""
        return self._url(SOLVERS[solver])

    def _url(self, start: str) -> str:
        return f"{BUCKET_URL}/{start}_{self.date}00_{self.timestep}c{self.patch}.nc"


def files_of(
    dates: tuple[str, ...], timesteps: tuple[int, ...], patches: tuple[int, ...]
) -> tuple[FilePair, ...]:
    """Return the pairs of all combinations, in order of time and patch."""
    return tuple(
        sorted(
            FilePair(date, timestep, patch)
            for date in set(dates)
            for timestep in set(timesteps)
            for patch in set(patches)
        )
    )


SUBSETS = {
    "tier-1": (("20200101",), (0,), PATCHES[::2]),
    "2020": (DATES_2020, TIMESTEPS, PATCHES),
}


def split_of_date(date: str) -> str:
    """Return the split of a date, as upstream's subsets of records choose it."""
    if date in ("20190131", "20190829"):
        return "validation"
    return "test" if date in ("20190531", "20191028") else "train"
