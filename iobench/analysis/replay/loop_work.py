"""What the training loop itself did of loading while it picked batches up: drawing, unpickling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from iobench.analysis.partition import leaf_pieces, pieces_inside
from iobench.analysis.stage_table import StageTable
from iobench.recording.kinds import HANDOVER_KINDS, stage_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.stage_table import Lanes

__all__ = ["LoopWork", "find_loop_work"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LoopWork:
    """Stages of the training loop's own thread inside its waits.

    Parameters
    ----------
    stages : tuple of str
    work_ns : ndarray of int64, shape (n_waits, n_stages)
    """

    stages: tuple[str, ...]
    work_ns: Integers


def find_loop_work(
    lanes: Lanes, strings: Sequence[str], low_ns: Integers, high_ns: Integers
) -> LoopWork:
    """Return what of each stretch of time the loop spent on the hand-over, by stage.

    Parameters
    ----------
    lanes : Lanes
    strings : sequence of str
        Of the profile.
    low_ns, high_ns : ndarray of int64, shape (n_waits,)
        The stretches: from where a batch was there to be picked up until the loop held it.
    """
    spans = lanes.own
    pieces = leaf_pieces(spans, np.zeros(len(spans), dtype=np.int64))
    stages = StageTable(spans, tuple(strings))
    handed = np.array([kind in HANDOVER_KINDS for kind in stages.kinds], dtype=bool)
    stage = stages.of_span[pieces.span]
    counted = handed[stage] & (pieces.duration_ns > 0)
    start, end, stage = pieces.start_ns[counted], pieces.end_ns[counted], stage[counted]
    work = np.zeros((len(low_ns), len(stages)), dtype=np.int64)
    of, piece, length = pieces_inside(start, end, low_ns, high_ns)
    np.add.at(work, (of, stage[piece]), length)
    kept = np.flatnonzero(work.any(axis=0))
    names = tuple(stage_name(stages.kinds[at], stages.labels[at]) for at in kept.tolist())
    return LoopWork(names, work[:, kept])
