from __future__ import annotations

import threading

import numpy as np
import pytest
from converting import convert

from iobench.datasets.sample_making import Maker
from iobench.errors import OptionError, SampleError
from iobench.samples import SampleSpec, Variable
from iobench.stores.tally import Tally
from iobench.testing import MadeUpDataset, random_sample
from iobench_converters import numpy_records

SMALL = SampleSpec((Variable("x", (3, 5), "f4", ("y", "x")), Variable("t", (), "i4", ())))
LARGE = SampleSpec((Variable("x", (256, 256), "f4", ("y", "x")),))

pytestmark = pytest.mark.timeout(90)


def assert_same_bits(found, expected):
    assert {k: v.tobytes() for k, v in found.items()} == {
        k: v.tobytes() for k, v in expected.items()
    }


def made(dataset, numbers, *, workers=2, memory_nbytes=64 << 20, tally=None):
    index = dataset.index(max(numbers) + 1)
    maker = Maker(
        dataset, index, workers=workers, memory_nbytes=memory_nbytes, tally=tally or Tally()
    )
    try:
        yield from maker.batches(numbers)
    finally:
        maker.close()


@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("workers", [1, 3])
def test_samples_come_in_order(spec, workers):
    numbers = [7, 3, 3, *range(40), 1]
    batches = list(made(MadeUpDataset(spec), numbers, workers=workers))
    samples = [sample for batch in batches for sample in batch]
    for number, sample in zip(numbers, samples, strict=True):
        assert_same_bits(sample, random_sample(spec, number))
    assert len(batches[0]) == 1  # what a probe of slow samples takes at least


def test_small_samples_are_made_many_at_a_time():
    batches = list(made(MadeUpDataset(SMALL), range(3000)))
    assert max(map(len, batches)) > 8


@pytest.mark.parametrize("memory_mib", [0, 1, 2, 4, 8])
def test_no_more_is_made_ahead_than_the_memory_takes(memory_mib):
    started, release, overtaken = [], threading.Event(), threading.Event()

    class Slow(MadeUpDataset):
        def read(self, where):
            started.append(where)
            if where == 1:
                release.wait(20)  # all others that may overtake it
            if len(started) == 40:
                overtaken.set()
            return super().read(where)

    nbytes = memory_mib << 20
    batches = made(Slow(LARGE), range(40), workers=2, memory_nbytes=nbytes)
    assert len(next(batches)) == 1
    assert not overtaken.is_set()
    assert len(started) <= max(1, nbytes // LARGE.nbytes)
    release.set()
    assert sum(map(len, batches)) == 39


def test_stages_are_tallied():
    tally = Tally()
    for _ in made(MadeUpDataset(SMALL), range(10), tally=tally):
        pass
    assert list(tally.seconds) == ["read", "decode", "preprocess"]
    assert tally.nbytes == {
        "read": 80, "decode": 10 * SMALL.nbytes, "preprocess": 10 * SMALL.nbytes
    }  # fmt: skip


def test_a_sample_that_fails_ends_it_with_what_was_wrong():
    class Wrong(MadeUpDataset):
        def preprocess(self, arrays, where):
            return {**arrays, "t": np.float64(1)}

    with pytest.raises(SampleError, match="made-up sample 4: array 't'"):
        list(made(Wrong(SMALL), [4, 5]))


class Grouped(MadeUpDataset):
    """Groups of three that are decoded together, one job a sample."""

    smallest_nbytes = 1 << 10

    def __init__(self, spec, *, fails=False):
        super().__init__(spec)
        self.read_groups, self.fails, self.threads = [], fails, set()

    def groups(self, where, *, memory_nbytes):
        if memory_nbytes < self.smallest_nbytes:
            raise OptionError(f"a chunk does not fit; --memory {self.smallest_nbytes} works")
        counts = [3] * (len(where) // 3)
        return counts + [len(where) % 3] * (len(where) % 3 > 0)

    def read_group(self, where):
        self.read_groups.append(list(where))
        return [int(number).to_bytes(8, "little") for number in where]

    def decode_group(self, raw, where, run):
        found = {}

        def job(position):
            self.threads.add(threading.get_ident())
            if self.fails and position == 1:
                raise SampleError("chunk 1 is corrupt")
            found[position] = self.decode([raw[position]], where[position])

        run(lambda position=position: job(position) for position in range(len(raw)))
        return [found[position] for position in range(len(raw))]

    def group_nbytes(self, where):
        return 8 * len(where), self.spec.nbytes * len(where)


@pytest.mark.parametrize("spec", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("workers", [1, 2])
def test_samples_that_share_chunks_are_made_in_groups(spec, workers):
    dataset = Grouped(spec)
    samples = [sample for batch in made(dataset, range(8), workers=workers) for sample in batch]
    for number, sample in enumerate(samples):
        assert_same_bits(sample, random_sample(spec, number))
    assert dataset.read_groups == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert len(dataset.threads) <= workers


def test_the_next_group_is_made_while_one_is_written_and_no_more():
    dataset = Grouped(LARGE)
    batches = made(dataset, range(12))
    next(batches)
    batches.close()  # after what is at work
    assert 1 <= len(dataset.read_groups) <= 2


def test_groups_are_those_of_a_shard(tmp_path):
    dataset = Grouped(SMALL)
    store = convert(
        dataset, dataset.index(8), numpy_records.FORMAT, tmp_path / "store",
        shard_nbytes=4 * SMALL.nbytes,
    )  # fmt: skip
    assert dataset.read_groups == [[0, 1, 2], [3], [4, 5, 6], [7]]
    for number in range(8):
        assert_same_bits(store[number], random_sample(SMALL, number))


def test_a_job_that_fails_ends_the_conversion():
    with pytest.raises(SampleError, match="chunk 1 is corrupt"):
        list(made(Grouped(SMALL, fails=True), range(8)))


def test_a_chunk_that_does_not_fit_is_refused_before_anything_is_read(tmp_path):
    dataset = Grouped(SMALL)
    with pytest.raises(OptionError, match="--memory 1024 works"):
        convert(
            dataset, dataset.index(8), numpy_records.FORMAT, tmp_path / "store", memory_nbytes=1000
        )
    assert dataset.read_groups == []
