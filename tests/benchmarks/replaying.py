"""How far replay is off on real loaders: python tests/benchmarks/replaying.py.

Samples sleep in three stages, so that nothing is short: what workers share is another benchmark's
(`held_out.py`). Each loader runs as it is and with one stage half as long, in turns; each replay
starts from the run of the same turn. Told are the error of the unmodified replay, and, of halving
each stage, what the replay foretold and what was measured, as medians over the turns; beside them
how far the unmodified runs lie apart. ``--turns 5 --batches 60`` are what figures are given for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import iobench
from iobench.analysis.replay import Change, RecordedRun, recorded_runs, replay, replay_error
from iobench.loaders.compute import Compute
from iobench.loaders.measure import Run, measure
from iobench.loaders.native import NativeLoader
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.plan import BatchPlan, plan_batches
from iobench.loaders.ring import PipelineSource
from iobench.loaders.stages import Detail
from iobench.loaders.workers import WorkerLoader
from iobench.recording import Kind, RunDirectory
from iobench.samples import SampleSpec, Variable

STAGES = {"read": 0.012, "decode": 0.006, "preprocess": 0.003}
COSTS = {"light_ns": 1000, "full_ns": 2000, "io_ns": 2000}
SPEC = SampleSpec((Variable("field", (64, 64), "<f4", ("lat", "lon")),))
FIELD = np.ones((64, 64), "<f4")


@dataclass(frozen=True)
class Sleeping:
    """A step that takes its time."""

    seconds: float

    def __call__(self, value: Any) -> Any:
        time.sleep(self.seconds)
        return {"field": FIELD}


class SleepingSamples:
    """A dataset of torch's shape whose samples are made by the same steps, each named."""

    def __init__(self, n_samples: int, stages: Mapping[str, float]) -> None:
        self.n_samples, self.stages = n_samples, dict(stages)

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, number: int) -> Any:
        for name, seconds in self.stages.items():
            with iobench.stage(name):
                time.sleep(seconds)
        return FIELD


def torch_run(path: Path, n: int, stages: Mapping[str, float], n_batches: int, step: float) -> None:
    """Run torch's DataLoader as a script has it."""
    import torch

    from iobench.torch import DataLoader

    torch.set_num_threads(1)
    with iobench.record(path):
        loader: Any = DataLoader(SleepingSamples(n_batches, stages), batch_size=1, num_workers=n)
        for _ in loader:
            time.sleep(step)


def own_run(path: Path, n: int, stages: Mapping[str, float], n_batches: int, step: float) -> None:
    """Run our own loader in worker processes, or with ``-n`` its ring in n threads."""
    names = {"read": Kind.READ, "decode": Kind.DECODE, "preprocess": Kind.PREPROCESS}
    steps = tuple(Step(names[name], "", Sleeping(seconds)) for name, seconds in stages.items())
    pipeline = Pipeline(SPEC, list(range(n_batches)), steps)
    config = {
        "framework": "native" if n < 0 else "workers",
        "workers": max(n, 0),
        "threads": max(-n, 0),
        "prefetch": 2,
        "batch_size": 1,
        "expected_workers": [f"worker-{number}" for number in range(n)],
    }
    directory = RunDirectory.create(path, config)
    compute = Compute(forward_ns=int(step * 1e9), backward_ns=0, source="sleep")
    plan = BatchPlan(plan_batches(n_batches, 1), limit=n_batches)
    with directory.recorder(role="consumer") as recorder:
        loader: Any
        if n < 0:
            source = PipelineSource(pipeline, detail=Detail.SAMPLE, unit_costs=COSTS)
            loader = NativeLoader(source, 1, threads=-n, recorder=recorder)
        else:
            loader = WorkerLoader(
                pipeline, 1, workers=n, run_directory=path, detail=Detail.SAMPLE, unit_costs=COSTS
            )
        with loader:
            measure([Run("replayed", loader, plan, recorder, compute)])


LOADERS = {
    "torch, 0 workers": (torch_run, 0),
    "torch, 1 worker": (torch_run, 1),
    "torch, 2 workers": (torch_run, 2),
    "workers, 1 process": (own_run, 1),
    "workers, 2 processes": (own_run, 2),
    "native, 1 thread": (own_run, -1),
    "native, 2 threads": (own_run, -2),
}


def recorded(name: str, stages: Mapping[str, float], path: Path, options: Any) -> RecordedRun:
    """Return what a loader did with stages of these seconds."""
    run, n = LOADERS[name]
    run(path, n, stages, options.batches, options.step_ms / 1000)
    return recorded_runs(iobench.open_profile(path))[0]


def compare(name: str, options: Any, directory: Path) -> None:
    """Print what a loader's replay foretold and what was measured."""
    errors, walls = [], []
    saved: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for turn in range(options.turns):
        base = recorded(name, STAGES, directory / f"{turn}-base", options)
        errors.append(100 * replay_error(base))
        walls.append(base.wall_ns / 1e6)
        for stage in STAGES if options.halve else ():
            halved = {**STAGES, stage: STAGES[stage] / 2}
            other = recorded(name, halved, directory / f"{turn}-{stage}", options)
            foretold = replay(base, Change(stage_factors={stage: 0.5})).wall_ns
            saved[stage].append(
                ((base.wall_ns - foretold) / 1e6, (base.wall_ns - other.wall_ns) / 1e6)
            )
    print(
        f"{name:22s} wall {statistics.median(walls):7.1f} ms, apart by "
        f"{max(walls) - min(walls):6.1f}; replay error {statistics.median(errors):+.2f} % "
        f"({min(errors):+.2f} to {max(errors):+.2f})",
        flush=True,
    )
    for stage, pairs in saved.items():
        if pairs:
            told = statistics.median(pair[0] for pair in pairs)
            measured = statistics.median(pair[1] for pair in pairs)
            print(f"    halving {stage:10s} foretold {told:7.1f} ms, measured {measured:7.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--loaders", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--no-halving", dest="halve", action="store_false")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for number, name in enumerate(options.loaders):
            compare(name, options, Path(directory) / str(number))


if __name__ == "__main__":
    sys.exit(main())
