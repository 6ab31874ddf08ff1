from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.stores.sample_numbers import SampleNumbers, count_runs

RUNS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=8)


def expanded(runs):
    return [first + step for first, count in runs for step in range(count)]


@given(RUNS)
def test_numbers_are_those_of_the_runs(runs):
    numbers = SampleNumbers(runs)
    expected = expanded(runs)
    assert list(numbers) == expected
    assert len(numbers) == len(expected)
    assert [numbers[at] for at in range(len(expected))] == expected
    assert [numbers[at - len(expected)] for at in range(len(expected))] == expected
    assert numbers == expected
    assert tuple(expected) == numbers
    assert numbers[1:-1:2] == tuple(expected[1:-1:2])
    assert expanded(count_runs(numbers)) == expected
    assert list(count_runs(numbers)) == list(count_runs(expected))
    assert pickle.loads(pickle.dumps(numbers)) == numbers


@given(RUNS, st.lists(st.integers(0, 30), max_size=8))
def test_equal_means_the_same_numbers(runs, others):
    numbers = SampleNumbers(runs)
    assert (numbers == others) is (expanded(runs) == others)
    assert (numbers == SampleNumbers((one, 1) for one in others)) is (expanded(runs) == others)


@pytest.mark.parametrize("index", [3, -4])
def test_nothing_beyond_the_ends(index):
    with pytest.raises(IndexError, match="there are 3"):
        SampleNumbers([(5, 3)])[index]


def test_a_text_is_no_sequence_of_numbers():
    assert SampleNumbers([]) != ""
    assert SampleNumbers([]) != 5


def test_many_numbers_take_no_memory():
    numbers = SampleNumbers([(0, 1 << 59), (7, 1 << 59)])
    assert len(numbers) == 1 << 60
    assert numbers[1 << 59] == 7
    assert numbers[-1] == 6 + (1 << 59)
    assert numbers == SampleNumbers([(0, 1 << 59), (7, 1 << 59)])
