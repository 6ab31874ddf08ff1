"""A consumer that is killed in the middle of a round; its own process, so spawned from here."""

from __future__ import annotations

import signal
from itertools import islice

from tiny_pipeline import COSTS, tiny_pipeline

from iobench.loaders.plan import plan_batches
from iobench.loaders.workers import WorkerLoader


def consume(run_directory, method, writer):
    """Take one batch, tell the workers' pids, and wait for the end."""
    loader = WorkerLoader(
        tiny_pipeline(), 3, workers=2, run_directory=run_directory, unit_costs=COSTS,
        start_method=method,
    )  # fmt: skip
    batches = loader.batches(islice(plan_batches(12, 3), 12))
    next(batches)
    writer.send(loader.worker_pids())
    signal.pause()
