"""Batch buffers in shared memory."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
from pathlib import Path

import numpy as np
import psutil
import pytest
from tiny_pipeline import SPEC, decode, read

from iobench.errors import SampleError, StorageError
from iobench.loaders.slots import Slots, batch_nbytes
from iobench.samples import SampleSpec, Variable


@pytest.fixture
def slots():
    slots = Slots(SPEC, 3, 2)
    yield slots
    slots.close()


def test_arrays_have_the_batch_first_and_are_aligned(slots):
    arrays = slots.arrays(1)
    assert arrays["field"].shape == (3, 3, 4)
    assert arrays["level"].shape == (3,)
    assert all(array.ctypes.data % 64 == 0 for array in arrays.values())


def test_slots_do_not_overlap(slots):
    for slot in (0, 1):
        for array in slots.arrays(slot).values():
            array[...] = slot
    assert all((slots.arrays(0)[name] == 0).all() for name in SPEC.names)


def test_a_sample_lands_in_its_row(slots):
    assert slots.place(0, 2, decode(read(9), 9)) == SPEC.nbytes
    assert (slots.arrays(0)["field"][2] == 9).all()
    assert (slots.arrays(0)["field"][:2] == 0).all()


def test_a_sample_of_another_shape_is_refused(slots):
    with pytest.raises(SampleError, match="field"):
        slots.place(0, 0, {"field": np.zeros((3, 5), "<f4"), "level": np.int16(0)})


def test_more_than_the_free_memory_is_refused(monkeypatch):
    spec = SampleSpec((Variable("x", (1 << 20,), "<f4", ("x",)),))
    free = psutil.virtual_memory()._replace(available=batch_nbytes(spec, 2) * 3 - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(StorageError, match="--batch-size"):
        Slots(spec, 2, 3)
    Slots(spec, 2, 2).close()


@pytest.mark.parametrize("refused", ["ftruncate", "memfd_create"])
def test_memory_the_system_refuses_is_one_error_and_nothing_is_left(monkeypatch, refused):
    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    gc.collect()  # or what other tests left is closed meanwhile
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, refused, refuse)
    with pytest.raises(StorageError, match="Cannot allocate memory; take a smaller --batch-size"):
        Slots(SPEC, 3, 2)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_writes_into_them(slots, method):
    process = multiprocessing.get_context(method).Process(target=_fill, args=(slots,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert (slots.arrays(1)["field"][0] == 7).all()


def _fill(slots):
    slots.place(1, 0, decode(read(7), 7))


def test_arrays_outlive_them_and_then_everything_is_given_back():
    before = len(list(Path("/proc/self/fd").iterdir()))
    slots = Slots(SPEC, 3, 2)
    array = slots.arrays(0)["field"]
    slots.close()
    slots.close()
    array[...] = 1
    del array
    assert len(list(Path("/proc/self/fd").iterdir())) == before
