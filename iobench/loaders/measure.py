"""The measured training loop: asks a loader for batches, computes, and records every wait.

For each batch it waits as long as a training step would take.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.errors import OptionError
from iobench.loaders.contract import IN_THREADS
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.process_io import RunQueue

if TYPE_CHECKING:
    from iobench.datasets.contract import PublishedStep
    from iobench.loaders.contract import Batch, MeasuredLoader
    from iobench.loaders.device_copies import DeviceCopies
    from iobench.loaders.ring.order import BatchPlan
    from iobench.recording.digests import DigestLog
    from iobench.recording.process_io import ProcessIo
    from iobench.recording.recorder import Recorder

ROUND_BATCHES: Final = 25
"""Batches a run gets before the next run's turn; more where filling many workers takes half."""
PROGRESS_EVERY_NS: Final = 500_000_000
"""Drawing a bar takes a millisecond or two: at every step it would be what a short step takes."""
ZEROS = bytes(1 << 15)
"""Hashing it takes some tens of microseconds."""
UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
RunProgress = Callable[["MeasuredPipeline"], None]


@dataclass(slots=True)
class MeasuredPipeline:
    """One measured pipeline."""

    name: str  # format, for progress and messages
    loader: MeasuredLoader  # where batches come from
    plan: BatchPlan  # which batches, and how many
    recorder: Recorder  # the consumer's, of this run
    compute: Compute  # what is done with a batch
    steady_limit_ns: int | None = None  # stop after this much steady state; None for no limit
    # counts reads of the consumer itself, where it loads without workers
    process_io: ProcessIo | None = None
    digests: DigestLog | None = None  # gets every batch delivered, while the accelerator computes
    # copies batches to a device which the loader has not copied there
    device: DeviceCopies | None = None
    n_batches: int = 0
    steady_ns: int = 0
    n_rounds: int = 0  # how far it has come; a round too short for a steady state counts whole
    shown_ns: int = 0  # when progress was last told


def measure(runs: Sequence[MeasuredPipeline], *, progress: RunProgress | None = None) -> None:
    """Take every run to its end; several are interleaved in rounds of `ROUND_BATCHES`."""
    # Worker processes are forked in the first round: before a stream has threads, whose locks a
    # child would inherit held.
    going = sorted(runs, key=lambda run: run.loader.workers == 0)
    while going:
        for run in going:
            n_batches = max(ROUND_BATCHES, 2 * _fill(run)) if len(runs) > 1 else None
            with activate(run.recorder):
                _one_round(run, n_batches, progress)
            run.loader.after_round()
        going = [run for run in going if not run.plan.finished]


def _fill(run: MeasuredPipeline) -> int:
    """Return the batches of a round before its steady state, as `analysis` counts them."""
    workers, prefetch = run.loader.workers, run.loader.prefetch
    return max(1, workers * prefetch) if workers else prefetch + 1


def _one_round(run: MeasuredPipeline, n_batches: int | None, progress: RunProgress | None) -> None:
    recorder, compute = run.recorder, run.compute
    run.plan.start_round()
    now_ns = recorder.clock.now_ns
    makers = {-1: recorder.string("consumer"), IN_THREADS: recorder.string("threads")}
    makers |= {number: recorder.string(f"worker-{number}") for number in range(run.loader.workers)}
    fill = _fill(run)
    if run.process_io is not None:
        run.process_io.delta()  # what this process read since was another run's, or set-up
    queue = RunQueue()
    queue.begin(now_ns())
    round_ns = requested_ns = now_ns()
    batches = run.loader.batches(run.plan.take(n_batches))
    release = recorder.string("release")
    epoch = delivered = 0
    batch: Batch | None = None
    while (following := next(batches, None)) is not None:
        # As in any loop the last batch is let go only now; giving back fresh memory takes time.
        release_ns = now_ns()
        batch = following
        delivered_ns = moved_ns = released_ns = now_ns()
        if run.device is not None:
            moved = run.device.move(batch)
            moved_ns = now_ns()
            following = batch = moved
            del moved  # the last one to hold what it was copied from was ``batch``
            delivered_ns = now_ns()
        number, epoch = batch.planned.batch, batch.planned.epoch
        nbytes = sum(array.nbytes for array in batch.arrays.values())
        maker = makers[batch.worker]
        wait_ns = requested_ns, delivered_ns
        recorder.emit(Kind.WAIT, *wait_ns, nbytes, -1, number, epoch, -1, 0, maker)
        recorder.emit(Kind.HANDOVER, release_ns, released_ns, -1, -1, number, epoch, -1, release)
        if run.device is not None:
            recorder.emit(Kind.HANDOVER, moved_ns, delivered_ns, -1, -1, number, epoch, -1, release)
        if run.process_io is not None:
            run.process_io.emit(recorder, number, epoch)
        queue.emit(recorder, number, epoch, wait_ns)
        run.n_batches += 1
        delivered += 1
        began_ns = None if run.digests is None else _note_samples(run, run.digests, batch)
        if progress is not None and delivered_ns - run.shown_ns >= PROGRESS_EVERY_NS:
            run.shown_ns = delivered_ns
            began_ns = delivered_ns if began_ns is None else began_ns
            progress(run)
        compute.run(recorder, batch, since_ns=began_ns)
        finished_ns = now_ns()
        if delivered > fill:
            run.steady_ns += finished_ns - requested_ns
        if run.steady_limit_ns is not None and run.steady_ns >= run.steady_limit_ns:
            run.plan.end()
        queue.begin(now_ns())
        requested_ns = now_ns()
    ended_ns = now_ns()
    if delivered <= fill:
        # Never steady: counted whole, or a run limited by time alone would never end.
        run.steady_ns += ended_ns - round_ns
    label = recorder.string("shutdown")
    recorder.emit(Kind.WAIT, requested_ns, ended_ns, -1, -1, -1, epoch, -1, label)
    recorder.emit(
        Kind.OTHER, round_ns, ended_ns, sample=run.n_rounds, label=recorder.string("round")
    )
    run.n_rounds += 1


def _note_samples(run: MeasuredPipeline, digests: DigestLog, batch: Batch) -> int:
    """Note the digest of a batch; return when that began.

    An accelerator would be at work meanwhile: the step's compute counts from then on.
    """
    recorder, planned = run.recorder, batch.planned
    start_ns = recorder.clock.now_ns()
    arrays = batch.arrays if run.device is None else run.device.fetch(batch.arrays)
    digests.add(planned.batch, planned.epoch, arrays, len(planned.samples))
    recorder.emit(
        Kind.OTHER, start_ns, recorder.clock.now_ns(), batch=planned.batch, epoch=planned.epoch,
        label=recorder.string("digest"),
    )  # fmt: skip
    return start_ns


# -- what the loop does with a batch ---


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
