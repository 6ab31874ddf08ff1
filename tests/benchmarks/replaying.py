"""How far replay is off on real loaders: python tests/benchmarks/replaying.py.

Samples sleep in three stages, so that nothing is short. Each loader runs as it is and with one
stage half as long, in turns; each replay starts from the run of the same turn. A row is printed for
each run as it is measured; then, of each loader, the error of the unmodified replay and, of halving
each stage, which share of the steady state's time the replay predicted and which was obtained, as
medians over the turns; beside them how far the unmodified runs lie apart. At the end: how often
what was obtained lies in the interval that a report prints, and, in the last line, which
`UNSEEN_ERROR` would have held 95 % of them: the value to put in, of a machine that does nothing
else.
``--turns 5 --batches 60`` are what figures are given for; no turn is begun once a loader has had
its part of ``--minutes``. ``--simulated N`` adds N schedules of `drawn_schedules`, each against a
run of other batches; ``--no-loaders`` runs them alone.
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import iobench
from iobench.analysis.replay.changes import Change
from iobench.analysis.replay.replay import replay, replay_error
from iobench.analysis.replay.runs import recorded_runs
from iobench.analysis.run import Run
from iobench.findings.faster_stages import UNSEEN_ERROR, predicted
from iobench.loaders.measure import Compute, MeasuredPipeline, measure
from iobench.loaders.pipeline import Pipeline, Step
from iobench.loaders.planned_loaders import PlannedRing
from iobench.loaders.ring.order import BatchPlan, plan_batches
from iobench.loaders.ring.pipeline_source import PipelineSource
from iobench.loaders.stage_timer import Detail
from iobench.recording.kinds import Kind
from iobench.recording.run_directory import RunDirectory
from iobench.samples import SampleSpec, Variable

if TYPE_CHECKING:
    from iobench.analysis.replay.loader_run import LoaderRun

STAGES = ("read", "decode", "preprocess")
STAGES_MS = (12.0, 6.0, 3.0)
COSTS = {"light_ns": 1000, "full_ns": 2000, "io_ns": 2000}
SPEC = SampleSpec((Variable("field", (64, 64), "<f4", ("lat", "lon")),))
FIELD = np.ones((64, 64), "<f4")


@dataclass(frozen=True)
class Sleeping:
    """A step that takes its time."""

    seconds: float

    def __call__(self, *given: Any) -> Any:
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
        source = PipelineSource(pipeline, detail=Detail.SAMPLE, unit_costs=COSTS)
        loader = PlannedRing(
            source, 1, threads=max(-n, 0), workers=max(n, 0), recorder=recorder, run_directory=path
        )
        with loader:
            measure([MeasuredPipeline("replayed", loader, plan, recorder, compute)])


LOADERS = {
    "torch, 0 workers": (torch_run, 0),
    "torch, 1 worker": (torch_run, 1),
    "torch, 2 workers": (torch_run, 2),
    "torch, 4 workers": (torch_run, 4),
    "workers, 1 process": (own_run, 1),
    "workers, 2 processes": (own_run, 2),
    "native, 1 thread": (own_run, -1),
    "native, 2 threads": (own_run, -2),
}


def recorded(name: str, stages: Mapping[str, float], path: Path, options: Any) -> LoaderRun:
    """Return what a loader did with stages of these seconds."""
    run, n = LOADERS[name]
    run(path, n, stages, options.batches, options.step_ms / 1000)
    return recorded_runs(Run(iobench.open_profile(path)).of_rank())[0]


class Missed(NamedTuple):
    """A prediction and what was obtained, in per cent of the time of a batch.

    ``needed`` is the least error that would have let the interval hold it, as a share.
    """

    predicted: float
    obtained: float
    held: bool | None
    of_changed: float
    needed: float | None


def batch_ns(run: LoaderRun) -> Any:
    """Return what each batch of the steady state took."""
    return replay(run).judged_ns


def missed(base: LoaderRun, other: LoaderRun, stage: str) -> Missed:
    """Return what halving a stage was predicted to gain and did."""
    before = batch_ns(base)
    after = replay(base, Change(stage_factors={stage: 0.5})).judged_ns
    told, obtained = predicted(before, after), 1 - batch_ns(other).mean() / before.mean()
    held = needed = None
    if told.low is not None and told.high is not None:
        held = bool(told.low <= obtained <= told.high)
        exact = predicted(before, after, error=0.0)
        slower, faster = (1 - obtained) / (1 - exact.low), (1 - obtained) / (1 - exact.high)
        needed = float(max(0.0, slower - 1, 1 - faster))
    off = abs(after.mean() / batch_ns(other).mean() - 1)
    return Missed(100 * told.saved, 100 * obtained, held, 100 * off, needed)


def compare(name: str, stages: Mapping[str, float], options: Any, directory: Path) -> list[Missed]:
    """Print what a loader's replay predicted and what was obtained."""
    errors, means = [], []
    found: dict[str, list[Missed]] = {stage: [] for stage in stages}
    until = time.monotonic() + 60 * options.minutes / len(options.loaders)
    for turn in range(options.turns):
        if turn and time.monotonic() > until:
            break
        base = recorded(name, stages, directory / f"{turn}-base", options)
        errors.append(100 * replay_error(base))
        means.append(batch_ns(base).mean() / 1e6)
        print(f"    turn {turn}: a batch {means[-1]:.2f} ms", flush=True)
        for stage in stages if options.halve else ():
            halved = {**stages, stage: stages[stage] / 2}
            other = recorded(name, halved, directory / f"{turn}-{stage}", options)
            one = missed(base, other, stage)
            found[stage].append(one)
            print(
                f"    turn {turn}: halving {stage:10s} predicted {one.predicted:5.1f} %, "
                f"obtained {one.obtained:5.1f} %",
                flush=True,
            )
    print(
        f"{name:22s} a batch {statistics.median(means):6.2f} ms ({min(means):.2f} to "
        f"{max(means):.2f}); replay error {statistics.median(errors):+.2f} % "
        f"({min(errors):+.2f} to {max(errors):+.2f})",
        flush=True,
    )
    for stage, each in found.items():
        if each:
            told, obtained = (statistics.median(one[place] for one in each) for place in (0, 1))
            print(
                f"    halving {stage:10s} predicted {told:5.1f} %, obtained {obtained:5.1f} % "
                f"({min(one.obtained for one in each):.1f} to "
                f"{max(one.obtained for one in each):.1f})"
            )
    return [one for each in found.values() for one in each]


def print_missed(found: list[Missed]) -> None:
    """Print how often intervals held, how far predictions missed, and what error holds them."""
    told = [each.held for each in found if each.held is not None]
    off = [each.of_changed for each in found]
    print(
        f"{len(found)} predictions: {sum(told)} of {len(told)} intervals hold what was obtained; "
        f"of the changed run's time they miss {np.median(off):.1f} % in the median, "
        f"{np.percentile(off, 90):.1f} % at most in nine of ten"
    )
    needed = [each.needed for each in found if each.needed is not None]
    if not needed:
        print("too few batches for an interval: no UNSEEN_ERROR follows")
        return
    print(
        f"UNSEEN_ERROR = {np.percentile(needed, 95):.3f} holds 95 % of {len(needed)} predictions; "
        f"now {UNSEEN_ERROR}"
    )


def simulated(number: int) -> None:
    """Print how often the intervals hold what another run of simulated schedules obtains."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "analysis" / "support"))
    from drawn_schedules import SHAPES, STAGES, held

    changes = [*((stage,) for stage in STAGES), STAGES[1:3], STAGES]
    for n_batches in (60, 120, 400):
        found = [one for seed in range(number) for one in held(seed, changes, n_batches=n_batches)]
        for shape in (*SHAPES, ""):
            of_shape = [one for one in found if shape in ("", one.shape)]
            mine = [one for one in of_shape if one.predicted.low is not None]
            if not mine:
                print(f"{n_batches:4} batches, {shape or 'all':12} {len(of_shape):4} told nothing")
                continue
            same = [one.same.low <= 1 - one.obtained <= one.same.high for one in mine]
            width = [100 * (one.predicted.high - one.predicted.low) / 2 for one in mine]
            off = [100 * abs(one.predicted.saved - one.obtained) for one in mine]
            print(
                f"{n_batches:4} batches, {shape or 'all':12} {sum(one.holds for one in mine):4} of "
                f"{len(mine):4} hold ({sum(same)} batch by batch); half a width "
                f"{np.median(width):5.1f} %, off by {np.median(off):4.1f} % (median), "
                f"{np.percentile(off, 90):4.1f} % in nine of ten; "
                f"{len(of_shape) - len(mine)} told nothing",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--loaders", nargs="*", default=list(LOADERS), metavar="LOADER")
    parser.add_argument("--no-halving", dest="halve", action="store_false")
    parser.add_argument("--stages-ms", type=float, nargs=3, default=list(STAGES_MS))
    parser.add_argument("--simulated", type=int, default=0)
    parser.add_argument("--no-loaders", dest="loaders", action="store_const", const=[])
    options = parser.parse_args()
    stages = {name: ms / 1000 for name, ms in zip(STAGES, options.stages_ms, strict=True)}
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for number, name in enumerate(options.loaders):
            found += compare(name, stages, options, Path(directory) / str(number))
    if options.simulated:
        simulated(options.simulated)
    if found:
        print_missed(found)


if __name__ == "__main__":
    sys.exit(main())
