"""Which spans are work, which are waiting, and the table of a profile's stages.

Tasks that threads ran for another thread are laid into the time of the thread that asked.
A graph of tasks that threads compute holds up who asked for it by its critical path: from the end
back to whatever task finished last before, and so on. Tasks on it stand for what the asking thread
did meanwhile: they are moved to its lane, inside the span of the graph, whose own time is then what
no task explains. The others stay where they ran, and are hidden behind these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.analysis.partition import leaf_pieces, pieces_inside
from iobench.analysis.time_intervals import nesting, places_of
from iobench.recording.kinds import (
    GRAPH,
    LIFE_KINDS,
    LOOP_KINDS,
    TASK,
    WAITING_KINDS,
    Kind,
    halves,
    is_one_of,
    key_of,
    lane_keys,
    stage_name,
    stages_of,
)
from iobench.recording.span_file import Flag, cpu_looks

if TYPE_CHECKING:
    from iobench.analysis.loop import TrainingLoop
    from iobench.runs.contents import RunData


Integers = NDArray[np.int64]
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
HANDED: Final = (Kind.UNPICKLE, Kind.HEAD_OF_LINE)


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
    ends: NDArray[Any]  # what it waited, between deliveries, for the workers of a loader to end
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
    waited = main & _waited(spans, loop)
    is_wait = main & (kind == Kind.BLOCKED) & np.isin(spans["start_ns"], loop.waits["start_ns"])
    compute = is_one_of(kind, LOOP_KINDS) & ~is_wait
    compute |= main & is_one_of(kind, MOVING_KINDS) & ~waited
    rounds = (kind == Kind.OTHER) & (spans["label"] == profile.string_number("round"))
    in_pool = ~main & ~waiting & (~compute | loading[process])
    in_own = main & ~compute & ~is_one_of(kind, {Kind.WAIT, *LIFE_KINDS})
    pool = spans[in_pool]
    lanes, lane = np.unique(lane_keys(pool), return_inverse=True)
    submissions = spans[kind == Kind.SUBMIT_QUEUE]
    result = Lanes(
        own=spans[in_own],
        pool=pool,
        own_row=row[in_own],
        pool_row=row[in_pool],
        pool_lane=lane.reshape(-1).astype(np.int64),
        lane_process=lanes >> 32,
        compute=spans[main & compute & ~rounds],
        ends=spans[main & (kind == Kind.SHUTDOWN) & ~waited],
        submissions=submissions[submissions["detail"] == 0],
        releases=_releases(profile, submissions, lanes),
        startups=spans[kind == Kind.STARTUP],
    )
    if (result.own["kind"] == Kind.BLOCKED).any():
        result = with_work_of_others(result, loop.waits)
    rows = np.flatnonzero(cpu_looks(profile.spans) & loop.mine[profile.spans["process"]])
    looks = profile.spans[rows]
    return with_cpu_waits(result, looks, rows, loop) if looks["cpu_ns"].any() else result


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


def laid_in_line(profile: RunData, spans: NDArray[Any]) -> NDArray[Any]:
    """Return spans of a profile with tasks on critical paths on the lanes that asked for them."""
    computed = spans["kind"] == Kind.PREPROCESS
    graphs = np.flatnonzero(computed & (spans["label"] == profile.string_number(GRAPH)))
    if not len(graphs):
        return spans
    tasks = np.flatnonzero(computed & (spans["detail"] == profile.string_number(TASK)))
    lanes, laid = _Lanes(spans), spans.copy()
    length = spans["end_ns"][graphs] - spans["start_ns"][graphs]
    # Graphs inside a task are shorter than the graph of that task.
    graphs = graphs[np.argsort(length, kind="stable")]
    paths = _critical_paths(spans, graphs, tasks)
    cpu_ns = laid["cpu_ns"]
    for graph, path in zip(graphs.tolist(), paths, strict=True):
        if not len(path):
            continue
        spent_ns, around = cpu_ns[path], graph
        while around >= 0:
            known = cpu_ns[around] >= 0 and spent_ns.min() >= 0
            cpu_ns[around] = cpu_ns[around] + spent_ns.sum() if known else -1
            around = lanes.around[around]
    for graph, path in zip(graphs[::-1].tolist(), paths[::-1], strict=True):
        for task in path.tolist():
            laid["thread"][lanes.inside(task)] = laid["thread"][graph]
    return laid


def _critical_paths(spans: NDArray[Any], graphs: Integers, tasks: Integers) -> list[Integers]:
    """Return of each graph the tasks on other threads that it waited for, the last one first."""
    names = ("start_ns", "end_ns", "process", "thread", "batch", "epoch", "sample")
    start, end, process, thread, *position = (spans[name] for name in names)
    tasks = tasks[np.argsort(start[tasks], kind="stable")]
    by_process = {each: tasks[process[tasks] == each] for each in np.unique(process[tasks])}
    unused = np.ones(len(spans), dtype=bool)
    paths = []
    for graph in graphs.tolist():
        some = by_process.get(process[graph], tasks[:0])
        low, high = np.searchsorted(start[some], (start[graph], end[graph]))
        some = some[low:high]
        mine = unused[some] & (end[some] <= end[graph]) & (thread[some] != thread[graph])
        for column in position:
            mine &= column[some] == column[graph]
        some = some[mine]
        unused[some] = False
        path, last_ns = [], end[graph]
        for task in some[np.argsort(-end[some], kind="stable")].tolist():
            if end[task] <= last_ns:
                path.append(task)
                last_ns = start[task]
        paths.append(np.array(path, dtype=np.int64))
    return paths


class _Lanes:
    """Spans by lane and time: what is inside of each, and directly around it."""

    def __init__(self, spans: NDArray[Any]) -> None:
        self._start, self._end, self._keys = spans["start_ns"], spans["end_ns"], lane_keys(spans)
        newest_first = -spans["sequence"].astype(np.int64)
        self._order = np.lexsort((newest_first, -self._end, self._start, self._keys))
        start, end = self._start[self._order], self._end[self._order]
        lanes, first = np.unique(self._keys[self._order], return_index=True)
        rows = [(each, self._start[each]) for each in np.split(self._order, first[1:])]
        self._rows = dict(zip(lanes.tolist(), rows, strict=True))
        parent = nesting(start, end, self._keys[self._order]).parent
        around = np.full(len(spans), -1, dtype=np.int64)
        around[self._order] = np.where(parent >= 0, self._order[parent], -1)
        self.around: list[int] = around.tolist()

    def inside(self, row: int) -> Integers:
        """Return the rows of a span and of what is inside it on its lane."""
        rows, start = self._rows[int(self._keys[row])]
        low = np.searchsorted(start, self._start[row])
        some = rows[low : np.searchsorted(start, self._end[row], "right")]
        inside: Integers = some[self._end[some] <= self._end[row]]
        return inside


def with_cpu_waits(lanes: Lanes, looks: NDArray[Any], row: Integers, loop: TrainingLoop) -> Lanes:
    """Return lanes with spans of waiting for a CPU, by looks at the run queue, rows of the run.

    A look tells how long, not when. The spans lie innermost on the lanes they are of, so that what
    lies around them has the rest of its own: first what nobody worked in (unpickling, then gaps),
    then the stages, in proportion to their time off a CPU.
    """
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


def with_work_of_others(lanes: Lanes, waits: NDArray[Any]) -> Lanes:
    """Return lanes in which the loop does, while it blocks, what it blocks for.

    That is the work of the thread that finished some last before the loop went on, in proportion
    to what it did since its last batch: of n threads that take turns since the n-th one before.
    The rest is opaque. What else such threads do is of the batch that the loop had last.
    """
    row = np.flatnonzero(lanes.own["kind"] == Kind.BLOCKED)
    low, high = (lanes.own[name][row].astype(np.int64) for name in ("start_ns", "end_ns"))
    pieces = leaf_pieces(lanes.pool, lanes.pool_lane)
    some = np.flatnonzero(pieces.end_ns > pieces.start_ns)
    start, end, lane = pieces.start_ns[some], pieces.end_ns[some], pieces.lane[some]
    by_end = np.argsort(end, kind="stable")
    last = np.append(by_end, -1)[np.searchsorted(end[by_end], high, side="right") - 1]
    finished = np.append(end, 0)[last] > low
    low, high, by = low[finished], high[finished], lane[last[finished]]
    brought = waits[waits["batch"] >= 0]
    turn = np.searchsorted(brought["end_ns"], low, side="right") - len(np.unique(by))
    since = np.where(turn >= 0, np.append(brought["end_ns"], 0)[turn], 0)
    for each in np.unique(by).tolist():
        mine = by == each
        first = np.append(start[lane == each][0], high[mine][:-1])
        since[mine] = np.minimum(np.maximum(since[mine], first), low[mine])
    # Lanes one after another are as one.
    shift = max(int(end.max(initial=0)), int(high.max(initial=0))) + 1
    at, piece, length = pieces_inside(
        start + shift * lane, end + shift * lane, since + shift * by, high + shift * by
    )
    length = length * (high - low)[at] // (high - since)[at]
    before = np.cumsum(length) - length
    begin = low[at] + before - before[np.searchsorted(at, at)]
    left = end - np.bincount(piece, length, len(end)).astype(np.int64)
    spans = lanes.pool[pieces.span[some[np.append(np.arange(len(some)), piece)]]]
    spans["start_ns"], spans["end_ns"] = np.append(start, begin), np.append(left, begin + length)
    at = np.searchsorted(brought["start_ns"], spans["start_ns"], side="right") - 1
    spans["batch"] = np.where(at >= 0, np.append(brought["batch"], -1)[at], -1)
    # Each span is counted once, with its first piece.
    further = np.append(~pieces.first[some], np.ones(len(piece), dtype=bool))
    for name, value in (("flags", Flag.SUMMED), ("pieces", 0), ("nbytes", 0), ("cpu_ns", 0)):
        spans[name][further] = value
    rows = lanes.pool_row[pieces.span[some]]
    own = np.concatenate((lanes.own, spans[len(some) :]))
    own["kind"][own["kind"] == Kind.BLOCKED] = Kind.OPAQUE
    return replace(
        lanes,
        own=own,
        own_row=np.concatenate((lanes.own_row, rows[piece])),
        pool=spans[: len(some)],
        pool_row=rows,
        pool_lane=lane,
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
