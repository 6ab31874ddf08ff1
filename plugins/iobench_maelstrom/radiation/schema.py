"""What the radiation files (A3) hold: variables, ranges, units.

Names are those of climetlab-maelstrom-radiation 0.7.5; ranges those of its normalisation file.
"""

from __future__ import annotations

from iobench.datasets import Field

LENGTHS = {
    "level": 137,
    "half_level": 138,
    "level_interface": 136,
    "aerosol_type": 12,
    "sw_albedo_band": 6,
    "lw_emissivity_band": 2,
}
"""Of the dimensions of a column, in the order of the samples; a file may hold another one."""
ASSUMED = ("level_interface", "sw_albedo_band", "lw_emissivity_band")
"""Dimensions that are called after ecRad, and may be called otherwise in a real file."""


def _fields(dims: tuple[str, ...], *rows: tuple[str, str, float]) -> tuple[Field, ...]:
    """Return variables of a column: name, units, largest value."""
    return tuple(Field(name, units, high=high, dims=dims) for name, units, high in rows)


ON_LEVELS = (
    *_fields(
        ("level",),
        ("q", "kg kg-1", 3.0285e-2),
        ("o3_mmr", "kg kg-1", 1.7511e-5),
        ("co2_vmr", "mol mol-1", 4.2584e-4),
        ("n2o_vmr", "mol mol-1", 3.3271e-7),
        ("ch4_vmr", "mol mol-1", 2.0503e-6),
        ("o2_vmr", "mol mol-1", 0.20944),
        ("cfc11_vmr", "mol mol-1", 8.6566e-10),
        ("cfc12_vmr", "mol mol-1", 4.9748e-10),
        ("hcfc22_vmr", "mol mol-1", 0.0),
        ("ccl4_vmr", "mol mol-1", 0.0),
        ("cloud_fraction", "1", 1.0),
    ),
    *_fields(("level", "aerosol_type"), ("aerosol_mmr", "kg kg-1", 5.0795e-7)),
    *_fields(
        ("level",),
        ("q_liquid", "kg kg-1", 4.3274e-3),
        ("q_ice", "kg kg-1", 1.2222e-2),
        ("re_liquid", "m", 3.0e-5),
        ("re_ice", "m", 1.0068e-4),
    ),
)
SCALARS = (
    *_fields((), ("skin_temperature", "K", 344.121), ("cos_solar_zenith_angle", "1", 0.9976)),
    *_fields(("sw_albedo_band",), ("sw_albedo", "1", 1.0), ("sw_albedo_direct", "1", 1.0)),
    *_fields(("lw_emissivity_band",), ("lw_emissivity", "1", 1.0)),
    *_fields((), ("solar_irradiance", "W m-2", 1407.193)),
)
_INPUTS = (
    *ON_LEVELS,
    *_fields(("half_level",), ("temperature_hl", "K", 330.898), ("pressure_hl", "Pa", 107193.5)),
    *_fields(("level_interface",), ("overlap_param", "1", 0.9932)),
    *SCALARS,
)
INPUTS = {each.name: each for each in _INPUTS}
"""In the order of upstream's grouped arrays."""
POSITIONS = {"lat": Field("lat", "degrees_north"), "lon": Field("lon", "degrees_east")}
FLUXES = {
    name: Field(name, "W m-2", high=1407.0, dims=("half_level",))
    for name in ("flux_dn_sw", "flux_up_sw", "flux_dn_lw", "flux_up_lw")
}
PRESSURE = INPUTS["pressure_hl"]
SHARED = "solar_irradiance"
"""The variable that all columns of a file share; upstream broadcasts it."""


def shape_of(field: Field) -> tuple[int, ...]:
    """Return the shape of a variable of a column."""
    return tuple(LENGTHS[dim] for dim in field.dims)


def is_assumed(field: Field) -> bool:
    """Return whether only the shape of a variable is known, not what its dimensions are called."""
    return not set(field.dims).isdisjoint(ASSUMED)
