"""The targets of a column: which of them the options ask for, their arrays and variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.datasets import Option
from iobench.errors import OptionError
from iobench.samples import Variable
from iobench_maelstrom.radiation.grouping import CHANNELS, boundaries, heating_rate
from iobench_maelstrom.radiation.pairs import OUTPUT_PRESSURE, Pairs
from iobench_maelstrom.radiation.schema import FLUXES, N_HALF_LEVELS, N_LEVELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Arrays

__all__ = [
    "HR_SCALES",
    "HR_UNITS",
    "MINIMAL_OUTPUTS",
    "OUTPUT_OPTIONS",
    "TOPNETFLUX",
    "Outputs",
    "target_arrays",
    "target_variables",
    "variables_read",
]

BANDS = ("sw", "lw")


HR_SCALES = {"K s-1": 1, "K d-1": 24 * 3600}
"""Units of heating rates, and how many of them one kelvin per second is."""
HR_UNITS = Option("hr_units", "Units of heating rates.", "K d-1", tuple(HR_SCALES))
MINIMAL_OUTPUTS = Option("minimal_outputs", "Fluxes at the top and the ground alone.", False)
TOPNETFLUX = Option(
    "topnetflux",
    "With minimal_outputs: the net flux at the top instead of the upward one.",
    False,
)
OUTPUT_OPTIONS = (
    Option("heating_rate", "Whether samples have hr_sw and hr_lw.", True),
    HR_UNITS,
    Option("gather_fluxes", "sw and lw, downward and upward side by side.", False),
    MINIMAL_OUTPUTS,
    TOPNETFLUX,
    Option("all_outputs", "Every variable of the outputs that has columns.", False),
)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Which targets a sample has, and the units of heating rates: `OUTPUT_OPTIONS`."""

    heating_rate: bool
    hr_units: str
    gather_fluxes: bool
    minimal_outputs: bool
    topnetflux: bool
    all_outputs: bool

    @classmethod
    def asked_for(cls, chosen: Mapping[str, Any], given: Collection[str]) -> Outputs:
        """Return the targets that options ask for; raise OptionError where they contradict.

        ``given`` are the names of the options that the user gave.
        """
        found = cls(**{field.name: chosen[field.name] for field in fields(cls)})
        if "hr_units" in given and not found.heating_rate:
            raise OptionError("hr_units: are those of heating rates; leave heating_rate=false away")
        if found.topnetflux and not found.minimal_outputs:
            raise OptionError("topnetflux: changes minimal outputs; add minimal_outputs=true")
        if found.minimal_outputs and not found.heating_rate:
            raise OptionError("minimal_outputs: needs heating rates; leave heating_rate=false away")
        names = ("minimal_outputs", "gather_fluxes", "all_outputs")
        kinds = [name for name in names if getattr(found, name)]
        if len(kinds) > 1:
            raise OptionError(f"{' and '.join(kinds)}: choose other fluxes each; give one of them")
        return found


def variables_read(wanted: Outputs) -> tuple[str, ...] | None:
    """Return the variables wanted of the files of outputs; None: all that have columns."""
    if wanted.all_outputs:
        return None
    pressure = ("pressure_hl",) if wanted.heating_rate else ()
    return (*FLUXES, *pressure)


def target_arrays(wanted: Outputs, arrays: Arrays, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return fluxes as asked for and heating rates, of decoded arrays and flux ``names``."""
    targets = {}
    if not (wanted.gather_fluxes or wanted.minimal_outputs):
        targets = {name: arrays[name] for name in names}
    for band in BANDS:
        down, up = arrays[f"flux_dn_{band}"], arrays[f"flux_up_{band}"]
        if wanted.gather_fluxes:
            targets[band] = np.stack([down, up], axis=-1)
        elif wanted.minimal_outputs:
            targets[f"fluxes_{band}"] = boundaries(down, up, net_at_top=wanted.topnetflux)
        if wanted.heating_rate:
            scale = HR_SCALES[wanted.hr_units]
            targets[f"hr_{band}"] = heating_rate(down, up, arrays[OUTPUT_PRESSURE], scale)
    return targets


def target_variables(wanted: Outputs, opened: Pairs) -> list[Variable]:
    """Return what `target_arrays` are, fluxes first."""
    variables = _flux_variables(wanted, opened)
    if wanted.heating_rate:
        variables += [
            Variable(f"hr_{band}", (N_LEVELS,), "<f4", ("level",), wanted.hr_units, "target")
            for band in BANDS
        ]
    return variables


def _flux_variables(wanted: Outputs, opened: Pairs) -> list[Variable]:
    units = "W m-2"
    if wanted.minimal_outputs:
        names = [f"fluxes_{band}" for band in BANDS]
        return [Variable(name, (3,), "<f4", ("boundaries",), units, "target") for name in names]
    if wanted.gather_fluxes:
        shape, dims = (N_HALF_LEVELS, 2), ("half_level", "channel")
        return [
            Variable(band, shape, "<f4", dims, units, "target", CHANNELS[band]) for band in BANDS
        ]
    variables = []
    for name in opened.fluxes:
        dims_found, shape_found = opened.layout(name)
        known = units if name in FLUXES else ""
        variables.append(Variable(name, shape_found, "<f4", dims_found, known, "target"))
    return variables
