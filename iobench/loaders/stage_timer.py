"""How much is recorded of each sample that is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

BUDGET_FRACTION = 0.01
"""Recording may cost this share of the time it measures."""


class Detail(Enum):
    """How much is recorded: what its cost allows, every sample, or batches alone."""

    AUTO = "auto"
    SAMPLE = "sample"
    BATCH = "batch"


class RecordedDetail:
    """Spans per sample with CPU time while that costs under 1 % of the time measured.

    Then without CPU time, then one summed span per batch and stage, and those of some samples.
    """

    def __init__(self, unit_costs: Mapping[str, int | None], n_stages: int) -> None:
        self._light_ns = (unit_costs["light_ns"] or 0) * n_stages
        self._full_ns = (unit_costs["full_ns"] or 0) * n_stages
        self._fastest_ns = math.inf
        self._is_cheap = True
        self.is_summed = False
        self.every = 2  # of so many samples one is told apart, where they are summed

    @property
    def with_cpu(self) -> bool:
        """Whether spans have CPU time."""
        return self._is_cheap and not self.is_summed

    def note(self, sample_ns: float) -> None:
        """Take a batch into account: the first ones also import libraries and open files."""
        if sample_ns >= self._fastest_ns:
            return
        self._fastest_ns = sample_ns
        budget_ns = BUDGET_FRACTION * sample_ns
        self._is_cheap = self._full_ns <= budget_ns
        self.is_summed = self._light_ns > budget_ns
        self.every = max(2, math.ceil(self._light_ns / max(budget_ns, 1.0)))
