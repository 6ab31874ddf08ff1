"""A run laid out in lanes: what the page, the trace and the table of spans all show."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.time_intervals import nesting
from iobench.recording.kinds import (
    QUEUED_KINDS,
    Kind,
    halves,
    is_one_of,
    lane_keys,
    stage_name,
    stages_of,
)
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run
    from iobench.runs.contents import Process, RunData

MAIN_THREAD: Final = "MainThread"
"""As Python calls it: where a process has others too, it goes by the process's name alone."""


class TimelineLane(msgspec.Struct, frozen=True):
    """One row of a timeline: a thread of a process, or an accelerator that it drives."""

    process: int
    thread: int
    name: str
    is_device: bool


class Timeline(msgspec.Struct, frozen=True):
    """All stretches of time of a run, by lane and start; counters are not among them."""

    lanes: tuple[TimelineLane, ...]  # rank by rank, the training loop's thread first
    kinds: tuple[Kind, ...]  # of each stage
    stages: tuple[str, ...]
    spans: NDArray[Any]
    row: NDArray[np.int64]  # of each span, in ``RunData.spans``
    lane: NDArray[np.int32]
    stage: NDArray[np.int32]
    sub: NDArray[np.int32]  # 0 where it nests in what is open on its lane, else on which other one
    queued: NDArray[np.bool_]  # of a batch in a queue: it takes no thread's time
    depth: NDArray[np.int32]  # no two of a lane and depth overlap; queues lie deepest
    # As `SpanSums` has it; of a sample's span beside a summed one its share of its own time
    exposed_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def start_ns(self) -> int:
        """The first moment; 0 of an empty one."""
        return int(self.spans["start_ns"].min()) if len(self) else 0

    @property
    def end_ns(self) -> int:
        """The last moment; 0 of an empty one."""
        return int(self.spans["end_ns"].max()) if len(self) else 0


def timeline_of(run: Run | RankRun) -> Timeline:
    """Lay a run out in lanes; sums of samples that are shown one by one are left out."""
    data = run.data
    spans = data.spans
    summed = (spans["flags"] & Flag.SUMMED) != 0
    row = np.flatnonzero(
        ((spans["flags"] & Flag.IO) == 0) & ~(summed & _has_details(spans, summed))
    )
    chosen = spans[row]
    lanes, lane = lanes_of(data, chosen)
    # Outer spans before those that begin with them: they end later.
    order = np.lexsort((-chosen["end_ns"], chosen["start_ns"], lane))
    row, lane, chosen = row[order], lane[order], chosen[order]
    stages, stage = stages_of(chosen, data.strings)
    sub, queued = np.zeros(len(row), dtype=np.int32), is_one_of(chosen["kind"], QUEUED_KINDS)
    for rows in (np.flatnonzero(~queued), np.flatnonzero(queued)):
        sub[rows] = sub_lanes(lane[rows], chosen["start_ns"][rows], chosen["end_ns"][rows])
    return Timeline(
        lanes=lanes,
        kinds=tuple(kind for kind, _ in stages),
        stages=tuple(stage_name(*each) for each in stages),
        spans=chosen,
        row=row,
        lane=lane,
        stage=stage.astype(np.int32),
        sub=sub,
        queued=queued,
        depth=_depths(lane, np.where(queued, sub + sub.max(initial=0) + 1, sub), chosen),
        exposed_ns=_exposed(run)[row],
    )


def lanes_of(
    profile: RunData, spans: NDArray[Any]
) -> tuple[tuple[TimelineLane, ...], NDArray[np.int32]]:
    """Return the lanes of some spans of a profile, counters too, and which is each one's."""
    processes, several = profile.processes, len(profile.ranks) > 1
    key = lane_keys(spans) << 1 | ((spans["flags"] & Flag.DEVICE) != 0)
    keys, number = np.unique(key, return_inverse=True)
    is_wait = (spans["kind"] == Kind.WAIT) & (spans["flags"] == 0)
    waiting, n_waits = np.unique(key[is_wait] >> 1, return_counts=True)
    waits = dict(zip(waiting.tolist(), n_waits.tolist(), strict=True))

    def place(key: int) -> tuple[int, bool, int, int, int]:
        # The thread that waited most is the training loop; its device has the same thread.
        owner = processes[key >> 33]
        return owner.rank, owner.role != "consumer", key >> 33, -waits.get(key >> 1, 0), key

    ordered = sorted(keys.tolist(), key=place)
    names = [f"rank {each.rank} {each.name}" if several else each.name for each in processes]
    n_alike = Counter(names)
    n_threads = Counter(thread >> 32 for thread in {key >> 1 for key in ordered})
    lanes = []
    for each in ordered:
        process, thread = halves(each >> 1)
        owner, name, is_device = processes[process], names[process], bool(each & 1)
        if n_alike[name] > 1:
            # Workers of later rounds have the numbers of those before.
            name = f"{name} ({owner.pid})"
        text = owner.threads[thread] if thread < len(owner.threads) else ""
        if n_threads[process] > 1 and text != MAIN_THREAD:
            name = f"{name}: {text or f'thread {thread}'}"
        name = f"{name} device" if is_device else name
        lanes.append(TimelineLane(process, thread, name, is_device))
    lane = np.argsort(np.searchsorted(keys, ordered)).astype(np.int32)
    return tuple(lanes), lane[number]


def sub_lanes(
    lane: NDArray[Any], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return which lane beside its own each span is on: 0 for what nests in what is open there.

    They are by lane and start, outer spans before those that begin with them.
    """
    result = np.zeros(len(lane), dtype=np.int32)
    open_until: list[list[int]] = []
    last = None
    # What nests need not be looked at, and those are nearly all.
    rows = np.flatnonzero(~nesting(start_ns, end_ns, lane).regular)
    columns = (rows, lane[rows], start_ns[rows], end_ns[rows])
    for row, number, start, end in zip(*(each.tolist() for each in columns), strict=True):
        if number != last:
            open_until, last = [[]], number
        for ends in open_until:
            while ends and ends[-1] <= start:
                ends.pop()
        free = (n for n, ends in enumerate(open_until) if not ends or end <= ends[-1])
        place = next(free, len(open_until))
        if place == len(open_until):
            open_until.append([])
        open_until[place].append(end)
        result[row] = place
    return result


def _has_details(spans: NDArray[Any], is_summed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether there are spans of a summed span's samples: of its batch and stage."""
    is_detail = (spans["flags"] & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL
    result = np.zeros(len(spans), dtype=bool)
    if is_detail.any():
        rows = np.flatnonzero(is_summed | is_detail)
        names = ("process", "batch", "epoch", "kind", "label")
        columns = np.stack([spans[name][rows].astype(np.int64) for name in names])
        _, group = np.unique(columns, axis=1, return_inverse=True)
        result[rows] = np.isin(group, group[is_detail[rows]])
    return result


def _depths(
    lane: NDArray[np.int32], part: NDArray[np.int32], spans: NDArray[Any]
) -> NDArray[np.int32]:
    """Return how deep each span lies in its lane, whose parts lie one below the other."""
    n_parts = int(part.max(initial=0)) + 1
    place = lane * np.int64(n_parts) + part
    # They are by lane and start already, of one start the last end first.
    order = np.argsort(place, kind="stable")
    level = np.zeros(len(spans), dtype=np.int64)
    level[order] = nesting(spans["start_ns"][order], spans["end_ns"][order], place[order]).level
    height = np.zeros((int(lane.max(initial=0)) + 1, n_parts), dtype=np.int64)
    np.maximum.at(height, (lane, part), level + 1)
    above = np.cumsum(height, axis=1) - height
    depth: NDArray[np.int32] = (level + above[lane, part]).astype(np.int32)
    return depth


def _exposed(run: Run | RankRun) -> NDArray[np.int64]:
    """Return the exposed time of each row of a run's spans, -1 where it is not known."""
    spans, sums = run.data.spans, run.sums
    # A sample's span beside a summed one takes no time from it, and is in no sum: it has a share.
    rows = np.flatnonzero(((spans["flags"] & Flag.DETAIL) != 0) & ~np.isnan(sums.share))
    pieces, exposed = leaf_pieces(spans[rows], lane_keys(spans[rows])), sums.exposed_ns.copy()
    own_ns = np.bincount(pieces.span, pieces.duration_ns, len(rows))
    exposed[rows] = np.rint(sums.share[rows] * own_ns)
    return exposed


def wall_offsets(processes: Iterable[Process]) -> dict[tuple[str, str], int]:
    """Return what to add to the monotonic times of each machine, by `machine_of`, for wall time."""
    result: dict[tuple[str, str], int] = {}
    for process in processes:
        machine, anchor = machine_of(process), process.anchors[0]
        # What passes between two looks at clocks only adds.
        offset = anchor.wall_ns - anchor.monotonic_ns
        result[machine] = min(offset, result.get(machine, offset))
    return result


def machine_of(process: Process) -> tuple[str, str]:
    """Return what processes that share a monotonic clock have in common."""
    return process.host, process.boot_id
