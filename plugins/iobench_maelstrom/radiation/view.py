"""What of a TFRecord column a sample has, and how changed: upstream's options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from iobench.datasets import Option
from iobench.errors import OptionError
from iobench_maelstrom.radiation.examples import INPUT_FIELDS, OUTPUT_FIELDS
from iobench_maelstrom.radiation.outputs import HR_UNITS, MINIMAL_OUTPUTS, TOPNETFLUX

__all__ = ["VIEW_OPTIONS", "View"]


VIEW_OPTIONS = (
    Option("input_fields", "Groups of inputs.", INPUT_FIELDS, INPUT_FIELDS, many=True),
    Option("output_fields", "Targets.", OUTPUT_FIELDS, OUTPUT_FIELDS, many=True),
    MINIMAL_OUTPUTS,
    TOPNETFLUX,
    Option("netflux", "Downward minus upward fluxes.", False),
    Option(
        "norm", "Subtract the published mean of the inputs and divide by their deviation.", False
    ),
    Option(
        "nonormsolar", "With norm: not for the cosine of the zenith angle and the irradiance.",
        False,
    ),
    HR_UNITS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """Which features a sample has, and how changed: `VIEW_OPTIONS`."""

    input_fields: tuple[str, ...]
    output_fields: tuple[str, ...]
    minimal_outputs: bool
    topnetflux: bool
    netflux: bool
    norm: bool
    nonormsolar: bool
    hr_units: str

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

    @classmethod
    def asked_for(cls, chosen: Mapping[str, Any], given: Collection[str]) -> View:
        """Return the view that options ask for; raise OptionError where they contradict.

        ``given`` are the names of the options that the user gave.
        """
        view = cls(**{field.name: chosen[field.name] for field in fields(cls)})
        fluxes = {"sw", "lw"} & set(view.output_fields)
        if view.minimal_outputs and view.netflux:
            raise OptionError(
                "minimal_outputs and netflux: choose other fluxes each; give one of them"
            )
        if (view.minimal_outputs or view.netflux) and not fluxes:
            raise OptionError("minimal_outputs and netflux: change sw and lw; ask for one of these")
        if view.topnetflux and not view.minimal_outputs:
            raise OptionError("topnetflux: changes minimal outputs; add minimal_outputs=true")
        if view.nonormsolar and not (view.norm and "sca_inputs" in view.input_fields):
            raise OptionError("nonormsolar: changes the normalisation of sca_inputs; add norm=true")
        if "hr_units" in given and not {"hr_sw", "hr_lw"} & set(view.output_fields):
            raise OptionError("hr_units: are those of hr_sw and hr_lw; ask for one of these")
        return view
