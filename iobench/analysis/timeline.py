"""A profile laid out in lanes: what a timeline, a trace and a table of spans all show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.analysis.windows import exposed_share_of_spans
from iobench.errors import ProfileError
from iobench.recording import Flag, Kind, stage_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.profiles import Profile

__all__ = ["Timeline", "TimelineLane", "timeline_of"]


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """One row of a timeline: a thread of a process, or an accelerator of it.

    Parameters
    ----------
    process, thread : int
        Indices into ``Profile.processes`` and its threads.
    name : str
        Of the process, and of the thread where it has several, such as ``"worker-0"``.
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
        By process and thread: training processes first, then their loading processes.
    stages : tuple of str
        Names of stages, as everywhere.
    spans : ndarray of PROFILE_DTYPE, shape (n_spans,)
        Their ``label`` and ``detail`` are indices into the profile's ``strings``.
    row : ndarray of int64, shape (n_spans,)
        Their rows in ``Profile.spans``.
    lane, stage : ndarray of int32, shape (n_spans,)
        Indices into ``lanes`` and ``stages``.
    depth : ndarray of int32, shape (n_spans,)
        In how many other spans of its lane a span begins; inner ones are drawn above.
    exposed_ns : ndarray of int64, shape (n_spans,)
        How much of a span's own time the training loop waited for; all of a wait; -1 where it is
        not known.
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


def timeline_of(profile: Profile, *, summed: bool | None = None) -> Timeline:
    """Lay a profile out in lanes.

    Parameters
    ----------
    profile : Profile
    summed : bool, optional
        Whether spans that stand for the sum of many are shown. By default those whose samples are
        not shown one by one: their length is true, their place within the batch is not.

    Returns
    -------
    Timeline
        Exposed time is unknown (-1) where `exposure` of a rank cannot be told.
    """
    spans = profile.spans
    flags = spans["flags"]
    shown = (flags & Flag.IO) == 0
    is_summed = (flags & Flag.SUMMED) != 0
    if summed is None:
        shown &= ~(is_summed & _has_details(profile))
    elif not summed:
        shown &= ~is_summed
    is_device = (flags & Flag.DEVICE) != 0
    key = (spans["process"].astype(np.int64) << 32) | (spans["thread"].astype(np.int64) << 1)
    key |= is_device
    row = np.flatnonzero(shown)
    # Outer spans before those that begin with them: they end later.
    order = np.lexsort((-spans["end_ns"][row], spans["start_ns"][row], key[row]))
    row = row[order]
    keys, lane = np.unique(key[row], return_inverse=True)
    chosen = spans[row]
    stages, stage = _stages(profile, chosen)
    lane = lane.astype(np.int32)
    return Timeline(
        lanes=_lanes(profile, keys),
        stages=stages,
        spans=chosen,
        row=row.astype(np.int64),
        lane=lane,
        stage=stage,
        depth=_depths(lane, chosen["start_ns"], chosen["end_ns"]),
        exposed_ns=_exposed(profile)[row],
    )


def _has_details(profile: Profile) -> NDArray[np.bool_]:
    """Tell of each span whether its batch, process and stage also has spans of single samples."""
    spans = profile.spans
    names = ("process", "batch", "epoch", "kind", "label")
    columns = np.stack([spans[name].astype(np.int64) for name in names], axis=1)
    _, group = np.unique(columns, axis=0, return_inverse=True)
    group = group.reshape(-1)
    detailed = (spans["flags"] & (Flag.DETAIL | Flag.DEVICE)) == Flag.DETAIL
    has = np.zeros(int(group.max(initial=-1)) + 1, dtype=bool)
    has[group[detailed]] = True
    return has[group]


def _stages(profile: Profile, spans: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    key = spans["kind"].astype(np.int64) * len(profile.strings) + spans["label"]
    keys, stage = np.unique(key, return_inverse=True)
    pairs = (divmod(each, len(profile.strings)) for each in keys.tolist())
    names = tuple(stage_name(Kind(kind), profile.strings[label]) for kind, label in pairs)
    return names, stage.astype(np.int32)


def _lanes(profile: Profile, keys: NDArray[np.int64]) -> tuple[TimelineLane, ...]:
    found = []
    for key in keys.tolist():
        process, thread = key >> 32, (key & 0xFFFFFFFF) >> 1
        who = profile.processes[process]
        several = len({each >> 1 for each in keys.tolist() if each >> 32 == process}) > 1
        name = f"rank {who.rank} {who.name}" if len(profile.ranks) > 1 else who.name
        text = who.threads[thread] if thread < len(who.threads) else ""
        if several:
            name = f"{name}: {text or f'thread {thread}'}"
        found.append(
            TimelineLane(process, thread, f"{name} device" if key & 1 else name, bool(key & 1))
        )
    return tuple(found)


def _depths(
    lane: NDArray[np.int32], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return how many spans of the same lane are open when each begins."""
    depth = np.zeros(len(lane), dtype=np.int32)
    ends: list[int] = []
    last = -1
    rows = zip(lane.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True)
    for index, (number, start, end) in enumerate(rows):
        if number != last:
            ends, last = [], number
        while ends and ends[-1] <= start:
            ends.pop()
        depth[index] = len(ends)
        ends.append(end)
    return depth


def _exposed(profile: Profile) -> NDArray[np.int64]:
    """Return the exposed time of each row of a profile's spans, -1 where it is not known."""
    spans = profile.spans
    share = np.full(len(spans), np.nan)
    for rank in profile.ranks or (0,):
        of_rank = np.array([each.rank == rank for each in profile.processes], dtype=bool)
        try:
            found = exposed_share_of_spans(profile, rank=rank)
        except ProfileError:
            continue
        mine = of_rank[spans["process"]]
        share[mine] = found[mine]
    long_ns = (spans["end_ns"] - spans["start_ns"]).astype(np.float64)
    exposed = np.where(np.isnan(share), -1, np.rint(share * long_ns)).astype(np.int64)
    waits = (spans["kind"] == Kind.WAIT) & ((spans["flags"] & Flag.IO) == 0)
    exposed[waits] = (spans["end_ns"] - spans["start_ns"])[waits]
    return exposed
