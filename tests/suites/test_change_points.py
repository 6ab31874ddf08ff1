"""Changes of short series: how often chance is called one, and which are found, at which suite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iobench.analysis.intervals import (
    Blocks,
    block_ratio,
    relative_spread,
    student,
    trimmed_mean,
    trimmed_ratio,
)
from iobench.subjects.history.change_points import RATE, Series, find_changes, least_step, log_tail

if TYPE_CHECKING:
    from iobench.subjects.history.change_points import Finding

SPREAD = 0.03
"""Of suites where nothing changed."""


def found_in(values: np.ndarray) -> tuple[Finding, ...]:
    return find_changes([Series(values, np.zeros(len(values)))])[0]


def chance(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, SPREAD, shape)


@pytest.mark.long
@pytest.mark.parametrize(
    ("n_suites", "n_figures", "n_seeds"),
    [(4, 1, 600), (4, 20, 200), (5, 60, 60), (8, 1, 600), (8, 20, 100), (20, 8, 60), (60, 1, 60)],
)
def test_false_alarms_are_at_most_at_the_stated_rate(
    n_suites: int, n_figures: int, n_seeds: int
) -> None:
    alarms = 0
    for seed in range(n_seeds):
        values = chance(seed, n_figures, n_suites)
        noise = np.zeros(n_suites)
        alarms += any(find_changes([Series(each, noise) for each in values]))
    # Three standard deviations of a count of so many at the stated rate.
    assert alarms <= n_seeds * RATE + 3 * math.sqrt(n_seeds * RATE * (1 - RATE))


def test_false_alarms_of_figures_that_go_together() -> None:
    alarms = 0
    for seed in range(150):
        shared = chance(seed, 1, 7)
        values = shared + chance(1000 + seed, 12, 7) * np.linspace(0.1, 1, 12)[:, None]
        alarms += any(find_changes([Series(each, np.zeros(7)) for each in values]))
    assert alarms <= 150 * RATE + 3 * math.sqrt(150 * RATE * (1 - RATE))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("at", [2, 5, 10])
@pytest.mark.parametrize("n_figures", [1, 30])
def test_a_step_is_found_at_its_suite(at: int, n_figures: int) -> None:
    right = wrong = 0
    for seed in range(40):
        values = chance(seed, n_figures, 12)
        values[0, at:] += 10 * SPREAD
        found, *others = find_changes([Series(each, np.zeros(12)) for each in values])
        right += [(each.what, each.at) for each in found] == [("change", at)]
        wrong += any(others)
    assert right >= 34
    assert wrong <= 40 * 2 * RATE + 4


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("n_suites", "n_figures"), [(6, 1), (8, 20), (12, 1)])
def test_from_which_size_on_a_step_is_named(n_suites: int, n_figures: int) -> None:
    least = least_step(n_suites, n_figures)
    found = []
    for factor in (0.6, 1.0, 2.0):
        n = 0
        for seed in range(60):
            values = chance(seed, n_figures, n_suites)
            values[0, n_suites // 2 :] += factor * least * SPREAD
            n += bool(find_changes([Series(each, np.zeros(n_suites)) for each in values])[0])
        found.append(n / 60)
    assert found[0] < 0.5 < found[2]
    assert 0.25 < found[1] < 0.9
    assert found[2] > 0.85


def test_what_is_told_of_a_step_holds_its_size() -> None:
    held = n = 0
    for seed in range(100):
        values = chance(seed, 12)
        values[6:] += 0.4
        for each in found_in(values):
            n += 1
            held += abs(each.difference - 0.4) <= each.half
    assert n > 90
    assert held >= 0.85 * n


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ((0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0), [("change", 4), ("change", 8)]),
        ((0, 0, 0, 0, 12, 12, 12, 12, 24, 24, 24, 24), [("change", 4), ("change", 8)]),
        ((0, 0, 0, 0, 0, 15, 0, 0, 0, 0), [("outlier", 5)]),
        ((0, 0, 0, 25, 0, 0, 0, 9, 9, 9, 9, 9), [("outlier", 3), ("change", 7)]),
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 15), [("newest", 9)]),
        ((15, 0, 0, 0, 0, 0, 0, 0, 0, 0), [("first", 1)]),
        (tuple(2.0 * at for at in range(10)), [("drift", 0)]),
        ((0,) * 12, []),
    ],
)
def test_each_is_called_what_it_is(
    levels: tuple[float, ...], expected: list[tuple[str, int]]
) -> None:
    right = 0
    for seed in range(40):
        found = found_in(chance(seed, len(levels)) + SPREAD * np.array(levels))
        right += [(each.what, each.at) for each in found] == expected
    assert right >= 32


def test_counts_that_are_exact_need_no_spread() -> None:
    found = found_in(np.array([5.0, 5, 5, 6, 6, 6]))
    assert [(each.what, each.at) for each in found] == [("change", 3)]
    assert not found_in(np.full(9, 5.0))
    assert not found_in(np.array([5.0, 6, 6]))
    assert not found_in(np.zeros(0))


def test_what_repeats_do_not_know_is_no_change() -> None:
    values = np.array([1.0, 1.001, 1.0, 1.2, 1.201, 1.2])
    assert found_in(values)
    assert not find_changes([Series(values, np.full(6, 0.2))])[0]


@pytest.mark.parametrize("free", [2, 3, 6, 15, 30])
def test_chances_are_those_of_students_t(free: int) -> None:
    assert math.exp(log_tail(student(free) ** 2, free)) == pytest.approx(0.05, rel=1e-3)
    # Of two degrees of freedom it is 1 - t / sqrt(2 + t^2), here far out.
    assert math.exp(log_tail(1e12, 2)) == pytest.approx(1e-12, rel=1e-3)
    assert log_tail(0.0, free) == 0.0


def test_the_interval_of_a_spread_holds_it() -> None:
    rng = np.random.default_rng(0)
    for n in (4, 5, 10):
        told = [relative_spread((1 + rng.normal(0, 0.02, n)).tolist()) for _ in range(1000)]
        held = sum(each.low <= 0.02 <= each.high for each in told)  # type: ignore[operator]
        assert 925 <= held <= 990
    assert relative_spread([1.0, 1.1, 1.2]).low is None
    assert relative_spread([1.0]).value is None
    assert relative_spread([0.0] * 5).value is None


def test_the_ratio_of_trimmed_means_holds_what_it_is() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        a, b = (1 + rng.normal(0, 0.02, 5)).tolist(), (1.5 + rng.normal(0, 0.03, 7)).tolist()
        told = trimmed_ratio(a, b, (1, 1))
        held += told.low <= 1.5 <= told.high  # type: ignore[operator]
    assert held >= 920
    means = [trimmed_mean(each, 1).value for each in (a, b)]
    assert told.value == pytest.approx(means[1] / means[0])  # type: ignore[operator]
    back = trimmed_ratio(b, a, (1, 1))
    assert (1 / back.high, 1 / back.low) == pytest.approx((told.low, told.high))  # type: ignore[operator]
    blocks = [Blocks(np.array(each), np.ones(len(each))) for each in (a, b)]
    plain, of_blocks = trimmed_ratio(a, b, (0, 0)), block_ratio(*blocks, in_order=False)
    assert (plain.low, plain.high) == pytest.approx((of_blocks.low, of_blocks.high))
    assert trimmed_ratio([1.0], [2.0], (0, 0)).low is None
    assert trimmed_ratio([0.0, 0.0], [1.0, 1.0], (0, 0)).value is None
    # One that something else disturbed moves nothing.
    assert trimmed_mean([1.0, 1.1, 1.2, 1.1, 50.0], 1).high < 1.5  # type: ignore[operator]
