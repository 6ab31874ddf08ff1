"""Sources and transforms that processes of the ring can import."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import numpy as np

from iobench.errors import SampleError
from iobench.loaders.contract import BatchSource
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec, Variable

SPEC = SampleSpec(
    (
        Variable("field", (3, 5), "<f4", ("y", "x"), "K"),
        Variable("number", (), "<i8", (), role="target"),
    )
)


@dataclass(frozen=True)
class NumberSource(BatchSource):
    """Samples that tell their number; one of them may fail, or kill its process."""

    n_samples: int = 50
    broken: int = -1
    deadly: int = -1
    spec: SampleSpec = SPEC

    def __len__(self):
        return self.n_samples

    def filler(self):
        return NumberReader(self)


@dataclass(frozen=True)
class NumberReader:
    source: NumberSource

    def fill(self, samples, rows, log):
        start_ns = log.now_ns()
        for row, sample in enumerate(samples.tolist()):
            if sample == self.source.broken:
                raise SampleError(f"sample {sample} is broken")
            if sample == self.source.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            rows["field"][row] = sample + np.arange(15).reshape(3, 5) / 16
            rows["number"][row] = sample
        log.add(Kind.READ, start_ns, log.now_ns())

    def close(self):
        pass


def in_place(batch):
    batch["field"] += 1
    return batch


class OwnError(Exception):
    def __init__(self, number, *, told):
        super().__init__(f"number {number}: {told}")


def failing(batch):
    if 9 in batch["number"]:
        raise ZeroDivisionError("nine")
    return batch


def failing_oddly(batch):
    if 9 in batch["number"]:
        raise OwnError(3, told="cannot be pickled")
    return batch


def forgetful(batch):
    names = ["field", "number"] if 0 in batch["number"] else ["field"]
    return {name: batch[name] for name in names}


def summed(batch):
    return {"field": batch["field"].sum(axis=0)}


def endless(batch):
    if 9 in batch["number"]:
        threading.Event().wait()
    return batch


class Locked:
    """A transform that cannot be sent."""

    __call__ = staticmethod(in_place)

    def __init__(self):
        self.lock = threading.Lock()
