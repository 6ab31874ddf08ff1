"""Which reads cost the training loop most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.placement.placed_calls import ReadCost

if TYPE_CHECKING:
    from iobench.profiles.contents import Profile
    from iobench.subjects.storage.single_reads import SingleReads

__all__ = ["costliest_reads", "dearest_half"]

SHOWN: Final = 20
NEARLY_ALL: Final = 0.95


def costliest_reads(profile: Profile, found: SingleReads) -> tuple[ReadCost, ...]:
    """Return the reads that were waited for longest; none where that is known of none."""
    reads = found.reads
    length = reads["end_ns"] - reads["start_ns"]
    order = np.lexsort((reads["start_ns"], -length, -reads["exposed_ns"]))[:SHOWN]
    return tuple(
        ReadCost(
            process=profile.processes[read["process"]].name,
            file=found.files[read["file"]],
            offset=int(read["offset"]),
            nbytes=int(read["nbytes"]),
            start_ns=int(read["start_ns"]),
            duration_ns=int(read["end_ns"] - read["start_ns"]),
            exposed_ns=int(read["exposed_ns"]),
        )
        for read in reads[order]
        if read["exposed_ns"] > 0
    )


def dearest_half(found: SingleReads) -> tuple[float, float] | None:
    """Return the fewest reads that cost more than half of what all cost, and what they cost.

    Returns
    -------
    (float, float) or None
        Their share of the reads, and of the exposed time of all; None where reads were not waited
        for, or that is not known of nearly all of them.
    """
    exposed_ns = found.reads["exposed_ns"]
    known = exposed_ns[exposed_ns >= 0]
    if not known.sum() or len(known) < NEARLY_ALL * len(exposed_ns):
        return None
    cost = np.cumsum(np.sort(np.maximum(exposed_ns, 0))[::-1])
    place = int(np.searchsorted(2 * cost, cost[-1], side="right"))
    return (place + 1) / len(cost), float(cost[place] / cost[-1])
