"""The targets of a column: which of them the options ask for, their arrays and variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.errors import OptionError
from iobench.samples import Variable
from iobench_maelstrom.radiation.grouping import CHANNELS, boundaries, heating_rate
from iobench_maelstrom.radiation.options import HR_SCALES, choose, flag
from iobench_maelstrom.radiation.pairs import OUTPUT_PRESSURE, Pairs
from iobench_maelstrom.radiation.schema import FLUXES, N_HALF_LEVELS, N_LEVELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.datasets import Arrays

__all__ = ["Outputs", "outputs_asked_for", "target_arrays", "target_variables", "variables_read"]

BANDS = ("sw", "lw")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Which targets a sample has, and the units of heating rates; see `radiation`."""

    heating_rate: bool = True
    hr_units: str = "K d-1"
    gather_fluxes: bool = False
    minimal_outputs: bool = False
    topnetflux: bool = False
    all_outputs: bool = False


def outputs_asked_for(options: Mapping[str, str]) -> Outputs:
    """Return the targets that options ask for; raise OptionError where they contradict."""
    flags = {
        field.name: flag(options, field.name, bool(field.default))
        for field in fields(Outputs)
        if field.name != "hr_units"
    }
    units = choose(options, "hr_units", HR_SCALES, "K d-1")
    if "hr_units" in options and not flags["heating_rate"]:
        raise OptionError("hr_units: are those of heating rates; leave heating_rate=false away")
    if flags["topnetflux"] and not flags["minimal_outputs"]:
        raise OptionError("topnetflux: changes minimal outputs; add minimal_outputs=true")
    if flags["minimal_outputs"] and not flags["heating_rate"]:
        raise OptionError("minimal_outputs: needs heating rates; leave heating_rate=false away")
    kinds = [n for n in ("minimal_outputs", "gather_fluxes", "all_outputs") if flags[n]]
    if len(kinds) > 1:
        raise OptionError(f"{' and '.join(kinds)}: choose other fluxes each; give one of them")
    return Outputs(hr_units=units, **flags)


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
