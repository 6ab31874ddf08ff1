from __future__ import annotations

import threading

import pytest

from iobench.datasets.sample_making import samples_in_order
from iobench.errors import FileFormatError
from iobench.samples import SampleSpec, Variable
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
