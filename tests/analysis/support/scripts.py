"""Hand-made profiles of users' own scripts: several loaders, interleaved by a small program."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schedules import STAGES

from iobench.recording.facts import LoaderFacts
from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import SketchedRun

if TYPE_CHECKING:
    from iobench.runs.contents import RunData

LOOP = ("consumer", -1, 0)
"""Role, worker, and whose: the rank of a consumer, the loader of a worker."""


def script_sketch(
    *,
    rank: int = 0,
    world_size: int = 1,
    host: str = "here",
    ended: str | None = "closed",
    closed: bool = True,
) -> SketchedRun:
    """Return a sketch of one training process whose loaders have numbers and facts."""
    sketch = SketchedRun(kind="script")
    sketch.process = {
        "rank": rank, "host": host, "boot_id": f"boot-{host}", "closed": closed,
        "anchors": (Anchor(0, 0), Anchor(10**9, 10**9)), "threads": ("MainThread", "GC", "Other"),
    }  # fmt: skip
    sketch.facts = {"world_size": world_size, "ended": ended, "rank": rank, "host": host}
    return sketch


@dataclass
class Loader:
    """A loader of a script: a pool of workers, or none; in order, prefetching."""

    script: Script
    number: int
    workers: int
    prefetch: int
    stages: tuple[int, ...]
    start_ns: int = 0
    round: int = -1
    round_ns: int = -1
    free: list[int] = field(default_factory=list)
    due: deque[tuple[int, int, int]] = field(default_factory=deque)
    given: int = 0

    def iter(self) -> None:
        """``iter(loader)``: workers start, and have their batches submitted."""
        script = self.script
        self.leave()
        self.round, self.round_ns = next(script.rounds), script.now
        asked, script.now = script.now, script.now + self.start_ns
        if self.start_ns:
            script.wait(self, -1, asked, "startup")
        self.free = [script.now] * self.workers
        self.due.clear()
        self.given = 0
        for _ in range(self.workers * self.prefetch):
            self._submit()

    def next(self) -> None:
        """``next(iterator)``: a batch."""
        script, asked = self.script, self.script.now
        if self.round_ns < 0:
            self.iter()
            asked = script.now
        if not self.workers:
            batch, maker = next(script.batches), "consumer"
            script.now = self._work(LOOP, batch, asked)
        else:
            batch, ready, worker = self.due.popleft()
            script.now, maker = max(asked, ready), f"worker-{worker}"
        script.wait(self, batch, asked, "", maker)
        if self.workers:
            self._submit()

    def end(self, drain_ns: int = 3) -> None:
        """``next(iterator)`` that finds no batch."""
        if self.round_ns < 0:
            return
        asked, self.script.now = self.script.now, self.script.now + drain_ns
        self.script.wait(self, -1, asked, "shutdown")
        self.leave()

    def leave(self, thread: int = 0) -> None:
        """The iterator is dropped, perhaps by another thread."""
        if self.round_ns < 0:
            return
        self.script.sketch.add(
            LOOP, Kind.OTHER, self.round_ns, self.script.now, label="round", sample=self.round,
            detail=f"loader-{self.number}", thread=thread,
        )  # fmt: skip
        self.round_ns = -1

    def _submit(self) -> None:
        script, worker = self.script, self.given % self.workers
        self.given += 1
        batch, start = next(script.batches), max(script.now, self.free[worker])
        lane = ("worker", worker, self.number)
        script.sketch.add(lane, Kind.SUBMIT_QUEUE, script.now, start, batch=batch)
        self.free[worker] = self._work(lane, batch, start)
        self.due.append((batch, self.free[worker], worker))

    def _work(self, lane: Any, batch: int, start: int) -> int:
        for kind, duration in zip(STAGES, self.stages, strict=True):
            end = start + duration
            self.script.sketch.add(lane, kind, start, end, batch=batch, nbytes=duration)
            start = end
        return start


class Script:
    """A training loop over several loaders, step by step."""

    def __init__(self, **more: Any) -> None:
        self.sketch = script_sketch(**more)
        self.now = 0
        self.rounds, self.batches = itertools.count(), itertools.count()
        self.loaders: list[Loader] = []

    def loader(
        self,
        workers: int = 0,
        prefetch: int = 2,
        stages: tuple[int, ...] = (30, 20, 10),
        start_ns: int = 0,
        batch_size: int | None = 4,
    ) -> Loader:
        number = len(self.loaders)
        self.sketch.loaders.append(
            LoaderFacts(
                number,
                "torch",
                "a.Loader",
                f"Samples{number}",
                workers,
                prefetch,
                batch_size=batch_size,
            )
        )
        made = Loader(self, number, workers, prefetch, stages, start_ns)
        self.loaders.append(made)
        return made

    def wait(
        self, loader: Loader, batch: int, asked: int, label: str, maker: str = "", **more: Any
    ) -> None:
        self.sketch.add(
            LOOP, Kind.WAIT, asked, self.now, batch=batch, label=label, detail=maker,
            sample=loader.round, nbytes=100 if batch >= 0 else -1, **more,
        )  # fmt: skip

    def compute(self, spent: int) -> None:
        self.now += spent

    def close(self) -> None:
        for loader in self.loaders:
            loader.leave()

    def data(self) -> RunData:
        self.close()
        return self.sketch.data()
