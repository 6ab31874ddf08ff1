"""What the measured loop does with a batch: it waits as long as a training step would take."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.errors import OptionError
from iobench.recording.kinds import Kind

if TYPE_CHECKING:
    from iobench.datasets.contract import PublishedStep
    from iobench.loaders.contract import Batch
    from iobench.recording.recorder import Recorder

ZEROS = bytes(1 << 15)
"""Hashing it takes some tens of microseconds."""
UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Compute:
    """What the training loop takes for a batch besides waiting for data: its part of a step."""

    forward_ns: int
    backward_ns: int
    source: str
    batches_per_step: int = 1
    burns: bool = False
    """A thread spends the time on a CPU, as computing there does, and takes it from the workers."""

    @property
    def total_ns(self) -> int:
        """Nanoseconds for one batch."""
        return self.forward_ns + self.backward_ns

    def run(self, recorder: Recorder, batch: Batch, *, since_ns: int | None = None) -> None:
        """Spend one batch's time and record it as ``forward`` and ``backward``."""
        number, epoch = batch.planned.batch, batch.planned.epoch
        began = start = recorder.clock.now_ns() if since_ns is None else since_ns
        if self.forward_ns:
            if self.burns:
                _burn(recorder, self.forward_ns)
            else:
                recorder.clock.wait_until_ns(start + self.forward_ns)
            middle = recorder.clock.now_ns()
            recorder.emit(Kind.FORWARD, start, middle, batch=number, epoch=epoch)
            start = middle
        if self.backward_ns:
            recorder.clock.wait_until_ns(began + self.total_ns)
            end = recorder.clock.now_ns()
            recorder.emit(Kind.BACKWARD, start, end, batch=number, epoch=epoch)


def _burn(recorder: Recorder, cpu_ns: int) -> None:
    """Keep a CPU busy for so long, without Python's lock, as libraries that compute do."""
    until_ns = recorder.clock.cpu_ns() + cpu_ns
    while recorder.clock.cpu_ns() < until_ns:
        hashlib.sha256(ZEROS)


def parse_compute(
    text: str,
    published: PublishedStep | None,
    *,
    batch_size: int,
    sample_nbytes: int,
) -> Compute:
    """Return the compute stage that ``--compute`` asks for.

    A published step is scaled with the samples of a batch and, for samples of another size (a tiny
    stand-in), with their bytes; its time is spread over as many batches as were published with it.
    """
    if text == "none":
        return Compute(0, 0, "none")
    if text == "published":
        if published is None:
            return Compute(0, 0, "none published: 0 ms, give --compute 25ms to set one")
        scale = batch_size / published.batch_size / published.batches_per_step
        source = published.source
        if published.sample_nbytes and sample_nbytes != published.sample_nbytes:
            scale *= sample_nbytes / published.sample_nbytes
            source += ", scaled with the bytes of a sample"
        if batch_size != published.batch_size:
            source += f", scaled from batch {published.batch_size} to {batch_size}"
        return Compute(
            round(published.forward_ns * scale),
            round(published.backward_ns * scale),
            source,
            published.batches_per_step,
        )
    # No more digits than a clock can wait for.
    match = re.fullmatch(r"(cpu:)?(\d{1,6}(?:\.\d+)?)(us|ms|s)", text)
    if match is None:
        raise OptionError(
            f"--compute {text}: expected published, none, or a time such as 25ms or cpu:25ms"
        )
    step_ns = round(float(match[2]) * UNITS_NS[match[3]])
    return Compute(step_ns, 0, f"--compute {text}", burns=match[1] is not None)
