"""Memory is used again once nothing refers to it, never before."""

from __future__ import annotations

import pickle
import threading

import numpy as np

from iobench_maelstrom.ens10.recycling import RecycledMemory


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_it_is_free():
    memory = RecycledMemory()
    array = memory.array((3, 1000))
    array[:] = 1
    first = address(array)
    del array
    assert address(memory.array((3, 1000))) == first
    assert memory.array((1000, 3)).shape == (1000, 3)


def test_a_view_of_any_kind_keeps_it():
    memory = RecycledMemory()
    array = memory.array((3, 1000))
    for view in (array[1].reshape(10, 100)[2:, ::3], memoryview(array)[1:2], array[0].view("u4")):
        held = np.asarray(view)
        before = held.copy()
        others = [memory.array((3, 1000)) for _ in range(3)]
        for other in others:
            other[:] = 7
            assert not np.shares_memory(other, held)
        np.testing.assert_array_equal(held, before)
    first = address(array)
    del array, view, held, other, others
    found = [memory.array((3, 1000)) for _ in range(4)]
    assert first in map(address, found)


def test_another_size_is_not_mixed_up():
    memory = RecycledMemory()
    memory.array((8,))
    assert memory.array((100,)).shape == (100,)
    assert memory.array((8,)).shape == (8,)


def test_a_copy_in_a_pickle_is_empty():
    memory = RecycledMemory()
    memory.array((10_000,))
    assert len(pickle.dumps(memory)) < 200
    assert pickle.loads(pickle.dumps(memory)).array((4,)).shape == (4,)


def test_threads_never_share_an_array():
    memory = RecycledMemory()
    wrong = []

    def fill(value):
        for _ in range(300):
            array = memory.array((64,))
            array[:] = value
            if (array != value).any():
                wrong.append(value)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_sample_stays_as_it_is_while_others_are_decoded(tiny):
    dataset, where = tiny.dataset, tiny.index.where
    first = dataset.decode(dataset.read(where[0]), where[0])
    before = {name: array.copy() for name, array in first.items()}
    members = first["t2m"][1:]
    for number in (1, 2, 3):
        dataset.decode(dataset.read(where[number]), where[number])
    for name, array in first.items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    del first, array
    dataset.decode(dataset.read(where[1]), where[1])
    np.testing.assert_array_equal(members, before["t2m"][1:])
