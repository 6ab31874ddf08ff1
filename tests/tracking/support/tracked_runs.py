"""Small runs with known figures: two epochs of three batches, one worker that reads and decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.testing import FakeClock

MS = 1_000_000
WALL_NS = 1_700_000_000 * 10**9
CONFIG = {
    "dataset": "maelstrom-yr",
    "format": "tfrecord",
    "framework": "torch",
    "workers": 1,
    "prefetch": 1,
    "batch_size": 4,
    "n_samples": 12,
    "command": "iobench profile maelstrom-yr",
    "machine": {"host": "node", "cpu_model": "a CPU", "cpus": 2},
    "iobench_version": "0.1.0",
}
READ_MS = ((10, 30, 20), (40, 60, 50))
"""By epoch and batch; decoding takes 5 ms, a step 15 ms."""
DECODE_MS, STEP_MS = 5, 15


def make_run(
    path: Path, *, ranks: int = 1, n_epochs: int = 2, ended: bool = True, **more: Any
) -> Path:
    """Write a run in which each batch is made while it is waited for."""
    run = RunDirectory.create(path, {**CONFIG, **more})
    for rank in range(ranks):
        clock = FakeClock(start_ns=1000, wall_offset_ns=WALL_NS)
        with (
            run.recorder(role="consumer", rank=rank, clock=clock) as loop,
            run.recorder(role="worker", worker=0, rank=rank, clock=clock) as worker,
        ):
            at, batch = 0, 0
            for epoch in range(n_epochs):
                begun = at
                for read_ms in READ_MS[epoch % len(READ_MS)]:
                    named = {"batch": batch, "epoch": epoch}
                    worker.emit(Kind.SUBMIT_QUEUE, at, at, **named)
                    read = at + read_ms * MS
                    worker.emit(Kind.READ, at, read, 1000, **named)
                    ready = read + DECODE_MS * MS
                    worker.emit(Kind.DECODE, read, ready, label=worker.string("grib"), **named)
                    maker = loop.string("worker-0")
                    loop.emit(Kind.WAIT, at, ready, 4000, detail=maker, **named)
                    middle, end = ready + 5 * MS, ready + STEP_MS * MS
                    loop.emit(Kind.FORWARD, ready, middle, **named)
                    loop.emit(Kind.BACKWARD, middle, end, **named)
                    at, batch = end, batch + 1
                if ended or epoch + 1 < n_epochs:
                    label = loop.string("shutdown")
                    loop.emit(Kind.WAIT, at, at + MS, epoch=epoch, label=label)
                    loop.emit(Kind.OTHER, begun, at + MS, sample=epoch, label=loop.string("round"))
                at += 2 * MS
            clock.advance(at)
    return path
