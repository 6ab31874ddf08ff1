"""What decides what a store holds: numbers of samples, probes, fingerprints of sources."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.errors import MissingFileError
from iobench.stores.plan import fingerprint, probe_samples
from iobench.stores.sample_numbers import (
    count_runs,
    numbers_of_runs,
    places_among,
    sample_numbers,
)

NUMBERS = st.lists(st.integers(0, 30), max_size=12)


@given(NUMBERS, st.lists(st.integers(0, 30), unique=True, max_size=12))
def test_runs_say_the_same_numbers_and_places_are_those_of_the_numbers(numbers, held):
    runs = count_runs(numbers)
    assert [first + step for first, count in runs for step in range(count)] == numbers
    assert list(numbers_of_runs(runs)) == list(sample_numbers(numbers)) == numbers
    expected = [held.index(each) if each in held else -1 for each in numbers]
    assert places_among(held, numbers).tolist() == expected


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


@given(st.integers(0, 500), st.integers(0, 500))
def test_probe_takes_no_sample_twice_and_leaves_no_wide_gap(n_available, n_wanted):
    chosen = probe_samples(n_available, n_wanted)
    assert len(set(chosen)) == len(chosen) == min(n_available, n_wanted)
    assert all(0 <= number < n_available for number in chosen)
    if chosen:
        assert max(np.diff(sorted([*chosen, n_available]))) <= -(-n_available // len(chosen))
    assert probe_samples(100, 8)[:4] == [0, 50, 25, 75]  # the beginning is spread as well


def test_fingerprint_sees_size_first_and_last_bytes_and_of_a_folder_names_too(tmp_path):
    file, folder = tmp_path / "a", tmp_path / "own.zarr"
    found = []
    for data in (b"a" * 300_000, b"a" * 300_001, b"b" + b"a" * 299_999, b"a" * 299_999 + b"b"):
        file.write_bytes(data)
        found.append(str(fingerprint(file)))
    assert len(set(found)) == 4
    (folder / "v").mkdir(parents=True)
    found = [fingerprint(folder)]
    for name, data in (("0", b"a"), ("1", b"a"), ("1", b"ab"), ("1", b"bb"), ("2", b"bb")):
        (folder / "v" / name).write_bytes(data)
        found.append(fingerprint(folder))
    assert [each["nbytes"] for each in found] == [0, 1, 2, 3, 3, 5]
    assert len({str(each) for each in found}) == 6
    assert found[-1] == fingerprint(folder)
    with pytest.raises(MissingFileError, match="gone"):
        fingerprint(tmp_path / "gone")
