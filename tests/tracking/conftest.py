"""Small runs with known figures, and no way to real servers."""

from __future__ import annotations

import os

import pytest

from iobench.recording.kinds import Kind
from iobench.recording.span_reader import Anchor
from tests.support.sketched_runs import SketchedRun

MS = 1_000_000
WALL_NS = 1_700_000_000 * 10**9
CONFIG = {
    "dataset": "maelstrom-yr", "format": "tfrecord", "framework": "torch", "workers": 1,
    "prefetch": 1, "batch_size": 4, "n_samples": 12, "command": "iobench profile maelstrom-yr",
    "machine": {"host": "node", "cpu_model": "a CPU", "cpus": 2}, "iobench_version": "0.1.0",
}  # fmt: skip
READ_MS = ((10, 30, 20), (40, 60, 50))
"""By epoch and batch; decoding takes 5 ms, a step 15 ms."""


@pytest.fixture(autouse=True)
def nothing_of_mine(monkeypatch, tmp_path):
    """No server, token or account of whoever runs the tests; no server that is not ours."""
    for name in [*os.environ]:
        if name.startswith(("MLFLOW_", "WANDB_", "IOBENCH_", "SLURM_")):
            monkeypatch.delenv(name)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "false",
        "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_run(tmp_path):
    """Write a run of two epochs of three batches, each made by a worker while it is waited for."""

    def make(folder="run", *, ranks=1, **more):
        run = SketchedRun(CONFIG | more)
        for rank in range(ranks):
            loop, worker, at, batch = ("consumer", -1, rank), ("worker", 0, rank), 0, 0
            for epoch, reads_ms in enumerate(READ_MS):
                begun = at
                for read_ms in reads_ms:
                    of = {"batch": batch, "epoch": epoch}
                    read = at + read_ms * MS
                    ready = read + 5 * MS
                    run.add(worker, Kind.SUBMIT_QUEUE, at, at, **of)
                    run.add(worker, Kind.READ, at, read, nbytes=1000, **of)
                    run.add(worker, Kind.DECODE, read, ready, label="grib", **of)
                    run.wait(batch, at, ready, "worker-0", lane=loop, nbytes=4000, epoch=epoch)
                    step = {Kind.FORWARD: 5 * MS, Kind.BACKWARD: 10 * MS}
                    at, batch = run.work(loop, ready, step, **of), batch + 1
                run.add(loop, Kind.WAIT, at, at + MS, epoch=epoch, label="shutdown")
                run.round(begun, at + MS, epoch, loop)
                at += 2 * MS
            anchors = tuple(Anchor(time, WALL_NS + time) for time in (1000, 1000 + at))
            run.processes |= {lane: {"rank": rank, "anchors": anchors} for lane in (loop, worker)}
        run.write(tmp_path / folder)
        return tmp_path / folder

    return make
