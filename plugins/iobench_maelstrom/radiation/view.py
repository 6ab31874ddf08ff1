"""What of a TFRecord column a sample has, and how changed: upstream's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from iobench.errors import OptionError
from iobench_maelstrom.radiation.examples import INPUT_FIELDS, OUTPUT_FIELDS
from iobench_maelstrom.radiation.options import HR_SCALES, choose, choose_many, flag

__all__ = ["View", "view_asked_for"]


@dataclass(frozen=True, slots=True)
class View:
    """Which features a sample has, and how changed; see `radiation_tf`."""

    input_fields: tuple[str, ...] = INPUT_FIELDS
    output_fields: tuple[str, ...] = OUTPUT_FIELDS
    minimal_outputs: bool = False
    topnetflux: bool = False
    netflux: bool = False
    norm: bool = False
    nonormsolar: bool = False
    hr_units: str = "K d-1"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the sample's arrays."""
        return (*self.input_fields, *self.output_fields)

    def as_upstream(self) -> dict[str, Any]:
        """Return the same as arguments of the real plugin."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}
        # It takes lists for several, not tuples.
        lists = {name: list(value) for name, value in arguments.items() if type(value) is tuple}
        return arguments | lists


def view_asked_for(options: Mapping[str, str]) -> View:
    """Return the view that options ask for; raise OptionError where they contradict."""
    names = ("minimal_outputs", "topnetflux", "netflux", "norm", "nonormsolar")
    flags = {name: flag(options, name, False) for name in names}
    view = View(
        choose_many(options, "input_fields", INPUT_FIELDS, INPUT_FIELDS),
        choose_many(options, "output_fields", OUTPUT_FIELDS, OUTPUT_FIELDS),
        hr_units=choose(options, "hr_units", HR_SCALES, "K d-1"),
        **flags,
    )
    fluxes = {"sw", "lw"} & set(view.output_fields)
    if view.minimal_outputs and view.netflux:
        raise OptionError("minimal_outputs and netflux: choose other fluxes each; give one of them")
    if (view.minimal_outputs or view.netflux) and not fluxes:
        raise OptionError("minimal_outputs and netflux: change sw and lw; ask for one of these")
    if view.topnetflux and not view.minimal_outputs:
        raise OptionError("topnetflux: changes minimal outputs; add minimal_outputs=true")
    if view.nonormsolar and not (view.norm and "sca_inputs" in view.input_fields):
        raise OptionError("nonormsolar: changes the normalisation of sca_inputs; add norm=true")
    if "hr_units" in options and not {"hr_sw", "hr_lw"} & set(view.output_fields):
        raise OptionError("hr_units: are those of hr_sw and hr_lw; ask for one of these")
    return view
