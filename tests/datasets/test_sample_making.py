from __future__ import annotations

import threading

import numpy as np
import pytest

from iobench.datasets.contract import as_decoded
from iobench.datasets.sample_making import samples_in_order
from iobench.errors import FileFormatError, SampleError
from iobench.samples import SampleSpec, StackedSamples, Variable
from iobench.testing import MadeUpDataset, random_sample

SPEC = SampleSpec((Variable("x", (3,), "f4", ("x",)),))
NUMBERS = [7, 0, 3, 3, 9]
pytestmark = pytest.mark.timeout(60)


class Watched(MadeUpDataset):
    """Counts the samples that were begun, and the threads that did it."""

    def __init__(self, *, thread_safe=True, bad=None):
        super().__init__(SPEC)
        self.thread_safe, self.bad = thread_safe, bad
        self.begun, self.threads = [], set()

    def read(self, where):
        if where == self.bad:
            raise FileFormatError(f"sample {where} is damaged")
        self.begun.append(where)
        self.threads.add(threading.current_thread().name)
        return super().read(where)


class Grouped(MadeUpDataset):
    """Samples that are made three at a time, by jobs of their own."""

    def __init__(self, size=3):
        super().__init__(SPEC)
        self.size, self.memory_nbytes, self.groups_read, self.jobs = size, None, [], 0

    def groups(self, where, *, memory_nbytes):
        self.memory_nbytes = memory_nbytes
        count = len(where)
        return [min(self.size, count - at) for at in range(0, count, self.size)]

    def read_group(self, where):
        self.groups_read.append(list(where))
        return list(where)

    def decode_group(self, raw, where, run):
        arrays = [None] * len(raw)

        def job(at):
            def decode():
                arrays[at] = random_sample(SPEC, raw[at])
                self.jobs += 1

            return decode

        run(job(at) for at in range(len(raw)))
        return arrays

    def group_nbytes(self, where):
        return 0, 0


def bits(samples):
    return [sample["x"].tobytes() for sample in samples]


EXPECTED = bits(random_sample(SPEC, number) for number in NUMBERS)


@pytest.mark.parametrize("workers", [1, 4])
def test_samples_come_in_the_order_asked_for(workers):
    dataset = Watched()
    made = samples_in_order(dataset, dataset.index(10), NUMBERS, workers=workers)
    assert bits(made) == EXPECTED
    assert sorted(dataset.begun) == sorted(NUMBERS)


def test_a_dataset_for_one_thread_gets_one():
    dataset = Watched(thread_safe=False)
    numbers = list(range(10)) * 10
    list(samples_in_order(dataset, dataset.index(10), numbers, workers=4))
    assert len(dataset.threads) == 1
    assert dataset.begun == numbers


@pytest.mark.parametrize("workers", [1, 4])
def test_an_error_comes_no_later_than_its_sample_would(workers):
    dataset = Watched(bad=3)
    made = samples_in_order(dataset, dataset.index(10), NUMBERS, workers=workers)
    assert bits([next(made)]) == EXPECTED[:1]
    with pytest.raises(FileFormatError, match="sample 3"):
        bits(made)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_samples_that_share_chunks_are_made_in_groups(size):
    dataset = Grouped(size)
    made = samples_in_order(dataset, dataset.index(10), NUMBERS, workers=2, memory_nbytes=12345)
    assert bits(made) == EXPECTED
    assert dataset.memory_nbytes == 12345
    if size > 1:
        assert dataset.jobs == len(NUMBERS)
        assert [len(group) for group in dataset.groups_read] == dataset.groups(
            NUMBERS, memory_nbytes=1
        )
    else:
        assert dataset.groups_read == []  # alone as always


def test_nothing_asked_for_is_nothing():
    assert list(samples_in_order(Grouped(), Grouped().index(10), [])) == []


class Stacked(Grouped):
    """Samples that are decoded side by side, and not preprocessed."""

    preprocess = as_decoded
    dtype = "f4"

    def decode_group(self, raw, where, run):
        made = [each["x"] for each in super().decode_group(raw, where, run)]
        return StackedSamples({"x": np.stack(made).astype(self.dtype)}, len(made))


class Doubled(Stacked):
    """The same, preprocessed."""

    def preprocess(self, arrays, where):
        return {"x": arrays["x"] * np.float32(2)}


@pytest.mark.parametrize("size", [1, 2, 100])
def test_samples_that_are_decoded_side_by_side_are_the_same(size):
    assert bits(samples_in_order(Stacked(size), Stacked().index(10), NUMBERS)) == EXPECTED
    doubled = list(samples_in_order(Doubled(size), Doubled().index(10), NUMBERS))
    assert bits([{"x": each["x"] / np.float32(2)} for each in doubled]) == EXPECTED


def test_samples_that_are_decoded_side_by_side_are_checked_too():
    class Wide(Stacked):
        dtype = "f8"

    with pytest.raises(SampleError, match=r"sample 7: array 'x' is <f8 \(3,\), expected <f4"):
        list(samples_in_order(Wide(), Wide().index(10), NUMBERS))


def test_samples_that_lie_side_by_side_are_taken_by_number_and_by_range():
    arrays = {"x": np.arange(12.0).reshape(4, 3), "n": np.arange(4)}
    samples = StackedSamples(arrays, 4)
    part = samples[1:3]
    assert (len(part), len(samples[::2]), samples.nbytes) == (2, 2, 12 * 8 + 4 * 8)
    for number, each in enumerate(part, 1):
        assert each["n"] == number
        assert each["x"].tolist() == arrays["x"][number].tolist()
    assert samples[-1]["n"] == 3
    with pytest.raises(IndexError):
        samples[4]
