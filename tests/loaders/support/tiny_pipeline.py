"""In-memory stand-ins for datasets: module-level, so that any start method can send them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from iobench.errors import FileFormatError
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.planned_loaders import PlannedRing
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.kinds import Kind
from iobench.samples import SampleSpec, Variable

SPEC = SampleSpec(
    (
        Variable("field", (3, 4), "<f4", ("lat", "lon")),
        Variable("level", (), "<i2", ()),
    )
)
COSTS = {"light_ns": 1, "full_ns": 2, "io_ns": 1}


def read(where):
    return [np.full(12, where, "<f4").tobytes(), np.full(1, where, "<i2").tobytes()]


def decode(raw, where):
    # Read-only, and upside down as latitudes often are: what torch does not take as it is.
    return {
        "field": np.frombuffer(raw[0], "<f4").reshape(3, 4)[::-1],
        "level": np.frombuffer(raw[1], "<i2")[0],
    }


def preprocess(arrays, where):
    return {**arrays, "level": arrays["level"] + np.int16(1)}


STEPS = (
    Step(Kind.READ, "", read),
    Step(Kind.DECODE, "", decode),
    Step(Kind.PREPROCESS, "tiny", preprocess),
)


def ring_of(pipeline, batch_size, **options):
    """Return the ring of a profile over a pipeline: threads, workers, or neither."""
    source = PipelineSource(pipeline, unit_costs={"light_ns": 0, "full_ns": 0})
    return PlannedRing(source, batch_size, **options)


def tiny_pipeline(n_samples=12, first=STEPS[0]):
    return Pipeline(SPEC, list(range(n_samples)), (first, *STEPS[1:]))


@dataclass(frozen=True)
class Breaking:
    """Reads like the others, but raises or dies at one sample."""

    at: int
    error: Exception | None = None
    signal: int = 0
    gate: Path | None = None
    forever: bool = field(default=False)

    def __call__(self, where):
        if self.gate is not None and where != self.at:
            with self.gate.open("rb"):  # a FIFO: opens when the other side does
                pass
        if where == self.at:
            if self.signal:
                os.kill(os.getpid(), self.signal)
            if self.error is not None:
                raise self.error
        return read(where)


class SchemaError(FileFormatError):
    """A plugin's own error."""


def breaking_pipeline(at, **how):
    return tiny_pipeline(first=Step(Kind.READ, "", Breaking(at, **how)))


def killed_pipeline(at):
    return breaking_pipeline(at, signal=signal.SIGKILL)
