"""Hand-made profiles of streams: stages of one thread each, bounded queues, a maker of batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.recording.kinds import Kind
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.runs.contents import RunData

STAGES = (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
NAMES = ("MainThread", *(f"{number}-stage-0" for number in range(len(STAGES) + 1)))


def stream_sketch(**config: Any) -> SketchedRun:
    """Return a sketch whose threads have the names of stages."""
    sketch = SketchedRun(config)
    sketch.process = {"threads": NAMES}
    return sketch


@dataclass
class _Thread:
    """One stage: when it did what, and whose work its present moment hangs on."""

    number: int
    ahead: int
    now: int = 0
    cause: str = "consumer"
    held: tuple[int, str] | None = (0, "consumer")
    ready: list[int] = field(default_factory=list)
    taken: list[tuple[int, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return NAMES[self.number + 1]

    def await_room(self, item: int) -> None:
        if item >= self.ahead and self.taken[item - self.ahead][0] > self.now:
            self.held = self.taken[item - self.ahead]
            self.now, self.cause = self.held

    def take(self, upstream: _Thread, item: int) -> None:
        if upstream.ready[item] > self.now:
            self.now, self.cause = upstream.ready[item], upstream.name
        upstream.taken.append((self.now, self.cause))

    def work(self, sketch: SketchedRun, kind: Kind, spent: int, batch: int, item: int) -> None:
        where = {"batch": batch, "sample": item, "thread": self.number + 1}
        if self.held is not None:
            release, cause = self.held
            sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, release, self.now, detail=cause, **where)
            self.held = None
        sketch.add(CONSUMER, kind, self.now, self.now + spent, nbytes=spent, **where)
        self.now += spent
        self.cause = self.name
        self.ready.append(self.now)


def sketched_stream(
    durations: Sequence[Sequence[int]],
    steps_ns: Sequence[int],
    *,
    collate_ns: int = 0,
    batch_size: int = 1,
    ahead: Sequence[int] = (1, 1, 1),
    batches_ahead: int = 1,
) -> SketchedRun:
    """Return the run of a stream: ``durations[item]`` are the times of `STAGES`.

    A recurrence of the rules of streams in threads, as recorded runs have them, evaluated batch by
    batch in the order of need: an item begins when its thread is free, fewer than ``ahead`` lie
    ready, and its input is there.
    ``steps_ns`` are the computing times after each batch.
    """
    sketch = stream_sketch(workers=0, prefetch=batches_ahead, batch_size=batch_size)
    stages = [_Thread(number, bound) for number, bound in enumerate(ahead)]
    batcher = _Thread(len(stages), batches_ahead)
    clock = 0
    made = delivered = 0
    n_batches = len(durations) // batch_size
    waits = []
    while delivered < n_batches:
        # What it makes before it is held back does not depend on later deliveries.
        while made < min(n_batches, delivered + batches_ahead):
            _make(sketch, stages, batcher, durations, made, batch_size, collate_ns)
            made += 1
        asked, clock = clock, max(clock, batcher.ready[delivered])
        batcher.taken.append((clock, "consumer"))
        waits.append((delivered, asked, clock))
        clock += steps_ns[delivered]
        delivered += 1
    for batch, asked, held in waits:
        sketch.wait(batch, asked, held, "threads", epoch=0)
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    return sketch


def stream(*args: Any, **options: Any) -> RunData:
    """Return `sketched_stream` as it is read back."""
    return sketched_stream(*args, **options).data()


def _make(
    sketch: SketchedRun,
    stages: list[_Thread],
    batcher: _Thread,
    durations: Sequence[Sequence[int]],
    batch: int,
    batch_size: int,
    collate_ns: int,
) -> None:
    batcher.await_room(batch)
    for item in range(batch * batch_size, (batch + 1) * batch_size):
        # Room in a stage depends on takes of earlier items only: item by item, first stage first.
        for number, stage in enumerate(stages):
            stage.await_room(item)
            if number:
                stage.take(stages[number - 1], item)
            stage.work(sketch, STAGES[number], durations[item][number], batch, item)
        batcher.take(stages[-1], item)
    batcher.work(sketch, Kind.COLLATE, collate_ns, batch, -1)
