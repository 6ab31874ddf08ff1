"""tf.data's batches under a profile: the same batches, and its operations apart."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="its pipelines are what is loaded")
import tensorflow as tf

from iobench.analysis.run import exposure
from iobench.datasets.contract import SamplePasses
from iobench.errors import WorkerError
from iobench.loaders.contract import IN_THREADS
from iobench.loaders.measure import Compute, MeasuredPipeline, measure
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.runs.reading import open_profile
from iobench.samples import SampleSpec, Variable
from iobench.tensorflow.measured_pipelines import TFPipelineLoader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)
N, SIZE = 40, 4
SPEC = SampleSpec((Variable("x", (3,), "<f4", ("x",)),))
COSTS = {"light_ns": 300, "full_ns": 900}


def passes(error: bool = False) -> SamplePasses:
    def items(epoch: int) -> Iterator[Any]:
        if error and epoch:
            raise ValueError("no second pass")
        data = tf.data.Dataset.range(N).map(lambda n: tf.fill((3,), tf.cast(n + epoch, tf.float32)))
        return ({"x": batch} for batch in data.batch(SIZE).prefetch(2).as_numpy_iterator())

    return SamplePasses(SPEC, items, N, batched=True, framework="tensorflow")


def test_its_operations_are_told_apart_and_its_waits_explained(tmp_path: Path) -> None:
    config = {"workers": 0, "prefetch": 0, "batch_size": SIZE, "unit_costs": dict(COSTS)}
    directory = RunDirectory.create(tmp_path / "run", config)
    with (
        directory.recorder(role="consumer") as recorder,
        TFPipelineLoader(passes(), SIZE, recorder=recorder) as loader,
    ):
        plan = BatchPlan(plan_batches(N, SIZE), limit=60)
        compute = Compute(forward_ns=0, backward_ns=0, source="none")
        measure(
            [
                MeasuredPipeline(
                    "tf", loader, plan, recorder, compute, after_round=loader.after_round
                )
            ]
        )
    profile = open_profile(directory.path)
    spans = profile.spans
    labels = {
        (Kind(kind), profile.strings[label])
        for kind, label in zip(spans["kind"].tolist(), spans["label"].tolist(), strict=True)
    }
    assert {(Kind.PREPROCESS, "Range"), (Kind.PREPROCESS, "Fill"), (Kind.OPEN, "pipeline")} < labels
    assert not (spans["kind"] == Kind.FUSED).any()
    explained = np.isin(spans["kind"], (Kind.PREPROCESS, Kind.COLLATE, Kind.OPAQUE))
    assert set(range(60)) <= set(spans["batch"][explained].tolist())
    whole = exposure(profile).whole
    assert sum(stage.exposed_ns for stage in whole.stages) == whole.wait_ns
    # A new pipeline for each of the six passes, and the loop has to wait for it.
    (building,) = (stage for stage in whole.stages if stage.stage == "open:pipeline")
    assert building.n_spans == 6
    assert building.exposed_ns > 0


def test_batches_are_those_of_the_pipeline(tmp_path: Path) -> None:
    with (
        RunDirectory.create(tmp_path / "run", {}).recorder(role="consumer") as recorder,
        TFPipelineLoader(passes(), SIZE, recorder=recorder) as loader,
    ):
        plan = plan_batches(N, SIZE)
        found = [*loader.batches(itertools.islice(plan, 7))]
        loader.after_round()
        found += loader.batches(itertools.islice(plan, 7))
    assert [batch.planned.batch for batch in found] == [*range(14)]
    assert {batch.worker for batch in found} == {IN_THREADS}
    numbers = [value for batch in found for value in batch.arrays["x"][:, 2].tolist()]
    assert numbers == [*range(40), *range(1, 17)]


def test_what_its_making_raises_is_told(tmp_path: Path) -> None:
    with (
        RunDirectory.create(tmp_path / "run", {}).recorder(role="consumer") as recorder,
        TFPipelineLoader(passes(error=True), SIZE, recorder=recorder) as loader,
        pytest.raises(WorkerError, match="no second pass"),
    ):
        list(loader.batches(itertools.islice(plan_batches(N, SIZE), 11)))


def test_loops_that_take_turns_are_each_seen(tmp_path: Path) -> None:
    runs = [RunDirectory.create(tmp_path / name, {}) for name in "ab"]
    with (
        runs[0].recorder(role="consumer") as first,
        runs[1].recorder(role="consumer") as second,
        TFPipelineLoader(passes(), SIZE, recorder=first) as one,
        TFPipelineLoader(passes(), SIZE, recorder=second) as other,
    ):
        plans = [plan_batches(N, SIZE) for _ in runs]
        for _ in range(3):
            for loader, plan in zip((one, other), plans, strict=True):  # over the end of a pass
                assert sum(1 for _ in loader.batches(itertools.islice(plan, 12))) == 12
                loader.after_round()
    for run in runs:
        spans = open_profile(run.path).spans
        traced = {*spans["batch"][spans["kind"] == Kind.PREPROCESS].tolist()}
        assert {number // 12 for number in traced if number >= 0} == {0, 1, 2}
