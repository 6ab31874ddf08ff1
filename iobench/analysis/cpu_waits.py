"""Time that threads waited for a CPU, as their looks at the run queue say: spans of its own.

A look tells how long, not when. The spans lie innermost on the lanes they are of, so that what
partitions lanes gives them their time, and what lies around them the rest of its own: first what
nobody worked in (unpickling, then gaps), then the stages, in proportion to their time off a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.partition import leaf_pieces, pieces_inside
from iobench.analysis.time_intervals import places_of
from iobench.recording.kinds import Kind, is_one_of, lane_keys

if TYPE_CHECKING:
    from iobench.analysis.loop import TrainingLoop
    from iobench.analysis.stage_table import Lanes

Integers = NDArray[np.int64]
HANDED: Final = (Kind.UNPICKLE, Kind.HEAD_OF_LINE)


def with_cpu_waits(lanes: Lanes, looks: NDArray[Any], row: Integers, loop: TrainingLoop) -> Lanes:
    """Return lanes with spans of waiting for a CPU, by looks at the run queue, rows of the run."""
    in_loop = (looks["process"] == loop.process) & (looks["thread"] == loop.thread)
    place = places_of(lane_keys(looks), lane_keys(lanes.pool))
    lane = np.where(in_loop, 0, np.append(lanes.pool_lane, -2)[place] + 1)  # 0: the loop itself
    looks, row, lane = looks[lane >= 0], row[lane >= 0], lane[lane >= 0]
    if not len(looks):
        return lanes
    slots = _Slots(lanes, looks, lane)
    off_cpu_ns, is_handed = slots.off_cpu_ns, slots.is_handed
    inside = slots.taken(np.where(is_handed, off_cpu_ns, 0))
    blocked_ns = np.where(is_handed, off_cpu_ns - inside, 0)
    in_gap = slots.taken(slots.gap_ns)
    inside += slots.taken(np.where(is_handed, 0, off_cpu_ns))
    # What is unpickled a thread of a worker sends, which waits for a CPU as much as workers do.
    active_ns = np.bincount(slots.look, slots.end_ns - slots.start_ns + in_gap, len(looks))
    share = np.minimum(looks["cpu_ns"] / np.maximum(active_ns, 1), 1)
    by_end = np.argsort(looks["end_ns"])
    by_end = by_end[lane[by_end] > 0]
    at = np.searchsorted(looks["end_ns"][by_end], slots.end_ns)
    inside += (blocked_ns * np.append(share[by_end], 0)[at]).astype(np.int64)
    start = np.concatenate((slots.start_ns - in_gap, slots.start_ns))
    end = np.concatenate((slots.start_ns, slots.start_ns + inside))
    look = np.tile(slots.look, 2)[end > start]
    spans = looks[look]
    spans["start_ns"], spans["end_ns"] = start[end > start], end[end > start]
    spans["batch"] = np.tile(slots.batch, 2)[end > start]
    for name in ("flags", "sequence", "cpu_ns"):
        spans[name] = 0
    is_own = lane[look] == 0
    return replace(
        lanes,
        own=np.concatenate((lanes.own, spans[is_own])),
        own_row=np.concatenate((lanes.own_row, row[look[is_own]])),
        pool=np.concatenate((lanes.pool, spans[~is_own])),
        pool_row=np.concatenate((lanes.pool_row, row[look[~is_own]])),
        pool_lane=np.concatenate((lanes.pool_lane, lane[look[~is_own]] - 1)),
    )


class _Slots:
    """What of threads' work lies in each look, with the gap before it; and each look's end."""

    def __init__(self, lanes: Lanes, looks: NDArray[Any], lane_of_look: Integers) -> None:
        spans = np.concatenate((lanes.own, lanes.pool))
        lane = np.concatenate((np.zeros(len(lanes.own), dtype=np.int64), lanes.pool_lane + 1))
        pieces, low, high = leaf_pieces(spans, lane), looks["start_ns"], looks["end_ns"]
        some = np.flatnonzero(pieces.end_ns > pieces.start_ns)
        least = min(int(low.min()), int(pieces.start_ns.min(initial=low.min())))
        most = max(int(high.max()), int(pieces.end_ns.max(initial=0)))
        # Lanes one after another are as one.
        shift, begin = (n * (most + 1 - least) - least for n in (pieces.lane[some], lane_of_look))
        look, piece, length = pieces_inside(
            pieces.start_ns[some] + shift, pieces.end_ns[some] + shift, low + begin, high + begin
        )
        piece, nothing = some[piece], np.zeros(len(looks), dtype=np.int64)
        start = np.concatenate((np.maximum(pieces.start_ns[piece], low[look]), high))
        look = np.concatenate((look, np.arange(len(looks))))
        order = np.lexsort((start, look))
        length, cpu_ns, span, batch = (
            np.concatenate(each)[order]
            for each in (
                (length, nothing),
                (pieces.cpu_ns[piece], nothing),
                (pieces.span[piece], nothing - 1),
                (pieces.batch[piece], looks["batch"]),
            )
        )
        self.left_ns, self.look, self.batch = looks["cpu_ns"].copy(), look[order], batch
        self.start_ns, self.end_ns = start[order], start[order] + length
        self.off_cpu_ns = np.maximum(length - np.maximum(cpu_ns, 0), 0)
        in_loop = lane_of_look[self.look] == 0
        self.is_handed = in_loop & np.append(is_one_of(spans["kind"], HANDED), False)[span]
        # A gap begins when its batch was finished, of the loop, or submitted, of others.
        first = np.where(np.diff(self.look, prepend=-1) != 0, low[self.look], -1)
        before = np.where(first < 0, np.roll(self.end_ns, 1), first)
        finished = lanes.pool[np.argsort(-lanes.pool["end_ns"], kind="stable")]
        submitted = lanes.submissions[np.argsort(lanes.submissions["start_ns"], kind="stable")]
        for of, name, chosen in ((finished, "end_ns", in_loop), (submitted, "start_ns", ~in_loop)):
            place = np.where(chosen, places_of(batch, of["batch"].astype(np.int64)), -1)
            before = np.maximum(before, np.append(of[name], 0)[place])
        self.gap_ns = np.maximum(self.start_ns - before, 0)

    def taken(self, most_ns: Integers) -> Integers:
        """Return what of each look's wait falls on its slots, in proportion to what these hold."""
        total = np.bincount(self.look, most_ns, len(self.left_ns))
        share = np.minimum(self.left_ns, total) / np.maximum(total, 1)
        up_to = np.rint(np.cumsum(most_ns * share[self.look]))
        part: Integers = np.minimum(np.diff(up_to, prepend=0).astype(np.int64), most_ns)
        self.left_ns -= np.bincount(self.look, part, len(self.left_ns)).astype(np.int64)
        return part
