"""What a gate concludes: passed, a regression, or not to be told from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from iobench.analysis.intervals import difference
from iobench.json_keys import INLINE, figure, key

if TYPE_CHECKING:
    from iobench.findings.check.counts import CountsComparison
    from iobench.findings.check.exposed_share import ExposedShare

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

    STRADDLES = "straddles"
    SHORT = "short"
    LOST = "lost"
    UNKNOWN = "unknown"


Judged = tuple[Outcome, Doubt | None]


class Gate(msgspec.Struct, frozen=True):
    """Something that is held against something."""

    kind: ClassVar[str]

    @property
    def judged(self) -> Judged:
        """What is concluded, and where it is nothing, why."""
        raise NotImplementedError

    @figure
    def gate(self) -> str:
        """What is held: ``"counts"``, ``"exposed"`` or ``"growth"``."""
        return self.kind

    @figure
    def outcome(self) -> str:
        """``"passed"``, ``"regression"`` or ``"inconclusive"``."""
        return self.judged[0].word

    @figure
    def doubt(self) -> Doubt | None:
        """Why nothing is concluded; None where something is."""
        return self.judged[1]


class Checked(msgspec.Struct, frozen=True):
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


class CountsGate(Gate, frozen=True):
    """Counts of one run against those that were kept."""

    kind = "counts"
    run: str
    comparison: CountsComparison
    JSON_KEYS: ClassVar = {
        "comparison": INLINE,
    }

    @property
    def judged(self) -> Judged:
        """More work, or other samples, fails; a figure that is not known leaves it open."""
        if self.comparison.differences:
            return Outcome.REGRESSION, None
        if self.comparison.unknown:
            return Outcome.INCONCLUSIVE, Doubt.UNKNOWN
        return Outcome.PASSED, None


class ShareGate(Gate, frozen=True):
    """The exposed share of one training process against a limit."""

    kind = "exposed"
    run: str
    found: ExposedShare
    limit: float
    JSON_KEYS: ClassVar = {
        "found": INLINE,
        "limit": key("limit_fraction"),
    }

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


class GrowthGate(Gate, frozen=True):
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
    margin: float
    JSON_KEYS: ClassVar = {
        "margin": key("margin_fraction"),
    }

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
            each.sums.quotient(amount, work)
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
