"""Nested and overlapping spans to pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.partition import leaf_pieces
from iobench.recording.kinds import Kind
from tests.support.sketched_runs import SketchedRun

READ, DECODE, OPEN = Kind.READ, Kind.DECODE, Kind.OPEN


def pieces_of(*spans, lanes=None):
    sketch = SketchedRun()
    for kind, start, end, *batch in spans:
        cpu = batch[1] if len(batch) > 1 else -1
        sketch.add(("worker", 0), kind, start, end, batch=batch[0] if batch else 0, cpu_ns=cpu)
    table = sketch.data().spans
    lane = np.array(lanes or [0] * len(table), dtype=np.int64)
    return table, leaf_pieces(table, lane)


def as_tuples(table, pieces):
    kinds = table["kind"][pieces.span].tolist()
    rows = zip(kinds, pieces.start_ns.tolist(), pieces.end_ns.tolist(), strict=True)
    return [(Kind(kind), start, end) for kind, start, end in rows]


def test_of_two_alike_the_one_written_first_is_inside():
    found = as_tuples(*pieces_of((OPEN, 0, 10), (READ, 0, 10)))
    assert (OPEN, 0, 10) in found
    assert (READ, 0, 0) in found


def test_three_deep_and_two_beside_each_other():
    found = as_tuples(
        *pieces_of((OPEN, 1, 2), (DECODE, 1, 3), (DECODE, 4, 6), (READ, 0, 8), (READ, 8, 9))
    )
    durations = {}
    for kind, start, end in found:
        durations[kind] = durations.get(kind, 0) + end - start
    assert durations == {OPEN: 1, DECODE: 3, READ: 5}


def test_an_inner_span_without_a_batch_is_of_the_batch_around_it():
    _, pieces = pieces_of((OPEN, 2, 5, -1), (READ, 0, 10, 7))
    assert pieces.batch.tolist() == [7, 7, 7]


def test_a_span_without_a_batch_between_two_of_one_batch_is_of_it():
    _, pieces = pieces_of((READ, 0, 1, 4), (OPEN, 1, 2, -1), (READ, 2, 3, 4), (OPEN, 3, 4, -1))
    assert pieces.batch.tolist() == [4, 4, 4, -1]


def test_cpu_time_is_less_that_of_the_spans_directly_inside():
    table, pieces = pieces_of((OPEN, 2, 5, 0, 2), (READ, 0, 10, 0, 9))
    cpu = {Kind(k): c for k, c in zip(table["kind"][pieces.span], pieces.cpu_ns, strict=True) if c}
    assert cpu == {OPEN: 2, READ: 7}


def test_cpu_time_around_a_span_that_does_not_tell_is_unknown():
    _, pieces = pieces_of((OPEN, 2, 5, 0), (READ, 0, 10, 0, 9))
    assert pieces.cpu_ns[pieces.first].tolist() == [-1, -1]


def test_threads_are_apart():
    table, pieces = pieces_of((READ, 0, 10), (READ, 5, 15), lanes=[0, 1])
    assert as_tuples(table, pieces) == [(READ, 0, 10), (READ, 5, 15)]


spans = st.lists(
    st.tuples(st.sampled_from([READ, DECODE, OPEN]), st.integers(0, 60), st.integers(0, 30)),
    min_size=1,
    max_size=25,
)


@given(spans, st.data())
def test_each_instant_belongs_to_the_covering_span_begun_last(drawn, data):
    lanes = data.draw(st.lists(st.integers(0, 2), min_size=len(drawn), max_size=len(drawn)))
    table, pieces = pieces_of(*[(kind, s, s + d) for kind, s, d in drawn], lanes=lanes)
    lanes = np.array(lanes)
    assert (pieces.end_ns >= pieces.start_ns).all()
    assert set(pieces.span.tolist()) == set(range(len(table)))
    assert int(pieces.first.sum()) == len(table)
    for lane in range(3):
        for instant in range(91):
            covering = (
                (table["start_ns"] <= instant) & (instant < table["end_ns"]) & (lanes == lane)
            )
            there = (pieces.start_ns <= instant) & (instant < pieces.end_ns) & (pieces.lane == lane)
            assert there.sum() == bool(covering.any())
            if covering.any():
                latest = table["start_ns"][covering].max()
                assert table["start_ns"][pieces.span[there][0]] == latest
