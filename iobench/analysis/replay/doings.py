"""Batches as what is done for each, one thing after another: waiting, reading, computing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.replay.shared_clock import COMPUTES, PAUSES, READS, Doing
from iobench.recording.kinds import MIXED_KINDS, READING_KINDS

if TYPE_CHECKING:
    from iobench.analysis.replay.contract import Machine, RecordedRun

__all__ = ["READING", "BatchDoings", "computed_ns"]

Integers = NDArray[np.int64]
READING: Final = frozenset(kind.spelled for kind in READING_KINDS | MIXED_KINDS)
"""Kinds of stages whose waiting may be for storage."""


def computed_ns(run: RecordedRun) -> Integers:
    """Return what of each batch and stage was computing: where nobody knows, all of it."""
    told = (run.cpu_ns >= 0) & (run.cpu_ns < run.work_ns)
    return np.where(told, run.cpu_ns, run.work_ns)


class BatchDoings:
    """What each batch of a run demands, if its times are what each would take alone.

    Attributes
    ----------
    own, beside : list of list of Doing
        Of each batch, what its maker does, and what another thread does after that.
    """

    def __init__(self, run: RecordedRun, machine: Machine) -> None:
        beside = np.zeros_like(run.work_ns) if run.beside_ns is None else run.beside_ns
        beside = np.minimum(beside, run.work_ns)
        computed = computed_ns(run)
        share = beside / np.maximum(run.work_ns, 1)
        computed_beside = np.rint(computed * share).astype(np.int64)
        reads = np.array([name.partition(":")[0] in READING for name in run.stages], dtype=bool)
        waited = run.work_ns - computed
        in_reads = np.maximum((waited * reads).sum(axis=1), 1)
        rate = np.maximum(run.read_nbytes, 0) / in_reads
        if machine.read_nbytes_per_s is not None:
            # Faster than storage gives, the rest was in a cache.
            rate = np.minimum(rate, machine.read_nbytes_per_s / 1e9)
        self._reads, self._rate = reads.tolist(), rate.tolist()
        self.own = self._doings(run.work_ns - beside, computed - computed_beside)
        for doings, gap in zip(self.own, run.gap_ns.tolist(), strict=True):
            doings.append(Doing(COMPUTES, gap))
        self.beside = self._doings(beside, computed_beside)

    def _doings(self, work: Integers, computed: Integers) -> list[list[Doing]]:
        """Return what each batch consists of: of each stage what it waits, then computes."""
        made: list[list[Doing]] = []
        for waits, computes, rate in zip(
            (work - computed).tolist(), computed.tolist(), self._rate, strict=True
        ):
            doings = []
            for wait, compute, reads in zip(waits, computes, self._reads, strict=True):
                if wait:
                    from_storage = reads and rate > 0
                    doings.append(Doing(READS, wait, rate) if from_storage else Doing(PAUSES, wait))
                if compute:
                    doings.append(Doing(COMPUTES, compute))
            made.append(doings)
        return made
