"""A profile laid out in lanes: what a timeline, a trace and a table of spans all show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.time_intervals import overlaps_none
from iobench.recording.kinds import QUEUED_KINDS, Kind, is_one_of, stage_name
from iobench.recording.span_file import Flag
from iobench.recording.span_keys import lane_keys, stages_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.run import RankRun, Run
    from iobench.analysis.span_sums import SpanSums
    from iobench.profiles.contents import Profile

__all__ = ["Timeline", "TimelineLane", "lanes_of_spans", "timeline_of"]

LARGEST_PRODUCT: Final = 2**62
MAIN_THREAD: Final = "MainThread"
"""As Python calls it: where a process has others too, it goes by the process's name alone."""


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """One row of a timeline: a thread of a process, or an accelerator of it.

    Parameters
    ----------
    process, thread : int
        Indices into ``Profile.processes`` and its threads.
    name : str
        Of the process, with its pid where others are called the same, and of its thread if it is
        not the only or main one: ``"worker-0"``, ``"worker-0 (4711): QueueFeederThread"``.
    is_device : bool
        Whether it shows an accelerator's time.
    """

    process: int
    thread: int
    name: str
    is_device: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """All stretches of time of a profile, by lane and start; counters are not among them.

    Parameters
    ----------
    lanes : tuple of TimelineLane
        Rank by rank: the training loop's thread first, other threads of its process, then its
        loading processes; a device follows the thread that drives it.
    stages : tuple of str
        Names of stages, as everywhere.
    spans : ndarray of PROFILE_DTYPE, shape (n_spans,)
        Their ``label`` and ``detail`` are indices into the profile's ``strings``.
    row : ndarray of int64, shape (n_spans,)
        Their rows in ``Profile.spans``.
    lane, stage : ndarray of int32, shape (n_spans,)
        Indices into ``lanes`` and ``stages``.
    depth : ndarray of int32, shape (n_spans,)
        How deep a span lies inside others of its lane, 0 for one inside none. Of one lane and
        depth no two overlap, so inner ones can be drawn above. Batches in a queue, which take no
        thread's time, lie deeper than all work of their lane.
    exposed_ns : ndarray of int64, shape (n_spans,)
        How much of a span's own time (its length without that of spans inside it) the training
        loop waited for; all of its waits; -1 where it is not known. As `SpanSums` has it, so
        that sums over a stage's spans are the stage's in `exposure` exactly; of a single sample's
        span beside a summed one, which is in no sum, its share of its own time.
    """

    lanes: tuple[TimelineLane, ...]
    stages: tuple[str, ...]
    spans: NDArray[Any]
    row: NDArray[np.int64]
    lane: NDArray[np.int32]
    stage: NDArray[np.int32]
    depth: NDArray[np.int32]
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


def timeline_of(run: Run | RankRun, *, summed: bool | None = None) -> Timeline:
    """Lay a run out in lanes.

    Parameters
    ----------
    run : Run or RankRun
        Of all its training processes, or of one.
    summed : bool, optional
        Whether spans that stand for the sum of many are shown. By default those whose samples are
        not shown one by one: their length is true, their place within the batch is not.

    Returns
    -------
    Timeline
        Exposed time is unknown (-1) where `exposure` of a rank cannot be told.
    """
    profile = run.profile
    spans = profile.spans
    flags = spans["flags"]
    shown = (flags & Flag.IO) == 0
    is_summed = (flags & Flag.SUMMED) != 0
    if summed is None:
        shown &= ~(is_summed & _has_details(profile))
    elif not summed:
        shown &= ~is_summed
    row = np.flatnonzero(shown)
    keys, lane = _lane_numbers(profile, spans[row])
    # Outer spans before those that begin with them: they end later.
    order = np.lexsort((-spans["end_ns"][row], spans["start_ns"][row], lane))
    row, lane = row[order], lane[order]
    chosen = spans[row]
    stages, stage = _stages(profile, chosen)
    return Timeline(
        lanes=_lanes(profile, keys),
        stages=stages,
        spans=chosen,
        row=row.astype(np.int64),
        lane=lane,
        stage=stage,
        depth=_depths(
            lane, chosen["start_ns"], chosen["end_ns"], is_one_of(chosen["kind"], QUEUED_KINDS)
        ),
        exposed_ns=_exposed(profile, run.sums)[row],
    )


def lanes_of_spans(
    profile: Profile, spans: NDArray[Any]
) -> tuple[tuple[TimelineLane, ...], NDArray[np.int32]]:
    """Return the lanes of some spans of a profile, counters too, and which is each one's."""
    keys, lane = _lane_numbers(profile, spans)
    return _lanes(profile, keys), lane


def _lane_numbers(
    profile: Profile, spans: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the keys of all lanes in order, and the place of each span's among them."""
    key = (spans["process"].astype(np.int64) << 32) | (spans["thread"].astype(np.int64) << 1)
    key |= (spans["flags"] & Flag.DEVICE) != 0
    keys, lane = np.unique(key, return_inverse=True)
    n_waits = np.bincount(lane[spans["kind"] == Kind.WAIT], minlength=len(keys))
    rank = np.array([each.rank for each in profile.processes], dtype=np.int64)[keys >> 32]
    loads = np.array([each.role != "consumer" for each in profile.processes], dtype=bool)
    # The thread that waited most is the training loop; its device has the same thread.
    threads, thread = np.unique(keys >> 1, return_inverse=True)
    waits = np.bincount(thread, n_waits, len(threads))[thread]
    order = np.lexsort((keys, -waits, keys >> 32, loads[keys >> 32], rank))
    place = np.empty(len(keys), dtype=np.int32)
    place[order] = np.arange(len(keys), dtype=np.int32)
    return keys[order], place[lane]


def _has_details(profile: Profile) -> NDArray[np.bool_]:
    """Tell of each span whether its batch, process and stage also has spans of single samples."""
    spans = profile.spans
    detailed: NDArray[Any] = (spans["flags"] & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL
    if not detailed.any():
        return detailed
    group, size = np.zeros(len(spans), dtype=np.int64), 1
    for name in ("process", "batch", "epoch", "kind", "label"):
        values = spans[name].astype(np.int64)
        low, high = int(values.min()), int(values.max())
        if size * (high - low + 1) >= LARGEST_PRODUCT:
            keys, group = np.unique(group, return_inverse=True)
            size = len(keys)
        group = group * (high - low + 1) + (values - low)
        size *= high - low + 1
    keys, group = np.unique(group, return_inverse=True)
    has = np.zeros(len(keys), dtype=bool)
    has[group[detailed]] = True
    return has[group]


def _stages(profile: Profile, spans: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    stages, stage = stages_of(spans, profile.strings)
    return tuple(stage_name(*each) for each in stages), stage.astype(np.int32)


def _lanes(profile: Profile, keys: NDArray[np.int64]) -> tuple[TimelineLane, ...]:
    names = [_process_name(profile, process) for process in range(len(profile.processes))]
    threads: dict[int, set[int]] = {}
    for key in keys.tolist():
        threads.setdefault(key >> 32, set()).add(key >> 1)
    found = []
    for key in keys.tolist():
        process, thread = key >> 32, (key & 0xFFFFFFFF) >> 1
        who, name = profile.processes[process], names[process]
        if names.count(name) > 1:
            # Workers of later rounds have the numbers of those before.
            name = f"{name} ({who.pid})"
        text = who.threads[thread] if thread < len(who.threads) else ""
        if len(threads[process]) > 1 and text != MAIN_THREAD:
            name = f"{name}: {text or f'thread {thread}'}"
        found.append(
            TimelineLane(process, thread, f"{name} device" if key & 1 else name, bool(key & 1))
        )
    return tuple(found)


def _process_name(profile: Profile, process: int) -> str:
    who = profile.processes[process]
    return f"rank {who.rank} {who.name}" if len(profile.ranks) > 1 else who.name


def _depths(
    lane: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    queued: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """Return how deep each span lies; they are by lane and start, and of one start, last end first.

    A batch that is ``queued`` takes no thread's time, and overlaps the work on others there as it
    happens; so it lies below all of the lane's work.
    """
    depth = np.zeros(len(lane), dtype=np.int32)
    least = np.zeros(int(lane.max(initial=-1)) + 1, dtype=np.int64)
    for rows in (np.flatnonzero(~queued), np.flatnonzero(queued)):
        found = _depths_of(lane[rows], start_ns[rows], end_ns[rows])
        depth[rows] = found + least[lane[rows]]
        np.maximum.at(least, lane[rows], depth[rows] + 1)
    return depth


def _depths_of(
    lane: NDArray[np.int32], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Put each span above those that contain it, as low as nothing else is in its way."""
    depth = np.zeros(len(lane), dtype=np.int32)
    # Most spans overlap no other: only stretches of those that do are gone through one by one.
    chosen = np.flatnonzero(~overlaps_none(start_ns, end_ns, lane.astype(np.int64)))
    open_spans: list[tuple[int, int]] = []  # (end, depth)
    last = -1
    columns = (chosen, lane[chosen], start_ns[chosen], end_ns[chosen])
    for index, number, start, end in zip(*(each.tolist() for each in columns), strict=True):
        open_spans = [each for each in open_spans if each[0] > start] if number == last else []
        last = number
        around = [each for until, each in open_spans if until >= end]
        taken = {each for _, each in open_spans}
        place = max(around, default=-1) + 1
        while place in taken:
            place += 1
        depth[index] = place
        open_spans.append((end, place))
    return depth


def _exposed(profile: Profile, sums: SpanSums) -> NDArray[np.int64]:
    """Return the exposed time of each row of a profile's spans, -1 where it is not known."""
    spans, exposed = profile.spans, sums.exposed_ns.copy()
    # A sample's span beside a summed one takes no time from it, and is in no sum: it has a share.
    rows = np.flatnonzero(((spans["flags"] & Flag.DETAIL) != 0) & ~np.isnan(sums.share))
    found = spans[rows]
    pieces = leaf_pieces(found, lane_keys(found))
    own_ns = np.bincount(pieces.span, pieces.duration_ns, len(rows))
    exposed[rows] = np.rint(sums.share[rows] * own_ns)
    return exposed
