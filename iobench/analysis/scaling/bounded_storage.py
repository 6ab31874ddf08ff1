"""The steps of a job whose reads share a storage that has a bound, read by read."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import numpy as np

from iobench.analysis.replay.contract import LoaderRule
from iobench.analysis.scaling.free_storage import StepTimes

if TYPE_CHECKING:
    from iobench.analysis.scaling.demand import RankDemand
    from iobench.analysis.scaling.draws import DrawnSteps

__all__ = ["bounded_steps"]

ANY: Final = -1
"""A thread that takes the next batch, whichever it is."""
UNKNOWN: Final = -1.0


def bounded_steps(
    demand: RankDemand, drawn: DrawnSteps, *, ranks_per_host: int, allreduce_ns: float
) -> StepTimes:
    """Return the steps of a job, with its reads sharing storage alike.

    A discrete simulation: of n reads under way each gets one n-th of storage (processor sharing).
    A read ends when storage has given its bytes, its host's link has passed them on in turn, and
    the reader has had the time that it takes alone.
    """
    job = _Job(demand, drawn, ranks_per_host, allreduce_ns)
    job.run()
    return StepTimes(np.array(job.asked), np.array(job.held), was_free=False)


class _Job:
    """All ranks of a job, from moment to moment; plain lists, for they are what is fast here."""

    def __init__(
        self, demand: RankDemand, drawn: DrawnSteps, ranks_per_host: int, allreduce_ns: float
    ) -> None:
        self.n_steps, self.ranks = drawn.read_ns.shape
        self.rule, self.workers, self.ahead = demand.rule, demand.workers, demand.ahead
        self.allreduce_ns = allreduce_ns
        self.ranks_per_host = ranks_per_host
        self.drawn = drawn
        self.served, self.linked = drawn.served_ns.tolist(), drawn.linked_ns.tolist()
        self.read, self.submit = drawn.read_ns.tolist(), drawn.submit_ns.tolist()
        self.rest = drawn.rest_ns.tolist()
        self.transit, self.pickup = drawn.transit_ns.tolist(), drawn.pickup_ns.tolist()
        shape = range(self.n_steps)
        self.ready = [[UNKNOWN] * self.ranks for _ in shape]
        self.taken = [[UNKNOWN] * self.ranks for _ in shape]
        self.left = [self.ranks] * self.n_steps
        self.asked = [0.0]
        self.held: list[float] = []
        self.idle: list[dict[int, float]] = [{} for _ in range(self.ranks)]
        self.waiting: list[list[float]] = [[] for _ in range(self.ranks)]
        self.next_step = [0] * self.ranks
        self.link_free = [0.0] * (-(-self.ranks // ranks_per_host))
        self.starts: list[tuple[float, int, int]] = []

    def run(self) -> None:
        """Go from one start or end of a read to the next, until all steps are done.

        ``given`` is what a read that was there from the beginning would have had of storage: a
        read ends when as much was added as it asked for, whoever else came and went.
        """
        self._begin()
        starts = self.starts
        ends: list[tuple[float, int, int, float]] = []
        now = given = 0.0
        while starts or ends:
            if ends and (not starts or now + (ends[0][0] - given) * len(ends) <= starts[0][0]):
                share = ends[0][0] - given
                now += share * len(ends)
                given, step, rank, least = heappop(ends)
                self._end_read(step, rank, max(now, least))
                continue
            moment, step, rank = heappop(starts)
            if ends:
                given += (moment - now) / len(ends)
            now = moment
            if step == ANY:
                step = self._take_next(rank, now)
                if step == ANY:
                    continue
            least = now + self.read[step][rank]
            linked = self.linked[step][rank]
            if linked:
                host = rank // self.ranks_per_host
                self.link_free[host] = max(self.link_free[host], now) + linked
                least = max(least, self.link_free[host])
            served = self.served[step][rank]
            if served:
                heappush(ends, (given + served, step, rank, least))
            else:
                self._end_read(step, rank, least)

    def _begin(self) -> None:
        if self.rule is LoaderRule.SERIAL:
            firsts = range(1)
        else:
            firsts = range(min(self.workers, self.n_steps))
        any_step = self.rule is LoaderRule.THREADS
        self.starts.extend(
            (0.0, ANY if any_step else step, rank) for step in firsts for rank in range(self.ranks)
        )

    def _take_next(self, rank: int, now: float) -> int:
        """Return the batch that a thread begins now; `ANY` if it is none, or not yet."""
        step = self.next_step[rank]
        if step >= self.n_steps:
            return ANY
        room = self._room(step, rank)
        if room == UNKNOWN:
            self.waiting[rank].append(now)
            return ANY
        self.next_step[rank] += 1
        if room <= now:
            return step
        heappush(self.starts, (room, step, rank))
        return ANY

    def _room(self, step: int, rank: int) -> float:
        """Return when a batch may be begun at the earliest; `UNKNOWN` if that is not known yet."""
        if step < self.ahead:
            return 0.0
        taken = self.taken[step - self.ahead][rank]
        return taken if taken == UNKNOWN else taken + self.submit[step][rank]

    def _end_read(self, step: int, rank: int, moment: float) -> None:
        """Let the rest of the batch be made, and its maker go on."""
        free = moment + self.rest[step][rank]
        if self.rule is LoaderRule.THREADS:
            heappush(self.starts, (free, ANY, rank))
        elif self.rule is not LoaderRule.SERIAL:
            following = step + self.workers
            if following < self.n_steps:
                room = self._room(following, rank)
                if room == UNKNOWN:
                    self.idle[rank][following] = free
                else:
                    heappush(self.starts, (max(room, free), following, rank))
        self.ready[step][rank] = free + self.transit[step][rank]
        if step < len(self.asked):
            self._take(step, rank)
            if not self.left[step]:
                self._end_steps(step)

    def _take(self, step: int, rank: int) -> None:
        """Let the loop of a rank take a batch; what waited for room goes on."""
        moment = max(self.asked[step], self.ready[step][rank]) + self.pickup[step][rank]
        self.taken[step][rank] = moment
        self.left[step] -= 1
        following = step + self.ahead
        if self.rule is LoaderRule.SERIAL or following >= self.n_steps:
            return
        if self.rule is LoaderRule.THREADS:
            if self.waiting[rank]:
                self.waiting[rank].pop()
                following = self.next_step[rank]
                self.next_step[rank] += 1
                heappush(self.starts, (moment + self.submit[following][rank], following, rank))
        elif following in self.idle[rank]:
            free = self.idle[rank].pop(following)
            heappush(
                self.starts, (max(free, moment + self.submit[following][rank]), following, rank)
            )

    def _end_steps(self, step: int) -> None:
        """End a step that every rank has its batch of, and those after it that are ready."""
        while step < self.n_steps and not self.left[step]:
            taken = np.array(self.taken[step])
            self.held.append(float(taken.max()))
            ended = float((taken + self.drawn.compute_ns[step]).max()) + self.allreduce_ns
            self.asked.append(ended)
            step += 1
            if step == self.n_steps:
                return
            if self.rule is LoaderRule.SERIAL:
                self.starts.extend((ended, step, rank) for rank in range(self.ranks))
                self.starts.sort()
                return
            for rank, ready in enumerate(self.ready[step]):
                if ready != UNKNOWN:
                    self._take(step, rank)
