"""The one simulator, held against what four engines before it said of drawn pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from drawn_pipelines import drawn_job, drawn_machine, drawn_run
from scaling_runs import make_run

from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
from iobench.analysis.replay.simulated_run import Machine, Replayed, simulated
from iobench.analysis.replay.simulator import StreamShape
from iobench.findings.scaling.demand import rank_demand
from iobench.findings.scaling.job_simulation import DrawnSteps, bounded_steps, free_steps, is_free

SAID = json.loads((Path(__file__).parent / "simulated_pipelines.json").read_text())
SEEDS = range(len(SAID["alone"]))


def run_of(seed: int) -> RecordedRun:
    fields = drawn_run(seed)
    stream = fields["stream"] and StreamShape(**fields["stream"])
    return RecordedRun(**{**fields, "rule": LoaderRule(fields["rule"]), "stream": stream})


def figures(found: Replayed) -> list[int]:
    waits = int((found.waits_ns * np.arange(1, len(found.waits_ns) + 1)).sum())
    totals = found.wall_ns, found.wait_ns, found.steady_wall_ns, found.steady_wait_ns
    return [*totals, waits]


def test_where_nothing_is_short_times_are_exact() -> None:
    assert [figures(simulated(run).replayed(run)) for run in map(run_of, SEEDS)] == SAID["alone"]


def test_on_a_shared_machine_times_are_the_same_to_the_ns() -> None:
    chosen = [seed for seed in SEEDS if run_of(seed).rule is not LoaderRule.STREAM]
    for seed, said in zip(chosen, SAID["shared"], strict=True):
        run = run_of(seed)
        found = simulated(run, Machine(**drawn_machine(seed))).replayed(run)
        *totals, waits = np.subtract(figures(found), said).tolist()
        # A sum may be rounded otherwise by one ns for each of its batches.
        assert max(map(abs, totals)) <= len(run), seed
        assert abs(waits) <= len(run) ** 2, seed


def test_ranks_of_a_job_are_the_same_to_the_ns() -> None:
    for seed in SEEDS:
        how, times = drawn_job(seed)
        rule, workers, prefetch = LoaderRule(how["rule"]), how["workers"], how["prefetch"]
        demand = rank_demand([make_run(rule=rule, workers=workers, prefetch=prefetch)])
        none = np.zeros(times["read"].shape)
        steps = DrawnSteps(
            **{f"{name}_ns": values for name, values in times.items()},
            nbytes=none,
            reads=none,
        )
        free = free_steps(demand, steps)
        bounded = bounded_steps(demand, steps)
        *said, was_free = SAID["jobs"][seed]
        found = [each for of in (free, bounded) for each in (of.asked_ns[-1], of.held_ns.sum())]
        assert found == pytest.approx(said, abs=1, rel=0), seed
        assert is_free(steps, free) == bool(was_free), seed
