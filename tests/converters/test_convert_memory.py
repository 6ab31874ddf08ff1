"""What a conversion holds at once: counted in bytes of buffers that are alive, not in memory."""

import threading
import weakref

import numpy as np
import pytest

from iobench.datasets.sample_making import HeldBytes, Maker
from iobench.samples import SampleSpec, Variable
from iobench.stores.tally import Tally
from iobench.testing import MadeUpDataset

KIB = 1 << 10
SPEC = SampleSpec((Variable("mean", (16 * KIB,), "u1", ("x",)),))
LARGE = SampleSpec((Variable("mean", (1 << 20,), "u1", ("x",)),))  # each is a task of its own
READ, DECODED, KEPT = 64 * KIB, 160 * KIB, 16 * KIB

pytestmark = pytest.mark.timeout(60)


class Ensemble(MadeUpDataset):
    """Ten fields are read and decoded for each that is kept; counts the bytes that are alive."""

    thread_safe = True

    def __init__(self, spec=SPEC):
        super().__init__(spec)
        self.alive = self.most = 0
        self.lock = threading.Lock()

    def buffer(self, nbytes):
        array = np.zeros(nbytes, np.uint8)
        self.count(nbytes)
        weakref.finalize(array, self.count, -nbytes)
        return array

    def count(self, nbytes):
        with self.lock:
            self.alive += nbytes
            self.most = max(self.most, self.alive)

    def read(self, where):
        return [self.buffer(READ)]

    def decode(self, raw, where):
        assert len(raw) == 1
        return {f"member {n}": self.buffer(DECODED // 10) for n in range(10)}

    def preprocess(self, arrays, where):
        assert len(arrays) == 10
        return {"mean": self.buffer(self.spec.nbytes)}


def most_alive(memory_nbytes, workers=4):
    dataset = Ensemble()
    index = dataset.index(60)
    maker = Maker(dataset, index, workers=workers, memory_nbytes=memory_nbytes, tally=Tally())
    try:
        for start in (0, 30):  # as shard after shard
            for samples in maker.batches(range(start, start + 30)):
                assert len(samples) >= 1
    finally:
        maker.close()
    return dataset.most


@pytest.mark.parametrize("times", [1.2, 2, 3, 5, 20])
@pytest.mark.parametrize("workers", [1, 4])
def test_what_is_alive_at_once_fits_the_memory(times, workers):
    one = READ + DECODED
    assert most_alive(int(times * one), workers) <= times * one


def test_one_sample_is_made_where_there_is_room_for_none():
    assert READ + DECODED <= most_alive(1) <= READ + DECODED + 2 * KEPT


def test_all_workers_are_used_where_there_is_room():
    together = threading.Barrier(4, timeout=20)

    class Waiting(Ensemble):
        def decode(self, raw, where):
            if self.past_the_first:
                together.wait()
            self.past_the_first = True
            return super().decode(raw, where)

        past_the_first = False

    dataset = Waiting(LARGE)
    maker = Maker(dataset, dataset.index(9), workers=4, memory_nbytes=64 << 20, tally=Tally())
    try:
        assert sum(map(len, maker.batches(range(9)))) == 9
    finally:
        maker.close()


def test_held_bytes():
    held = HeldBytes(10)
    assert (held.nbytes, held.is_learnt) == (30, False)
    held.expect(40)
    held.learn([50, 0, 20, 5], 1)
    assert (held.nbytes, held.is_learnt) == (70, True)
    held.learn([50, 100, 400], 10)  # less of each
    assert held.nbytes == 70
