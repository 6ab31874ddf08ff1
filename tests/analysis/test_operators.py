"""The wait for an opaque pipeline, split by its busiest operation."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iobench.findings.other_work import split_by_operators


def told(operation: str, busy_ns: int, parallelism: int = 1) -> dict[str, Any]:
    return {"operation": operation, "kind": "read", "busy_ns": busy_ns, "parallelism": parallelism}


def test_the_busiest_by_its_threads_has_the_wait() -> None:
    shares = split_by_operators(1000, [told("Map", 800, 4), told("TFRecord", 500), told("B", 10)])
    assert shares == (0, 1000, 0)


def test_operations_nearly_as_busy_share_it() -> None:
    shares = split_by_operators(190, [told("A", 1000), told("B", 900), told("C", 899)])
    assert shares == (100, 90, 0)


def in_turn(*operations: tuple[str, int, bool]) -> list[int]:
    rows = [{**told(name, busy), "own_threads": own} for name, busy, own in operations]
    return [*split_by_operators(1000, rows)]


def test_operations_of_one_thread_share_what_it_is_waited_for() -> None:
    chain = [("Map", 600, False), ("Map", 300, False), ("Range", 100, False)]
    assert in_turn(*chain) == [600, 300, 100]
    assert in_turn(("Prefetch", 0, True), *chain) == [0, 600, 300, 100]


def test_operations_with_threads_of_their_own_are_apart() -> None:
    stages = [("ParallelMap", 80, True), ("ParallelMap", 210, True), ("ParallelMap", 400, True)]
    assert in_turn(*stages, ("Range", 10, False)) == [0, 0, 1000, 0]
    # What feeds the threads is done by another one.
    assert in_turn(("ParallelMap", 300, True), ("A", 200, False), ("B", 200, False)) == [
        0,
        500,
        500,
    ]


def test_without_work_there_is_nothing_to_split() -> None:
    assert split_by_operators(1000, []) == ()
    assert split_by_operators(1000, [told("A", 0)]) == (0,)


@given(
    st.integers(0, 10**15),
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 64)), min_size=1, max_size=8),
)
def test_the_shares_add_up(exposed_ns: int, operators: list[tuple[int, int]]) -> None:
    shares = split_by_operators(exposed_ns, [told("x", *each) for each in operators])
    assert sum(shares) in (0, exposed_ns)
    assert min(shares) >= 0
    assert sum(shares) == exposed_ns or not any(busy // threads for busy, threads in operators)
