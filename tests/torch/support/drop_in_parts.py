"""Datasets, collate functions and samplers that loaders are compared with, importable by spawn."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, get_worker_info


class SchemaFault(Exception):
    """Takes more than a message, so that torch cannot make another of it."""

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Values(Dataset):
    """Samples that hold random numbers of every generator, in the process that makes them."""

    def __init__(self, n=11):
        self.n = n
        self.offset = 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {
            "index": index,
            "torch": torch.rand(2),
            "numpy": np.random.rand(2),
            "python": random.random(),
            "offset": self.offset,
        }


class ManyValues(Values):
    """Has samples taken many at once, and says what it was asked with."""

    def __getitems__(self, indices):
        assert type(indices) in (list, tuple)
        return [self[index] for index in indices]


class Plain(Dataset):
    def __init__(self, n=11):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index


class Texts(Plain):
    def __getitem__(self, index):
        return {"name": f"sample-{index}", "raw": b"x" * index}


class Staged(Plain):
    """Made by read, decode and preprocess."""

    def read(self, index):
        return bytes([index]) * 8

    def decode(self, raw):
        return np.frombuffer(raw, np.uint8)

    def preprocess(self, array, *, scale=2.0):
        return torch.from_numpy(array.astype(np.float32)) * scale

    def __getitem__(self, index):
        return self.preprocess(self.decode(self.read(index)))


class StagedInSlots(Staged):
    __slots__ = ("extra",)


class StagedMany(Staged):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """Each worker yields its share."""

    def __init__(self, n=11):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.n, step):
            yield torch.tensor([index, random.randrange(100)])


FAULTS = {
    "value": lambda: ValueError("no such value"),
    "key": lambda: KeyError("missing\nkey"),
    "schema": lambda: SchemaFault("odd", 7),
    "stop": lambda: StopIteration("early"),
    "os": lambda: OSError(2, "No such file", "there"),
}


class Faulty(Plain):
    """Fails in the method asked for, as asked for."""

    def __init__(self, fault, where="__getitem__", at=5):
        super().__init__()
        self.fault, self.where, self.at = fault, where, at

    def _fail(self, where, index):
        if where == self.where and index == self.at:
            raise FAULTS[self.fault]()

    def read(self, index):
        self._fail("read", index)
        return index

    def __getitem__(self, index):
        self._fail("__getitem__", index)
        try:
            value = self.read(index)
        except KeyError as error:
            raise RuntimeError("wrapped") from error
        return torch.tensor(value)


class FaultyStream(IterableDataset):
    def __iter__(self):
        yield 1
        yield 2
        raise ValueError("the stream broke")


def as_list(samples):
    return samples


def failing_collate(samples):
    raise ZeroDivisionError("collate failed")


def failing_start(number):
    raise LookupError(f"worker {number} cannot start")


def offset_start(number):
    """Change the dataset of the worker, as public scripts do."""
    info = get_worker_info()
    info.dataset.offset = 100 + number


class OddSampler:
    """No Sampler: yields batches of several types."""

    def __iter__(self):
        yield [0, 1]
        yield (2, 3)
        yield torch.tensor([4, 5])
        yield range(6, 8)

    def __len__(self):
        return 4


class FaultySampler:
    def __iter__(self):
        yield [0, 1]
        yield [2]
        raise ArithmeticError("the sampler broke")


class BareSubset(Subset):
    """Derived without torch's constructor, so without what torch's class keeps."""

    def __init__(self, behind, indices):
        self.behind = behind
        self.numbers = indices

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return self.behind[self.numbers[index]]

    __getitems__ = None


class BareConcat(ConcatDataset):
    def __init__(self, behind):
        self.behind = behind

    def __len__(self):
        return len(self.behind)

    def __getitem__(self, index):
        return self.behind[index]


class ShySampler:
    """Batches whose size must not be asked for."""

    @property
    def batch_size(self):
        raise RuntimeError("these batches differ in size")

    def __iter__(self):
        return iter([[1, 2], [3]])


class Replaced(Plain):
    """Has a method that the start of a worker replaces on the class."""

    def read(self, index):
        return torch.tensor(index)

    def __getitem__(self, index):
        return self.read(index)


def replace_read(number):
    Replaced.read = lambda self, index: torch.tensor(-index)
