"""Pipelines of operations with threads of their own, simulated: times that follow by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.replay.operation_pipeline import (
    OperationPipeline,
    PipelineFunction,
    PipelineGroup,
    pipeline_times,
)

N = 40
NOTHING: tuple[tuple[str, ...], ...] = ((), (), (), ())
READ, PARSE, JOIN = "opaque:read/PyFunc", "opaque:parse/PyFunc", "collate:Batch"


def prefetch(ahead: int = 2, stages: tuple[tuple[str, ...], ...] = NOTHING) -> PipelineGroup:
    return PipelineGroup("Prefetch", "", (), 1, ahead, 1, -1, stages)


def mapped(threads: int, units: int = 4, feeds: int = 1) -> PipelineGroup:
    inside = (PipelineFunction("read", units, (READ,)),)
    stages = ((), (READ,), (), (PARSE,))
    return PipelineGroup("ParallelMap", "parse", inside, threads, threads, units, feeds, stages)


def batch_ns(shape: OperationPipeline, work: dict[str, int], step: int = 0) -> float:
    """Return how far apart batches are once the pipeline goes evenly."""
    spent = [
        [[sum(work.get(name, 0) for name in part)] * N for part in group.stages]
        for group in shape.groups
    ]
    taken = pipeline_times(shape, spent, [0] * N, [step] * N)
    assert len(taken) == N
    assert taken == sorted(taken)
    return (taken[-1] - taken[N // 2]) / (N - 1 - N // 2)


@pytest.mark.parametrize(
    ("threads", "pool", "expected"),
    [
        (1, 8, 4 * 50),  # each item is read, then parsed
        (2, 8, 4 * 25),  # two at a time
        (8, 2, 4 * 25),  # as many as share threads: 50 over 2
        (8, 8, 4 * 20),  # reading goes one by one
    ],
)
def test_calls_at_once_gain_as_far_as_threads_and_reading_allow(
    threads: int, pool: int, expected: int
) -> None:
    shape = OperationPipeline((mapped(threads), prefetch()), pool)
    work = {READ: 80, PARSE: 120}
    assert batch_ns(shape, work) == pytest.approx(expected, rel=0.02)
    assert batch_ns(shape, work, step=300) == pytest.approx(300, rel=0.02)  # hidden behind it


def test_reading_with_calls_of_its_own_goes_beside_parsing() -> None:
    shape = OperationPipeline((mapped(2), prefetch()), 8)
    parallel = shape.with_calls(0, "read", 4)
    assert [(each.function, each.threads, each.feeds) for each in parallel.groups] == [
        ("read", 4, 1), ("parse", 2, 2), ("", 1, -1),
    ]  # fmt: skip
    work = {READ: 80, PARSE: 120}
    assert batch_ns(parallel, work) == pytest.approx(4 * 15, rel=0.05)  # parsing, two at a time
    wider = parallel.with_calls(1, "parse", 4)
    assert batch_ns(wider, work) == pytest.approx(4 * 7.5, rel=0.05)
    assert batch_ns(replace(wider, pool=2), work) == pytest.approx(4 * 25, rel=0.05)


def test_without_a_prefetch_the_loop_waits_for_what_it_could_hide() -> None:
    loop = PipelineGroup("", "", (PipelineFunction("read", 4, (READ,)),), 1, 0, 1, -1, (
        (JOIN,), (READ,), (), (),
    ))  # fmt: skip
    shape = OperationPipeline((loop,), 4)
    work = {READ: 80, JOIN: 3}
    assert batch_ns(shape, work, step=50) == pytest.approx(133)
    assert batch_ns(shape.with_prefetch(2), work, step=50) == pytest.approx(83, rel=0.02)
    parallel = shape.with_calls(0, "read", 2)
    assert parallel.groups[1].stages[0] == (JOIN,)  # batches are joined by whoever joined them
    assert parallel.groups[0].units == 4


def test_both_branches_of_a_zip_are_waited_for() -> None:
    left, right = mapped(2, feeds=2), replace(mapped(2, feeds=2), stages=((), (), (), (JOIN,)))
    shape = OperationPipeline((left, right, prefetch()), 16)
    work = {READ: 80, PARSE: 120, JOIN: 400}
    assert batch_ns(shape, work) == pytest.approx(200, rel=0.02)
    assert batch_ns(shape, work | {JOIN: 20}) == pytest.approx(100, rel=0.02)


@given(
    threads=st.integers(1, 6), pool=st.integers(1, 6), ahead=st.integers(1, 4),
    units=st.integers(1, 9), read=st.integers(0, 90), parse=st.integers(0, 90),
    step=st.integers(0, 90),
)  # fmt: skip
def test_no_batch_is_faster_than_what_is_short(
    threads: int, pool: int, ahead: int, units: int, read: int, parse: int, step: int
) -> None:
    shape = OperationPipeline((mapped(threads, units), prefetch(ahead)), pool)
    work = {READ: read, PARSE: parse}
    found = batch_ns(shape, work, step)
    # The last batches may take from what was made ahead.
    slack = (ahead + threads) * max(read + parse, step, 1) / (N // 2)
    least = max(read, step, (read + parse) / min(pool, threads))
    assert found >= least - slack
    assert found <= read + parse + step + 1e-6
