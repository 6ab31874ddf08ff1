"""The share of its time that a training loop waited, with an interval: for gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from iobench.analysis.intervals import Interval, quotient, step_sums
from iobench.json_keys import HIDDEN, figure, key
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.analysis.exposure_figures import Window
    from iobench.analysis.intervals import StepSums
    from iobench.analysis.run import RankRun


class ExposedShare(msgspec.Struct, frozen=True):
    """How much of its time a training process waited, over what a long training sees.

    Parameters
    ----------
    unknown_ns : int
        The part of the wait of which no cause is known.
    lost_spans : int
        With any, waits may be missing.
    sums : StepSums or None
        Of its steps, in blocks; None of a run too short for a steady state.
    window : str
        Of which part of the run, as `Exposure.window` has it; of the whole run there is no share.
    n_batches, n_folded : int
        Of the run, and those before them, of which there are sums only.
    """

    n_steps: int
    n_samples: int | None
    wall_ns: int
    wait_ns: int
    unknown_ns: int
    lost_spans: int
    sums: StepSums | None
    window: Window = "steady"
    n_batches: int = 0
    n_folded: int = 0
    JSON_KEYS: ClassVar = {
        "wall_ns": key("wall_ns"),
        "wait_ns": key("wait_ns"),
        "unknown_ns": key("unknown_ns"),
        "sums": HIDDEN,
        "n_batches": HIDDEN,
        "n_folded": key("folded_batches"),
    }

    @figure.named("exposed_fraction")
    def share(self) -> float | None:
        """Wait over wall; None of a run too short for a steady state."""
        return self.wait_ns / self.wall_ns if self.wall_ns else None

    @figure.named("low_fraction")
    def low(self) -> float | None:
        """The lower end of its interval at 95 %; None of too few steps.

        What differs from one run to the next is not in it.
        """
        low = self._interval.low
        return None if low is None else max(low, 0.0)

    @figure.named("high_fraction")
    def high(self) -> float | None:
        """The interval's upper end."""
        high = self._interval.high
        return None if high is None else min(high, 1.0)

    @property
    def _interval(self) -> Interval:
        blocks = None if self.sums is None else self.sums.quotient("wait", "wall")
        return Interval(None) if blocks is None else quotient(blocks)


def exposed_share(measured: RankRun) -> ExposedShare:
    """Return how much of its time a training process waited.

    Of its epochs as a long training has them, else of its steady state: `Exposure.judged`.
    """
    figures = measured.exposure
    if figures.window == "whole":
        return ExposedShare(0, None, 0, 0, 0, figures.lost_spans, None, "whole")
    judged = figures.judged
    unknown = [row.exposed_ns for row in judged.stages if row.kind == Kind.UNKNOWN]
    return ExposedShare(
        n_steps=judged.n_batches,
        n_samples=judged.n_samples,
        wall_ns=judged.wall_ns,
        wait_ns=judged.wait_ns,
        unknown_ns=sum(unknown),
        lost_spans=figures.lost_spans,
        sums=step_sums(measured, figures.window),
        window=figures.window,
        n_batches=figures.whole.n_batches,
        n_folded=figures.n_folded,
    )
