"""What an analysis of energy ends in: whole microjoules, without formatting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from iobench.recording.energy_counters import EnergySource

__all__ = [
    "ENERGY_KINDS",
    "CountedEnergy",
    "EnergyFigures",
    "EpochEnergy",
    "KindEnergy",
    "UntoldEnergy",
]

ENERGY_KINDS: Final[tuple[str, ...]] = ("gpu", "cpu", "memory", "machine")


@dataclass(frozen=True, slots=True)
class CountedEnergy:
    """What one counter showed of a run.

    Where a training process shares its machine with others of the job, its equal part of it.

    Parameters
    ----------
    source : EnergySource
    host : str
    total_uj : int
        From the first round's begin to the last one's end, time between rounds left out.
    wait_uj : int or None
        In the waits of the training loop, energy between two readings taken as spent evenly;
        None where nothing waited.
    total_bounds_uj, wait_bounds_uj : (int, int)
        Between these it lies whatever happened between two readings, the counter's age included.
    covered_ns, wall_ns : int
        How much of the run's time lies between the first and the last reading. The rest is in no
        figure.
    n_readings, n_resets, n_failed : int
        What was counted between a reading and the next, with the counter set back between them, is
        in the figures from the reset on.
    resolution_ns : int
        The longer one of the counter's renewal and the usual time between readings.
    """

    source: EnergySource
    host: str
    total_uj: int
    wait_uj: int | None
    total_bounds_uj: tuple[int, int]
    wait_bounds_uj: tuple[int, int]
    covered_ns: int
    wall_ns: int
    n_readings: int
    n_resets: int
    n_failed: int
    resolution_ns: int


@dataclass(frozen=True, slots=True)
class KindEnergy:
    """All counters of one kind together: GPUs, processors, memory, or whole machines.

    Parameters
    ----------
    kind : str
        Energy of ``"machine"`` has the others in it; they add up otherwise.
    total_uj, wait_uj, total_bounds_uj, wait_bounds_uj
        As of `CountedEnergy`. ``wait_uj + compute_uj == total_uj``, exactly.
    stages : tuple of (str, int)
        ``wait_uj`` by the stages that were waited for, each wait's in proportion to their exposed
        time in it, largest first; adds up exactly. An attribution: counters know no stages.
    covered_fraction : float
        Of the run's time, by its least covered counter.
    estimated : bool
        Whether a part of it is summed from readings of power.
    resolution_ns : int
        Waits that are shorter are told by their share of the time between readings.
    """

    kind: str
    total_uj: int
    wait_uj: int | None
    total_bounds_uj: tuple[int, int]
    wait_bounds_uj: tuple[int, int]
    stages: tuple[tuple[str, int], ...]
    covered_fraction: float
    estimated: bool
    resolution_ns: int

    @property
    def compute_uj(self) -> int | None:
        """What was spent between the waits; None where nothing waited."""
        return None if self.wait_uj is None else self.total_uj - self.wait_uj


@dataclass(frozen=True, slots=True)
class EpochEnergy:
    """One epoch of a training process.

    Parameters
    ----------
    epoch : int
    complete : bool
        Whether all its batches were measured.
    n_batches : int
    kinds : tuple of (str, int, int)
        Kind, microjoules, and those of its waits.
    """

    epoch: int
    complete: bool
    n_batches: int
    kinds: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class UntoldEnergy:
    """Energy of a machine that could not be read; never 0."""

    host: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class EnergyFigures:
    """What a run took, as far as a counter told.

    Parameters
    ----------
    kinds : tuple of KindEnergy
        Those that could be read; empty for none.
    sources : tuple of CountedEnergy
    epochs : tuple of EpochEnergy
    untold : tuple of UntoldEnergy
    n_samples : int or None
        Delivered; None where unknown.
    n_sharing : int
        Training processes of the job that share the counters of a machine, equally.
    period_ns : int
        Time between two readings.
    reading_ns : int or None
        CPU time of one reading of all counters of a machine; None where it was not told.
    n_damaged : int
        Readings that cannot be read back.
    """

    kinds: tuple[KindEnergy, ...]
    sources: tuple[CountedEnergy, ...]
    epochs: tuple[EpochEnergy, ...]
    untold: tuple[UntoldEnergy, ...]
    n_samples: int | None
    n_sharing: int
    period_ns: int
    reading_ns: int | None
    n_damaged: int

    def of(self, kind: str) -> KindEnergy | None:
        """Return what is of one kind; None where it could not be read."""
        return next((each for each in self.kinds if each.kind == kind), None)

    @property
    def complete_epochs(self) -> tuple[EpochEnergy, ...]:
        """Those of which all batches were measured."""
        return tuple(each for each in self.epochs if each.complete)
