"""The measured training loop: asks a loader for batches, computes, and records every wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from iobench.loaders.contract import IN_THREADS
from iobench.recording.activation import activate
from iobench.recording.kinds import Kind
from iobench.recording.process_io import RunQueue

if TYPE_CHECKING:
    from iobench.loaders.batch_plan import BatchPlan
    from iobench.loaders.compute import Compute
    from iobench.loaders.contract import Batch, MeasuredLoader
    from iobench.loaders.device_copies import DeviceCopies
    from iobench.recording.digests import DigestLog
    from iobench.recording.process_io import ProcessIo
    from iobench.recording.recorder import Recorder

ROUND_BATCHES: Final = 25
"""Batches a run gets before the next run's turn; more where filling many workers takes half."""
PROGRESS_EVERY_NS: Final = 500_000_000
"""Drawing a bar takes a millisecond or two: at every step it would be what a short step takes."""
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
    # called between rounds, outside the time measured: brings spooled spans home
    after_round: Callable[[], object] | None = None
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
            if run.after_round is not None:
                run.after_round()
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
    n_samples = len(planned.samples) or max(
        (len(array) for array in arrays.values() if array.ndim), default=0
    )
    digests.add(planned.batch, planned.epoch, arrays, n_samples)
    recorder.emit(
        Kind.OTHER, start_ns, recorder.clock.now_ns(), batch=planned.batch, epoch=planned.epoch,
        label=recorder.string("digest"),
    )  # fmt: skip
    return start_ns
