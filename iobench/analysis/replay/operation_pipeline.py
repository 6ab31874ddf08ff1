"""A pipeline of operations with threads of their own, run again from event to event.

Each operation pulls what it needs, one thread after another, works on it, several at a time, and
keeps some ready. Functions run on a pool of threads that all operations share, as tf.data's do:
more parallel calls than it has threads gain nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Final

from iobench.frozen import frozen

MOST_ITEMS: Final = 64
"""Items that a batch is simulated as, at most."""
PREFETCH: Final = "Prefetch"
JOINING: Final = "collate"
PARTS: Final = ("pull", "pull_pool", "own", "own_pool")
"""What an item takes: as it is pulled and after that, by the operation's thread or the pool's."""

Process = Generator["float | deque[Process]", None, None]


@frozen
class PipelineFunction:
    """A function of the user's: what it is called, its calls for a batch, and its stages."""

    function: str
    units: int
    stages: tuple[str, ...]


@frozen
class PipelineGroup:
    """An operation with threads of its own; the training loop is the last one of a pipeline.

    Parameters
    ----------
    operation, function : str
        As the framework calls it, and the user's function that it runs; ``""`` where it runs none.
    inside : tuple of PipelineFunction
        Functions that run while it pulls, from the source on: one at a time.
    threads : int
        Items it works on at once, at most.
    ahead : int
        Items that it may have begun and not handed on; 0 of the training loop.
    units : int
        Items of it that a batch takes.
    feeds : int
        Place of the operation that pulls from it; -1 of the last.
    stages : tuple of tuple of str
        What is done in each of `PARTS`, as reports spell it.
    """

    operation: str
    function: str
    inside: tuple[PipelineFunction, ...]
    threads: int
    ahead: int
    units: int
    feeds: int
    stages: tuple[tuple[str, ...], ...]


@frozen
class OperationPipeline:
    """How the operations of a pipeline hang together; whoever feeds another comes before it.

    Parameters
    ----------
    pool : int
        Threads that functions share.
    cpu_ns : int
        What the process computed for a batch, in the training loop as well.
    in_python : bool
        Whether functions are Python's, of which one computes at a time.
    """

    groups: tuple[PipelineGroup, ...]
    pool: int
    cpu_ns: int = 0
    in_python: bool = False

    def with_calls(self, place: int, function: str, n_calls: int) -> OperationPipeline:
        """Return it with so many calls at once of a function of a group: ``num_parallel_calls``.

        A function that ran while the group pulled gets threads of its own, before the group's.
        """
        group = self.groups[place]
        found = next((each for each in group.inside if each.function == function), None)
        if found is None:
            ahead = max(n_calls, round(group.ahead * n_calls / max(group.threads, 1)))
            wider = replace(group, threads=n_calls, ahead=ahead)
            return replace(self, groups=(*self.groups[:place], wider, *self.groups[place + 1 :]))
        at = group.inside.index(found)
        later = {stage for each in group.inside[at + 1 :] for stage in each.stages}
        parts: list[list[tuple[str, ...]]] = [[], []]
        for stages in group.stages:
            for side, is_upper in enumerate((True, False)):
                parts[side].append(
                    tuple(
                        stage
                        for stage in stages
                        if (stage not in later and not stage.startswith(JOINING)) == is_upper
                    )
                )
        upper, lower = parts
        own = [tuple(stage for stage in each if stage in found.stages) for each in upper[:2]]
        pull = [tuple(stage for stage in each if stage not in found.stages) for each in upper[:2]]
        new = PipelineGroup(
            operation="ParallelMap",
            function=function,
            inside=group.inside[:at],
            threads=n_calls,
            ahead=n_calls,
            units=found.units,
            feeds=place + 1,
            stages=(*pull, *own),
        )
        kept = replace(
            group,
            inside=group.inside[at + 1 :],
            stages=(*lower[:2], *group.stages[2:]),
        )

        def moved(each: PipelineGroup) -> PipelineGroup:
            if each.feeds == place:  # what fed the group feeds the new one
                return replace(each, feeds=place)
            return replace(each, feeds=each.feeds + 1) if each.feeds > place else each

        groups = [*map(moved, self.groups[:place]), new, moved(kept)]
        return replace(self, groups=(*groups, *map(moved, self.groups[place + 1 :])))

    def with_prefetch(self, n_batches: int) -> OperationPipeline:
        """Return it with so many batches kept ready for the training loop."""
        *others, last = self.groups
        if last.operation in ("", PREFETCH):
            operation = last.operation or PREFETCH
            groups = (*others, replace(last, operation=operation, ahead=n_batches))
            return replace(self, groups=groups)
        last = replace(last, feeds=len(self.groups))
        added = PipelineGroup(PREFETCH, "", (), 1, n_batches, 1, -1, ((),) * len(PARTS))
        return replace(self, groups=(*others, last, added))


def pipeline_times(
    shape: OperationPipeline,
    spent: Sequence[Sequence[Sequence[int]]],
    pickup: Sequence[int],
    compute: Sequence[int],
    *,
    start_ns: int = 0,
    first_ns: int = 0,
) -> list[float]:
    """Return when the training loop holds each batch.

    Parameters
    ----------
    shape : OperationPipeline
    spent : sequence
        By group, part of `PARTS` and batch, in ns.
    pickup, compute : sequence of int
        By batch.
    start_ns, first_ns : int
        When the pipeline begins, and when the loop asks first.
    """
    return _Pipeline(shape, spent, pickup, compute).run(start_ns, first_ns)


class _Tokens:
    """Some that one after another may hold, in the order in which they asked."""

    __slots__ = ("free", "waiting")

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: deque[Process] = deque()


class _Group:
    __slots__ = (
        "ahead", "begun", "done", "feeders", "handed", "lock", "ready", "room", "taken", "total",
        "units",
    )  # fmt: skip

    def __init__(self, ahead: int, units: int, n_batches: int) -> None:
        self.ahead, self.units, self.total = ahead, units, units * n_batches
        self.feeders: list[_Group] = []
        self.begun = self.handed = self.taken = 0
        self.done: set[int] = set()
        self.lock = _Tokens(1)
        self.room: deque[Process] = deque()
        self.ready: deque[Process] = deque()


class _Pipeline:
    def __init__(
        self,
        shape: OperationPipeline,
        spent: Sequence[Sequence[Sequence[int]]],
        pickup: Sequence[int],
        compute: Sequence[int],
    ) -> None:
        self.pickup, self.compute, self.spent = pickup, compute, spent
        self.taken: list[float] = []
        self.now = 0.0
        self.heap: list[tuple[float, int, Process]] = []
        self.count = 0
        self.pool = _Tokens(max(shape.pool, 1))
        self.groups = []
        self.threads = []
        for each in shape.groups:
            units = min(max(each.units, 1), MOST_ITEMS)
            ahead = round(each.ahead * units / max(each.units, 1))
            ahead = max(ahead, min(each.ahead, each.threads))
            self.groups.append(_Group(ahead, units, len(pickup)))
            self.threads.append(max(each.threads, 1))
        for group, each in zip(self.groups, shape.groups, strict=True):
            if each.feeds >= 0:
                self.groups[each.feeds].feeders.append(group)

    def run(self, start_ns: int, first_ns: int) -> list[float]:
        loop = self.groups[-1]
        on_demand = not loop.ahead
        for number, group in enumerate(self.groups):
            if group is not loop or not on_demand:
                for _ in range(min(self.threads[number], group.total)):
                    self._at(start_ns, self._thread(number, group))
        self._at(first_ns, self._loop(len(self.groups) - 1, loop, on_demand))
        while self.heap:
            self.now, _, process = heapq.heappop(self.heap)
            self._go_on(process)
        return self.taken

    def _at(self, time: float, process: Process) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, process))

    def _go_on(self, process: Process) -> None:
        for wanted in process:
            if isinstance(wanted, deque):
                wanted.append(process)
            else:
                self._at(self.now + wanted, process)
            return

    def _wake(self, waiting: deque[Process]) -> None:
        while waiting:
            self._at(self.now, waiting.popleft())

    def _hold(self, tokens: _Tokens) -> Process:
        if tokens.free:
            tokens.free -= 1
        else:
            yield tokens.waiting  # whoever lets go hands it over

    def _let_go(self, tokens: _Tokens) -> None:
        if tokens.waiting:
            self._at(self.now, tokens.waiting.popleft())
        else:
            tokens.free += 1

    def _work(self, number: int, part: int, item: int) -> Process:
        """Spend an item's share of what its batch takes in a part and in the pool after it."""
        units = self.groups[number].units
        batch = item // units
        own = self.spent[number][part][batch] / units
        pooled = self.spent[number][part + 1][batch] / units
        if own:
            yield own
        if pooled:
            yield from self._hold(self.pool)
            yield pooled
            self._let_go(self.pool)

    def _pull(self, number: int, group: _Group, item: int) -> Process:
        """Take what an item is made of from those that feed its group, and do what comes first."""
        for feeder in group.feeders:
            needed = -(-(item + 1) * feeder.units // group.units)
            while feeder.taken < needed:
                while feeder.handed <= feeder.taken:
                    yield feeder.ready
                feeder.taken += 1
                self._wake(feeder.room)
        yield from self._work(number, 0, item)

    def _thread(self, number: int, group: _Group) -> Process:
        while True:
            yield from self._hold(group.lock)
            while group.begun - group.taken >= group.ahead and group.begun < group.total:
                yield group.room
            item = group.begun
            if item >= group.total:
                self._let_go(group.lock)
                return
            group.begun += 1
            yield from self._pull(number, group, item)
            self._let_go(group.lock)
            yield from self._work(number, 2, item)
            group.done.add(item)
            while group.handed in group.done:
                group.done.discard(group.handed)
                group.handed += 1
            self._wake(group.ready)

    def _loop(self, number: int, group: _Group, on_demand: bool) -> Process:
        for batch, (pickup, compute) in enumerate(zip(self.pickup, self.compute, strict=True)):
            for item in range(batch * group.units, (batch + 1) * group.units):
                if on_demand:
                    yield from self._pull(number, group, item)
                    yield from self._work(number, 2, item)
                    continue
                while group.handed <= group.taken:
                    yield group.ready
                group.taken += 1
                self._wake(group.room)
            yield pickup
            self.taken.append(self.now)
            yield compute
