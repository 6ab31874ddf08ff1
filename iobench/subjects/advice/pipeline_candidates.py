"""What may be changed in a tf.data pipeline whose operations were traced, by replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from iobench.analysis.replay.changes import Change
from iobench.subjects.advice.figures import Evidence, Gain
from iobench.subjects.advice.levers import Candidate, Lever

if TYPE_CHECKING:
    from iobench.analysis.replay.operation_pipeline import OperationPipeline
    from iobench.subjects.advice.gains import GainPredictor

CALLS: Final = (2, 4, 8, 16)
NEAR_BEST: Final = 0.01
WORTH_MORE: Final = 0.02
"""Of the time: what a second setting has to gain beyond the first one's."""


def pipeline_changes(predictor: GainPredictor) -> Iterator[tuple[Candidate, Gain]]:
    """Yield what calls at once, of each function, and threads for them would gain.

    Functions share their threads, so that more calls may need more of these. Each is tried as it
    is, and with as many threads as there are calls, where that gains more.
    """
    shape = predictor.run.pipeline
    if shape is None:
        return
    yield from _wider_pool(predictor, shape)
    for place, function in _functions(shape):
        candidates = [
            (n_calls, shape.with_calls(place, function, n_calls))
            for n_calls in CALLS
            if n_calls > _calls_now(shape, place, function)
        ]
        of = f"the map of {function}" if function else f"{shape.groups[place].operation}"
        alone = _best(predictor, candidates)
        if alone is not None:
            n_calls, _, gain = alone
            yield Candidate((Lever.CALLS,), {"num_parallel_calls": n_calls, "of": of}), gain
        roomy = [(n_calls, replace(each, pool=_calls(each))) for n_calls, each in candidates]
        both = _best(predictor, roomy)
        if both is None or _worth(both[2]) < (_worth(alone[2]) if alone else 0.0) + WORTH_MORE:
            continue
        n_calls, changed, gain = both
        settings: dict[str, str | int] = {"num_parallel_calls": n_calls, "of": of}
        settings["private_threadpool_size"] = changed.pool
        yield Candidate((Lever.CALLS, Lever.POOL), settings), gain


def _wider_pool(
    predictor: GainPredictor, shape: OperationPipeline
) -> Iterator[tuple[Candidate, Gain]]:
    n_threads = _calls(shape)
    if n_threads > shape.pool:
        gain = _gain(predictor, replace(shape, pool=n_threads))
        yield Candidate((Lever.POOL,), {"private_threadpool_size": n_threads}), gain


def _functions(shape: OperationPipeline) -> Iterator[tuple[int, str]]:
    """Yield the functions that may have calls at once, by the group that runs them."""
    for place, group in enumerate(shape.groups):
        yield from ((place, each.function) for each in group.inside if each.function)
        if any(group.stages[2:]) or group.function:
            yield place, group.function


def _calls_now(shape: OperationPipeline, place: int, function: str) -> int:
    group = shape.groups[place]
    inside = {each.function for each in group.inside}
    return 1 if function in inside else group.threads


def _calls(shape: OperationPipeline) -> int:
    """Return how many threads all functions could use at once."""
    return sum(
        each.threads + bool(each.stages[1]) if each.stages[3] else bool(each.stages[1])
        for each in shape.groups
    )


def _best(
    predictor: GainPredictor, tried: list[tuple[int, OperationPipeline]]
) -> tuple[int, OperationPipeline, Gain] | None:
    """Return the fewest calls that gain nearly as much as the best of them."""
    gains = [(number, shape, _gain(predictor, shape)) for number, shape in tried]
    if not gains:
        return None
    most = max(_worth(gain) for _, _, gain in gains)
    return next(each for each in gains if _worth(each[2]) >= most - NEAR_BEST)


def _worth(gain: Gain) -> float:
    return gain.expected


def _gain(predictor: GainPredictor, shape: OperationPipeline) -> Gain:
    """Return what a change gains; at most, where computing may be what keeps it from that.

    How much of a function's time is computing no trace tells. What the whole process computes for
    a batch takes at least its part of the CPUs, and of one where Python's functions share a lock.
    """
    gain = predictor.gain(Change(), instead=replace(predictor.run, pipeline=shape), parallel=True)
    now_ns = predictor.batch_ns
    cpus = 1 if shape.in_python else predictor.circumstances.cpus or 1
    if gain.saved is None or shape.cpu_ns / cpus <= (1 - gain.saved) * now_ns:
        return gain
    return Gain(Evidence.BOUND, None, 0.0, max(0.0, gain.saved))
