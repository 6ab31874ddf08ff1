"""Steps of several batches, under ``iobench run``: as a script is told, or as its optimiser steps.

Sleeps are the truth, as a least: how much longer a busy machine makes them is not asked.
"""

from __future__ import annotations

import sys

import pytest

from iobench.analysis.run import Run
from iobench.findings.compare import compare_runs
from tests.support.run_json import to_json

pytest.importorskip("torch", reason="it is torch's loader that is asked")
pytestmark = pytest.mark.timeout(240)

WGAN = """
    import sys, time
    import torch

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 240

        def __getitem__(self, i):
            time.sleep(0.001)
            return torch.zeros(16)

    if __name__ == "__main__":
        batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=2))
        for _step in range(20):
            for _critic in range(5):
                next(batches)
                time.sleep(0.004)
            next(batches)
            time.sleep(0.01)
"""
STEP_NS = (5 * 4 + 10) * 1_000_000


@pytest.mark.long
def test_a_loop_without_an_optimiser_has_steps_of_so_many_batches_or_none(script, launch, tmp_path):
    train = script(WGAN)
    given = launch(sys.executable, train, batches_per_step=6)
    (run,) = to_json([Run(given.run)])["runs"]
    exposure = Run(given.run).of_rank().exposure
    steps, time = exposure.steps, exposure.whole.step
    assert (steps.n_steps, steps.batches_per_step) == (20, 6)
    # When the last of them was over nobody knows: its batches live on with the process.
    assert time.n_steps >= 19
    assert time.min_ns >= STEP_NS
    assert run["batches"] == 120
    waited = [sum(run["waits_ns"][place : place + 6]) for place in range(0, 120, 6)]
    assert run["wait_per_step"]["n_steps"] == 20
    assert run["wait_per_step"]["max_ns"] == max(waited)

    unknown = launch(sys.executable, train, out=tmp_path / "unknown")
    (run,) = to_json([Run(unknown.run)])["runs"]
    assert run["step_batches"] is None
    assert run["wait_per_step"]["n_steps"] == run["batches"]
    for other, per in ((unknown.run, "batch"), (given.run, "step")):
        (pair,) = compare_runs([given.run, other]).comparisons
        (step,) = (each for each in pair.figures if each.figure == "step_ns")
        assert step.per == per
    assert step.values[0] >= STEP_NS
