"""A consumer that is ended in the middle of a round; its own process, so spawned from here."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from itertools import islice

from tiny_pipeline import COSTS, breaking_pipeline, ring_of, tiny_pipeline

from iobench.loaders.ring.order import plan_batches
from iobench.recording.run_directory import RunDirectory


def _loader(run_directory, method, pipeline):
    return ring_of(
        pipeline, 3, workers=2, run_directory=run_directory, recorder=None, start_method=method
    )


def consume(run_directory, method, writer):
    """Take one batch, tell the workers' pids, and wait for the end with idle workers."""
    loader = _loader(run_directory, method, tiny_pipeline())
    batches = loader.batches(islice(plan_batches(12, 3), 12))
    next(batches)
    writer.send([child.pid for child in multiprocessing.active_children()])
    signal.pause()


def consume_in_vain(run_directory, method, writer, gate):
    """Tell the workers' pids and wait for batches that never come: workers stick in ``open``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run may have it ignored
    pipeline = breaking_pipeline(-1, gate=gate)
    with contextlib.suppress(KeyboardInterrupt), _loader(run_directory, method, pipeline) as loader:

        def plan():
            writer.send([child.pid for child in multiprocessing.active_children()])
            yield from islice(plan_batches(12, 3), 12)

        next(loader.batches(plan()))


def consume_torch_in_vain(run_directory, gate):
    """The same through torch, whose workers start at the first batch."""
    from iobench.torch.measured_loaders import TorchLoader

    run = RunDirectory.open(run_directory)
    with (
        run.recorder(role="consumer") as recorder,
        TorchLoader(
            breaking_pipeline(-1, gate=gate), 3, workers=2, run=run, recorder=recorder,
            unit_costs=COSTS,
        ) as loader,
    ):  # fmt: skip
        next(loader.batches(islice(plan_batches(12, 3), 12)))
