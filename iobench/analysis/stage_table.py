"""Which spans are work, which are waiting, and the table of a profile's stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from iobench.analysis.task_lines import laid_in_line
from iobench.recording.kinds import (
    LIFE_KINDS,
    LOOP_KINDS,
    WAITING_KINDS,
    Kind,
    halves,
    is_one_of,
    key_of,
    lane_keys,
    stage_name,
    stages_of,
)
from iobench.recording.span_file import Flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData

# Labels of waits and gaps that no span covers.
ALWAYS: Final = (
    Kind.HANDOVER,
    Kind.IPC_WAIT,
    Kind.OPAQUE,
    Kind.SHUTDOWN,
    Kind.STARTUP,
    Kind.STARVED_SUBMIT,
    Kind.SUBMIT_QUEUE,
    Kind.UNKNOWN,
    Kind.WORKER_GAP,
)
MOVING_KINDS: Final = frozenset({Kind.PIN, Kind.H2D})
"""What of a batch's way is the training loop's compute, where it does it between its waits."""


class StageTable:
    """The stages of a profile, numbered by the alphabet so that file order does not matter."""

    __slots__ = ("_number", "kinds", "names", "of_span", "waiting")

    def __init__(self, spans: NDArray[Any], strings: tuple[str, ...]) -> None:
        keys, number = stages_of(spans, strings)
        distinct = sorted(
            {*keys, *((kind, "") for kind in ALWAYS)}, key=lambda key: stage_name(*key)
        )
        self._number = {key: number for number, key in enumerate(distinct)}
        self.kinds = tuple(kind for kind, _ in distinct)
        self.names = tuple(stage_name(*key) for key in distinct)
        numbers = np.array([self._number[key] for key in keys], dtype=np.int64)
        self.of_span = numbers[number] if len(keys) else np.zeros(0, dtype=np.int64)
        self.waiting = np.array([kind in WAITING_KINDS for kind in self.kinds])

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, kind: Kind) -> int:
        """Return the number of the stage without a label of that kind (one of `ALWAYS`)."""
        return self._number[kind, ""]


class Lanes(msgspec.Struct, frozen=True):
    """The spans that carry time, apart by where they ran."""

    own: NDArray[Any]  # the training loop's own thread: work and hand-over, not compute
    pool: NDArray[Any]  # work on every other thread of the rank
    own_row: NDArray[np.int64]  # where these are in ``RunData.spans``, as pool_row
    pool_row: NDArray[np.int64]
    pool_lane: NDArray[np.int64]  # the thread of each span of the pool
    lane_process: NDArray[np.int64]  # the process of each such thread
    # What the loop did between deliveries; moving a batch to a device is of it there
    compute: NDArray[Any]
    submissions: NDArray[Any]  # each begins when its batch was submitted to a loading process
    # Of threads that were held back, by lane and time: lane that was, time of release, time it went
    # on, lane that released it, -1 where that was the training loop
    releases: NDArray[np.int64]
    startups: NDArray[Any]  # each ends when its process was ready


def find_lanes(profile: RunData, loop: TrainingLoop) -> Lanes:
    """Return the spans of one training loop and of what loads for it, by where they ran."""
    spans = profile.spans
    loading = np.array([process.role != "consumer" for process in profile.processes], dtype=bool)
    in_sums = (spans["flags"] & (Flag.DETAIL | Flag.IO)) == 0
    row = np.flatnonzero(in_sums & loop.mine[spans["process"]])
    spans = laid_in_line(profile, spans[row])
    kind, process = spans["kind"], spans["process"]
    main = (process == loop.process) & (spans["thread"] == loop.thread)
    waiting = is_one_of(kind, WAITING_KINDS)
    compute = is_one_of(kind, LOOP_KINDS) | (
        main & is_one_of(kind, MOVING_KINDS) & ~_waited(spans, loop)
    )
    rounds = (kind == Kind.OTHER) & (spans["label"] == profile.string_number("round"))
    in_pool = ~main & ~waiting & (~compute | loading[process])
    in_own = main & ~compute & ~is_one_of(kind, {Kind.WAIT, *LIFE_KINDS})
    pool = spans[in_pool]
    lanes, lane = np.unique(lane_keys(pool), return_inverse=True)
    submissions = spans[kind == Kind.SUBMIT_QUEUE]
    return Lanes(
        own=spans[in_own],
        pool=pool,
        own_row=row[in_own],
        pool_row=row[in_pool],
        pool_lane=lane.reshape(-1).astype(np.int64),
        lane_process=lanes >> 32,
        compute=spans[main & compute & ~rounds],
        submissions=submissions[submissions["detail"] == 0],
        releases=_releases(profile, submissions, lanes),
        startups=spans[kind == Kind.STARTUP],
    )


def _waited(spans: NDArray[Any], loop: TrainingLoop) -> NDArray[np.bool_]:
    """Tell which spans begin while the training loop waits."""
    waits = loop.waits
    at = np.searchsorted(waits["start_ns"], spans["start_ns"], side="right") - 1
    result: NDArray[np.bool_] = (at >= 0) & (spans["start_ns"] < np.append(waits["end_ns"], 0)[at])
    return result


def _releases(
    profile: RunData, submissions: NDArray[Any], lanes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the releases among SUBMIT_QUEUE spans: those that name who released the thread."""
    named = submissions[submissions["detail"] != 0]
    if not len(named):
        return np.zeros((0, 4), dtype=np.int64)
    by_name = {
        (process, profile.processes[process].threads[thread]): lane
        for lane, (process, thread) in enumerate(map(halves, lanes.tolist()))
    }
    number = {key: lane for lane, key in enumerate(lanes.tolist())}
    rows = []
    for span in named:
        process = int(span["process"])
        lane = number.get(key_of(process, int(span["thread"])))
        if lane is not None:
            by = by_name.get((process, profile.strings[span["detail"]]), -1)
            rows.append((lane, int(span["start_ns"]), int(span["end_ns"]), by))
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, 4)
