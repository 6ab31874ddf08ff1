"""Rules that say what a training waits for, on 40 schedules whose truth is known.

    python tests/benchmarks/referee.py               all schedules; the table of the documentation
    python tests/benchmarks/referee.py --simulated   those in simulated time alone: seconds

*Simulated* schedules are a loader's own recurrence in integer nanoseconds. The truth of a stage is
the schedule run again. It is *right* to name a stage if 20 % off its time shorten the run by 95 %
of what 20 % off the best stage do. Its *size* is its Shapley value: by how much the run is shorter
without the stage, averaged over the orders in which stages are taken away. Where the best stage
alone gains nothing (two stages in turns), the largest sizes are right. *Real* schedules are scripts
that sleep, burn CPU, hand batches on through threads, train in ranks; they read the clock around
their own waits, run under `iobench run`, and all rules are given what it recorded. There the stages
that may be named are known by construction.

The rules: iobench's; Ray Data's (what of a batch's spans lies in the call that waited for it,
ray-project/ray#64183; its own code where `ray` has it); DFAnalyzer's (time of a stage above that of
computing, by second: ``u_time``, of all calls and of the busiest process; its own code where
`dftracer-analyzer` is installed); XProf's (the wait in proportion to the host's time by stage,
``GenerateHostResult``); TraceML's (what DataLoader's ``next()`` took, by whatever thread, of no
stage). Where a rule says that it does not know, it is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "analysis" / "support"))

from harness import print_table
from schedules import Script, epochs, epochs_of, pool, stream

from iobench.analysis.partition import leaf_pieces
from iobench.analysis.run import RankRun, Run
from iobench.recording.kinds import (
    RECEIVED,
    WORKER_KINDS,
    Kind,
    is_one_of,
    lane_keys,
    stages_of,
)
from iobench.recording.span_file import Flag
from iobench.runs.contents import RunData

MS = 1_000_000
SEEN = WORKER_KINDS | {Kind.SAMPLER, Kind.SERIALISE, Kind.PIN, Kind.UNPICKLE, Kind.H2D}
"""What a tracer that knows of stages records of loading."""
AS_GOOD = 0.95
HIDDEN = 0.05
"""Share of a run below which nothing is to be named."""
Sizes = dict[str, float]


# -- schedules in simulated time ---------------------------------------------------------------


class Factors(dict[str, float]):
    """What the time of each stage is multiplied by; of others 1."""

    def __missing__(self, stage: str) -> float:
        return 1.0


Built = Callable[[Factors], Any]
Shape = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]


def like(which: slice | NDArray[Any], *factors: float) -> Shape:
    """Return a shape: of some batches read, decode and collate take so many times as long."""

    def change(work: NDArray[Any], _: np.random.Generator) -> NDArray[Any]:
        work[which] *= factors
        return work

    return change


def jitter(work: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    return work * np.exp(0.4 * rng.normal(size=work.shape))


def tails(work: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    work[:, 0] *= np.where(rng.random(len(work)) < 0.03, rng.uniform(20, 40, len(work)), 1)
    return jitter(work, rng)


def drift(work: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    work[:, 0] *= np.linspace(1, 4, len(work))
    return jitter(work, rng)


def in_pool(
    stages: Sequence[float], step: float, workers: int, shape: Shape | None = None, n: int = 120,
    serialise: float = 0, handover: float = 0, **how: Any,
) -> Built:  # fmt: skip
    """Return a pool of workers, or a loop without any; times in ms."""

    def build(by: Factors) -> Any:
        work = np.tile(np.array(stages, float), (n, 1))
        work = work if shape is None else shape(work, np.random.default_rng(7))
        work *= [by["read"], by["decode"], by["collate"]]
        return pool(
            np.rint(work * MS).astype(int).tolist(), workers=workers, step_ns=round(step * MS),
            serialise_ns=round(serialise * by["serialise"] * MS),
            handover_ns=round(handover * by["handover"] * MS), **how,
        )  # fmt: skip

    return build


def cold_first(by: Factors) -> Any:
    rounds = [in_pool((read, 6, 2), 12, 2, n=40)(by) for read in (60, 4, 4, 4)]
    return epochs(rounds, pause_ns=3 * MS)


def in_epochs(start: float, open_files: float, **how: Any) -> Built:
    """Return epochs whose workers start, and open their files, anew or once."""

    def build(by: Factors) -> RunData:
        stages = [round(ms * by[name] * MS) for name, ms in STAGE_MS.items()]
        return epochs_of(
            epochs=4, batches=24, stages=stages, step_ns=22 * MS, end_ns=2 * MS,
            start_ns=round(start * by["startup"] * MS), open_ns=round(open_files * by["read"] * MS),
            **how,
        )  # fmt: skip

    return build


STAGE_MS = {"read": 24.0, "decode": 8.0, "collate": 2.0}


def scripted(walk: Callable[[Script, Callable[..., Any]], None]) -> Built:
    """Return a script over loaders that it makes with times in ms."""

    def build(by: Factors) -> Script:
        script = Script()

        def make(workers: int, stages: Sequence[float], **how: Any) -> Any:
            names = ("read", "decode", "collate")
            spent = [round(ms * by[n] * MS) for ms, n in zip(stages, names, strict=True)]
            return script.loader(workers, 2, spent, **how)

        walk(script, make)
        return script

    return build


def validated(script: Script, make: Callable[..., Any]) -> None:
    train = make(2, (12, 6, 2), gradients=True)
    validation = make(0, (14, 4, 1), gradients=False, name="validation")
    for _ in range(3):
        script.train(train, 24, 25 * MS)
        script.train(validation, 10, 4 * MS)


def zipped(script: Script, make: Callable[..., Any]) -> None:
    loaders = [make(1, (24, 4, 1)), make(1, (3, 9, 1))]
    for _ in range(60):
        for each in loaders:
            each.next()
        script.compute(10 * MS)
    for each in loaders:
        each.end()


def accumulated(script: Script, make: Callable[..., Any]) -> None:
    loader = make(2, (20, 10, 2))
    for number in range(90):
        loader.next()
        script.compute((60 if number % 6 == 5 else 6) * MS)
    loader.end()


def in_threads(stages: Sequence[float], step: float, n: int = 120, **how: Any) -> Built:
    """Return a thread a stage, as tf.data has them; its third stage is called preprocess."""

    def build(by: Factors) -> Any:
        names = ("read", "decode", "preprocess")
        each = [round(ms * by[name] * MS) for ms, name in zip(stages, names, strict=True)]
        items = [each] * (n * how.get("batch_size", 1))
        return stream(items, [round(step * MS)] * n, **how)

    return build


SIMULATED: dict[str, Built] = {
    "no workers": in_pool((60, 30, 10), 15, 0),
    "one worker": in_pool((60, 30, 10), 40, 1),
    "four workers": in_pool((60, 30, 10), 15, 4),
    "all hidden": in_pool((60, 30, 10), 80, 2),
    "decode takes most": in_pool((20, 70, 10), 12, 4),
    "collate takes most": in_pool((15, 10, 60), 12, 4),
    "jitter": in_pool((30, 24, 6), 17, 3, jitter),
    "rare slow reads": in_pool((8, 12, 4), 9, 3, tails),
    "rare slow reads, prefetch 4": in_pool((8, 12, 4), 9, 4, tails, prefetch=4),
    "slow reads, as they come": in_pool((8, 12, 4), 9, 3, tails, in_order=False),
    "one read of 400 ms": in_pool((20, 10, 0), 15.5, 2, like(np.array([60]), 21, 1, 1)),
    "stages in turns": in_pool((100, 100, 0), 5, 2, lambda work, _: work * TURNS[: len(work)]),
    "a slow worker": in_pool((20, 14, 2), 14, 4, like(slice(1, None, 4), 3, 1, 1)),
    "reads that grow": in_pool((10, 14, 2), 12, 3, drift),
    "every tenth decode slow": in_pool((20, 8, 2), 16, 2, like(slice(0, None, 10), 1, 9, 1)),
    "large batches pickled": in_pool((8, 6, 2), 12, 1, serialise=20),
    "slow pick-up": in_pool((8, 6, 2), 20, 1, handover=18, prefetch=1),
    "workers start each epoch": in_epochs(900, 0),
    "files opened each epoch": in_epochs(20, 500),
    "workers kept": in_epochs(900, 0, kept=True),
    "a cold first epoch": cold_first,
    "a thread a stage, 10/4/4": in_threads((10, 4, 4), 5),
    "a thread a stage, 10/9/9": in_threads((10, 9, 9), 5),
    "a thread a stage, batches": in_threads((4, 9, 2), 20, batch_size=3, batches_ahead=2),
    "a validation waits": scripted(validated),
    "two loaders zipped": scripted(zipped),
    "six batches a step": scripted(accumulated),
}
TURNS = np.tile([[1.0, 0, 0], [0, 1.0, 0]], (60, 1))


def simulated(build: Built, by: Mapping[str, float] | None = None) -> RankRun:
    """Run a schedule, with stages that take so many times as long."""
    built = build(Factors(by or {}))
    return Run(built if isinstance(built, RunData) else built.data()).of_rank()


@dataclass
class Truth:
    """What is so: waits, stages that are right to name (none: nothing is), their sizes in ns."""

    wall_ns: float
    wait_ns: float
    right: set[str]
    sizes: Sizes = field(default_factory=dict)


def truth_of(build: Built) -> Truth:
    """Run the schedule again without each set of stages, and with each 20 % shorter."""

    def wall_ns(by: Mapping[str, float]) -> int:
        return length_ns(simulated(build, by))

    usual = simulated(build)
    whole_ns, waits = length_ns(usual), usual.loop.waits
    wait_ns = int((waits["end_ns"] - waits["start_ns"]).sum())
    names = ("read", "decode", "collate", "preprocess", "serialise", "handover", "startup")
    busy_ns = trace_of(usual).busy_ns
    stages = [n for n in names if busy_ns.get(n) or wall_ns({n: 0}) < whole_ns]
    saved = {
        chosen: whole_ns - wall_ns(dict.fromkeys(chosen, 0))
        for size in range(len(stages) + 1)
        for chosen in itertools.combinations(stages, size)
    }
    sizes = dict.fromkeys(stages, 0.0)
    for order in itertools.permutations(stages):
        for place, stage in enumerate(order):
            before, after = (tuple(sorted(order[: place + n], key=names.index)) for n in (0, 1))
            sizes[stage] += (saved[after] - saved[before]) / math.factorial(len(stages))
    gains = {stage: whole_ns - wall_ns({stage: 0.8}) for stage in stages}
    judged = gains if max(gains.values()) > 0.005 * whole_ns else sizes
    right = {stage for stage, ns in judged.items() if ns >= AS_GOOD * max(judged.values())}
    return Truth(whole_ns, wait_ns, right if wait_ns > HIDDEN * whole_ns else set(), sizes)


def length_ns(rank: RankRun) -> int:
    """Return how long the training process ran."""
    own = rank.spans[rank.spans["process"] == rank.loop.process]
    own = own[is_one_of(own["kind"], {Kind.WAIT, Kind.OTHER})]
    return int(own["end_ns"].max() - own["start_ns"].min())


# -- what tools see, and what they make of it --------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What was recorded of a training process; times in ns."""

    asked: NDArray[Any]  # rows of start, end, batch: calls of loaders' ``next()``
    computed: NDArray[Any]  # rows of start, end: the loop between its waits
    work: dict[str, NDArray[Any]]  # rows of start, end, batch, process, by stage

    @property
    def wait_ns(self) -> float:
        """What all calls of ``next()`` took."""
        return float((self.asked[:, 1] - self.asked[:, 0]).sum())

    @property
    def busy_ns(self) -> Sizes:
        """The time of each stage, over all processes."""
        return {stage: float((rows[:, 1] - rows[:, 0]).sum()) for stage, rows in self.work.items()}


def trace_of(rank: RankRun) -> Trace:
    """Return what any tool could have recorded of it."""
    spans, strings = rank.spans, rank.strings
    waits = spans[spans["kind"] == Kind.WAIT]
    received = waits["label"] == (strings.index(RECEIVED) if RECEIVED in strings else -1)
    by_others = waits[(waits["flags"] & Flag.DETAIL > 0) & ~received]
    asked = by_others if len(by_others) else waits[waits["flags"] == 0]
    loop = rank.loop.waits
    seen = spans[is_one_of(spans["kind"], SEEN) & (spans["flags"] & (Flag.DETAIL | Flag.IO) == 0)]
    pieces = leaf_pieces(seen, lane_keys(seen))
    stages, number = stages_of(seen, strings)
    columns = (pieces.start_ns, pieces.end_ns, pieces.batch, seen["process"][pieces.span])
    rows = np.column_stack([column.astype(np.int64) for column in columns])
    work: dict[str, Any] = {}
    for place, (kind, _) in enumerate(stages):
        mine = rows[number[pieces.span] == place]
        work[kind.spelled] = np.concatenate((work.get(kind.spelled, mine[:0]), mine))
    return Trace(
        np.column_stack([asked[name].astype(np.int64) for name in ("start_ns", "end_ns", "batch")]),
        np.column_stack((loop["end_ns"][:-1], loop["start_ns"][1:])).astype(np.int64),
        work,
    )


Said = tuple[Sizes | None, float]
"""Sizes of stages, None of a rule without stages, and of all of the wait, in ns."""


def ours(rank: RankRun, trace: Trace) -> Said:
    whole = rank.exposure.whole
    if rank.exposure.unjoined_ns is not None:
        return {"": 0.0}, math.nan  # it says that it does not know
    sizes: Sizes = {}
    for stage, ns in whole.exposed_ns.items():
        kind = stage.partition(":")[0]
        sizes[kind] = sizes.get(kind, 0) + ns
    return sizes, whole.wait_ns


def ray_data(rank: RankRun, trace: Trace) -> Said:
    """Of each call the overlap with the spans of its batch, by stage, overlapping spans as one."""
    sizes: Sizes = {}
    for stage, rows in trace.work.items():
        of_batch: dict[int, list[tuple[int, int]]] = {}
        for start, end, batch, _ in rows.tolist():
            of_batch.setdefault(batch, []).append((start, end))
        sizes[stage] = sum(
            RAY(of_batch.get(batch, []), start, end) for start, end, batch in trace.asked.tolist()
        )
    return sizes, trace.wait_ns


def overlap_ns(spans: Iterable[tuple[int, int]], start: int, end: int) -> float:
    total, until = 0, start
    for low, high in sorted(spans):
        total += max(0, min(high, end) - max(low, until))
        until = max(until, high)
    return total


def ray_overlap(own: Any) -> Callable[[list[tuple[int, int]], int, int], float]:
    """Return the same by Ray's own code."""

    def overlap(spans: list[tuple[int, int]], start: int, end: int) -> float:
        if not spans:
            return 0
        stats = own.DatasetStats(metadata={}, parent=None)
        timings = own.BatchStageTimings()
        timings.production_wait.extend(own.TimeSpan(low / 1e9, high / 1e9) for low, high in spans)
        batch = own.Batch(own.BatchMetadata(batch_idx=0, num_rows=1, stage_timings=timings), None)
        batches = own.BatchIterator.__new__(own.BatchIterator)
        batches._stats = stats
        batches._attribute_blocked_time(batch, start / 1e9, end / 1e9)
        return 1e9 * float(stats.iter_blocked_production_wait_s.get())

    return overlap


def df_analyzer(rank: RankRun, trace: Trace, *, calls: bool) -> Said:
    """By second what a stage took above computing: of all calls, or of the busiest process."""

    def by_second(rows: NDArray[Any], process: int = 0) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], float] = {}
        for start, end, *more in rows.tolist():
            key = start // 10**9, more[1] if more else process
            found[key] = found.get(key, 0) + end - start
        return found

    computed = by_second(trace.computed)
    sizes: Sizes = {}
    for stage, rows in trace.work.items():
        layer: dict[int, list[float]] = {}
        for (second, _), spent in by_second(rows).items():
            layer.setdefault(second, []).append(spent)
        pick = sum if calls else max
        both = [(pick(spent), computed.get((at, 0), 0.0)) for at, spent in layer.items()]
        sizes[stage] = DF_ANALYZER(both)
    return sizes, trace.wait_ns


def above_computing(layer_and_compute: Sequence[tuple[float, float]]) -> float:
    return sum(max(0.0, layer - compute) for layer, compute in layer_and_compute)


def u_time(own: Any) -> Callable[[Sequence[tuple[float, float]]], float]:
    """Return the same by DFAnalyzer's own code."""
    import pandas

    def above(layer_and_compute: Sequence[tuple[float, float]]) -> float:
        layer, compute = zip(*layer_and_compute, strict=True)
        columns = {}
        for name, values in (("app", compute), ("compute", compute), ("reader", layer)):
            for metric in ("time_sum", "time_proc_max"):
                columns[f"{name}_{metric}"] = pandas.array(values, dtype="Float64")
        found = own.set_cross_layer_metrics(
            pandas.DataFrame(columns), layers=["app", "reader"],
            layer_deps={"app": None, "reader": "app"}, async_layers=["reader"],
            derived_metrics={}, is_view_process_based=False, time_boundary_layer="app",
        )  # fmt: skip
        return float(found["u_reader_time_sum"].sum())

    return above


def xprof(rank: RankRun, trace: Trace) -> Said:
    """The wait in proportion to the host's time of each stage."""
    total = sum(trace.busy_ns.values())
    share = {stage: ns / total for stage, ns in trace.busy_ns.items()}
    return {stage: trace.wait_ns * part for stage, part in share.items()}, trace.wait_ns


def traceml(rank: RankRun, trace: Trace) -> Said:
    return None, trace.wait_ns


RULES: dict[str, Callable[[RankRun, Trace], Said]] = {
    "iobench": ours,
    "Ray Data": ray_data,
    "DFAnalyzer, processes": lambda rank, trace: df_analyzer(rank, trace, calls=False),
    "DFAnalyzer, calls": lambda rank, trace: df_analyzer(rank, trace, calls=True),
    "XProf": xprof,
    "TraceML": traceml,
}
RAY, DF_ANALYZER = overlap_ns, above_computing


# -- real scripts ------------------------------------------------------------------------------


def recorded(name: str, stages: str, folder: Path) -> tuple[RankRun, Truth]:
    """Run a script under `iobench run`; return its slowest rank, and what its clock saw."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [*(ranks if name == "ranks" else []), str(Path(__file__).with_name(SCRIPTS))]
    command = ["-P", "-c", "import sys; from iobench.cli import main; sys.exit(main())", "run",
               "--no-report", "--out", "run", "--", sys.executable, "-W", "ignore"]  # fmt: skip
    subprocess.run(
        [sys.executable, *command, *script, name], cwd=folder, check=True, capture_output=True,
        timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    own = [json.loads(path.read_text()) for path in sorted(folder.glob("own-*.json"))]
    rank = Run(folder / "run").of_rank(len(own) - 1)
    return rank, Truth(own[-1]["took"], own[-1]["waited"], set(stages.split()))


SCRIPTS = "referee_scripts.py"


# -- the table ---------------------------------------------------------------------------------


@dataclass
class Score:
    """How a rule did: whether it named a right stage, and how far off it was, in points."""

    right: list[bool] = field(default_factory=list)
    size_off: list[float] = field(default_factory=list)
    wait_off: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    def add(self, said: Said, truth: Truth, wall_ns: float) -> str:
        """Judge what was said of one schedule; return it in words."""
        sizes, wait_ns = said
        if math.isnan(wait_ns):
            self.right.append(False)
            return "not known!"
        self.wait_off.append(100 * abs(wait_ns / wall_ns - truth.wait_ns / truth.wall_ns))
        if sizes is None:
            return f"{100 * wait_ns / wall_ns:.0f}"
        named = max(sizes, key=sizes.__getitem__, default="")
        named = named if wait_ns >= HIDDEN * wall_ns else ""
        self.right.append(named in (truth.right or {""}))
        if truth.right and wait_ns:
            self.sums.append(sum(sizes.values()) / wait_ns)
        if truth.sizes and truth.right:
            top = max(truth.sizes, key=truth.sizes.__getitem__)
            apart = sizes.get(top, 0) - truth.sizes[top]
            self.size_off.append(100 * abs(apart) / truth.wall_ns)
        sign = "" if self.right[-1] else "!"
        return f"{named or '-'}{sign} {100 * sizes.get(named, 0) / wall_ns:.0f}"

    def cells(self) -> list[str]:
        """Return its cells of the table."""
        none = ["-"] * 3
        of_stages = none if not self.right else [
            f"{sum(self.right)} of {len(self.right)}",
            middle_and_worst(self.size_off),
            f"{min(self.sums, default=1):.2f} to {max(self.sums, default=1):.2f}",
        ]  # fmt: skip
        return [*of_stages, middle_and_worst(self.wait_off)]


def middle_and_worst(points: Sequence[float]) -> str:
    return f"{statistics.median(points):.1f} ({max(points):.1f})" if points else "-"


def judge(
    schedules: Iterable[tuple[str, RankRun, Truth]], *, each: bool = False
) -> dict[str, Score]:
    """Let all rules say what they make of schedules."""
    scores = {name: Score() for name in RULES}
    for title, rank, truth in schedules:
        trace = trace_of(rank)
        wall_ns = rank.exposure.whole.wall_ns or truth.wall_ns
        told = [scores[name].add(rule(rank, trace), truth, wall_ns) for name, rule in RULES.items()]
        if each:
            wait = 100 * truth.wait_ns / truth.wall_ns
            right = " ".join(sorted(truth.right)) or "-"
            print(f"{title:28}{wait:5.1f} {right:16} {'  '.join(f'{t:16}' for t in told)}")
    return scores


def own_code() -> list[str]:
    """Take the code of the tools that are installed; return which, with versions."""
    global RAY, DF_ANALYZER
    found = []
    with suppress(ImportError, AttributeError):
        from ray.data._internal import stats
        from ray.data._internal.block_batching import interfaces, iter_batches

        RAY = ray_overlap(
            SimpleNamespace(**{**vars(stats), **vars(iter_batches), **vars(interfaces)})
        )
        RAY([(0, 1)], 0, 1)
        found.append(f"ray {version('ray')}")
    with suppress(ImportError):
        from dftracer.analyzer import metrics

        DF_ANALYZER = u_time(metrics)
        found.append(f"dftracer-analyzer {version('dftracer-analyzer')}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulated", action="store_true", help="no real scripts")
    parser.add_argument("--each", action="store_true", help="print what is said of each schedule")
    parser.add_argument("--only", default="", help="schedules with this in their names")
    asked = parser.parse_args()

    def schedules() -> Iterator[tuple[str, RankRun, Truth]]:
        for name, build in SIMULATED.items():
            if asked.only in name:
                yield name, simulated(build), truth_of(build)
        if not asked.simulated:
            from referee_scripts import SCHEDULES

            for name, (stages, _) in SCHEDULES.items():
                if asked.only in name:
                    with tempfile.TemporaryDirectory() as folder:
                        yield name, *recorded(name, stages, Path(folder))

    installed = own_code()
    scores = judge(schedules(), each=asked.each)
    print(f"own code of: {', '.join(installed) or 'none, all by definition'}")
    heads = ["rule", "right stage", "size of it, points off", "sum / wait", "wait, points off"]
    print_table(heads, [[name, *score.cells()] for name, score in scores.items()])
    print("points: per cent of the run; median of the schedules (worst)")
    exact = all(total == 1 for total in scores["iobench"].sums)
    return int(not exact)


if __name__ == "__main__":
    sys.exit(main())
