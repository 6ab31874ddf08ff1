"""Several training processes of one job: which rank has its batch last, and what the job waits."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from iobench.findings.job.figures import JobExposure, MissingRank, RankExposure
from iobench.findings.job.steps import rank_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iobench.analysis.run import RankRun
    from iobench.findings.job.steps import RankSteps, Stream
    from iobench.recording.facts import ProcessFacts

Integers = NDArray[np.int64]
N_BINS: Final = 48


class RankOfJob(msgspec.Struct, frozen=True):
    """What the comparison of the ranks of a job needs of one of them.

    Parameters
    ----------
    world_size : int
        Training processes the job had.
    told : tuple of ProcessFacts
        What the processes of all ranks told of themselves.
    is_unclosed : bool
        Whether the training process did not end its span file itself: killed, or still running.
    n_folded : int
        Batches before all others, of which there are sums only.
    """

    steps: RankSteps
    world_size: int
    told: tuple[ProcessFacts, ...]
    is_unclosed: bool
    n_folded: int


def rank_of_job(run: RankRun) -> RankOfJob | None:
    """Return what a job's comparison needs of a rank; None where there is no job."""
    if run.job_size < 2:
        return None
    return RankOfJob(
        steps=rank_steps(run, run.loop, run.deliveries),
        world_size=run.job_size,
        told=run.facts,
        is_unclosed=any(not each.closed and each.role == "consumer" for each in run.all_processes),
        n_folded=run.exposure.n_folded,
    )


def job_of_ranks(ranks: Sequence[RankOfJob]) -> JobExposure:
    """Return what a job waited for."""
    missing = missing_ranks(
        ranks[0].told,
        [each.steps.rank for each in ranks],
        world_size=ranks[0].world_size,
        unclosed={each.steps.rank: each.steps.host for each in ranks if each.is_unclosed},
    )
    found = compare_ranks(
        [each.steps for each in ranks], world_size=ranks[0].world_size, missing=missing
    )
    return replace(found, n_folded=sum(each.n_folded for each in ranks))


def compare_ranks(
    steps: Sequence[RankSteps],
    *,
    world_size: int,
    missing: Sequence[MissingRank] = (),
    n_bins: int = N_BINS,
) -> JobExposure:
    """Return what a job waited for.

    Parameters
    ----------
    steps : sequence of RankSteps
        Of every training process that recorded.
    world_size : int
        Training processes the job had.
    missing : sequence of MissingRank
        As `missing_ranks` found them.
    n_bins : int
        Columns of the matrix.
    """
    steps = sorted(steps, key=lambda each: each.rank)
    clocks = _clocks(steps)
    shifts, spread_ns = clocks.shift_ns, clocks.spread_ns
    rank = np.repeat(np.arange(len(steps)), [len(each.stream) for each in steps])
    asked = _joined([each.asked_ns + by for each, by in zip(steps, shifts, strict=True)])
    delivered = _joined([each.delivered_ns + by for each, by in zip(steps, shifts, strict=True)])
    step, n_alike = _step_numbers(steps, asked)
    last, before = _last_two(step, delivered)
    wait = _joined([each.step_wait_ns for each in steps])[last]
    alone = np.minimum(wait, delivered[last] - delivered[before])
    known = [each for each in steps if each.n_batches]
    waits = [each.wait_ns for each in known]
    mean = statistics.mean(waits) if waits else 0
    boots = np.array(_numbers([each.boot_id for each in steps]), dtype=np.int64)
    apart = boots[rank[last]] != boots[rank[before]]
    near = delivered[last] - delivered[before] <= spread_ns
    asks = [(each, by) for each, by in zip(steps, shifts, strict=True) if len(each.wait_start_ns)]
    begin = min((each.from_ns + by for each, by in asks), default=0)
    end = max((each.until_ns + by for each, by in asks), default=0)
    bin_ns = max(1, -(-(end - begin) // n_bins))
    return JobExposure(
        world_size=world_size,
        ranks=_ranks(steps, rank, last, alone),
        missing=tuple(missing),
        n_steps=len(last),
        n_single_steps=int((n_alike == 1).sum()) if len(steps) > 1 else 0,
        steps_wall_ns=end - begin,
        wait_ns=int(wait.sum()),
        exposed_ns=int(alone.sum()),
        imbalance=max(waits) / mean if mean and len(known) > 1 else None,
        hosts=tuple(dict.fromkeys(each.host for each in steps)),
        clock_uncertainty_ns=spread_ns if clocks.n_machines > 1 else None,
        n_uncertain_steps=int((apart & near).sum()),
        bin_ns=bin_ns,
        matrix_ns=tuple(
            tuple(
                np.diff(_waited_before(each.wait_start_ns, each.wait_end_ns, edges - by)).tolist()
            )
            for each, by in zip(steps, shifts, strict=True)
            for edges in [begin + bin_ns * np.arange(n_bins + 1, dtype=np.int64)]
        ),
        step_wait_ns=wait,
        step_exposed_ns=alone,
        step_last=np.array([each.rank for each in steps], dtype=np.int64)[rank[last]],
    )


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _numbers(names: Sequence[str]) -> list[int]:
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return [number[name] for name in names]


class _Clocks(msgspec.Struct, frozen=True):
    """What to add to the times of each rank, and how far apart that may be.

    Parameters
    ----------
    shift_ns : list of int
        Of each rank.
    """

    shift_ns: list[int]
    spread_ns: int
    n_machines: int


def _clocks(steps: Sequence[RankSteps]) -> _Clocks:
    """Set the clocks of a job's machines.

    A machine's monotonic clock is set against wall time by the pairs its processes noted; as far
    as these differ from each other, the wall clock was moved meanwhile, and nobody knows which of
    them are right.
    """
    pairs: dict[str, list[int]] = {}
    for each in steps:
        found = pairs.setdefault(each.boot_id, [])
        found.extend(anchor.wall_ns - anchor.monotonic_ns for anchor in each.anchors)
    offset = [_middle(each) for each in pairs.values()]
    shift = [value - offset[0] for value in offset]
    wrong = [
        max((abs(pair - middle) for pair in each), default=0)
        for middle, each in zip(offset, pairs.values(), strict=True)
    ]
    shift_ns = [shift[number] for number in _numbers([each.boot_id for each in steps])]
    return _Clocks(shift_ns, sum(sorted(wrong)[-2:]), len(pairs))


def _middle(values: list[int]) -> int:
    """Return the median; whole, since times since 1970 are too long for a float."""
    values = sorted(values) or [0]
    return (values[len(values) // 2] + values[(len(values) - 1) // 2]) // 2


def _step_numbers(steps: Sequence[RankSteps], asked: Integers) -> tuple[Integers, Integers]:
    """Return each delivery's step, by the time of the first rank, and the ranks in each step."""
    number: dict[Stream, int] = {}
    keys = []
    for each in steps:
        known = [number.setdefault(stream, len(number)) for stream in each.streams]
        keys.append(np.array(known, dtype=np.int64)[each.stream] << 40 | each.position)
    distinct, step, n_alike = np.unique(_joined(keys), return_inverse=True, return_counts=True)
    step = step.reshape(-1)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, step, asked)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place[step], n_alike[order]


def _last_two(step: Integers, delivered: Integers) -> tuple[Integers, Integers]:
    """Return the last and the second last delivery of every step that several ranks took."""
    order = np.lexsort((delivered, step))
    ends = np.flatnonzero(np.diff(step[order], append=-1) != 0)
    several = ends[np.diff(ends, prepend=-1) > 1]
    return order[several], order[several - 1]


def _ranks(
    steps: Sequence[RankSteps], rank: Integers, last: Integers, alone: Integers
) -> tuple[RankExposure, ...]:
    n_last = np.bincount(rank[last], minlength=len(steps))
    exposed = np.zeros(len(steps), dtype=np.int64)
    np.add.at(exposed, rank[last], alone)
    return tuple(
        RankExposure(
            rank=each.rank,
            host=each.host,
            n_batches=each.n_batches,
            wait_ns=each.wait_ns,
            wall_ns=each.wall_ns,
            n_last=int(n_last[index]),
            exposed_ns=int(exposed[index]),
            comm_held_ns=each.comm.held_ns if each.comm else None,
            n_operations=each.comm.n_operations if each.comm else None,
            comm_nbytes=each.comm.nbytes if each.comm else None,
        )
        for index, each in enumerate(steps)
    )


def _waited_before(start: Integers, end: Integers, time_ns: Integers) -> Integers:
    """Return how much of intervals, which are apart and in order, lies before each instant."""
    total = np.append(0, np.cumsum(end - start))
    place = np.searchsorted(start, time_ns, side="left")
    inside = place > 0
    waited: Integers = total[place]
    waited[inside] -= np.maximum(end[place[inside] - 1] - time_ns[inside], 0)
    return waited


def missing_ranks(
    facts: Sequence[ProcessFacts],
    ranks: Sequence[int],
    *,
    world_size: int,
    unclosed: Mapping[int, str],
) -> tuple[MissingRank, ...]:
    """Return who of a job is missing or did not end as it should.

    Parameters
    ----------
    facts : sequence of ProcessFacts
        What its processes told.
    ranks : sequence of int
        Those that left spans.
    world_size : int
        Training processes the job had.
    unclosed : dict of int to str
        Ranks whose span file was not closed, with their hosts.
    """
    told = {each.rank: each for each in facts if each.role == "consumer"}
    found = []
    for rank in range(world_size):
        own = told.get(rank)
        host = own.host if own else unclosed.get(rank)
        if own is None and rank not in ranks:
            found.append(MissingRank(rank, None, "never started"))
        elif own is not None and own.ended not in (None, "closed"):
            found.append(MissingRank(rank, host, f"ended with {own.ended}"))
        elif rank not in ranks:
            found.append(MissingRank(rank, host, "left no spans"))
        elif rank in unclosed:
            found.append(MissingRank(rank, host, "killed, left by os._exit, or still running"))
    return tuple(found)
