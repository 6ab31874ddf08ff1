"""What energy is told of a run, of its epochs and waits: whole microjoules, without formatting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from iobench.frozen import frozen
from iobench.json_keys import HIDDEN, INLINE, figure, key, keyed_by

if TYPE_CHECKING:
    from iobench.analysis.run import RankRun
    from iobench.recording.energy_counters import EnergySource

ENERGY_KINDS: Final[tuple[str, ...]] = ("gpu", "cpu", "memory", "machine")


@frozen
class CountedEnergy:
    """What one counter showed of a run.

    Where a training process shares its machine with others of the job, its equal part of it.

    Parameters
    ----------
    host : str
        The machine it is of.
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

    source: EnergySource = field(metadata=INLINE)
    host: str
    total_uj: int = field(metadata=key("total_j"))
    wait_uj: int | None = field(metadata=key("wait_j"))
    total_bounds_uj: tuple[int, int] = field(metadata=HIDDEN)
    wait_bounds_uj: tuple[int, int] = field(metadata=HIDDEN)
    covered_ns: int
    wall_ns: int = field(metadata=HIDDEN)
    n_readings: int = field(metadata=key("readings"))
    n_resets: int = field(metadata=key("resets"))
    n_failed: int = field(metadata=key("failed_readings"))
    resolution_ns: int


@frozen
class KindEnergy:
    """All counters of one kind together: GPUs, processors, memory, or whole machines.

    Parameters
    ----------
    kind : str
        Energy of ``"machine"`` has the others in it; they add up otherwise.
    total_uj, wait_uj : int
        Of the run without the time between rounds, and of the training loop's waits in it, energy
        between two readings taken as spent evenly; the wait is unknown where nothing waited.
        ``wait_uj + compute_uj == total_uj``, exactly.
    total_bounds_uj, wait_bounds_uj : (int, int)
        What it may be, whatever happened between two readings.
    stages : mapping of str to int
        ``wait_uj`` by the stages that were waited for, each wait's in proportion to their exposed
        time in it, largest first; adds up exactly. An attribution: counters know no stages.
    covered_fraction : float
        Of the run's time, by its least covered counter.
    estimated : bool
        Whether a part of it is summed from readings of power.
    resolution_ns : int
        Waits that are shorter are counted by their share of the time between readings.
    uj_per_epoch : float or None
        Mean of the epochs of which all batches were measured; None without one.
    uj_per_sample : float or None
        None where samples are not counted.
    """

    kind: str
    total_uj: int = field(metadata=key("total_uj", "total_j", "total_wh"))
    wait_uj: int | None = field(metadata=key("wait_uj", "wait_j", "wait_wh"))
    total_bounds_uj: tuple[int, int] = field(metadata=key("total_between_j"))
    wait_bounds_uj: tuple[int, int] = field(metadata=HIDDEN)
    stages: Mapping[str, int] = field(metadata=key("exposed_uj"))
    covered_fraction: float
    estimated: bool
    resolution_ns: int
    uj_per_epoch: float | None = field(default=None, metadata=key("j_per_epoch"))
    uj_per_sample: float | None = field(default=None, metadata=key("j_per_sample"))

    @figure.named("wait_between_j")
    def known_wait_bounds_uj(self) -> tuple[int, int] | None:
        """What the waits' may be, whatever happened between two readings."""
        return None if self.wait_uj is None else self.wait_bounds_uj

    @figure
    def wait_fraction(self) -> float | None:
        """Share of the energy that was spent while waiting; None where nothing waited."""
        return self.wait_uj / self.total_uj if self.wait_uj is not None and self.total_uj else None

    @figure.named("compute_uj", "compute_j")
    def compute_uj(self) -> int | None:
        """What was spent between the waits; None where nothing waited."""
        return None if self.wait_uj is None else self.total_uj - self.wait_uj


@frozen
class EpochKind:
    """Energy of one kind in one epoch.

    Parameters
    ----------
    total_uj, wait_uj : int
        Of the epoch, and of its waits.
    """

    kind: str
    total_uj: int = field(metadata=key("total_j"))
    wait_uj: int = field(metadata=key("wait_j"))


@frozen
class EpochEnergy:
    """One epoch of a training process.

    Parameters
    ----------
    epoch : int
        Which one.
    complete : bool
        Whether all its batches were measured.
    n_batches : int
        Measured of it.
    """

    epoch: int
    complete: bool
    n_batches: int = field(metadata=key("batches"))
    kinds: tuple[EpochKind, ...] = field(metadata=keyed_by("kind"))


@frozen
class UntoldEnergy:
    """Energy of a machine that could not be read; never 0.

    Parameters
    ----------
    host, kind : str
        The machine, and what of it.
    reason : str
        Why.
    """

    host: str
    kind: str
    reason: str


@frozen
class EnergyFigures:
    """What a run took, as far as a counter reported.

    Parameters
    ----------
    kinds : tuple of KindEnergy
        Those that could be read; empty for none.
    sources : tuple of CountedEnergy
        One for each counter.
    untold : tuple of UntoldEnergy
        What could not be read.
    n_samples : int or None
        Delivered; None where unknown.
    n_sharing : int
        Training processes of the job that share the counters of a machine, equally.
    period_ns : int
        Time between two readings.
    reading_ns : int or None
        CPU time of one reading of all counters of a machine; None where it was not recorded.
    n_damaged : int
        Readings that cannot be read back.
    typical_wait_ns : int or None
        The median wait of a step; of a job the longest of its ranks.
    is_emulated : bool
        Whether the training step was emulated by waiting.
    trained_on : str
        The dataset that a user's own script trained on, its files real; ``""`` elsewhere.
    """

    kinds: tuple[KindEnergy, ...] = field(metadata=keyed_by("kind"))
    sources: tuple[CountedEnergy, ...]
    epochs: tuple[EpochEnergy, ...]
    untold: tuple[UntoldEnergy, ...] = field(metadata=key("not_readable"))
    n_samples: int | None = field(metadata=HIDDEN)
    n_sharing: int = field(metadata=key("sharing_ranks"))
    period_ns: int
    reading_ns: int | None = field(metadata=key("reading_cpu_s"))
    n_damaged: int = field(metadata=key("damaged_readings"))
    typical_wait_ns: int | None = field(default=None, metadata=HIDDEN)
    is_emulated: bool = field(default=False, metadata=HIDDEN)
    trained_on: str = field(default="", metadata=HIDDEN)

    @figure
    def readable(self) -> bool:
        """Whether any counter could be read."""
        return bool(self.kinds)

    def of(self, kind: str) -> KindEnergy | None:
        """Return what is of one kind; None where it could not be read."""
        return next((each for each in self.kinds if each.kind == kind), None)

    def epoch_uj(self, kinds: Sequence[str]) -> float | None:
        """Return what an epoch took on average, of those that are complete; None without one."""
        complete = [each for each in self.epochs if each.complete]
        if not complete:
            return None
        told = [each.total_uj for epoch in complete for each in epoch.kinds if each.kind in kinds]
        return sum(told) / len(complete)

    def sample_uj(self, total_uj: int) -> float | None:
        """Return what a sample took on average; None where they are not counted."""
        return total_uj / self.n_samples if self.n_samples else None


def in_the_mean(figures: EnergyFigures) -> EnergyFigures:
    """Return figures whose kinds tell what an epoch and a sample took."""
    kinds = (
        replace(
            each,
            uj_per_epoch=figures.epoch_uj((each.kind,)),
            uj_per_sample=figures.sample_uj(each.total_uj),
        )
        for each in figures.kinds
    )
    return replace(figures, kinds=tuple(kinds))


def add_bounds(bounds: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the sums of lower and of upper bounds."""
    low = high = 0
    for each in bounds:
        low, high = low + each[0], high + each[1]
    return low, high


def energy_sum(parts: Iterable[EnergyFigures | None]) -> EnergyFigures | None:
    """Return what the training processes of a job took together; None where not looked for.

    Each machine's counters are in it once: its processes have equal parts of them.
    """
    found = [each for each in parts if each is not None]
    if not found:
        return None
    samples = [each.n_samples for each in found if each.n_samples is not None]
    sources: dict[tuple[str, str], CountedEnergy] = {}
    for counted in (counted for part in found for counted in part.sources):
        key = counted.host, counted.source.name
        sources[key] = counted if key not in sources else _added(sources[key], counted)
    costs = [each.reading_ns for each in found if each.reading_ns is not None]
    waits = [each.typical_wait_ns for each in found if each.typical_wait_ns is not None]
    together = EnergyFigures(
        kinds=tuple(
            _kinds_together([known for part in found if (known := part.of(kind)) is not None])
            for kind in ENERGY_KINDS
            if any(part.of(kind) is not None for part in found)
        ),
        sources=tuple(sources.values()),
        epochs=_epochs_together(found),
        untold=tuple(dict.fromkeys(each for part in found for each in part.untold)),
        # Where machines have other counters, a sum is of fewer samples than were delivered.
        n_samples=sum(samples) if len(samples) == len(found) and _alike(found) else None,
        n_sharing=max(each.n_sharing for each in found),
        period_ns=max(each.period_ns for each in found),
        reading_ns=max(costs, default=None),
        n_damaged=max(each.n_damaged for each in found),
        typical_wait_ns=max(waits, default=None),
    )
    return in_the_mean(together)


def energy_j(run: Iterable[RankRun]) -> float | None:
    """Return what GPUs, processors and memory took, else machines; None where nothing was read."""
    from iobench.subjects.energy.readings import energy_of  # which is made of these figures

    found = energy_sum([each.once(energy_of) for each in run])
    kinds = () if found is None else found.kinds
    parts = [each for each in kinds if each.kind != "machine"] or kinds
    return sum(each.total_uj for each in parts) / 1e6 if parts else None


def _alike(parts: Sequence[EnergyFigures]) -> bool:
    return len({tuple(each.kind for each in part.kinds) for part in parts}) == 1


def _added(one: CountedEnergy, other: CountedEnergy) -> CountedEnergy:
    return replace(
        one,
        total_uj=one.total_uj + other.total_uj,
        wait_uj=_plus(one.wait_uj, other.wait_uj),
        total_bounds_uj=add_bounds([one.total_bounds_uj, other.total_bounds_uj]),
        wait_bounds_uj=add_bounds([one.wait_bounds_uj, other.wait_bounds_uj]),
        covered_ns=one.covered_ns + other.covered_ns,
        wall_ns=one.wall_ns + other.wall_ns,
    )


def _plus(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


def _kinds_together(parts: Sequence[KindEnergy]) -> KindEnergy:
    stages: dict[str, int] = {}
    for stage, energy in (each for part in parts for each in part.stages.items()):
        stages[stage] = stages.get(stage, 0) + energy
    wait: int | None = None
    for part in parts:
        wait = _plus(wait, part.wait_uj)
    return KindEnergy(
        kind=parts[0].kind,
        total_uj=sum(part.total_uj for part in parts),
        wait_uj=wait,
        total_bounds_uj=add_bounds(part.total_bounds_uj for part in parts),
        wait_bounds_uj=add_bounds(part.wait_bounds_uj for part in parts),
        stages=dict(sorted(stages.items(), key=lambda each: (-each[1], each[0]))),
        covered_fraction=min(part.covered_fraction for part in parts),
        estimated=any(part.estimated for part in parts),
        resolution_ns=max(part.resolution_ns for part in parts),
    )


def _epochs_together(parts: Sequence[EnergyFigures]) -> tuple[EpochEnergy, ...]:
    by_number: dict[int, list[EpochEnergy]] = {}
    for each in (each for part in parts for each in part.epochs):
        by_number.setdefault(each.epoch, []).append(each)
    found = []
    for number, epochs in sorted(by_number.items()):
        kinds: dict[str, EpochKind] = {}
        for own in (own for epoch in epochs for own in epoch.kinds):
            before = kinds.get(own.kind, EpochKind(own.kind, 0, 0))
            total_uj, wait_uj = before.total_uj + own.total_uj, before.wait_uj + own.wait_uj
            kinds[own.kind] = EpochKind(own.kind, total_uj, wait_uj)
        found.append(
            EpochEnergy(
                number,
                all(epoch.complete for epoch in epochs),
                sum(epoch.n_batches for epoch in epochs),
                tuple(kinds.values()),
            )
        )
    return tuple(found)
