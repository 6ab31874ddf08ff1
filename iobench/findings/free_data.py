"""How fast a training would step if its data were free: by its waits, and as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from iobench.recording.free_data import NOT_FREE
from iobench.report import units

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Exposure
    from iobench.analysis.run import RankRun

WITH_FREE_DATA: Final = "free data"
"""What the change is called that makes a script's first batches come again and again."""


class FreeData(msgspec.Struct, frozen=True):
    """Steps a second: of the optimiser, of batches where nobody saw it step."""

    steps_per_s: float | None  # as it trains; None of a run whose data were free
    predicted_steps_per_s: float | None  # if it waited for nothing
    obtained_steps_per_s: float | None  # with the same batches again and again
    no_upper_bound: bool = False  # of the prediction: steps wait for CPUs that loading uses

    @property
    def words(self) -> str:
        """What stands behind the rate that was obtained: what was predicted, and the usual rate."""
        if self.steps_per_s is None:
            return "steps/s obtained"
        predicted = units.ratio(self.predicted_steps_per_s)
        bound = f"{predicted} or more" if self.no_upper_bound else f"at most {predicted}"
        return (
            f"steps/s obtained, {bound} predicted; {units.ratio(self.steps_per_s)} with its waits"
        )


def free_data_of(run: RankRun) -> FreeData | None:
    """Return what is known of a run whose data were free, or that was tried so; else None."""
    facts = run.about
    if facts.free_data:
        loaded = any(each.startswith(NOT_FREE) for known in run.own_facts for each in known.unseen)
        known = run.exposure.asks_loaders and not loaded
        return FreeData(None, None, steps_per_s(run.exposure) if known else None)
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
