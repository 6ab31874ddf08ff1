"""What threads do for elements of a pipeline of grain, and for which batch: told once it is known.

grain's threads make samples far ahead, and filters or packing decide later which batch each is
for. So spans are written without one, where the work is done; whoever takes an element on gets
what was written of it, and the training loop, or the worker, gives the batch to all of it.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from iobench.loaders.stage_timer import Detail, DetailPace
from iobench.recording.kinds import Kind
from iobench.recording.span_file import Flag
from iobench.samples import handed_on_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from iobench.recording.lanes import Lane, Unplaced
    from iobench.recording.recorder import Recorder

# By the class of a part, what a call of the user's function in it is; parts that only compute
# indices, or wait for others, are none.
STAGES: Final = {
    "MapMapDataset": Kind.PREPROCESS,
    "RandomMapMapDataset": Kind.PREPROCESS,
    "MapWithIndexMapDataset": Kind.PREPROCESS,
    "FilterMapDataset": Kind.PREPROCESS,
    "FlatMapMapDataset": Kind.PREPROCESS,
    "_MapDatasetIterator": Kind.PREPROCESS,
    "_RandomMapDatasetIterator": Kind.PREPROCESS,
    "_MapWithIndexDatasetIterator": Kind.PREPROCESS,
    "BatchMapDataset": Kind.COLLATE,
    "_BatchDatasetIterator": Kind.COLLATE,
}
SUMMED: Final = int(Flag.SUMMED)
STAGE_LIGHT_SPANS: Final = 7
"""What timing a stage costs in light spans: 2 us in a loop of samples that take 12 us."""
HANDED_ON: Final = 3
"""What it costs besides, in such stages, where another thread takes what was made."""
SPANS_OF_A_SAMPLE: Final = 2 * STAGE_LIGHT_SPANS
"""What recording a sample and its transform costs, likewise."""
MOST_PENDING: Final = 1 << 16
PLACE: Final = "_iobench_prefetched"
FUNCTIONS: Final = ("_map_fn", "_filter_fn", "_transform")
METHODS: Final = frozenset({"map", "random_map", "map_with_index", "filter", "np_random_map"})

_local = threading.local()


class Arrival(NamedTuple):
    """What a worker tells of an element that it made."""

    worker: int
    number: int
    """Of its elements, from 0."""
    batch: int
    """-1 where that is not known to it."""


class Pending:
    """What a thread has of the element that it is making: arrivals, and spans of no batch yet."""

    __slots__ = ("arrivals", "spans")

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.spans: list[Unplaced] = []

    def add(self, other: Pending) -> None:
        """Take over what another thread had of an element that is a part of this one."""
        self.arrivals += other.arrivals
        self.spans += other.spans

    def place(self, batch: int, epoch: int) -> None:
        """Give all of it the batch."""
        for each in self.spans:
            each.place(batch, epoch)


def pending() -> Pending:
    """Return what the calling thread has of the element it is making."""
    found: Pending | None = getattr(_local, "pending", None)
    return begin_pending() if found is None else found


def begin_pending() -> Pending:
    """Let the calling thread begin another element; return what it will have of it."""
    found = _local.pending = Pending()
    return found


class Prefetched:
    """Of an iterator whose threads make elements ahead: what they wrote, and when each was due.

    Attributes
    ----------
    is_grains : bool
        Whether its elements are iterators, which grain makes for itself.
    """

    __slots__ = ("_made", "_submitted", "is_grains")

    def __init__(self, function: Any) -> None:
        self.is_grains = _is_grains(function)
        self._made: dict[int, list[Unplaced]] = {}
        self._submitted: dict[int, tuple[int, str]] = {}

    def submitted(self, numbers: range, now_ns: int) -> None:
        """Note that the calling thread has handed these to the threads now."""
        told = now_ns, threading.current_thread().name
        for number in numbers:
            self._submitted[number] = told

    def make(self, recorder: Recorder, number: int, make: Callable[[], Any]) -> Any:
        """Return what the function makes, on a thread of the pool, and record it."""
        if self.is_grains:
            return make()
        lane = recorder.lane()
        mark, n_before = lane.mark(), lane.n_written
        position = lane.place(-1, -1, number)
        lane.loading += 1
        _local.is_brief = is_brief = _pace is not None and _pace.summed
        start_ns = lane.now_ns()
        due = self._submitted.pop(number, None)
        if due is not None and getattr(_local, "idle_since_ns", 0) < due[0]:
            # It had nothing to do: whoever made room let it go on.
            described = recorder.described(Kind.SUBMIT_QUEUE, "", due[1])
            lane.write(due[0], start_ns, -1, -1, described)
        try:
            return make()
        finally:
            lane.loading -= 1
            lane.position = position
            _local.idle_since_ns = end_ns = lane.now_ns()
            _local.is_brief = False
            if not is_brief and _pace is not None:
                _pace.note(end_ns - start_ns)
            lane.write(start_ns, end_ns, -1, -1, recorder.described(Kind.FUSED))
            lane.place(-1)
            self._made[number] = lane.since(mark)
            count_own(recorder, lane.n_written - n_before + HANDED_ON)

    def taken(self, numbers: range) -> None:
        """Note that the calling thread has taken these."""
        found = pending()
        if len(found.spans) > MOST_PENDING:  # nobody asks for what this thread takes
            found.spans.clear()
        for number in numbers:
            found.spans += self._made.pop(number, ())

    def forget(self) -> None:
        """Forget what nobody will take: the iterator goes on elsewhere."""
        self._made.clear()
        self._submitted.clear()


_prefetched: Final[weakref.WeakKeyDictionary[Any, Prefetched]] = weakref.WeakKeyDictionary()


def prefetched_of(iterator: Any) -> Prefetched:
    """Return what is known of grain's iterator, whose statistics its threads are given."""
    found: Prefetched | None = iterator.__dict__.get(PLACE)
    if found is None:
        found = Prefetched(getattr(iterator._map_parent, "_map_fn", None))
        iterator.__dict__[PLACE] = found
    stats = iterator._stats  # grain makes them anew once
    if _prefetched.get(stats) is not found:
        _prefetched[stats] = found
    return found


def prefetched_for(stats: Any) -> Prefetched | None:
    """Return what is known of the iterator that has these statistics."""
    return _prefetched.get(stats)


def _is_grains(function: Any) -> bool:
    return str(getattr(getattr(function, "func", None), "__module__", "")).startswith("grain.")


def is_made(recorder: Recorder, lane: Lane) -> bool:
    """Tell whether the calling thread makes elements now, or its process does nothing else."""
    return lane.loading > 0 or recorder.role != "consumer"


def timed_transform(recorder: Recorder, stats: Any) -> AbstractContextManager[Any] | None:
    """Return what times the function of a part of a pipeline; None where nothing is to be timed."""
    if not is_made(recorder, recorder.lane()) or getattr(_local, "is_brief", False):
        return None
    stage = getattr(stats, "_iobench_stage", "")
    if stage == "":
        part = getattr(stats._config, "iter_weakref", None)
        stage = stats._iobench_stage = stage_of_transform(part() if part is not None else None)
    return None if stage is None else timed_stage(recorder, *stage)


def timed_stage(recorder: Recorder, kind: Kind, label: str = "") -> AbstractContextManager[Any]:
    """Return what times a stage of the element that the thread makes: by a span, or in a sum."""
    sums: ElementSums | None = getattr(_local, "sums", None)
    return recorder.span(kind, label) if sums is None else SummedStage(sums, (kind, label))


class ElementSums:
    """The stages of one element of a thread that makes all of it, summed over its samples."""

    __slots__ = ("begun_ns", "inner_ns", "joined", "now_ns", "parts", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.now_ns = now_ns = recorder.clock.now_ns
        self.inner_ns = 0
        self.joined = (0, 0)
        self.parts: dict[tuple[Kind, str], tuple[int, int]] = {}
        self.begun_ns = now_ns()

    def write(self, batch: int, epoch: int) -> None:
        """Write one span for each stage, one after the other from where the element was begun.

        What was first done after the samples were joined begins there.
        """
        recorder, start_ns = self.recorder, self.begun_ns
        n_before, joined_ns = self.joined
        count_own(recorder, sum(n_pieces for _, n_pieces in self.parts.values()))
        for place, ((kind, label), (spent_ns, n_pieces)) in enumerate(self.parts.items()):
            if place == n_before:
                start_ns = max(start_ns, joined_ns)
            end_ns = start_ns + spent_ns
            recorder.emit(
                kind, start_ns, end_ns, -1, -1, batch, epoch, -1, recorder.string(label), 0,
                SUMMED if n_pieces > 1 else 0, n_pieces,
            )  # fmt: skip
            start_ns = end_ns


class SummedStage:
    """Times the body of a ``with`` statement, and adds it to a sum; what is inside apart."""

    __slots__ = ("_inner_ns", "_stage", "_start_ns", "_sums")

    def __init__(self, sums: ElementSums, stage: tuple[Kind, str]) -> None:
        self._sums = sums
        self._stage = stage

    def __enter__(self) -> None:
        sums = self._sums
        self._inner_ns, sums.inner_ns = sums.inner_ns, 0
        self._start_ns = sums.now_ns()

    def __exit__(self, *error: object) -> None:
        sums = self._sums
        end_ns = sums.now_ns()
        spent_ns = end_ns - self._start_ns
        if self._stage[0] is Kind.COLLATE:  # one of a batch: where it was
            recorder = sums.recorder
            recorder.lane().write(self._start_ns, end_ns, -1, -1, recorder.described(Kind.COLLATE))
            sums.joined = len(sums.parts), end_ns
            sums.inner_ns = self._inner_ns + spent_ns
            return
        total_ns, n_pieces = sums.parts.get(self._stage, (0, 0))
        sums.parts[self._stage] = total_ns + spent_ns - sums.inner_ns, n_pieces + 1
        sums.inner_ns = self._inner_ns + spent_ns


_pace: DetailPace | None = None
_stage_cost_ns = 0


def set_pace(detail: str, unit_costs: Mapping[str, int | None]) -> None:
    """Say how finely this process records the elements it makes."""
    global _pace, _stage_cost_ns
    costs = {name: unit_costs.get(name) for name in ("light_ns", "full_ns")}
    _stage_cost_ns = STAGE_LIGHT_SPANS * (costs["light_ns"] or 0)
    _pace = DetailPace(Detail.parse(detail), costs, n_spans=SPANS_OF_A_SAMPLE)


def count_own(recorder: Recorder, n_stages: int) -> None:
    """Count what timing so many stages took of this process's time."""
    recorder.own_ns += n_stages * _stage_cost_ns


def begin_element(recorder: Recorder, *, alone: bool) -> ElementSums | None:
    """Let the calling thread begin an element; return its sums, where it is to have such.

    ``alone`` is whether it makes all of it itself: else it also waits for others.
    """
    summed = alone and _pace is not None and _pace.summed
    found = _local.sums = ElementSums(recorder) if summed else None
    return found


def end_element() -> None:
    """Let the calling thread have made its element."""
    _local.sums = None


def note_sample(spent_ns: int) -> None:
    """Take what a sample took into account, for how finely the next ones are recorded."""
    if _pace is not None and getattr(_local, "sums", None) is None:
        _pace.note(spent_ns)


def stage_of_transform(part: Any) -> tuple[Kind, str] | None:
    """Return kind and label of what a part of a pipeline calls; None where that is none."""
    kind = STAGES.get(type(part).__name__)
    if kind is None or kind is Kind.COLLATE:
        return None if kind is None else (kind, "")
    function = next(
        (found for name in FUNCTIONS if (found := getattr(part, name, None)) is not None), None
    )
    label = name_of_function(function)
    return (kind, label) if label else None


def name_of_function(function: Any) -> str:
    """Return what a transformation is called: its class, or the function; ``""`` of grain's own."""
    owner = getattr(function, "__self__", None)
    if owner is not None and getattr(function, "__name__", "") in METHODS:
        return type(owner).__name__
    code = getattr(function, "__code__", None)
    if code is None:
        inner = getattr(function, "func", None)  # of functools.partial
        return name_of_function(inner) if inner is not None else type(function).__name__
    if str(getattr(function, "__module__", "")).startswith("grain."):
        # The DataLoader's own, around the user's.
        if "transform" not in code.co_freevars:
            return ""
        return type(
            function.__closure__[code.co_freevars.index("transform")].cell_contents
        ).__name__
    name = str(function.__name__)
    return f"{name} line {code.co_firstlineno}" if name == "<lambda>" else name


def receive(element: Any, told: tuple[int, int, int]) -> Any:
    """Return an element as it comes out of a worker's queue; note what is told of it."""
    _local.received = Arrival(*told)
    return element


def open_element(recorder: Recorder | None, open_it: Callable[..., Any], element: Any) -> Any:
    """Return an element that has arrived as the pipeline is to have it, and record that."""
    received: Arrival | None = getattr(_local, "received", None)
    _local.received = None
    if received is None:
        return open_it(element)
    pending().arrivals.append(received)
    if recorder is None:
        return open_it(element)
    now_ns = recorder.clock.now_ns
    start_ns = now_ns()
    opened = open_it(element)
    recorder.emit(
        Kind.UNPICKLE, start_ns, now_ns(), handed_on_nbytes(opened), -1, received.batch
    )  # fmt: skip
    return opened
