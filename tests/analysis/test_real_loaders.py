"""Real loaders, replayed from what they recorded: invariant 16. No time is asserted but by shares.

The wall time that a replay has to meet is of the same spans, so that a busy machine changes both.
"""

from __future__ import annotations

import numpy as np
import pytest

import iobench
from iobench.analysis.replay.replay import replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.loaders.measure import Compute, MeasuredPipeline, measure
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.planned_loaders import PlannedRing
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.samples import SampleSpec, Variable

pytestmark = pytest.mark.timeout(60)
SPEC = SampleSpec((Variable("field", (64,), "<f4", ("x",)),))
COSTS = {"light_ns": 1, "full_ns": 2, "io_ns": 1}
TOLERANCE = 0.25


def read(number):
    return np.sort(np.random.default_rng(number).random(20_000))


def preprocess(value, where):
    return {"field": value[:64].astype("<f4")}


class Work:
    """Samples that take some computing."""

    def __len__(self):
        return 48

    def __getitem__(self, number):
        with iobench.stage("read"):
            value = read(number)
        with iobench.stage("preprocess"):
            return value[:64].astype("<f4")


def loader_of(path):
    """Return the only loader of a run that was recorded, held against its replay."""
    (run,) = recorded_runs(Run(iobench.open_profile(path)).of_rank())
    assert len(run) == 48
    assert {*run.stages} >= {"read", "preprocess", "collate"}
    return run, abs(replay_error(run))


@pytest.mark.parametrize(
    ("config", "options", "rule", "tolerance"),
    [
        # Threads hold Python's lock in turns: on a busy machine some runs are 40 % off.
        ({"framework": "native", "workers": 0, "threads": 2}, {"threads": 2}, "threads", 1.0),
        ({"workers": 2, "expected_workers": ["worker-0", "worker-1"]}, {"workers": 2}, "pool",
         TOLERANCE),
        ({"workers": 0, "prefetch": 0}, {}, "serial", 0.0),
    ],
    ids=["threads", "processes with shared memory", "the loop itself"],
)  # fmt: skip
def test_a_ring(tmp_path, config, options, rule, tolerance):
    path = tmp_path / "run"
    steps = (Step(Kind.READ, "", read), Step(Kind.PREPROCESS, "", preprocess))
    source = PipelineSource(Pipeline(SPEC, list(range(48)), steps), unit_costs=COSTS)
    config = {"framework": "workers", "prefetch": 2, "batch_size": 2, **config}
    folder = {"run_directory": path} if rule == "pool" else {}
    with (
        RunDirectory.create(path, config).recorder(role="consumer") as recorder,
        PlannedRing(source, 2, recorder=recorder, **options, **folder) as loader,
    ):
        compute = Compute(forward_ns=200_000, backward_ns=0, source="test")
        plan = BatchPlan(plan_batches(48, 2), limit=48)
        measure([MeasuredPipeline("one", loader, plan, recorder, compute)])
    run, error = loader_of(path)
    assert (run.rule.value, run.workers) == (rule, sum(options.values()))
    assert error <= tolerance


@pytest.mark.long
@pytest.mark.parametrize(("workers", "rule"), [(0, "serial"), (2, "pool")])
def test_torchs_data_loader(tmp_path, workers, rule):
    pytest.importorskip("torch", reason="the extra torch is not installed")
    from iobench.torch import DataLoader

    with iobench.record(tmp_path / "run", detail="sample"):
        loader = DataLoader(Work(), batch_size=2, num_workers=workers)
        for _ in range(2):
            for _ in loader:
                np.sort(np.random.default_rng(0).random(5_000))
    run, error = loader_of(tmp_path / "run")
    assert (run.rule.value, run.workers, len(run.startup_ns)) == (rule, workers, 2)
    assert error < TOLERANCE
