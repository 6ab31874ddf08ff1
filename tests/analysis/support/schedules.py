"""Hand-made runs: pools of workers, scripts of several loaders, streams of stages in threads.

Each follows the recurrence of what such a loader does, and is a sketch, of which one takes the data
or a directory.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from iobench.analysis.run import exposure
from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import CONSUMER, SketchedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iobench.analysis.run import RankRun
    from iobench.runs.contents import RunData
    from tests.support.sketched_runs import Lane

STAGES = (Kind.READ, Kind.DECODE, Kind.COLLATE)
STREAM_STAGES = (Kind.READ, Kind.DECODE, Kind.PREPROCESS)
THREADS = ("MainThread", *(f"{number}-stage-0" for number in range(len(STREAM_STAGES) + 1)))


def exposed(profile: RunData, steady: bool = False) -> dict[str, int]:
    """Return the exposed time by stage, of stages that have some."""
    figures = exposure(profile)
    window = figures.steady if steady else figures.whole
    assert window is not None
    return {stage: ns for stage, ns in window.exposed_ns.items() if ns}


def phases(run: RankRun) -> list[int]:
    """Return how many deliveries are of start-up, fill, first epoch, steady state and drain."""
    counts: list[int] = np.bincount(run.deliveries.phase, minlength=5).tolist()
    return counts


def on_machine(
    profile: RunData,
    *,
    wall_ns: int,
    pid: int = 4711,
    host: str = "here",
    drift_ns: Sequence[int] = (),
) -> RunData:
    """Return a profile as of a real machine: its processes have numbers and a wall clock.

    ``drift_ns`` are how far the wall clock had gone when each process, one ns after the other,
    looked at it.
    """
    processes = tuple(
        replace(
            each,
            pid=pid + index,
            host=host,
            boot_id=host,
            anchors=(Anchor(index, wall_ns + index + (drift_ns[index] if drift_ns else 0)),),
        )
        for index, each in enumerate(profile.processes)
    )
    return msgspec.structs.replace(profile, processes=processes)


def pool(
    durations: Sequence[Sequence[int]],
    *,
    workers: int,
    step_ns: int,
    prefetch: int = 2,
    serialise_ns: int = 0,
    handover_ns: int = 0,
    in_order: bool = True,
    drain_ns: int = 0,
) -> SketchedRun:
    """Return the run of a worker pool, or of a serial loader with 0 workers.

    ``durations[batch]`` are the times of `STAGES`. Batch i goes to worker i mod N, is submitted
    when batch i - N*P is delivered, or, out of order, when any batch of its worker is. A second
    thread of each worker serialises one batch after another.
    """
    names = [f"worker-{worker}" for worker in range(workers)]
    config = {"workers": workers, "prefetch": prefetch, "expected_workers": names, "batch_size": 4}
    sketch, clock = SketchedRun(config), 0
    free, sent = [0] * workers, [0] * workers
    ends: list[tuple[int, int]] = []  # (ready, batch), or in order the reverse
    maker: dict[int, int] = {}

    def submit(worker: int, now: int) -> None:
        batch = len(maker)
        if batch < len(durations):
            start = max(now, free[worker])
            sketch.submit(worker, batch, now, start)
            free[worker] = _work(sketch, ("worker", worker), batch, start, durations[batch])
            maker[batch] = worker
            start = max(free[worker], sent[worker])
            sent[worker] = start + serialise_ns
            if serialise_ns:
                lane, end_ns = ("worker", worker), sent[worker]
                sketch.add(lane, Kind.SERIALISE, start, end_ns, batch=batch, thread=1)
            end = sent[worker], batch
            heapq.heappush(ends, end[::-1] if in_order else end)

    for index in range(workers * prefetch):
        submit(index % workers, 0)
    for batch, stages in enumerate(durations):
        requested = clock
        if workers:
            first = heapq.heappop(ends)
            ready, batch = first[::-1] if in_order else first
            clock = max(clock, ready + handover_ns)
            sketch.wait(batch, requested, clock, names[maker[batch]], epoch=0)
            submit(maker[batch], clock)
        else:
            clock = _work(sketch, CONSUMER, batch, clock, stages)
            sketch.wait(batch, requested, clock, "consumer")
        clock += step_ns
    sketch.shutdown(clock, clock + drain_ns)
    sketch.round(0, clock + drain_ns)
    return sketch


def threads(durations: Sequence[int], *, n_threads: int, ahead: int, step_ns: int) -> SketchedRun:
    """Return the run of threads that take the next batch while fewer than ``ahead`` are ready."""
    sketch = SketchedRun(workers=0, threads=n_threads, prefetch=ahead, framework="native")
    names = ("MainThread", *(f"iobench-ring-{number}" for number in range(n_threads)))
    sketch.process = {"threads": names}
    free, held_ns, clock = [0] * n_threads, [], 0
    for batch, spent in enumerate(durations):
        thread = free.index(min(free))
        room = held_ns[batch - ahead] if batch >= ahead else 0
        where = {"thread": thread + 1, "batch": batch}
        begin = max(room, free[thread])
        if room >= free[thread]:
            sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, room, begin, detail="consumer", **where)
        free[thread] = sketch.work(CONSUMER, begin, {Kind.READ: spent}, nbytes=spent, **where)
        delivered = max(clock, free[thread])
        sketch.wait(batch, clock, delivered, "threads", epoch=0)
        held_ns.append(delivered)
        clock = delivered + step_ns
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    return sketch


def _work(sketch: SketchedRun, lane: Lane, batch: int, start: int, stages: Sequence[int]) -> int:
    for kind, spent in zip(STAGES, stages, strict=True):
        sketch.add(lane, kind, start, start + spent, batch=batch, nbytes=spent)
        start += spent
    return start


def epochs(
    rounds: Sequence[SketchedRun], *, pause_ns: int = 0, persistent: bool = True
) -> SketchedRun:
    """Return runs of one loader as rounds of one run; workers that do not persist are new ones."""
    whole = SketchedRun(dict(rounds[0].config))
    start = n_batches = 0
    for number, sketch in enumerate(rounds):
        end = max(span["end_ns"] for span in sketch.spans if span["lane"] == CONSUMER)
        begun = {span["batch"] for span in sketch.spans if "batch" in span}
        for span in sketch.moved(start.__add__).spans:
            lane = span["lane"]
            lane = lane if persistent or lane == CONSUMER else (*lane, number)
            batch = {"batch": span["batch"] + n_batches} if "batch" in span else {}
            mark = {"sample": number} if span["kind"] == Kind.OTHER else {}
            whole.spans.append({**span, **batch, **mark, "lane": lane})
        start += end + pause_ns
        n_batches += len(begun)
    return whole


class Script(SketchedRun):
    """A training loop over several loaders, step by step, on a clock of its own.

    Its loaders have numbers and facts.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        host: str = "here",
        ended: str | None = "closed",
        closed: bool = True,
    ) -> None:
        super().__init__(kind="script")
        self.process = {
            "rank": rank, "host": host, "boot_id": f"boot-{host}", "closed": closed,
            "anchors": (Anchor(0, 0), Anchor(10**9, 10**9)),
            "threads": ("MainThread", "GC", "Other"),
        }  # fmt: skip
        self.facts = {"world_size": world_size, "ended": ended, "rank": rank, "host": host}
        self.now = 0
        self.rounds, self.batches = itertools.count(), itertools.count()
        self.asked: list[Loader] = []

    def loader(
        self,
        workers: int = 0,
        prefetch: int = 2,
        stages: Sequence[int] = (30, 20, 10),
        start_ns: int = 0,
        *,
        name: str | None = None,
        gradients: bool | None = None,
        batch_size: int | None = 4,
        **how: Any,
    ) -> Loader:
        """Make a loader; ``how`` are further fields of `Loader`."""
        number = len(self.loaders)
        self.loaders.append(
            LoaderFacts(
                number, "torch", "a.Loader", f"Samples{number}" if name is None else name,
                workers, prefetch, batch_size=batch_size, gradients=gradients,
            )
        )  # fmt: skip
        self.asked.append(Loader(self, number, workers, prefetch, stages, start_ns, **how))
        return self.asked[-1]

    def waited(self, loader: Loader, batch: int, since: int, label: str, maker: str = "") -> None:
        """Add a wait that ends now."""
        self.add(
            CONSUMER, Kind.WAIT, since, self.now, batch=batch, label=label, detail=maker,
            sample=loader.round, nbytes=100 if batch >= 0 else -1,
        )  # fmt: skip

    def compute(self, spent: int) -> None:
        self.now += spent

    def spend(self, kind: Kind, spent: int, **fields: Any) -> None:
        """Add a span of the loop from now on."""
        self.add(CONSUMER, kind, self.now, self.now + spent, **fields)
        self.now += spent

    def train(self, loader: Loader, n_batches: int, step_ns: int = 10, *, end: bool = True) -> None:
        """Make a pass over a loader, or go on with the one begun."""
        for _ in range(n_batches):
            loader.next()
            self.compute(step_ns)
        if end:
            loader.end()

    def close(self) -> None:
        for loader in self.asked:
            loader.leave()

    def data(self) -> RunData:
        self.close()
        return super().data()


@dataclass
class Loader:
    """A loader of a script: a pool of workers, or none; in order, prefetching.

    Workers take ``start_ns`` to start, and ``open_ns`` for the first batch of each: in each pass,
    or in the first alone where they are ``kept``.
    """

    script: Script
    number: int
    workers: int
    prefetch: int
    stages: Sequence[int]
    start_ns: int = 0
    open_ns: int = 0
    kept: bool = False
    restarts: bool = False  # its workers have other numbers in each pass
    batches: int | None = None  # of a pass, at most
    n_passes: int = 0
    round: int = -1
    round_ns: int = -1
    free: list[int] = field(default_factory=list)
    due: deque[tuple[int, int, int]] = field(default_factory=deque)
    given: int = 0
    opens: bool = True

    def iter(self) -> None:
        """``iter(loader)``: workers start, and have their batches submitted."""
        script, self.opens = self.script, not self.kept or not self.n_passes
        self.leave()
        self.n_passes += 1
        self.round, self.round_ns = next(script.rounds), script.now
        if self.opens and self.start_ns:
            script.now += self.start_ns
            script.waited(self, -1, self.round_ns, "startup")
        if self.opens and self.restarts and self.n_passes > 1:
            pid = 5000 + 100 * self.n_passes
            script.loaders[self.number].worker_pids.extend(range(pid, pid + self.workers))
        self.free = [script.now] * self.workers
        self.due.clear()
        self.given = 0
        for _ in range(self.workers * self.prefetch):
            self._submit()

    def next(self) -> None:
        """``next(iterator)``: a batch."""
        script = self.script
        if self.round_ns < 0:
            self.iter()
        since = script.now
        if self.workers:
            batch, ready, worker = self.due.popleft()
            script.now, maker = max(since, ready), f"worker-{worker}"
        else:
            batch, maker = next(script.batches), "consumer"
            script.now = self._work(CONSUMER, batch, since)
        script.waited(self, batch, since, "", maker)
        if self.workers:
            self._submit()

    def end(self, drain_ns: int = 3) -> None:
        """``next(iterator)`` that finds no batch."""
        if self.round_ns >= 0:
            self.stop("shutdown", drain_ns)
            self.leave()

    def stop(self, label: str, spent: int) -> None:
        """Wait for something that is no batch."""
        since, self.script.now = self.script.now, self.script.now + spent
        self.script.waited(self, -1, since, label)

    def leave(self, thread: int = 0) -> None:
        """The iterator is dropped, perhaps by another thread."""
        if self.round_ns >= 0:
            self.script.add(
                CONSUMER, Kind.OTHER, self.round_ns, self.script.now, label="round",
                sample=self.round, detail=f"loader-{self.number}", thread=thread,
            )  # fmt: skip
        self.round_ns = -1

    def _submit(self) -> None:
        if self.batches is not None and self.given >= self.batches:
            return
        script, worker = self.script, self.given % self.workers
        self.given += 1
        batch, start = next(script.batches), max(script.now, self.free[worker])
        lane = ("worker", worker, self.number)
        script.add(lane, Kind.SUBMIT_QUEUE, script.now, start, batch=batch)
        self.free[worker] = self._work(lane, batch, start)
        self.due.append((batch, self.free[worker], worker))

    def _work(self, lane: Lane, batch: int, start: int) -> int:
        if self.open_ns and self.opens and self.given <= self.workers:
            self.script.add(lane, Kind.READ, start, start + self.open_ns, batch=batch, nbytes=0)
            start += self.open_ns
        return _work(self.script, lane, batch, start, self.stages)


def epochs_of(
    *,
    epochs: int = 3,
    batches: int = 10,
    workers: int = 2,
    prefetch: int = 2,
    stages: Sequence[int] = (30, 20, 10),
    step_ns: int = 40,
    start_ns: int = 500,
    open_ns: int = 0,
    end_ns: int = 0,
    kept: bool = False,
    anew: bool = False,
    last: int | None = None,
) -> RunData:
    """Return the run of a script over so many epochs; ``last`` batches of the last one, unended.

    ``anew`` is whether the loader is made anew for each.
    """
    script = Script()
    loader = None
    for epoch in range(epochs):
        if loader is None or anew:
            loader = script.loader(
                workers, prefetch, stages, start_ns,
                name="Samples", open_ns=open_ns, kept=kept, restarts=True, batches=batches,
            )  # fmt: skip
        cut = last is not None and epoch == epochs - 1
        loader.iter()
        script.train(loader, last if cut and last is not None else batches, step_ns, end=False)
        if not cut:
            loader.end(0 if kept and epoch < epochs - 1 else end_ns)
    return script.data()


def stream_sketch(**config: Any) -> SketchedRun:
    """Return a sketch whose threads have the names of stages."""
    sketch = SketchedRun({"workers": 0, "prefetch": 1, **config})
    sketch.process = {"threads": THREADS}
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

    def await_room(self, item: int) -> None:
        if item >= self.ahead and self.taken[item - self.ahead][0] > self.now:
            self.held = self.taken[item - self.ahead]
            self.now, self.cause = self.held

    def take(self, upstream: _Thread, item: int) -> None:
        if upstream.ready[item] > self.now:
            self.now, self.cause = upstream.ready[item], THREADS[upstream.number + 1]
        upstream.taken.append((self.now, self.cause))

    def work(self, sketch: SketchedRun, kind: Kind, spent: int, batch: int, item: int) -> None:
        where = {"batch": batch, "sample": item, "thread": self.number + 1}
        if self.held is not None:
            release, cause = self.held
            sketch.add(CONSUMER, Kind.SUBMIT_QUEUE, release, self.now, detail=cause, **where)
            self.held = None
        sketch.add(CONSUMER, kind, self.now, self.now + spent, nbytes=spent, **where)
        self.now += spent
        self.cause = THREADS[self.number + 1]
        self.ready.append(self.now)


def stream(
    durations: Sequence[Sequence[int]],
    steps_ns: Sequence[int],
    *,
    collate_ns: int = 0,
    batch_size: int = 1,
    ahead: Sequence[int] = (1, 1, 1),
    batches_ahead: int = 1,
) -> SketchedRun:
    """Return the run of a stream: ``durations[item]`` are the times of `STREAM_STAGES`.

    An item begins when its thread is free, fewer than ``ahead`` lie ready, and its input is there.
    ``steps_ns`` are the computing times after each batch.
    """
    sketch = stream_sketch(prefetch=batches_ahead, batch_size=batch_size)
    stages = [_Thread(number, bound) for number, bound in enumerate(ahead)]
    batcher = _Thread(len(stages), batches_ahead)
    clock, made = 0, 0
    n_batches = len(durations) // batch_size
    for batch in range(n_batches):
        # What it makes before it is held back does not depend on later deliveries.
        while made < min(n_batches, batch + batches_ahead):
            batcher.await_room(made)
            for item in range(made * batch_size, (made + 1) * batch_size):
                # Room in a stage depends on takes of earlier items only: first stage first.
                for number, stage in enumerate(stages):
                    stage.await_room(item)
                    if number:
                        stage.take(stages[number - 1], item)
                    stage.work(sketch, STREAM_STAGES[number], durations[item][number], made, item)
                batcher.take(stages[-1], item)
            batcher.work(sketch, Kind.COLLATE, collate_ns, made, -1)
            made += 1
        requested, clock = clock, max(clock, batcher.ready[batch])
        batcher.taken.append((clock, "consumer"))
        sketch.wait(batch, requested, clock, "threads", epoch=0)
        clock += steps_ns[batch]
    sketch.shutdown(clock, clock)
    sketch.round(0, clock)
    return sketch
