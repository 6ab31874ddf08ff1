"""What a job does on more ranks: points of a curve, and where storage saturates."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from iobench.findings.scaling.verdict import scaling_verdict
from iobench.json_keys import INLINE, figure, key

if TYPE_CHECKING:
    from iobench.findings.scaling.measured_job import MeasuredJob
    from iobench.findings.scaling.target import MeasuredLimit, SharedStorage

SCALING_VERSION: Final = 1


class Spread(msgspec.Struct, frozen=True):
    """A figure over repeated simulations.

    Parameters
    ----------
    median, low, high : float
        The median, the smallest and the largest one.
    """

    median: float
    low: float
    high: float


class ScalingPoint(msgspec.Struct, frozen=True):
    """A job of so many ranks, in steady state.

    Parameters
    ----------
    ranks : int
        Training processes.
    samples_per_s : Spread
        Of all ranks together.
    efficiency : float
        Samples per second of a rank, over those of a job of one rank.
    exposed_fraction : Spread
        The share of the job's time in which its last rank waited for its batch.
    storage_fraction : float or None
        The share of storage's time that was used; None where it has no bound.
    bytes_per_s, reads_per_s : float
        What storage gave.
    step_ns : int
        Mean time from step to step.
    free_step_ns : int
        The same if storage had no bound.
    is_bound : bool
        Whether it lies so far beyond what was measured that it is a bound: samples per second
        are at most these, and the exposed share at least this.
    """

    ranks: int
    samples_per_s: Spread
    efficiency: float
    exposed_fraction: Spread
    storage_fraction: float | None
    bytes_per_s: float
    reads_per_s: float
    step_ns: int
    free_step_ns: int
    is_bound: bool
    JSON_KEYS: ClassVar = {
        "step_ns": key("step_ns"),
        "free_step_ns": key("free_step_ns"),
    }

    @figure
    def free_samples_per_s(self) -> float | None:
        """Of all ranks together, if storage had no bound."""
        rate = self.samples_per_s.median
        return rate * self.step_ns / self.free_step_ns if self.free_step_ns else None


class Saturation(msgspec.Struct, frozen=True):
    """From how many ranks on storage cannot give what they would read.

    Parameters
    ----------
    ranks : int or None
        The smallest number; None if not even a million do.
    by : str
        ``"bandwidth"`` or ``"reads"``, whichever ends first.
    """

    ranks: int | None
    by: str


class ScalingCurve(msgspec.Struct, frozen=True):
    """What a run would do on more ranks.

    Parameters
    ----------
    first_epoch : tuple of ScalingPoint
        By number of ranks.
    saturation : Saturation or None
        None where storage has no bound.
    model_error_fraction : float or None
        Step time that the model gives for the measured run, over the measured one, less 1.
    n_seeds : int
        Simulations for each point.
    """

    first_epoch: tuple[ScalingPoint, ...]
    saturation: Saturation | None
    model_error_fraction: float | None
    n_seeds: int
    JSON_KEYS: ClassVar = {
        "n_seeds": key("seeds"),
    }


class ScalingFigures(msgspec.Struct, frozen=True):
    """What ``iobench simulate`` says: the curve, and what it was made from.

    Parameters
    ----------
    job : MeasuredJob
        The run that was measured.
    limit : MeasuredLimit or None
        Where storage's bound is what a probe of it found.
    schema_version : int
        Raised when a key changes its meaning or goes.
    """

    curve: ScalingCurve
    job: MeasuredJob
    storage: SharedStorage
    limit: MeasuredLimit | None = None
    schema_version: int = SCALING_VERSION
    JSON_KEYS: ClassVar = {
        "curve": INLINE,
        "job": key("measured"),
        "limit": key("measured_limit"),
    }

    @figure
    def run(self) -> str:
        """What was measured, by its name."""
        return self.job.name

    @figure
    def verdict(self) -> list[str]:
        """Where storage saturates, and what else more ranks lose: sentences."""
        known = None if self.limit is None else self.limit.first_unknown(self.job.demand)
        return scaling_verdict(self.curve, unknown_from=known)
