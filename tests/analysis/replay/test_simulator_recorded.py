"""The one simulator, held against what four engines before it said of drawn pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from drawn_pipelines import drawn_machine, drawn_run

from iobench.analysis.replay.loader_run import LoaderRule, RecordedRun
from iobench.analysis.replay.simulated_run import Machine, Replayed, simulated
from iobench.analysis.replay.simulator import StreamShape

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
