"""What is concluded of a run on more ranks, a sentence for each thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from iobench.report import units

if TYPE_CHECKING:
    from iobench.findings.scaling.figures import Saturation, ScalingCurve

FARTHEST: Final = 1 << 20
"""The largest number of ranks that is asked about."""
MISSED: Final = 0.1
"""A model that misses the measured run by more gives no figures to rely on."""
LOSS: Final = 0.9
"""An efficiency below is worth a sentence."""


def scaling_verdict(curve: ScalingCurve, *, unknown_from: int | None = None) -> list[str]:
    """Return where storage saturates, and what else more ranks lose; a sentence each.

    ``unknown_from`` is from how many ranks on nobody measured what storage gives.
    """
    last = curve.first_epoch[-1]
    if unknown_from is not None:
        unknown_from = max(unknown_from, 1)
    if curve.saturation is None:
        lines = ["No storage limit is given; set one with --storage-bandwidth or --storage-iops."]
    else:
        lines = [_saturation_line(curve.saturation, last.ranks, unknown_from)]
    free = last.efficiency * last.step_ns / last.free_step_ns if last.free_step_ns else 1.0
    if last.ranks > 1 and free < LOSS:
        lines.append(
            f"However fast the storage, efficiency falls to {units.fraction(free)} at "
            f"{ranks_words(last.ranks)}, because a step waits for the slowest rank."
        )
    error = curve.model_error_fraction
    if error is not None and abs(error) > MISSED:
        lines.append(
            f"The model misses the measured run's step by {units.fraction(abs(error))}: rely only "
            "on the shape of the curve."
        )
    return lines


def ranks_words(ranks: int) -> str:
    """Return a number of ranks in words."""
    return f"{units.count(ranks)} rank{'s' * (ranks != 1)}"


def _saturation_line(found: Saturation, most: int, unknown_from: int | None) -> str:
    if unknown_from is not None and (found.ranks or FARTHEST) >= unknown_from:
        told = _saturation_line(found, most, None)
        return f"If it delivers no more than was measured: {told[0].lower()}{told[1:]}"
    if found.ranks is None:
        return f"Storage does not saturate, even with {ranks_words(FARTHEST)}."
    if found.ranks <= most:
        return f"Storage saturates at {ranks_words(found.ranks)}: {found.by}."
    return (
        f"Storage does not saturate up to {ranks_words(most)}; {ranks_words(found.ranks)} would: "
        f"{found.by}."
    )
