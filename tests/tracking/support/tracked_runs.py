"""Small runs with known figures: two epochs of three batches, one worker that reads and decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import SketchedRun

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
    run = SketchedRun({**CONFIG, **more})
    for rank in range(ranks):
        loop, worker = ("consumer", -1, rank), ("worker", 0, rank)
        at, batch = 0, 0
        for epoch in range(n_epochs):
            begun = at
            for read_ms in READ_MS[epoch % len(READ_MS)]:
                of = {"batch": batch, "epoch": epoch}
                read = at + read_ms * MS
                ready = read + DECODE_MS * MS
                run.add(worker, Kind.SUBMIT_QUEUE, at, at, **of)
                run.add(worker, Kind.READ, at, read, nbytes=1000, **of)
                run.add(worker, Kind.DECODE, read, ready, label="grib", **of)
                run.wait(batch, at, ready, "worker-0", lane=loop, nbytes=4000, epoch=epoch)
                step = {Kind.FORWARD: 5 * MS, Kind.BACKWARD: (STEP_MS - 5) * MS}
                at, batch = run.work(loop, ready, step, **of), batch + 1
            if ended or epoch + 1 < n_epochs:
                run.add(loop, Kind.WAIT, at, at + MS, epoch=epoch, label="shutdown")
                run.round(begun, at + MS, epoch, loop)
            at += 2 * MS
        anchors = tuple(Anchor(time, WALL_NS + time) for time in (1000, 1000 + at))
        run.processes |= {lane: {"rank": rank, "anchors": anchors} for lane in (loop, worker)}
    run.write(path)
    return path
