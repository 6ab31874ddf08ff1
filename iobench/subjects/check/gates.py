"""What a gate concludes: passed, a regression, or not to be told from what was measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from math import ceil, inf, log, log1p
from statistics import median, stdev
from typing import TYPE_CHECKING, Any, ClassVar, Final

from iobench.analysis.intervals import LEAST_ROUNDS, difference, median_edge
from iobench.frozen import frozen
from iobench.json_keys import INLINE, figure, key

if TYPE_CHECKING:
    from iobench.analysis.intervals import RoundRatio
    from iobench.subjects.check.counts import CountsComparison
    from iobench.subjects.check.exposed_share import ExposedShare

MOST_ROUNDS: Final = 1000
OF_MEDIAN: Final = 4.1
"""Half an interval of a median of normal values (1.96 of its standard errors), and 1.3 of them by
which the median itself may be off, so that four of five are decided; over the root of the number.
"""
OF_MACHINE: Final = ("cpu_model", "cpus", "system")


class Outcome(IntEnum):
    """What a gate concludes; the value is what the command exits with."""

    PASSED = 0
    REGRESSION = 3
    INCONCLUSIVE = 4

    @property
    def word(self) -> str:
        """What people read."""
        return self.name.lower()


class Doubt(Enum):
    """Why a gate concludes nothing."""

    FEW_ROUNDS = "few rounds"
    NOISE = "noise"
    STRADDLES = "straddles"
    SHORT = "short"
    LOST = "lost"
    UNKNOWN = "unknown"


Judged = tuple[Outcome, Doubt | None]


class Gate(ABC):
    """Something that is held against something."""

    __slots__ = ()
    kind: ClassVar[str]

    @property
    @abstractmethod
    def judged(self) -> Judged:
        """What is concluded, and where it is nothing, why."""

    @figure
    def gate(self) -> str:
        """What is held: ``"counts"``, ``"commands"``, ``"exposed"`` or ``"growth"``."""
        return self.kind

    @figure
    def outcome(self) -> str:
        """``"passed"``, ``"regression"`` or ``"inconclusive"``."""
        return self.judged[0].word

    @figure
    def doubt(self) -> Doubt | None:
        """Why nothing is concluded; None where something is."""
        return self.judged[1]


@frozen
class Checked:
    """What comes of several gates together."""

    gates: tuple[Gate, ...]

    @property
    def judged(self) -> Outcome:
        """A regression counts more than a gate that is open, and that more than one passed."""
        outcomes = {gate.judged[0] for gate in self.gates}
        order = (Outcome.REGRESSION, Outcome.INCONCLUSIVE)
        return next((each for each in order if each in outcomes), Outcome.PASSED)

    @figure
    def outcome(self) -> str:
        """``"passed"``, ``"regression"`` or ``"inconclusive"``."""
        return self.judged.word

    @figure
    def exit_code(self) -> int:
        """What the command exits with."""
        return int(self.judged)


@frozen
class CountsGate(Gate):
    """Counts of one run against those that were kept."""

    kind = "counts"
    run: str
    comparison: CountsComparison = field(metadata=INLINE)

    @property
    def judged(self) -> Judged:
        """More work, or other samples, fails; a figure that is not known leaves it open."""
        if self.comparison.differences:
            return Outcome.REGRESSION, None
        if self.comparison.unknown:
            return Outcome.INCONCLUSIVE, Doubt.UNKNOWN
        return Outcome.PASSED, None


@frozen
class PairedGate(Gate):
    """Two commands in turns, and one of them beside itself.

    Parameters
    ----------
    paired : RoundRatio
        The time of ``command`` over that of ``reference``.
    command_s, reference_s : float
        Medians.
    margin : float
        By how much it may be slower: 0.05 is 5 %.
    by_cpu : bool
        Whether CPU time was compared, and not that of the wall.
    planned : int
        Rounds that were asked for. More than ``paired`` has: the rest could not decide any more,
        whatever they had measured, and was not run.
    enough : int or None
        With as many rounds the machine's noise so far would let the gate decide, about; None where
        no number that can be waited for would.
    """

    kind = "commands"
    command: tuple[str, ...]
    reference: tuple[str, ...]
    paired: RoundRatio = field(metadata=INLINE)
    command_s: float
    reference_s: float
    margin: float = field(metadata=key("margin_fraction"))
    by_cpu: bool
    planned: int = field(default=0, metadata=key("planned_rounds"))
    enough: int | None = field(default=None, metadata=key("rounds_to_decide"))

    @figure.named("noise_fraction")
    def noise(self) -> float | None:
        """How far from 1 the interval of A/A reaches; None of too few rounds for one."""
        low, high = self.paired.band_low, self.paired.band_high
        return None if low is None or high is None else max(high, 1 / low) - 1

    @property
    def judged(self) -> Judged:
        """Slower than margin and noise fails, faster passes; what noise hides stays open."""
        paired, most, noise = self.paired, 1 + self.margin, self.noise
        if paired.low is None or paired.high is None or noise is None:
            return Outcome.INCONCLUSIVE, Doubt.FEW_ROUNDS
        doubt = Doubt.NOISE if noise > self.margin else Doubt.STRADDLES
        if paired.n_rounds < self.planned:
            return Outcome.INCONCLUSIVE, doubt
        if paired.slower and paired.low > most:
            return Outcome.REGRESSION, None
        if paired.faster or (noise <= self.margin and paired.high <= most):
            return Outcome.PASSED, None
        return Outcome.INCONCLUSIVE, doubt


@frozen
class ShareGate(Gate):
    """The exposed share of one training process against a limit."""

    kind = "exposed"
    run: str
    found: ExposedShare = field(metadata=INLINE)
    limit: float = field(metadata=key("limit_fraction"))

    @property
    def judged(self) -> Judged:
        """Above the limit with its whole interval, and by known causes alone, fails."""
        found = self.found
        if found.low is None or found.high is None:
            return Outcome.INCONCLUSIVE, Doubt.SHORT
        if found.lost_spans:
            return Outcome.INCONCLUSIVE, Doubt.LOST
        if found.high <= self.limit:
            return Outcome.PASSED, None
        if found.low <= self.limit:
            return Outcome.INCONCLUSIVE, Doubt.STRADDLES
        if found.low - found.unknown_ns / found.wall_ns <= self.limit:
            return Outcome.INCONCLUSIVE, Doubt.UNKNOWN
        return Outcome.REGRESSION, None


@frozen
class GrowthGate(Gate):
    """The exposed time of a run against that of one that was kept, per sample.

    Parameters
    ----------
    margin : float
        By how much exposed time may have grown: of the stored run's time per sample.
    """

    kind = "growth"
    run: str
    found: ExposedShare
    stored: ExposedShare
    margin: float = field(metadata=key("margin_fraction"))

    @figure
    def growth_fraction(self) -> float | None:
        """How much exposed time has grown."""
        return self._growth[0]

    @figure
    def low_fraction(self) -> float | None:
        """The lower end of its interval."""
        return self._growth[1]

    @figure
    def high_fraction(self) -> float | None:
        """The upper end of its interval."""
        return self._growth[2]

    @property
    def _growth(self) -> tuple[float, float, float] | tuple[None, None, None]:
        return self.growth or (None, None, None)

    @property
    def growth(self) -> tuple[float, float, float] | None:
        """Growth and its interval, of the stored run's time per sample; None where unknown.

        Per step where neither run knows its samples.
        """
        if self.found.sums is None or self.stored.sums is None:
            return None
        work = self._work
        found, stored, walls = (
            each.sums.blocks(amount, work)
            for each, amount in ((self.found, "wait"), (self.stored, "wait"), (self.stored, "wall"))
            if each.sums is not None
        )
        if found is None or stored is None or walls is None or not walls.value:
            return None
        grown = difference(stored, found)
        if grown.value is None or grown.low is None or grown.high is None:
            return None
        low, value, high = (each / walls.value for each in (grown.low, grown.value, grown.high))
        return value, low, high

    @property
    def _work(self) -> str:
        """What to divide by: samples where both runs know theirs, else steps."""
        known = self.found.n_samples and self.stored.n_samples
        return "samples" if known else "batches"

    @property
    def judged(self) -> Judged:
        """Growth above the margin with its whole interval, by known causes, fails."""
        growth = self.growth
        if growth is None:
            return Outcome.INCONCLUSIVE, Doubt.SHORT
        if self.found.lost_spans or self.stored.lost_spans:
            return Outcome.INCONCLUSIVE, Doubt.LOST
        _, low, high = growth
        if high <= self.margin:
            return Outcome.PASSED, None
        if low <= self.margin:
            return Outcome.INCONCLUSIVE, Doubt.STRADDLES
        if low - self._unknown <= self.margin:
            return Outcome.INCONCLUSIVE, Doubt.UNKNOWN
        return Outcome.REGRESSION, None

    @property
    def _unknown(self) -> float:
        """The part of the found wait without a known cause, of the stored run's time."""
        found, stored = (
            each.n_samples if self._work == "samples" else each.n_steps
            for each in (self.found, self.stored)
        )
        return self.found.unknown_ns / (found or 1) / (self.stored.wall_ns / (stored or 1))


def can_decide(
    ratios: Sequence[float], again: Sequence[float], *, rounds: int, margin: float
) -> bool:
    """Return whether the rounds that are left can still let a `PairedGate` pass or fail.

    Exact: each of them is taken as what would help most. Its intervals go from one order statistic
    of all rounds to another, and each of these has bounds once some rounds are known.

    Parameters
    ----------
    ratios, again : sequence of float
        Of the command, and of the reference beside itself, over the reference, of the rounds so
        far.
    rounds : int
        How many there will be in all.
    """
    most, edge = 1 + margin, median_edge(rounds)
    low, high = _highest_low(ratios, edge), _lowest_high(ratios, edge)
    band_low, band_high = _highest_low(again, edge), _lowest_high(again, edge)
    fails = low > max(1.0, band_high) and low > most
    faster = high < min(1.0, band_low)
    quiet = band_high <= most and band_low >= 1 / most and high <= most
    return fails or faster or quiet


def rounds_to_decide(
    ratios: Sequence[float], again: Sequence[float], *, margin: float
) -> int | None:
    """Return about how many rounds a `PairedGate` would need in the noise of those so far.

    Intervals have to end short of the margin for the reference beside itself, and of the limit for
    the command, in normal noise (`OF_MEDIAN`).

    Returns
    -------
    int or None
        None from `MOST_ROUNDS` on, and where fewer than `LEAST_ROUNDS` tell nothing of noise.
    """
    if len(ratios) < LEAST_ROUNDS:
        return None
    logs, logs_again = ([log(each) for each in values] for values in (ratios, again))
    limit = log1p(margin)
    needed = max(
        (OF_MEDIAN * stdev(logs_again) / limit) ** 2 if limit else inf,
        (OF_MEDIAN * stdev(logs) / distance) ** 2
        if (distance := abs(limit - median(logs)))
        else inf,
        LEAST_ROUNDS,
    )
    return ceil(needed) if needed < MOST_ROUNDS else None


def _highest_low(values: Sequence[float], edge: int) -> float:
    """Return where an interval can start at most, whatever values are still to come."""
    return sorted(values)[edge] if len(values) > edge else inf


def _lowest_high(values: Sequence[float], edge: int) -> float:
    """Return where an interval can end at least, whatever values are still to come."""
    return sorted(values)[-1 - edge] if len(values) > edge else 0.0


def unlike_machines(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in what two machines differ whose runs are compared, as ``run.json`` tells them.

    What one of them does not report counts as different. Names of hosts do not count, nor do
    versions of the system.
    """
    return tuple(
        f"{name}: {one.get(name, 'unknown')}, not {other.get(name, 'unknown')}"
        for name in OF_MACHINE
        if _told(one, name) is None or _told(one, name) != _told(other, name)
    )


def _told(machine: Mapping[str, Any], name: str) -> object:
    value = machine.get(name) or None
    return value.split()[0] if name == "system" and isinstance(value, str) else value
