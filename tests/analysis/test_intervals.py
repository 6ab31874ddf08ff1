"""Ratios with intervals: what they promise, on numbers drawn from seeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analysis.intervals import (
    LEAST_ROUNDS,
    STUDENT,
    Blocks,
    StepSums,
    add_ranks,
    block_ratio,
    blocks_of,
    difference,
    n_blocks_of,
    paired_ratio,
    quotient,
    round_ratio,
    student,
    turns_of,
)

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
TIMES = st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=12)


def cells(values: object, n_steps: int = 1) -> Blocks:
    amounts = np.array(values, dtype=np.float64)
    return Blocks(amounts, np.full(len(amounts), float(n_steps)))


@given(TIMES, TIMES, st.floats(0.01, 100))
def test_a_run_is_itself_swapping_inverts_and_a_common_factor_is_the_ratio(a, b, factor):
    itself = block_ratio(cells(a), cells(a))
    assert (itself.value, itself.differs) == (1, False)
    there, back = block_ratio(cells(a), cells(b)), block_ratio(cells(b), cells(a))
    assert back.value == pytest.approx(1 / there.value)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low), rel=1e-6)
    paired = paired_ratio(cells(a), cells([factor * value for value in a]))
    assert (paired.value, paired.low, paired.high) == pytest.approx((factor, factor, factor))


def test_what_affects_both_alike_is_in_no_paired_interval():
    weather = np.array([1.0, 5.0, 1.0, 1.2, 9.0, 1.1, 1.0, 2.0])
    a, b = cells(weather), cells(1.1 * weather + np.array([0.01, -0.01] * 4))
    paired, apart = paired_ratio(a, b), block_ratio(a, b)
    assert paired.value == apart.value == pytest.approx(1.1)
    assert (paired.differs, apart.differs) == (True, False)


def test_what_is_unknown():
    assert block_ratio(cells([0, 0]), cells([1, 2])).value is None
    assert block_ratio(cells([1, 2]), cells([0, 0])).value is None
    assert block_ratio(cells([]), cells([1, 2])).value is None
    short = block_ratio(cells([2]), cells([3, 3]))
    assert (short.value, short.low, short.high, short.differs) == (1.5, None, None, None)
    with pytest.raises(ValueError, match="equally many blocks"):
        paired_ratio(cells([1, 2]), cells([1]))
    with pytest.raises(ValueError, match="equally many times above 0"):
        round_ratio([1.0], [1.0], [])


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12))
def test_few_rounds_have_no_interval(times):
    found = round_ratio([1.0] * len(times), times, times)
    # No further off than noise.
    assert found.is_noise is (None if len(times) < LEAST_ROUNDS else True)
    assert (found.change.low is None) == (len(times) < LEAST_ROUNDS)


def test_rounds_hold_the_true_ratio():
    rng = np.random.default_rng(3)
    held = dict.fromkeys((6, 7, 12, 25), 0)
    for n in held:
        for _ in range(400):
            drift, pause = rng.uniform(0.5, 2, n), 1 + 2 * (rng.random((2, n)) < 0.05)
            a, b = drift * pause * np.exp(0.02 * rng.standard_normal((2, n)))
            found = round_ratio(a.tolist(), (1.1 * b).tolist(), a.tolist())
            held[n] += found.change.low <= 1.1 <= found.change.high
    assert min(held.values()) >= 0.95 * 400 - 13  # three standard errors of 400 draws


def test_students_t():
    assert (student(0.4), student(1), student(7.9), student(1e6)) == (
        STUDENT[0], STUDENT[0], STUDENT[6], STUDENT[29],
    )  # fmt: skip
    assert (n_blocks_of(47), n_blocks_of(48), n_blocks_of(96)) == (1, 6, 8)


def smooth(rng: np.random.Generator, n_steps: int) -> Floats:
    """Return log-normal steps whose neighbours depend on each other."""
    steps, before = np.empty(n_steps), rng.standard_normal()
    for at, noise in enumerate((rng.standard_normal(n_steps) * 0.8).tolist()):
        before = 0.6 * before + noise
        steps[at] = before
    return np.exp(0.5 * steps)


def test_intervals_hold_the_truth_and_are_no_wider_than_needed():
    rng = np.random.default_rng(20261122)
    pairs = [(blocks_of(smooth(rng, 200)), blocks_of(1.5 * smooth(rng, 200))) for _ in range(300)]
    mean = np.exp(0.5**2 / 2)  # of log-normal steps whose logarithm has a deviation of 0.5
    # 95 % is promised; 300 runs say it to 2.5 %, and dependent steps take a little off.
    for true, intervals in (
        (1.5, [block_ratio(a, b) for a, b in pairs]),
        (0.5 * mean, [difference(a, b) for a, b in pairs]),
        (mean, [quotient(a) for a, _ in pairs]),
    ):
        assert np.mean([each.low <= true <= each.high for each in intervals]) >= 0.9
    assert np.mean([block_ratio(a, b).differs for a, b in pairs]) > 0.75


def turns(starts: list[int], *, boot: str = "one", length: int = 10) -> StepSums:
    start_ns = np.array(starts)
    rounds = {"batches": np.arange(1.0, len(starts) + 1)}
    return StepSums({"batches": np.ones(1)}, rounds, start_ns, start_ns + length, boot)


def test_rounds_that_took_turns_are_paired():
    a, b = turns([0, 40, 80, 120, 160]), turns([20, 60, 100, 140, 180, 200])
    for pair in (turns_of(a, b), turns_of(b, a)):
        assert [each.blocks["batches"].tolist() for each in pair] == [[1, 2, 3, 4, 5]] * 2
    b.rounds["batches"][1] = 0
    assert turns_of(a, b)[0].blocks["batches"].tolist() == [1, 3, 4, 5]
    many = turns([*range(0, 1000, 40)]), turns([*range(20, 1020, 40)])
    assert len(turns_of(*many)[0].blocks["batches"]) == 10


FOUR = [0, 40, 80, 120]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (turns(FOUR), turns([20, 60, 100, 140], boot="two")),
        (turns(FOUR, boot=""), turns([20, 60, 100, 140], boot="")),
        (turns(FOUR), turns([5, 60, 100, 140])),  # at once
        (turns([0, 20, 40, 60]), turns([80, 100, 120, 140])),  # one run after the other
        (turns(FOUR), turns(FOUR)),  # the same run
        (turns(FOUR), turns([20, 60, 100])),  # too few
        (turns(FOUR), turns([])),
        (turns(FOUR), StepSums({})),
    ],
)
def test_rounds_that_did_not_are_not(a, b):
    assert turns_of(a, b) is None


def test_ranks_add_up():
    shared = {"batches": np.ones(2), "wall": np.ones(2)}
    one = StepSums({**shared, "samples": np.ones(2), "busy:a": np.ones(2)}, {"wall": np.ones(1)})
    two = StepSums({**shared, "busy:b": np.ones(2)})
    both = add_ranks([one, two])
    assert (both.total("batches"), both.total("samples")) == (4, None)
    assert (both.total("busy:a"), both.total("busy:b"), both.total("loop")) == (2, 2, 2)
    assert sorted(both.stages) == ["a", "b"]
    assert add_ranks([one]).total("loop") == 2
