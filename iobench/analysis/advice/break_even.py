"""When a change has paid for itself, and what waiting costs: arithmetic, nothing is simulated.

Staging as MLPerf HPC counts it (Farrell et al. 2021, arXiv:2110.11466, section II): the time to
solution is T_staging + T_epoch x epochs, from the first touch of the data on the parallel file
system. A conversion is staging: it is done once, and every epoch after it is shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BreakEven", "DeviceBill", "StagedRun", "bill_of"]

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class StagedRun:
    """A training that stages its data first.

    Parameters
    ----------
    staging_s : float
        Seconds until the first epoch may begin.
    epoch_s : float
        Seconds of an epoch on what was staged; above 0.
    """

    staging_s: float
    epoch_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.staging_s < math.inf and 0 < self.epoch_s < math.inf):
            raise ValueError("expected staging of 0 s or more, and epochs that take time")

    @property
    def ratio(self) -> float:
        """T_staging / T_epoch, the compute-to-staging throughput ratio of MLPerf HPC."""
        return self.staging_s / self.epoch_s

    def time_to_solution_s(self, epochs: float) -> float:
        """Return T_staging + T_epoch x epochs."""
        return self.staging_s + self.epoch_s * epochs

    def staging_fraction(self, epochs: float) -> float:
        """Return which share of the time to solution is staging."""
        return self.staging_s / self.time_to_solution_s(epochs)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """What is spent once, against what is saved every epoch.

    Parameters
    ----------
    spent_s : float or None
        Seconds of the conversion; None where unknown.
    before_s, after_s : float or None
        Seconds of an epoch over all samples; None where unknown.
    at_least : bool
        Whether ``spent_s`` was not measured, and is at least this: the samples still have to be
        made, whatever writing them takes.
    """

    spent_s: float | None
    before_s: float | None
    after_s: float | None
    at_least: bool = False

    @property
    def saved_s(self) -> float | None:
        """Seconds saved every epoch; below 0 where epochs get longer. None where unknown."""
        if self.before_s is None or self.after_s is None:
            return None
        return self.before_s - self.after_s

    @property
    def epochs(self) -> float | None:
        """Epochs until it has paid; infinite where nothing is saved, None where unknown."""
        saved_s = self.saved_s
        if saved_s is None:
            return None
        if saved_s <= 0:
            return math.inf
        return None if self.spent_s is None else self.spent_s / saved_s

    @property
    def staged(self) -> StagedRun | None:
        """The training that converts first; None where its times are unknown."""
        if self.spent_s is None or not self.after_s:
            return None
        return StagedRun(self.spent_s, self.after_s)


@dataclass(frozen=True, slots=True)
class DeviceBill:
    """What waiting for data costs a whole training.

    All ranks share the samples of an epoch, and each is taken to wait as the measured one does:
    that storage serves so many is for a simulation to say.

    Parameters
    ----------
    ranks, epochs : int
    idle_hours : float
        Hours of devices that had nothing to do for want of data.
    all_hours : float
        Hours of devices in all.
    on_device : bool
        Whether the devices' own idle time was measured; else it is the wait of the training
        loop, in part of which a device may still have had work.
    """

    ranks: int
    epochs: int
    idle_hours: float
    all_hours: float
    on_device: bool


def bill_of(
    *,
    ranks: int,
    epochs: int,
    n_samples: int,
    sample_wall_ns: float,
    sample_idle_ns: float,
    start_ns: float,
    on_device: bool,
) -> DeviceBill:
    """Return the bill of a training.

    Parameters
    ----------
    ranks, epochs : int
        At least 1.
    n_samples : int
        Of an epoch, over all ranks.
    sample_wall_ns, sample_idle_ns : float
        Of a rank in steady state.
    start_ns : float
        What a rank waits at the start of each epoch beyond that.

    Raises
    ------
    ValueError
        If there is no rank, epoch or sample.
    """
    if min(ranks, epochs, n_samples) < 1:
        raise ValueError("expected one rank, epoch and sample or more")
    starts_ns = start_ns * ranks * epochs
    steady = n_samples * epochs
    return DeviceBill(
        ranks=ranks,
        epochs=epochs,
        idle_hours=(sample_idle_ns * steady + starts_ns) / 1e9 / HOUR_S,
        all_hours=(sample_wall_ns * steady + starts_ns) / 1e9 / HOUR_S,
        on_device=on_device,
    )
