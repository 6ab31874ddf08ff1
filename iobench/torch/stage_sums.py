"""Stages of samples too short for a span each: sums by batch, and what follows from them.

A stage is a kind with its label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Stage = tuple[int, str]


@dataclass(slots=True)
class StageSum:
    """What a stage of several samples took, and the bytes it handed on; -1 where one is unknown."""

    spent_ns: int = 0
    nbytes: int = 0

    def add(self, spent_ns: int, nbytes: int) -> None:
        """Add a sample, or several."""
        self.spent_ns += spent_ns
        self.nbytes = -1 if nbytes < 0 or self.nbytes < 0 else self.nbytes + nbytes


class StageSums:
    """Sums of one batch at a time; batches that are not timed are split as the others were."""

    def __init__(self) -> None:
        self._batch: dict[Stage, StageSum] = {}
        self._all: dict[Stage, StageSum] = {}
        self.all_ns = self._n_samples = 0

    def clear(self) -> None:
        """Begin another batch."""
        self._batch.clear()

    def add(self, stage: Stage, spent_ns: int, nbytes: int) -> None:
        """Add what a stage of a sample took, and the bytes it handed on (-1 is unknown)."""
        found = self._batch.get(stage)
        if found is None:
            found = self._batch[stage] = StageSum()
        # As `StageSum.add`, written out: this runs for every stage of every sample.
        found.spent_ns += spent_ns
        found.nbytes = -1 if nbytes < 0 or found.nbytes < 0 else found.nbytes + nbytes

    def add_nested(self, spans: Iterable[tuple[int, str, int, int, int]]) -> None:
        """Add spans of one thread in the order of their ends: each has what is in none inside."""
        before: list[tuple[int, int]] = []  # start and length of those not known to be inside one
        for kind, label, start_ns, end_ns, nbytes in spans:
            inner_ns = 0
            while before and before[-1][0] >= start_ns:
                inner_ns += before.pop()[1]
            before.append((start_ns, end_ns - start_ns))
            self.add((kind, label), max(end_ns - start_ns - inner_ns, 0), nbytes)

    def of_batch(self, spent_ns: int, n_samples: int) -> Mapping[Stage, StageSum]:
        """Return the stages of a batch that took so long, and remember them."""
        for stage, each in self._batch.items():
            self._all.setdefault(stage, StageSum()).add(each.spent_ns, each.nbytes)
        self.all_ns += spent_ns
        self._n_samples += n_samples
        return self._batch

    def like_others(self, spent_ns: int, n_samples: int) -> Mapping[Stage, StageSum]:
        """Return stages that a batch will have had, in proportion to those of all others."""
        return {
            stage: StageSum(
                spent_ns * each.spent_ns // max(self.all_ns, 1),
                -1 if each.nbytes < 0 else each.nbytes * n_samples // max(self._n_samples, 1),
            )
            for stage, each in self._all.items()
        }
