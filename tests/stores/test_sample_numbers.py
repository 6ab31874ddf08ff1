from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iobench.stores.sample_numbers import (
    count_runs,
    numbers_of_runs,
    places_among,
    sample_numbers,
)

NUMBERS = st.lists(st.integers(0, 30), max_size=12)


@given(NUMBERS)
def test_runs_say_the_same_numbers(numbers):
    runs = count_runs(numbers)
    assert [first + step for first, count in runs for step in range(count)] == numbers
    assert list(numbers_of_runs(runs)) == list(sample_numbers(numbers)) == numbers


@given(NUMBERS, st.lists(st.integers(0, 30), unique=True, max_size=12))
def test_places_are_those_of_the_numbers(asked, held):
    expected = [held.index(each) if each in held else -1 for each in asked]
    assert places_among(held, asked).tolist() == expected


def test_consecutive_numbers_are_a_range_and_others_eight_bytes_each():
    assert sample_numbers(range(3, 9)) == sample_numbers((3, 4, 5, 6, 7, 8)) == range(3, 9)
    assert numbers_of_runs([(7, 1 << 59)]) == range(7, 7 + (1 << 59))
    shuffled = np.random.default_rng(0).permutation(5_000_000)
    tracemalloc.start()
    found = sample_numbers(shuffled)
    chosen = sample_numbers(range(5_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.nbytes, len(chosen)) == (40_000_000, 5_000_000)
    assert peak < 50_000_000
