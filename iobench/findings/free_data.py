"""How fast a training would step if its data were free: by its waits, and as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from iobench.report import units

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.run import RankRun

FREE_DATA: Final = "free data"
"""What the change is called that makes a script's first batches come again and again."""


class FreeData(msgspec.Struct, frozen=True):
    """Steps a second: of the optimiser, of batches where nobody saw it step."""

    steps_per_s: float | None  # as it trains; None of a run whose data were free
    predicted_steps_per_s: float | None  # if it waited for nothing
    obtained_steps_per_s: float | None  # with the same batches again and again
    no_upper_bound: bool = False  # of the prediction: steps wait for CPUs that loading uses


def free_data_of(run: RankRun) -> FreeData | None:
    """Return what is known of a run whose data were free, or that was tried so; else None."""
    facts = run.about
    if facts.free_data:
        return FreeData(None, None, steps_per_s(run.exposure))
    if facts.free_steps_per_s is None:
        return None
    return predicted_free(run.exposure, facts.free_steps_per_s)


def predicted_free(exposure: Exposure, obtained_steps_per_s: float | None = None) -> FreeData:
    """Return how fast a training steps, and would without waits, beside what was obtained."""
    return FreeData(
        steps_per_s(exposure),
        steps_per_s(exposure, waits=False),
        obtained_steps_per_s,
        exposure.cpus is not None and exposure.cpus.slows_steps,
    )


def steps_per_s(exposure: Exposure, *, waits: bool = True) -> float | None:
    """Return the rate of steps in the part of a run that is judged; None without a batch."""
    part, steps = exposure.judged, exposure.steps
    wall_ns = part.wall_ns - (0 if waits else part.wait_ns)
    batches_per_step = 1 if steps is None else steps.batches_per_step or 1
    return part.n_batches / batches_per_step / wall_ns * 1e9 if wall_ns > 0 else None


def free_data_sentence(free: FreeData) -> str:
    """Return the rates, what was predicted beside what was obtained."""
    obtained = units.ratio(free.obtained_steps_per_s)
    if free.steps_per_s is None:
        return f"Data were free: {obtained} steps/s."
    bound = f"{units.ratio(free.predicted_steps_per_s)} steps/s"
    bound = f"{bound} or more" if free.no_upper_bound else f"at most {bound}"
    return (
        f"If data were free: {bound} predicted, {obtained} obtained; with its waits the training "
        f"makes {units.ratio(free.steps_per_s)}."
    )
