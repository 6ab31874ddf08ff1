"""Hand-made scripts of several epochs, whose workers start anew for each or live on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from scripts import Loader, Script

from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.runs.contents import RunData


@dataclass
class StartingLoader(Loader):
    """A pool whose workers take time to start, and again for the first batch each makes."""

    kept: bool = False
    open_ns: int = 0
    batches: int = 10
    epochs: int = 0

    def iter(self) -> None:
        starts = not self.kept or not self.epochs
        start_ns, self.start_ns = self.start_ns, self.start_ns if starts else 0
        super().iter()
        self.start_ns, self.epochs = start_ns, self.epochs + 1
        if starts and self.epochs > 1:
            facts = self.script.sketch.loaders[self.number]
            first = 5000 + 100 * self.epochs
            facts.worker_pids.extend(range(first, first + self.workers))

    def _submit(self) -> None:
        if self.given < self.batches:
            super()._submit()

    def _work(self, lane: Any, batch: int, start: int) -> int:
        if self.given <= self.workers and (not self.kept or not self.epochs):
            end = start + self.open_ns
            self.script.sketch.add(lane, Kind.READ, start, end, batch=batch, nbytes=0)
            start = end
        return super()._work(lane, batch, start)


def epochs_of(
    *,
    epochs: int = 3,
    batches: int = 10,
    workers: int = 2,
    prefetch: int = 2,
    stages: tuple[int, ...] = (30, 20, 10),
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
            script.loader(workers, prefetch, stages, start_ns)
            facts = script.sketch.loaders
            facts[-1] = replace(facts[-1], name=facts[0].name)
            script.loaders[-1] = loader = StartingLoader(
                script, len(facts) - 1, workers, prefetch, stages, start_ns,
                kept=kept, open_ns=open_ns, batches=batches,
            )  # fmt: skip
        cut = last is not None and epoch == epochs - 1
        loader.iter()
        for _ in range(last if cut and last is not None else batches):
            loader.next()
            script.compute(step_ns)
        if not cut:
            loader.end(0 if kept and epoch < epochs - 1 else end_ns)
    return script.data()
